//! Lost, repeated, late and dropped requests: shared objects count each once,
//! and nothing is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::redisson::Redisson as Ours;
use testkit::{Fault, Flavor, Proxy, SeededRng, Server, ServerExt};

use crate::faults::lost_replies::inject_faults;
use crate::support::redisson::{acquire, server};
use crate::support::{connect_at, eventually, run, scaled};

/// Far longer than the test, so that nothing expires.
const LEASE: Duration = Duration::from_secs(300);

const KINDS: [&str; 7] = [
    "lock",
    "fenced",
    "fair",
    "read",
    "write",
    "permits",
    "semaphore",
];

/// The permits of every semaphore.
const PERMITS: i64 = 3;

/// Acquires an object of one kind with a timeout, and releases or drops it.
async fn use_once(ours: &Ours, kind: &str, rng: &mut SeededRng) {
    let name = format!(
        "{}:{}",
        kind.replace("read", "rw").replace("write", "rw"),
        rng.below(3)
    );
    let limit = Duration::from_micros(rng.below(4000));
    let wait = Duration::from_secs(2);
    let acquiring = async {
        // Ignore errors. The test checks what is left.
        match kind {
            "semaphore" => {
                let permits = ours.semaphore(&name).acquire(2).timeout(wait).await;
                tokio::time::sleep(Duration::from_micros(200)).await;
                if let Ok(permits) = permits {
                    let _: Result<_, _> = permits.release().await;
                }
            }
            "permits" => {
                let semaphore = ours.permit_expirable_semaphore(&name);
                if let Ok(guard) = semaphore.acquire(2).timeout(wait).await {
                    let _: Result<_, _> = guard.release().await;
                }
            }
            kind => drop(acquire(ours, kind, &name, wait).await),
        }
    };
    if rng.below(2) == 0 {
        let _: Result<_, _> = tokio::time::timeout(limit, acquiring).await;
    } else {
        acquiring.await;
    }
}

/// Returns the locks that are still held, and the semaphores with missing
/// permits.
fn leftovers(server: &Server) -> Vec<String> {
    let keys = server.ask(&["KEYS", "*"]);
    let keys = keys.list().iter().map(|key| key.text().to_owned());
    keys.filter(|key| {
        let is_semaphore = key.starts_with("semaphore:") || key.starts_with("permits:");
        match is_semaphore {
            true => server.ask(&["GET", key]).int() != PERMITS,
            false => {
                !key.starts_with("redisson_unlock_latch:")
                    && !key.starts_with("redisson_lock_token:")
            }
        }
    })
    .collect()
}

#[test]
fn faults_conserve_permits_and_leave_nothing() {
    run(async {
        let server = server(&Flavor::one());
        for number in 0..3 {
            for kind in ["semaphore", "permits"] {
                server.tell(&["SET", &format!("{kind}:{number}"), &PERMITS.to_string()]);
            }
        }
        let proxy = Proxy::start(server.port());
        let faults = Arc::new(AtomicU64::new(0));
        inject_faults(&proxy, &faults);
        let total = scaled(150);
        let client = connect_at(proxy.port()).request_timeout(Duration::from_millis(250));
        let client = client.await.expect("the server is up");
        let tasks: Vec<_> = (0..10)
            .map(|task| {
                let ours = client.redisson().watchdog(LEASE);
                let mut rng = SeededRng::new(task + 1);
                tokio::spawn(async move {
                    for _ in 0..total / 10 {
                        let kind = usize::try_from(rng.below(KINDS.len() as u64)).expect("few");
                        use_once(&ours, KINDS[kind], &mut rng).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(faults.load(Ordering::SeqCst) > total / 20, "too few faults");
        proxy.heal();
        eventually("all objects are free", || leftovers(&server).is_empty()).await;
    });
}

#[test]
fn count_down_with_lost_reply_counts_once() {
    run(async {
        let server = server(&Flavor::one());
        let proxy = Proxy::start(server.port());
        let client = connect_at(proxy.port()).await.unwrap();
        let latch = client.redisson().count_down_latch("l");
        assert!(latch.try_set_count(100).await.unwrap());
        // The script is loaded now.
        assert_eq!(latch.count_down().await.unwrap(), 99);
        for left in (49..99).rev() {
            let answers = AtomicU64::new(0);
            proxy.inject(move |request| match request[0].as_slice() {
                b"EVALSHA" if answers.fetch_add(1, Ordering::Relaxed) == 0 => Fault::CutReply,
                _ => Fault::None,
            });
            assert_eq!(latch.count_down().await.unwrap(), left);
        }
    });
}
