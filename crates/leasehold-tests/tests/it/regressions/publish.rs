//! Bugs of users without permission to publish: an operation must not fail
//! after it took effect.

use leasehold::{LatchState, SetOutcome};
use testkit::{Flavor, Reply, Server, ServerExt};

use crate::support::contract::{KINDS, any_lock};
use crate::support::inspection::allow_inspection;
use crate::support::redisson;
use crate::support::{
    AMPLE, PASSWORD, client, exists, lua, name, on_every_server, run, server, url_at,
};

/// Removes all channels from the user of the library, as a new user of Redis 7
/// has none.
fn remove_channels(server: &Server) {
    server.tell(&["ACL", "SETUSER", "leasehold", "resetchannels"]);
}

/// The release returned `Denied`, although the lock was free.
#[test]
fn release_without_channel_rights_succeeds() {
    on_every_server(|server| async move {
        remove_channels(&server);
        allow_inspection(&server);
        let client = client(&server).await;
        for kind in 0..KINDS {
            let name = name();
            let guard = any_lock(&client, &name, kind).await.unwrap();
            guard.release().await.unwrap();
            assert!(!exists(&server, &name), "kind {kind}");
            let _revoked = any_lock(&client, &name, kind).await.unwrap();
            assert_eq!(client.force_release(&name).await.unwrap().len(), 1);
            assert!(!exists(&server, &name), "kind {kind}");
        }
        let latch = client.latch(&name());
        assert_eq!(latch.set(1, AMPLE).await.unwrap(), SetOutcome::Created);
        let opened = latch.count_down("me").await.unwrap();
        assert_eq!(opened, LatchState::Open);
        assert!(latch.delete().await.unwrap());
    });
}

/// A quorum retried, which hid the error.
#[test]
fn quorum_script_without_channel_rights_releases() {
    const RELEASE: &str = lua!("quorum/release");
    let server = server();
    remove_channels(&server);
    server.tell(&["SET", "lock:k", "me", "PX", "600000"]);
    let mut user = server.connect();
    user.ask(&["AUTH", "leasehold", PASSWORD]).unwrap();
    let release = ["EVAL", RELEASE, "1", "lock:k", "me", "leasehold:c", "once"];
    assert_eq!(user.ask(&release).unwrap(), Reply::Int(1));
    assert!(!exists(&server, "k"));
}

#[test]
fn redisson_release_without_channel_rights_succeeds() {
    for flavor in Flavor::all() {
        run(async {
            let server = redisson::server(&flavor);
            remove_channels(&server);
            let ours = redisson::redisson_of(&redisson::client(&url_at(server.port())).await);
            let is_free = |name: &str| server.ask(&["EXISTS", name]).int() == 0;
            for kind in ["lock", "fair", "fenced", "read", "write"] {
                let name = name();
                let held = redisson::acquire_now(&ours, kind, &name).await;
                set_waiter(&server, &name, true);
                held.release_held().await;
                assert!(is_free(&name), "{kind}");
                set_waiter(&server, &name, false);
                let _revoked = redisson::acquire_now(&ours, kind, &name).await;
                set_waiter(&server, &name, true);
                assert!(redisson::force_unlock(&ours, kind, &name).await, "{kind}");
                assert!(is_free(&name), "{kind}");
            }
            let rw = ours.read_write_lock(&name());
            let writer = rw.write_lock().try_lock().await.unwrap();
            let reader = writer.downgrade().await.unwrap();
            reader.release().await.unwrap();
            use_counters(&ours).await;
        });
    }
}

/// Adds a waiter to the queue of this fair lock, or removes it, so that a
/// release publishes.
fn set_waiter(server: &Server, name: &str, waits: bool) {
    let queue = format!("redisson_lock_queue:{{{name}}}");
    let timeouts = format!("redisson_lock_timeout:{{{name}}}");
    if !waits {
        return server.tell(&["DEL", &queue, &timeouts]);
    }
    let (waiter, never) = ("a2b1f3c4-0000-4000-8000-123456789abc:1", "9007199254740991");
    server.tell(&["RPUSH", &queue, waiter]);
    server.tell(&["ZADD", &timeouts, never, waiter]);
}

/// Semaphores and latches.
async fn use_counters(ours: &leasehold::redisson::Redisson) {
    let semaphore = ours.semaphore(&name());
    assert!(semaphore.try_set_permits(1).await.unwrap());
    let permits = semaphore.try_acquire(1).await.unwrap();
    permits.release().await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 1);

    let expirable = ours.permit_expirable_semaphore(&name());
    assert!(expirable.try_set_permits(1).await.unwrap());
    let permit = expirable.try_acquire(1).await.unwrap();
    permit.release().await.unwrap();
    assert_eq!(expirable.available_permits().await.unwrap(), 1);

    let latch = ours.count_down_latch(&name());
    assert!(latch.try_set_count(1).await.unwrap());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    assert!(latch.try_set_count(2).await.unwrap());
    assert!(latch.delete().await.unwrap());
}
