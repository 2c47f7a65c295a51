//! A blocked runtime keeps its leases, unless `at_most` ends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Error, Loss};
use testkit::{Server, ServerExt};

use crate::support::{AMPLE, LEASE, connect_at, exists, key, name, run, server};

/// The lease of tests that measure time.
const BRIEF: Duration = Duration::from_secs(2);

/// Blocks all worker threads of the runtime, and the calling thread, while
/// `observe` runs on another thread.
fn while_blocked<T: Send>(observe: impl FnOnce() -> T + Send) -> T {
    let done = Arc::new(AtomicBool::new(false));
    for _ in 0..2 {
        let done = done.clone();
        tokio::spawn(async move {
            while !done.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    }
    let observed = std::thread::scope(|scope| scope.spawn(observe).join());
    done.store(true, Ordering::SeqCst);
    observed.unwrap()
}

/// Holds a lock of a blocked runtime until the server has executed `renewals`
/// renewals.
fn hold_through_renewals(lease: Duration, renewals: u32) {
    let server = server();
    run(async {
        let client = connect_at(server.port()).lease(lease).await;
        let name = name();
        let guard = client.unwrap().mutex(&name).lock().await.unwrap();
        while_blocked(|| {
            let start = Instant::now();
            let mut seen = 0;
            let mut end = server_expiry(&server, &name).1;
            while seen < renewals {
                std::thread::sleep(Duration::from_millis(10));
                let (earliest, latest) = server_expiry(&server, &name);
                if earliest > end {
                    (seen, end) = (seen + 1, latest);
                }
                assert!(start.elapsed() < AMPLE, "{seen} renewals");
            }
        });
        guard.check().unwrap();
    });
}

/// Returns the instants between which the server's lease ends, unless it is
/// renewed.
fn server_expiry(server: &Server, name: &str) -> (Instant, Instant) {
    let asked = Instant::now();
    let left = server.ask(&["PTTL", &key(name)]).int();
    let left = u64::try_from(left).expect("the server saw the lock free");
    let earliest = asked + Duration::from_millis(left);
    (earliest, Instant::now() + Duration::from_millis(left + 1))
}

#[test]
fn blocked_runtime_loses_no_lease() {
    hold_through_renewals(LEASE, 2);
}

#[test]
#[ignore = "deep: waits for many renewals of a short lease"]
fn blocked_runtime_keeps_lease_past_its_length() {
    hold_through_renewals(BRIEF, 9);
}

/// Returns how long a lock of a blocked runtime is held, which must be at least
/// the limit.
fn hold_until_at_most(lease: Duration, limit: Duration) -> Duration {
    let server = server();
    run(async {
        let client = connect_at(server.port()).lease(lease).await;
        let mutex = client.unwrap().mutex(&name());
        let requested = Instant::now();
        let guard = mutex.lock().at_most(limit).await.unwrap();
        let start = Instant::now();
        while_blocked(|| {
            while exists(&server, mutex.name()) {
                assert!(start.elapsed() < AMPLE, "the lock is never free");
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let freed = start.elapsed();
        let since_request = requested.elapsed();
        let Err(Error::Lost { loss, .. }) = guard.check() else {
            panic!("the lease is still valid")
        };
        assert_eq!(loss, Loss::AtMost);
        assert!(
            since_request > limit * 9 / 10,
            "{since_request:?} for {limit:?}"
        );
        freed
    })
}

#[test]
fn at_most_ends_lease_of_blocked_runtime() {
    hold_until_at_most(LEASE, BRIEF);
}

#[test]
#[ignore = "deep: measures when a limit ends a lease"]
fn blocked_runtime_ends_at_most_in_time() {
    let limit = BRIEF * 3 / 2;
    let freed = hold_until_at_most(BRIEF, limit);
    assert!(
        freed > limit - BRIEF / 4 && freed < limit + BRIEF,
        "{freed:?}"
    );
}
