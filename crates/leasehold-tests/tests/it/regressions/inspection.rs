//! Bugs of inspection and of forced release.

use leasehold::{Client, Error, LockKind};
use testkit::{Connection, Fault, Proxy, Reply, Server, ServerExt};

use crate::support::contract::{KINDS, any_lock};
use crate::support::inspection::allow_inspection;
use crate::support::redisson::{LONG_WATCHDOG, acquire_now};
use crate::support::{
    AMPLE, LEASE, client, connect_at, eventually, loss_of, name, on_every_server, run, server,
    with_long_timeouts,
};

/// Connects a client with all permissions, whose names are whole keys.
async fn operator(server: &Server) -> Client {
    let url = format!("redis://127.0.0.1:{}", server.port());
    let builder = with_long_timeouts(Client::connect(&url)).prefix("");
    builder.await.unwrap()
}

fn exists(server: &Server, key: &str) -> bool {
    server.ask(&["EXISTS", key]).int() == 1
}

/// A released lock that `at_least` still keeps showed a dead holder.
#[test]
fn released_at_least_lock_is_shown_as_released() {
    on_every_server(|server| async move {
        allow_inspection(&server);
        let operator = client(&server).await;
        for kind in 0..KINDS {
            let name = name();
            let holding = client(&server).await;
            let lock = any_lock(&holding, &name, kind).at_least(AMPLE);
            let guard = lock.await.unwrap();
            let seen = operator
                .inspect(&name)
                .await
                .unwrap()
                .expect("the lock is held");
            assert!(!seen.holders[0].released, "kind {kind}");
            guard.release().await.unwrap();
            holding.shutdown(AMPLE).await.unwrap();

            let seen = operator
                .inspect(&name)
                .await
                .unwrap()
                .expect("at_least still applies");
            let holder = &seen.holders[0];
            assert!(holder.released, "kind {kind}: {holder:?}");
            assert_eq!(holder.process.connected, None, "kind {kind}");
            assert!(holder.lease_remaining.is_some_and(|left| left <= AMPLE));
            let text = holder.to_string();
            assert!(text.contains("released, held for"), "{text}");

            let freed = operator.force_release(&name).await.unwrap();
            assert!(
                freed.len() == 1 && freed[0].released,
                "kind {kind}: {freed:?}"
            );
            assert_eq!(operator.inspect(&name).await.unwrap(), None);
        }
    });
}

/// A forced release always targeted readers, and found none beside a writer.
#[test]
fn force_release_frees_every_redisson_lock() {
    on_every_server(|server| async move {
        let client = operator(&server).await;
        let ours = client.redisson().watchdog(LONG_WATCHDOG);
        for kind in ["lock", "fair", "read", "write"] {
            let name = name();
            let held = acquire_now(&ours, kind, &name).await;
            let freed = client.force_release(&name).await.unwrap();
            assert_eq!(freed.len(), 1, "{kind}");
            let holder = freed[0].process.redisson.as_deref().unwrap();
            assert!(holder.starts_with(ours.id()), "{kind}: {holder}");
            assert!(!exists(&server, &name), "{kind}");
            assert!(loss_of(held.release().await).is_some(), "{kind}");
            assert_eq!(client.force_release(&name).await.unwrap(), [], "{kind}");
        }
    });
}

/// A forced release took every string for a lock, and deleted data.
#[test]
fn force_release_spares_data_without_expiry() {
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

/// A renewal rewrote the missing expiry of a hash, which deleted it.
#[test]
fn renewal_of_redisson_lock_without_expiry_keeps_it() {
    on_every_server(|server| async move {
        let client = operator(&server).await;
        let ours = client.redisson().watchdog(LEASE);
        let (read, write) = (name(), name());
        let reader = ours.read_write_lock(&read);
        let reader = reader.read_lock().try_lock().await.unwrap();
        let writer = ours.read_write_lock(&write);
        let writer = writer.write_lock().try_lock().await.unwrap();
        for name in [&read, &write] {
            assert_eq!(server.ask(&["PERSIST", name]).int(), 1);
        }
        reader.extend(LEASE).await.unwrap();
        writer.extend(LEASE).await.unwrap();
        assert!(exists(&server, &read) && exists(&server, &write));
        reader.release().await.unwrap();
        writer.release().await.unwrap();
    });
}

/// Redisson adds braces only to names without any. Inspection added them to
/// all, and found no queue.
#[test]
fn redisson_fair_lock_with_braces_shows_its_waiters() {
    on_every_server(|server| async move {
        let client = operator(&server).await;
        let ours = client.redisson().watchdog(LONG_WATCHDOG);
        for name in [format!("{{{}}}:job", name()), format!("{}{{", name())] {
            let _held = acquire_now(&ours, "fair", &name).await;
            let waiting = tokio::spawn(ours.fair_lock(&name).lock().into_future());
            let queue = format!("redisson_lock_queue:{name}");
            eventually("the waiter is queued", || exists(&server, &queue)).await;
            let seen = client.inspect(&name).await.unwrap().unwrap();
            assert_eq!(
                (seen.kind, seen.waiter_count, seen.waiters.len()),
                (LockKind::RedissonFairLock, Some(1), 1)
            );
            assert_eq!(client.force_release(&name).await.unwrap().len(), 1);
            let next = tokio::time::timeout(AMPLE, waiting).await.unwrap();
            let next = next.unwrap().unwrap();
            next.release().await.unwrap();
        }
    });
}

/// A queued lock that was released between the two reads of an inspection was
/// not a lock.
#[test]
fn inspect_during_release_returns_none() {
    run(async {
        let server = server();
        allow_inspection(&server);
        let proxy = Proxy::start(server.port());
        let inspecting = connect_at(proxy.port()).await.unwrap();
        let (name, port) = (name(), server.port());
        for _ in 0..2 {
            // Two holders, since the first read shows a sole holder.
            let semaphore = client(&server).await.semaphore(&name, 2);
            let _guards = tokio::join!(semaphore.acquire(), semaphore.acquire());
            assert!(crate::support::exists(&server, &name));
            proxy.inject(move |request| {
                if request[0].starts_with(b"EVAL") {
                    let flushed = Connection::open(port).and_then(|mut it| it.ask(&["FLUSHALL"]));
                    assert!(flushed.is_ok(), "{flushed:?}");
                }
                Fault::None
            });
            assert!(inspecting.inspect(&name).await.unwrap().is_none());
            assert!(
                !crate::support::exists(&server, &name),
                "there was no second read"
            );
            proxy.heal();
        }
        inspecting.until_free(&name, None).await.unwrap();
    });
}
