//! Bugs of locks that replicas acknowledge.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::{Client, Connect, Error, Lease, MultiLock, Replicas};
use testkit::{Connection, Fault, Flavor, Proxy, Server, ServerExt, Setup};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::contract::{KINDS, any_lock, any_try_lock};
use crate::support::{
    AMPLE, LEASE, client, eventually, exists, key, name, owners, run, server, wait_for_replica,
    with_long_timeouts,
};

/// A waiter held the lock, gave it up in the background and found it held, by
/// itself, without end.
#[test]
fn acquire_without_replicas_fails_at_once() {
    run(async {
        let server = Flavor::one().start();
        let client = connect(server.port()).await.unwrap();
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

/// Starts a master, its replica, and a replica of that one: locks at the first
/// replica are acknowledged too, also once it is promoted.
async fn chain() -> [Server; 3] {
    let setup = Setup::default().option("repl-diskless-sync-delay", "0");
    let start = |of: &Server| {
        let of = format!("127.0.0.1 {}", of.port());
        setup.clone().option("replicaof", &of).start(&Flavor::one())
    };
    let master = setup.clone().start(&Flavor::one());
    let first = start(&master);
    let last = start(&first);
    wait_for_replica(&master).await;
    wait_for_replica(&first).await;
    [master, first, last]
}

/// Returns the settings of a client of a server without users.
fn connect(port: u16) -> Connect {
    with_long_timeouts(Client::connect(&format!("redis://127.0.0.1:{port}")))
}

/// Returns the same for a client whose locks all replicas must acknowledge.
fn acknowledging(port: u16) -> Connect {
    connect(port).replicas(Replicas::All, LEASE / 4)
}

/// A master that was demoted between the grant and the renewal refused both the
/// renewal and `WAIT`. A waiter then failed for good: the server seemed to be
/// unable to wait.
#[test]
fn waiter_outlasts_a_demotion_before_the_renewal() {
    run(async {
        let [master, _first, _last] = chain().await;
        let proxy = Proxy::start(master.port());
        let client = acknowledging(proxy.port()).await.unwrap();
        let demoted = AtomicBool::new(false);
        proxy.inject(move |request| match &*request[0] {
            b"WAIT" if !demoted.swap(true, Ordering::SeqCst) => {
                Fault::ReplaceReply(b"-ERR WAIT cannot be used with replica instances.\r\n")
            }
            b"EVALSHA" | b"EVAL" if !demoted.load(Ordering::SeqCst) => {
                Fault::ReplaceReply(b"-READONLY You can't write against a read only replica.\r\n")
            }
            _ => Fault::None,
        });
        let guard = client.mutex(&name()).lock().timeout(AMPLE).await.unwrap();
        guard.release().await.unwrap();
    });
}

/// A master was demoted, and the name of the server points to its successor. A
/// connection to the former master stayed open, and every acquire asked it how
/// many replicas there are.
#[test]
fn demoted_master_is_not_asked_for_its_replicas() {
    run(async {
        let [master, promoted, _last] = chain().await;
        let proxy = Proxy::start(master.port());
        let client = acknowledging(proxy.port()).await.unwrap();
        let mutex = client.mutex(&name());
        mutex.lock().await.unwrap().release().await.unwrap();
        promoted.tell(&["REPLICAOF", "NO", "ONE"]);
        // A promoted server disconnects its replicas.
        wait_for_replica(&promoted).await;
        proxy.redirect(promoted.port());
        master.tell(&["REPLICAOF", "127.0.0.1", &promoted.port().to_string()]);
        // The first is refused and waits, through connections of the keeper.
        for _ in 0..2 {
            // The number of replicas is no longer cached.
            tokio::time::sleep(Duration::from_millis(1200)).await;
            let guard = mutex.lock().timeout(AMPLE).await.unwrap();
            guard.release().await.unwrap();
        }
    });
}

/// The former master drew the token, and the new one acknowledged the renewal.
/// The next holder had a smaller token.
#[test]
fn drawn_token_survives_failover() {
    run(async {
        let [master, promoted, _last] = chain().await;
        let proxy = Proxy::start(master.port());
        let client = acknowledging(proxy.port()).await.unwrap();
        let name = name();
        // Opens the caller's connection. Where it connects from now on:
        client.inspect(&name).await.unwrap();
        proxy.redirect(promoted.port());
        // The lock is set and replicated, and its token is not drawn yet.
        proxy.inject(|request| match request[0].as_slice() {
            b"INCR" => Fault::Hold,
            _ => Fault::None,
        });
        let mutex = client.mutex(&name);
        let acquire = tokio::spawn(async move { mutex.lock().timeout(AMPLE).await });
        eventually("the lock is replicated", || exists(&promoted, &name)).await;
        promoted.tell(&["REPLICAOF", "NO", "ONE"]);
        // A promoted server disconnects its replicas.
        wait_for_replica(&promoted).await;
        // Without replicas, which would draw its tokens from the clock.
        let other = connect(promoted.port()).await.unwrap();
        // Raises the counter above the clock at the other client's connection.
        let between = other.mutex(&key(&name)).lock().await.unwrap();
        between.release().await.unwrap();
        proxy.heal();
        proxy.release_held();
        let held = acquire.await.unwrap().unwrap();
        promoted.tell(&["DEL", &key(&name)]);
        let next = other.mutex(&name).lock().timeout(AMPLE).await.unwrap();
        let (token, next) = (held.token(), next.token());
        assert!(token < next, "{token}, then {next}");
    });
}

/// The tokens of local hand-offs were reserved without an acknowledgement.
/// After a failover, the new master issued them again.
#[test]
fn handoff_without_acknowledgement_fails() {
    run(async {
        let [master, replica, _last] = chain().await;
        let local = acknowledging(master.port()).await.unwrap();
        let other = connect(master.port()).await.unwrap();
        let name = name();
        let blocker = other.mutex(&name).lock().await.unwrap();
        let mut waiters = JoinSet::new();
        for _ in 0..2 {
            let mutex = local.mutex(&name);
            waiters.spawn(async move { mutex.lock().timeout(AMPLE).await });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        blocker.release().await.unwrap();
        let first = waiters.join_next().await.unwrap().unwrap().unwrap();
        replica.pause();
        first.release().await.unwrap();
        let early = timeout(LEASE / 8, waiters.join_next()).await;
        replica.resume();
        assert!(!matches!(early, Ok(Some(Ok(Ok(_))))), "{early:?}");
    });
}

/// The token that replicas acknowledge needed memory. A waiter that a full
/// server had granted the lock gave it up.
#[test]
fn full_server_serves_waiters_that_need_replicas() {
    run(async {
        let [master, _replica, _last] = chain().await;
        let (holder, waiter) = (
            acknowledging(master.port()).await.unwrap(),
            acknowledging(master.port()).await.unwrap(),
        );
        let name = name();
        let held = holder.fair_mutex(&name).lock().await.unwrap();
        let mutex = waiter.fair_mutex(&name);
        let waiting = tokio::spawn(async move { mutex.lock().timeout(AMPLE).await });
        eventually("it waits", || !owners(&master, "queue", &name).is_empty()).await;
        master.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        held.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        guard.release().await.unwrap();
    });
}

/// The former master recorded the token, and the new one acknowledged the
/// renewal behind it. The next holder had a smaller token.
#[test]
fn recorded_token_survives_failover() {
    run(async {
        let [master, promoted, _last] = chain().await;
        let new = server();
        new.tell(&["SET", "leasehold:token:{3560}", "9000000000000000"]);
        let proxy = Proxy::start(master.port());
        let (from, to) = (
            acknowledging(proxy.port()).await.unwrap(),
            client(&new).await,
        );
        let name = name();
        // Opens the connections to the master.
        let first = MultiLock::new([from.mutex(&name).lock()]).await.unwrap();
        first.release().await.unwrap();
        proxy.redirect(promoted.port());
        let (is_promoted, is_cut) = (AtomicBool::new(false), AtomicBool::new(false));
        let port = promoted.port();
        proxy.inject(move |request| {
            let is_token = |arg: &Vec<u8>| arg.starts_with(b"9000000000000");
            let is_recording = request[0].starts_with(b"EVAL") && request.iter().any(is_token);
            if is_recording && !is_promoted.swap(true, Ordering::SeqCst) {
                let mut replica = Connection::open(port).expect("the replica is up");
                let reply = replica.ask(&["REPLICAOF", "NO", "ONE"]);
                reply.expect("the replica is up");
            }
            // Only the connection on which replicas acknowledge.
            let is_wait = request[0] == b"WAIT" && is_promoted.load(Ordering::SeqCst);
            match is_wait && !is_cut.swap(true, Ordering::SeqCst) {
                true => Fault::CutRequest,
                false => Fault::None,
            }
        });
        let both = MultiLock::moving(from.mutex(&name).lock(), to.mutex(&name).lock());
        let held = both.await.unwrap();
        let token = held.leases().next().map(<Lease>::token);
        // The caller's own connection still leads to the former master.
        promoted.tell(&["DEL", &key(&name)]);
        let next = acknowledging(promoted.port()).await.unwrap();
        let next = next.mutex(&name).lock().timeout(AMPLE).await.unwrap();
        assert!(token < Some(next.token()), "{token:?}, {}", next.token());
    });
}
