//! Requests that are lost, repeated, late or dropped: what is shared with Java is counted once, and nothing is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::redisson::Redisson as Ours;
use testkit::{Fault, Flavor, Proxy, SeededRng, Server};

use super::{server, take};
use crate::support::{builder_at, eventually, run, scaled};
use crate::unknown::misbehave;

/// Far longer than the test: nothing goes away by itself.
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

/// How many permits every semaphore has.
const PERMITS: i64 = 3;

/// Takes something of one kind, unless it takes too long, and gives it back or drops it.
async fn use_once(ours: &Ours, kind: &str, rng: &mut SeededRng) {
    let name = format!(
        "{}:{}",
        kind.replace("read", "rw").replace("write", "rw"),
        rng.below(3)
    );
    let patience = Duration::from_micros(rng.below(4000));
    let wait = Duration::from_secs(2);
    let taking = async {
        // Errors are the business of those who ask; what counts is what is left.
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
            kind => drop(take(ours, kind, &name, wait).await),
        }
    };
    if rng.below(2) == 0 {
        let _: Result<_, _> = tokio::time::timeout(patience, taking).await;
    } else {
        taking.await;
    }
}

/// Locks that somebody has on the server, and semaphores that do not have all their permits.
fn amiss(server: &Server) -> Vec<String> {
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
fn whatever_happens_to_requests_nothing_is_left_and_no_permit_is_made_or_lost() {
    run(async {
        let server = server(&Flavor::one());
        for number in 0..3 {
            for kind in ["semaphore", "permits"] {
                server.tell(&["SET", &format!("{kind}:{number}"), &PERMITS.to_string()]);
            }
        }
        let proxy = Proxy::start(server.port());
        let faults = Arc::new(AtomicU64::new(0));
        misbehave(&proxy, &faults);
        let total = scaled(150);
        let client = builder_at(proxy.port())
            .request_timeout(Duration::from_millis(250))
            .connect();
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
        assert!(
            faults.load(Ordering::SeqCst) > total / 20,
            "hardly any faults"
        );
        proxy.heal();
        eventually("nothing is left", || amiss(&server).is_empty()).await;
    });
}

#[test]
fn a_count_down_whose_answer_is_lost_counts_once() {
    run(async {
        let server = server(&Flavor::one());
        let proxy = Proxy::start(server.port());
        let client = builder_at(proxy.port()).connect().await.unwrap();
        let latch = client.redisson().count_down_latch("l");
        assert!(latch.try_set_count(100).await.unwrap());
        // Taught its script.
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
