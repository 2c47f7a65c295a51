//! Locks that are handed on, kept, or asked for as another kind.

use leasehold::kinds::Lock;
use leasehold::{Error, Release};

use crate::hand_on::{KINDS, pass};
use crate::support::{AMPLE, LEASE, client, eventually, name, owners, run, server};

/// A writer was handed a fair mutex of the same name by a task of its process. It must ask the server.
#[test]
fn writer_is_not_handed_a_fair_mutex() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let first = client.fair_mutex(&name).lock().await.unwrap();
        let second = tokio::spawn(client.fair_mutex(&name).lock().into_future());
        eventually("it waits", || !owners(&server, "line", &name).is_empty()).await;
        let writer = Lock::from(client.rw_lock(&name).write()).wait(AMPLE);
        let writer = tokio::spawn(writer.into_future());
        let semaphore = client.semaphore(&name, 1).acquire().wait(AMPLE);
        let semaphore = tokio::spawn(semaphore.into_future());
        for asked in [writer, semaphore] {
            let error = asked.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
        }
        assert_eq!(first.release().await.unwrap(), Release::Released);
        let second = second.await.unwrap().unwrap();
        assert_eq!(second.release().await.unwrap(), Release::Released);
    });
}

/// After the counter was lost, tokens for hand-ons started below the holder's own.
#[test]
fn handed_on_token_exceeds_own_without_counter() {
    const LOSE: &[&str] = &[
        "EVAL",
        "for _, key in ipairs(redis.call('KEYS', 'leasehold:token:*')) do redis.call('DEL', key) end",
        "0",
    ];
    run(async {
        let server = server();
        for kind in KINDS {
            for _ in 0..5 {
                // Asserts that the tokens rise.
                let _ = pass(&server, kind, |lock| lock, LOSE).await;
            }
        }
    });
}

/// The lock was free when the lease ended.
#[test]
fn at_least_above_a_fixed_lease_is_refused() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let asked = client.mutex(&name).try_lock().lease(LEASE);
        let error = asked.at_least(LEASE * 2).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("20s") && text.contains("10s"), "{text}");
    });
}
