//! Redisson's objects on a server without a Redisson.

use leasehold::redisson::PermitGuard;
use leasehold::{Acquire, TryAcquire};
use testkit::{Flavor, ServerExt};

use crate::support::redisson::{client, redisson_of, server};
use crate::support::{AMPLE, eventually, name, run, url_at};

#[test]
fn try_acquire_returns_permit_guard() {
    for flavor in Flavor::all() {
        run(async {
            let server = server(&flavor);
            let client = client(&url_at(server.port())).await;
            let name = name();
            let semaphore = redisson_of(&client).semaphore(&name);
            let available = || server.ask(&["GET", &name]).text().to_owned();
            assert!(semaphore.try_set_permits(3).await.unwrap());

            let trying: TryAcquire<PermitGuard> = semaphore.try_acquire(2);
            let two = trying.await.unwrap().expect("two permits are free");
            assert_eq!(available(), "1");
            assert!(semaphore.try_acquire(2).await.unwrap().is_none());
            assert_eq!(available(), "1");

            let waiting: Acquire<PermitGuard> = semaphore.acquire(3);
            let waiter = tokio::spawn(waiting.timeout(AMPLE).into_future());
            two.release().await.unwrap();
            let three = waiter.await.unwrap().unwrap();
            assert_eq!(available(), "0");
            drop(three);
            eventually("the permits are released", || available() == "3").await;
        });
    }
}
