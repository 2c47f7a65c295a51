//! An application whose runtime is blocked keeps its leases, unless it set a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Error, Loss};
use testkit::Server;

use crate::support::{AMPLE, LEASE, builder_at, exists, key, name, run, server};

/// The lease of a test that measures.
const BRIEF: Duration = Duration::from_secs(2);

/// Blocks every worker thread of the runtime, and the calling one, while `observe` runs on a thread of its own.
fn while_all_is_blocked<T: Send>(observe: impl FnOnce() -> T + Send) -> T {
    let over = Arc::new(AtomicBool::new(false));
    for _ in 0..2 {
        let over = over.clone();
        tokio::spawn(async move {
            while !over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    }
    let observed = std::thread::scope(|scope| scope.spawn(observe).join());
    over.store(true, Ordering::SeqCst);
    observed.unwrap()
}

/// Holds a lock of a blocked runtime until the server has executed this number of renewals.
fn keeps_its_lease(lease: Duration, renewals: u32) {
    let server = server();
    run(async {
        let client = builder_at(server.port()).lease(lease).connect().await;
        let name = name();
        let guard = client.unwrap().mutex(&name).lock().await.unwrap();
        while_all_is_blocked(|| {
            let start = Instant::now();
            let (mut seen, mut end) = (0, server_end(&server, &name).1);
            while seen < renewals {
                std::thread::sleep(Duration::from_millis(10));
                let (earliest, latest) = server_end(&server, &name);
                if earliest > end {
                    (seen, end) = (seen + 1, latest);
                }
                assert!(start.elapsed() < AMPLE, "{seen} renewals");
            }
        });
        guard.check().unwrap();
    });
}

/// Between which moments the server forgets a lock that it must have now, unless it is renewed.
fn server_end(server: &Server, name: &str) -> (Instant, Instant) {
    let asked = Instant::now();
    let left = server.ask(&["PTTL", &key(name)]).int();
    let left = u64::try_from(left).expect("the server saw the lock free");
    let earliest = asked + Duration::from_millis(left);
    (earliest, Instant::now() + Duration::from_millis(left + 1))
}

#[test]
fn a_blocked_runtime_loses_no_lease() {
    keeps_its_lease(LEASE, 2);
}

#[test]
#[ignore = "deep: waits for many renewals of a short lease"]
fn a_blocked_runtime_keeps_a_lease_past_its_length() {
    keeps_its_lease(BRIEF, 9);
}

/// How long a lock of a blocked runtime is kept; it must not be less than the limit.
fn ends_at_its_limit(lease: Duration, limit: Duration) -> Duration {
    let server = server();
    run(async {
        let client = builder_at(server.port()).lease(lease).connect().await;
        let (mutex, begun) = (client.unwrap().mutex(&name()), Instant::now());
        let guard = mutex.lock().at_most(limit).await.unwrap();
        let start = Instant::now();
        while_all_is_blocked(|| {
            while exists(&server, mutex.name()) {
                assert!(start.elapsed() < AMPLE, "never free");
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let (freed, since_begun) = (start.elapsed(), begun.elapsed());
        let Err(Error::Lost { loss, .. }) = guard.check() else {
            panic!("still valid")
        };
        assert_eq!(loss, Loss::AtMost);
        assert!(
            since_begun > limit * 9 / 10,
            "{since_begun:?} for {limit:?}"
        );
        freed
    })
}

#[test]
fn a_limit_ends_the_lease_of_a_blocked_runtime_on_time() {
    ends_at_its_limit(LEASE, BRIEF);
}

#[test]
#[ignore = "deep: measures when a limit ends a lease"]
fn a_blocked_runtime_keeps_to_its_limit_in_time() {
    let limit = BRIEF * 3 / 2;
    let freed = ends_at_its_limit(BRIEF, limit);
    assert!(
        freed > limit - BRIEF / 4 && freed < limit + BRIEF,
        "{freed:?}"
    );
}
