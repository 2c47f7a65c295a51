//! Bugs of locks that replicas acknowledge.

use std::time::Duration;

use leasehold::{Client, Error, Replicas};
use testkit::Flavor;
use tokio::time::timeout;

use crate::support::contract::{KINDS, any_lock, any_try_lock};
use crate::support::{AMPLE, LEASE, exists, name, run, with_long_timeouts};

/// A waiter held the lock, gave it up in the background and found it held, by
/// itself, without end.
#[test]
fn acquire_without_replicas_fails_at_once() {
    run(async {
        let server = Flavor::one().start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let builder = with_long_timeouts(Client::connect(&url));
        let client = builder.await.unwrap();
        let enough = LEASE - Duration::from_secs(1);
        for kind in 0..KINDS {
            for count in [Replicas::All, Replicas::AtLeast(1)] {
                let name = name();
                let waiting = any_lock(&client, &name, kind).replicas(count, enough);
                let failed = timeout(AMPLE, waiting.into_future()).await;
                let error = failed.expect("the acquire ends").unwrap_err();
                let Error::Invalid { what, why } = &error else {
                    panic!("{error:?}");
                };
                assert_eq!(*what, "replicas");
                assert!(why.contains("has no replicas"), "{why}");
                assert!(!exists(&server, &name), "the lock is released before");
                let other = any_try_lock(&client, &name, kind).await;
                assert!(other.is_ok(), "{other:?}");
            }
        }
    });
}
