//! Bugs on servers that lack commands, or do not allow them.

use std::time::Duration;

use leasehold::{Client, Connect, Error, Messages, Replicas};
use testkit::{Fault, Flavor, Proxy, Reply, Server, ServerExt, Setup};

use crate::support::contract::{KINDS, any_lock, release_to_next};
use crate::support::deployment::{FiveServers, connect_to_quorum};
use crate::support::log::{log_line, start_log};
use crate::support::{
    LEASE, PASSWORD, SHORT, client, connect_at, eventually, exists, least_privilege_rule, name,
    run, server, url_at, wait_for_replica, with_least_privilege, with_long_timeouts,
};

const SHARDED: [&str; 3] = ["SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE"];

/// Lets each of two clients wait for the other, for a lock of each kind.
async fn pass_on(one: &Client, other: &Client) {
    for kind in 0..KINDS {
        for (holding, waiting) in [(one, other), (other, one)] {
            let name = name();
            let held = any_lock(holding, &name, kind).await.unwrap();
            let waiter = tokio::spawn(any_lock(waiting, &name, kind).into_future());
            tokio::time::sleep(SHORT).await;
            let next = release_to_next(held, waiter).await;
            next.release().await.unwrap();
        }
    }
}

async fn messages(client: &Client) -> Messages {
    let servers = client.server_info().await.unwrap();
    servers[0].messages
}

/// Every acquire that found the lock busy failed, with the server's `unknown
/// command`.
#[test]
fn contended_acquire_needs_no_sharded_channels() {
    start_log();
    run(async {
        let setup = Setup::default().without(&SHARDED);
        let server = with_least_privilege(setup, &Flavor::one());
        server.tell(&["ACL", "SETUSER", "leasehold", "+publish", "+subscribe"]);
        let one = client(&server).await;
        let other = client(&server).await;
        assert_eq!(messages(&one).await, Messages::Classic);
        pass_on(&one, &other).await;
        assert!(log_line(&["using classic pub/sub"]).is_some());
    });
}

/// Every acquire that found the lock busy failed, with the server's denial.
#[test]
fn waiting_without_channel_rights_polls() {
    start_log();
    run(async {
        let server = server();
        server.tell(&["ACL", "SETUSER", "leasehold", "resetchannels"]);
        let one = client(&server).await;
        let other = client(&server).await;
        assert_eq!(messages(&one).await, Messages::Polled);
        pass_on(&one, &other).await;
        assert!(log_line(&["waiters poll"]).is_some());
    });
}

/// Starts a server with a second user, who may use classic channels only.
fn server_with_classic_user() -> (Server, Connect) {
    let flavor = Flavor::one();
    let rule = least_privilege_rule(&flavor);
    let classic = rule.replacen("leasehold", "classic", 1);
    let classic = format!("{classic} -spublish -ssubscribe +publish +subscribe +unsubscribe");
    let server = Setup::default().user(&rule).user(&classic).start(&flavor);
    let url = format!("redis://classic:{PASSWORD}@127.0.0.1:{}", server.port());
    (server, with_long_timeouts(Client::connect(&url)))
}

#[test]
fn user_of_classic_channels_waits_for_others() {
    run(async {
        let (server, classic) = server_with_classic_user();
        let sharded = client(&server).await;
        let classic = classic.await.unwrap();
        assert_eq!(messages(&sharded).await, Messages::Sharded);
        assert_eq!(messages(&classic).await, Messages::Classic);
        pass_on(&sharded, &classic).await;
    });
}

/// A subscription by the classic command is renewed by the same.
#[test]
fn classic_subscription_survives_a_reconnect() {
    run(async {
        let (server, classic) = server_with_classic_user();
        let classic = classic.lease(LEASE * 6).await.unwrap();
        let name = name();
        let guard = classic.mutex(&name).lock().await.unwrap();
        let subscriber = |server: &Server| {
            let channels = server.ask(&["PUBSUB", "CHANNELS", "leasehold:process:*"]);
            let channel = channels.list().first()?.text().to_owned();
            let count = server.ask(&["PUBSUB", "NUMSUB", &channel]).list()[1].int();
            (count == 1).then_some(channel)
        };
        eventually("the process subscribes", || subscriber(&server).is_some()).await;
        server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        eventually("it subscribes again", || subscriber(&server).is_some()).await;
        let channel = subscriber(&server).unwrap();
        // The message makes the process renew, and so learn of the loss.
        let value = server.ask(&["GET", &format!("lock:{name}")]);
        server.tell(&["DEL", &format!("lock:{name}")]);
        assert_eq!(server.ask(&["PUBLISH", &channel, value.text()]).int(), 1);
        let lost = tokio::time::timeout(LEASE, guard.lost()).await;
        assert!(lost.is_ok(), "the message was not delivered");
    });
}

/// Two of five nodes have no sharded channels, and one has no channels at all.
#[test]
fn quorum_of_unequal_nodes_hands_over() {
    run(async {
        let flavor = Flavor::one();
        let rule = format!(
            "{} +info +publish +subscribe",
            least_privilege_rule(&flavor)
        );
        let silent = [&SHARDED[..], &["PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"]].concat();
        let servers = [&[][..], &[], &SHARDED, &SHARDED, &silent].map(|missing| {
            let setup = Setup::default().without(missing).user(&rule);
            setup.start(&flavor)
        });
        let five = FiveServers {
            servers: servers.into(),
        };
        five.quorum().bootstrap().await.unwrap();
        let holding = connect_to_quorum(five.urls()).await.unwrap();
        let waiting = connect_to_quorum(five.urls()).await.unwrap();
        for _ in 0..3 {
            let name = name();
            let held = holding.mutex(&name).lock().await.unwrap();
            let waiter = tokio::spawn(waiting.mutex(&name).lock().into_future());
            tokio::time::sleep(SHORT).await;
            assert!(!waiter.is_finished(), "two holders");
            held.release().await.unwrap();
            let next = tokio::time::timeout(LEASE * 3, waiter).await.unwrap();
            next.unwrap().unwrap().release().await.unwrap();
        }
    });
}

/// Asserts that an acquire with replicas names `command` and leaves nothing.
async fn assert_named(missing: &[&str], count: Replicas, command: &str) {
    let flavor = Flavor::one();
    let server = Setup::default().without(missing).start(&flavor);
    let of = format!("127.0.0.1 {}", server.port());
    let _replica = Setup::default().option("replicaof", &of).start(&flavor);
    wait_for_replica(&server).await;
    let url = format!("redis://127.0.0.1:{}", server.port());
    let client = with_long_timeouts(Client::connect(&url)).await.unwrap();
    for kind in 0..KINDS {
        let name = name();
        let acquire = any_lock(&client, &name, kind).replicas(count, Duration::from_secs(1));
        let error = acquire.await.unwrap_err();
        let Error::Invalid { what, why } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*what, "replicas");
        assert!(
            why.contains(&format!("does not support `{command}`")),
            "{why}"
        );
        assert!(why.contains("require none"), "{why}");
        assert!(!exists(&server, &name), "the lock is released before");
    }
}

/// The error was an unexpected reply.
#[test]
fn missing_wait_is_named() {
    run(assert_named(&["WAIT"], Replicas::AtLeast(1), "WAIT"));
}

/// The error was an unexpected reply.
#[test]
fn missing_role_is_named() {
    run(assert_named(&["ROLE"], Replicas::All, "ROLE"));
}

/// The error was an unexpected reply.
#[test]
fn server_without_needed_command_is_named() {
    run(async {
        for command in ["ECHO", "TIME"] {
            let setup = Setup::default().without(&[command]);
            let server = with_least_privilege(setup, &Flavor::one());
            let error = connect_at(server.port()).await.unwrap_err();
            assert!(!error.is_transient(), "{error:?}");
            let Error::Invalid { what, why } = &error else {
                panic!("{error:?}");
            };
            assert_eq!(*what, "server");
            assert!(
                why.contains(&format!("does not support `{command}`")),
                "{why}"
            );
        }
    });
}

/// A proxy words its refusals as it likes.
#[test]
fn proxy_that_refuses_commands_is_named() {
    const REFUSAL: &[u8] = b"-ERR this command is not available in this plan\r\n";
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        proxy.inject(|words| match words[0].as_slice() {
            b"HELLO" => Fault::ReplaceReply(REFUSAL),
            _ => Fault::None,
        });
        let error = Client::connect(&url_at(proxy.port())).await.unwrap_err();
        let Error::Invalid { what, why } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*what, "server");
        assert!(why.contains("refused `HELLO 3`"), "{why}");
    });
}

/// A script that turned a lock into a queue, and was then denied a command,
/// left the holder's set and entry without an expiry.
#[test]
fn denied_waiter_leaves_no_key_without_an_expiry() {
    run(async {
        let server = server();
        let one = client(&server).await;
        let other = client(&server).await;
        for command in ["hset", "zrange", "hget", "zadd"] {
            for kind in 1..KINDS {
                let name = name();
                let held = any_lock(&one, &name, kind).await.unwrap();
                server.tell(&["ACL", "SETUSER", "leasehold", &format!("-{command}")]);
                let waited = any_lock(&other, &name, kind).timeout(LEASE).await;
                assert!(matches!(waited, Err(Error::Denied(_))), "{waited:?}");
                let keys = server.ask(&["KEYS", &format!("*{name}*")]);
                for key in keys.list().iter().map(Reply::text) {
                    let remaining = server.ask(&["PTTL", key]).int();
                    assert_ne!(remaining, -1, "`{key}`, denied {command}");
                }
                server.tell(&["ACL", "SETUSER", "leasehold", &format!("+{command}")]);
                held.release().await.unwrap();
            }
        }
    });
}
