//! An application whose runtime is blocked keeps its leases, unless it set a limit.

use std::time::{Duration, Instant};

use leasehold::Error;
use leasehold::Loss;

use crate::support::{LEASE, alone, client, exists, name, run, server};

/// Blocks every worker thread of the runtime, and the calling one, for so long.
fn block_everything(length: Duration) {
    for _ in 0..2 {
        tokio::spawn(async move { std::thread::sleep(length) });
    }
    std::thread::sleep(length);
}

#[test]
fn a_blocked_runtime_loses_no_lease() {
    alone(|| {
        let server = server();
        run(async {
            let name = name();
            let guard = client(&server).await.mutex(&name).lock().await.unwrap();
            let observed = std::thread::scope(|scope| {
                let observer = scope.spawn(|| {
                    let end = Instant::now() + LEASE * 3;
                    let mut gone = 0;
                    while Instant::now() < end {
                        gone += u32::from(!exists(&server, &name));
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    gone
                });
                block_everything(LEASE * 3);
                observer.join().unwrap()
            });
            guard.check().unwrap();
            assert_eq!(observed, 0, "the server saw the lock free");
        });
    });
}

#[test]
fn a_limit_ends_the_lease_of_a_blocked_runtime_on_time() {
    alone(|| {
        let server = server();
        run(async {
            let name = name();
            let limit = LEASE * 3 / 2;
            let guard = client(&server)
                .await
                .mutex(&name)
                .lock()
                .at_most(limit)
                .await
                .unwrap();
            let start = Instant::now();
            let freed = std::thread::scope(|scope| {
                let observer = scope.spawn(|| {
                    while exists(&server, &name) {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    start.elapsed()
                });
                block_everything(LEASE * 3);
                observer.join().unwrap()
            });
            let Err(Error::Lost { loss, .. }) = guard.check() else {
                panic!("still valid")
            };
            assert_eq!(loss, Loss::AtMost);
            assert!(
                freed > limit - LEASE / 4 && freed < limit + LEASE,
                "{freed:?} for {limit:?}"
            );
        });
    });
}
