//! Credentials that change: tokens that end, and providers that fail.

use std::future::{IntoFuture, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Credentials, Error, Guard, Loss, Quorum};
use testkit::sentinel_group::{GROUP, SENTINEL_PASSWORD};
use testkit::{Fault, Flavor, Proxy, Server, ServerExt, Setup};
use tokio::task::JoinHandle;

use crate::support::deployment::{group, rule_with_grants};
use crate::support::vault::{Answer, Vault, login, rotate, url};
use crate::support::{
    AMPLE, LEASE, PASSWORD, SHORT, connect_at, eventually, has_subscriber, least_privilege_rule,
    name, run, server, wait_for_renewal, with_long_timeouts,
};

/// Returns the ids of the connections that clients have as this user.
fn connections(server: &Server, user: &str) -> Vec<String> {
    let list = server.ask(&["CLIENT", "LIST"]);
    let user = format!(" user={user} ");
    let is_own = |line: &&str| line.contains(" name=leasehold-") && line.contains(&user);
    let id = |line: &str| line.split(' ').next().unwrap().to_owned();
    list.text().lines().filter(is_own).map(id).collect()
}

/// Returns another client's guard, and a task of `client` that waits for that
/// lock.
async fn wait_for_busy_lock(
    server: &Server,
    client: &Client,
) -> (Guard, JoinHandle<Result<Guard, Error>>) {
    let busy = name();
    // As the user `default`, which no test changes.
    let other = with_long_timeouts(Client::connect(&url(server.port()))).await;
    let guard = other.unwrap().mutex(&busy).lock().await.unwrap();
    let waiter = tokio::spawn(client.mutex(&busy).lock().into_future());
    eventually("the waiter subscribes", || has_subscriber(server, &busy)).await;
    (guard, waiter)
}

#[test]
fn open_connections_log_in_before_the_end() {
    run(async {
        let flavor = Flavor::one();
        let rule = least_privilege_rule(&flavor);
        let successor = rule.replacen("leasehold", "successor", 1);
        let server = Setup::default().user(&rule).user(&successor).start(&flavor);
        let vault = Vault::new();
        let ending = |user| Answer::Login(user, PASSWORD.to_owned(), Duration::from_secs(4));
        vault.set(ending("leasehold"));
        let connect = vault.attach(with_long_timeouts(Client::connect(&url(server.port()))));
        let client = connect.await.unwrap();
        let held = client.mutex(&name()).lock().await.unwrap();
        let (blocking, waiter) = wait_for_busy_lock(&server, &client).await;
        // At least the connection for requests, and the keeper's, which has
        // subscribed.
        let before = connections(&server, "leasehold");
        assert!(before.len() >= 2, "{before:?}");
        vault.set(ending("successor"));
        eventually("all connections log in again", || {
            let successors = connections(&server, "successor");
            before.iter().all(|id| successors.contains(id))
        })
        .await;
        // Closes every connection of that user.
        server.tell(&["ACL", "DELUSER", "leasehold"]);
        blocking.release().await.unwrap();
        wait_for_renewal(&[&held.lease()]).await;
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    });
}

/// Returns the errors of connects to a server, a sentinel, a cluster and a
/// quorum with this provider.
async fn fail_to_connect(vault: &Vault, port: u16) -> Vec<Error> {
    let mut errors = Vec::new();
    for url in [
        url(port),
        format!("redis+sentinel://127.0.0.1:{port}/{GROUP}"),
        format!("redis+cluster://127.0.0.1:{port}"),
    ] {
        let connect = vault.attach(Client::connect(&url)).connect_timeout(SHORT);
        errors.push(connect.await.unwrap_err());
    }
    let quorum = vault.attach(Quorum::connect([(); 3].map(|()| url(port))));
    errors.push(quorum.connect_timeout(SHORT).await.unwrap_err());
    errors
}

#[test]
fn failing_provider_is_named_with_the_server() {
    run(async {
        let server = server();
        let vault = Vault::new();
        for (answer, text) in [
            (Answer::Hang, "the credentials provider did not return"),
            (Answer::Fail, "provider failed: the vault is sealed"),
        ] {
            vault.set(answer);
            for error in fail_to_connect(&vault, server.port()).await {
                assert!(error.is_transient(), "{error:?}");
                let message = error.to_string();
                let address = format!("127.0.0.1:{}", server.port());
                assert!(message.contains(text), "{message}");
                assert!(message.contains(&address), "{message}");
            }
        }
        vault.set(login("an old password"));
        let connect = vault.attach(Client::connect(&url(server.port())));
        let error = connect.await.unwrap_err();
        let expected = "refused the credentials of the provider: WRONGPASS";
        assert!(error.to_string().contains(expected), "{error}");
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(!error.to_string().contains("old password"), "{error}");
    });
}

/// A lease lives until its deadline, and a waiter until the limit of an outage.
async fn outlive_provider(answer: Answer, text: &str) {
    let server = server();
    let vault = Vault::new();
    let connect = vault
        .attach(Client::connect(&url(server.port())))
        .lease(Duration::from_secs(6))
        .connect_timeout(Duration::from_secs(1))
        .max_outage(Duration::from_secs(2));
    let client = connect.await.unwrap();
    let held = client.mutex(&name()).lock().await.unwrap();
    let (_blocking, waiter) = wait_for_busy_lock(&server, &client).await;
    vault.set(answer);
    rotate([&server], "another password");
    let error = waiter.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains(text), "{error}");
    let deadline = held.lease().deadline();
    assert_eq!(held.lost().await, Some(Loss::Expired));
    // The lease is timed by another clock than the test.
    assert!(Instant::now() + SHORT >= deadline);
    vault.set(login("another password"));
    let guard = client.mutex(&name()).lock().await.unwrap();
    guard.release().await.unwrap();
}

#[test]
fn lease_outlives_its_provider_until_the_deadline() {
    run(async {
        tokio::join!(
            outlive_provider(Answer::Fail, "provider failed: the vault is sealed"),
            outlive_provider(Answer::Hang, "the credentials provider did not return"),
            outlive_provider(login(PASSWORD), "credentials of the provider: WRONGPASS"),
        );
    });
}

#[test]
fn provider_that_recovers_keeps_the_lease() {
    run(async {
        let server = server();
        let vault = Vault::new();
        let connect = vault.attach(with_long_timeouts(Client::connect(&url(server.port()))));
        let client = connect.connect_timeout(SHORT).await.unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        for bad in [Answer::Fail, Answer::Hang, login("old")] {
            vault.set(bad);
            rotate([&server], "another password");
            tokio::time::sleep(2 * SHORT).await;
            vault.set(login("another password"));
            wait_for_renewal(&[&guard.lease()]).await;
        }
        guard.release().await.unwrap();
    });
}

#[test]
fn threads_wait_for_the_provider() {
    let server = server();
    let vault = Vault::new();
    let connect = || vault.attach(with_long_timeouts(Client::connect(&url(server.port()))));
    let client = connect().wait().unwrap();
    let mutex = client.mutex(&name());
    mutex.lock().wait().unwrap().release().wait().unwrap();
    vault.set(login("another password"));
    rotate([&server], "another password");
    mutex.lock().wait().unwrap().release().wait().unwrap();
    vault.set(Answer::Hang);
    let error = connect().connect_timeout(SHORT).wait().unwrap_err();
    assert!(error.to_string().contains("provider"), "{error}");
}

#[test]
fn shutdown_is_bounded_while_the_provider_hangs() {
    run(async {
        let server = server();
        let vault = Vault::new();
        let connect = vault.attach(with_long_timeouts(Client::connect(&url(server.port()))));
        let client = connect.await.unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        vault.set(Answer::Hang);
        rotate([&server], PASSWORD);
        let shutdown = client.shutdown(SHORT).into_future();
        let outcome = tokio::time::timeout(AMPLE, shutdown).await;
        let outcome = outcome.expect("the shutdown is bounded");
        assert!(matches!(outcome, Err(Error::Unreleased)), "{outcome:?}");
        drop(guard);
    });
}

#[test]
fn dropped_connect_stops_the_provider() {
    struct Stopped(Arc<AtomicBool>);

    impl Drop for Stopped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    run(async {
        let server = server();
        let (asked, stopped) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (was_asked, was_stopped) = (asked.clone(), stopped.clone());
        let connect = Client::connect(&url(server.port())).connect_timeout(AMPLE);
        let connect = connect.credentials(move |_| {
            was_asked.store(true, Ordering::Relaxed);
            let on_drop = Stopped(was_stopped.clone());
            async move {
                let _on_drop = on_drop;
                pending::<Result<Credentials, String>>().await
            }
        });
        let connecting = tokio::spawn(connect.into_future());
        eventually("the provider is asked", || asked.load(Ordering::Relaxed)).await;
        connecting.abort();
        eventually("it is stopped", || stopped.load(Ordering::Relaxed)).await;
    });
}

#[test]
fn sentinel_password_of_the_url_is_used() {
    run(async {
        let group = group(&Flavor::one());
        let sentinels = group.sentinels();
        let url =
            format!("redis+sentinel://{sentinels}/{GROUP}?sentinel_password={SENTINEL_PASSWORD}");
        let connect = with_long_timeouts(Client::connect(&url)).credentials(|server| async move {
            match server.is_sentinel() {
                true => Err("asked for a sentinel"),
                false => Ok(Credentials::new("leasehold", PASSWORD)),
            }
        });
        let client = connect.await.unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        guard.release().await.unwrap();
    });
}

#[test]
fn url_with_a_password_excludes_a_provider() {
    run(async {
        for url in [
            format!("redis://u:{PASSWORD}@127.0.0.1"),
            format!("redis+sentinel://u:{PASSWORD}@127.0.0.1/group"),
            format!("redis+cluster://u:{PASSWORD}@127.0.0.1"),
        ] {
            let error = Vault::new()
                .attach(Client::connect(&url))
                .await
                .unwrap_err();
            let is_invalid = matches!(error, Error::Invalid { what: "url", .. });
            assert!(is_invalid, "{error:?}");
            assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
        }
    });
}

/// A proxy can end a login without closing the connection.
#[test]
fn ended_login_is_repeated_on_a_new_connection() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let end_once = || {
            let is_ended = AtomicBool::new(false);
            proxy.inject(move |request| match request[0].as_slice() {
                b"GET" if !is_ended.swap(true, Ordering::Relaxed) => {
                    Fault::ReplaceReply(b"-NOAUTH Authentication required.\r\n")
                }
                _ => Fault::None,
            });
        };
        let connect = with_long_timeouts(Client::connect(&url(proxy.port())));
        let client = Vault::new().attach(connect).await.unwrap();
        let mutex = client.mutex(&name());
        let before = proxy.connections();
        end_once();
        let error = mutex.holder().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(mutex.holder().await.unwrap().is_none());
        assert!(proxy.connections() > before);
        let fixed = connect_at(proxy.port()).await.unwrap();
        end_once();
        let error = fixed.mutex(&name()).holder().await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
    });
}

/// The replicas' connections, which wait for acknowledgements, log in too.
#[test]
fn replicated_lock_survives_a_rotation() {
    run(async {
        let flavor = Flavor::one();
        let setup = Setup::default().user(&rule_with_grants(&flavor, &["+wait", "+role"]));
        let master = setup.clone().start(&flavor);
        let of = format!("127.0.0.1 {}", master.port());
        let replica = setup.option("replicaof", &of).start(&flavor);
        eventually("the replica is connected", || {
            master.ask(&["ROLE"]).list()[2].list().len() == 1
        })
        .await;
        let vault = Vault::new();
        let connect = vault.attach(with_long_timeouts(Client::connect(&url(master.port()))));
        let client = connect.replicas(1, LEASE / 2).await.unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        for number in 0..3 {
            let password = format!("{PASSWORD}-{number}");
            rotate([&master, &replica], &password);
            vault.set(login(&password));
            wait_for_renewal(&[&guard.lease()]).await;
            let another = client.mutex(&name()).lock().await.unwrap();
            another.release().await.unwrap();
        }
        guard.release().await.unwrap();
    });
}
