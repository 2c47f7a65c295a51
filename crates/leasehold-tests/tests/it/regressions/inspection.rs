//! Locks that operators and other libraries look at, release by force, or change.

use leasehold::{Client, Error, LockKind, ReleaseOutcome, ShutdownOutcome};
use testkit::{Reply, Server};

use crate::contract::{KINDS, any_lock};
use crate::inspect::allow_looking;
use crate::redisson::{ENDLESS, take_now};
use crate::support::{AMPLE, LEASE, client, eventually, name, on_every_server, patient};

/// A client whose names are whole keys, with all rights.
async fn operator(server: &Server) -> Client {
    let url = format!("redis://127.0.0.1:{}", server.port());
    let builder = patient(Client::builder(&url)).prefix("");
    builder.connect().await.unwrap()
}

fn exists(server: &Server, key: &str) -> bool {
    server.ask(&["EXISTS", key]).int() == 1
}

/// A lock that `at_least` kept after its release showed a holder that is gone.
#[test]
fn kept_lock_is_no_lock_of_a_dead_holder() {
    on_every_server(|server| async move {
        allow_looking(&server);
        let operator = client(&server).await;
        for kind in 0..KINDS {
            let name = name();
            let holding = client(&server).await;
            let lock = any_lock(&holding, &name, kind).at_least(AMPLE);
            let guard = lock.await.unwrap();
            let seen = operator.inspect(&name).await.unwrap().expect("held");
            assert!(!seen.holders[0].released, "kind {kind}");
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
            assert_eq!(holding.shutdown(AMPLE).await, ShutdownOutcome::Released);

            let seen = operator.inspect(&name).await.unwrap().expect("kept");
            let holder = &seen.holders[0];
            assert!(holder.released, "kind {kind}: {holder:?}");
            assert_eq!(holder.connected, None, "kind {kind}");
            assert!(holder.lease_remaining.is_some_and(|left| left <= AMPLE));
            let text = holder.to_string();
            assert!(text.contains("released, kept for"), "{text}");

            let freed = operator.force_release(&name).await.unwrap();
            assert!(
                freed.len() == 1 && freed[0].released,
                "kind {kind}: {freed:?}"
            );
            assert_eq!(operator.inspect(&name).await.unwrap(), None);
        }
    });
}

/// A forced release always asked for readers, and found none beside a writer.
#[test]
fn forced_release_frees_each_lock_of_redisson() {
    on_every_server(|server| async move {
        let client = operator(&server).await;
        let ours = client.redisson().watchdog(ENDLESS);
        for kind in ["lock", "fair", "read", "write"] {
            let name = name();
            let held = take_now(&ours, kind, &name).await;
            let freed = client.force_release(&name).await.unwrap();
            assert_eq!(freed.len(), 1, "{kind}");
            let holder = freed[0].redisson.as_deref().unwrap();
            assert!(holder.starts_with(ours.id()), "{kind}: {holder}");
            assert!(!exists(&server, &name), "{kind}");
            assert!(matches!(
                held.release().await,
                ReleaseOutcome::AlreadyLost { .. }
            ));
            assert_eq!(client.force_release(&name).await.unwrap(), [], "{kind}");
        }
    });
}

/// A forced release took every string for a lock, and deleted data.
#[test]
fn forced_release_spares_data_without_expiry() {
    on_every_server(|server| async move {
        let client = operator(&server).await;
        let (data, lock) = (name(), name());
        for value in [r#"{"name":"Ada"}"#, ""] {
            server.tell(&["SET", &data, value]);
            let error = client.force_release(&data).await.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
            assert!(error.to_string().contains("without an expiry"), "{error}");
            assert_eq!(server.ask(&["GET", &data]), Reply::Text(value.to_owned()));
        }
        server.tell(&["SET", &lock, "of another library", "PX", "600000"]);
        assert_eq!(client.force_release(&lock).await.unwrap().len(), 1);
        assert!(!exists(&server, &lock));
    });
}

/// A renewal rewrote the expiry that the hash did not have, and so deleted it.
#[test]
fn renewal_of_redisson_lock_without_expiry_keeps_it() {
    on_every_server(|server| async move {
        let client = operator(&server).await;
        let ours = client.redisson().watchdog(LEASE);
        let (read, write) = (name(), name());
        let reader = ours.read_write_lock(&read);
        let reader = reader.read_lock().try_lock().await.unwrap().unwrap();
        let writer = ours.read_write_lock(&write);
        let writer = writer.write_lock().try_lock().await.unwrap().unwrap();
        for name in [&read, &write] {
            assert_eq!(server.ask(&["PERSIST", name]).int(), 1);
        }
        reader.extend(LEASE).await.unwrap();
        writer.extend(LEASE).await.unwrap();
        assert!(exists(&server, &read) && exists(&server, &write));
        assert_eq!(reader.release().await.unwrap(), ReleaseOutcome::Released);
        assert_eq!(writer.release().await.unwrap(), ReleaseOutcome::Released);
    });
}

/// Redisson adds braces to names without any, the inspection added them to all names: it found no queue.
#[test]
fn redisson_fair_lock_with_braces_shows_its_waiters() {
    on_every_server(|server| async move {
        let client = operator(&server).await;
        let ours = client.redisson().watchdog(ENDLESS);
        for name in [format!("{{{}}}:job", name()), format!("{}{{", name())] {
            let _held = take_now(&ours, "fair", &name).await;
            let waiting = tokio::spawn(ours.fair_lock(&name).lock().into_future());
            let queue = format!("redisson_lock_queue:{name}");
            eventually("a waiter", || exists(&server, &queue)).await;
            let seen = client.inspect(&name).await.unwrap().unwrap();
            assert_eq!(
                (seen.kind, seen.waiter_count, seen.waiters.len()),
                (LockKind::RedissonFairLock, Some(1), 1)
            );
            assert_eq!(client.force_release(&name).await.unwrap().len(), 1);
            let next = tokio::time::timeout(AMPLE, waiting).await.unwrap();
            let next = next.unwrap().unwrap();
            assert_eq!(next.release().await.unwrap(), ReleaseOutcome::Released);
        }
    });
}
