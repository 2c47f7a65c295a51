//! Redisson's objects on a server without a Redisson.

use testkit::{Flavor, ServerExt};

use crate::support::redisson::{client, redisson_of, server};
use crate::support::{AMPLE, eventually, is_busy, name, run, url_at};

#[test]
fn try_acquire_of_held_permits_is_busy() {
    for flavor in Flavor::all() {
        run(async {
            let server = server(&flavor);
            let client = client(&url_at(server.port())).await;
            let name = name();
            let semaphore = redisson_of(&client).semaphore(&name);
            let available = || server.ask(&["GET", &name]).text().to_owned();
            assert!(semaphore.try_set_permits(3).await.unwrap());

            let two = semaphore
                .try_acquire(2)
                .await
                .expect("two permits are free");
            assert_eq!(available(), "1");
            assert!(is_busy(semaphore.try_acquire(2)).await);
            assert_eq!(available(), "1");

            let waiting = semaphore.acquire(3).timeout(AMPLE);
            let waiter = tokio::spawn(waiting.into_future());
            two.release().await.unwrap();
            let three = waiter.await.unwrap().unwrap();
            assert_eq!(available(), "0");
            drop(three);
            eventually("the permits are released", || available() == "3").await;
        });
    }
}
