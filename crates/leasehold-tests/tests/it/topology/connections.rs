//! Connections: URLs, credentials, TLS and outages.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use testkit::{Cluster, Flavor, Proxy, Server, ServerExt, Setup};

use crate::support::{
    AMPLE, LEASE, PASSWORD, channels, client, connect_at, eventually, exists, key, name,
    on_every_server, run, server, url_at, wait_for_renewal, with_long_timeouts,
};

/// Connects with timeouts that survive a stall of the machine.
async fn connect(url: &str) -> Result<Client, Error> {
    with_long_timeouts(Client::connect(url)).await
}

async fn assert_works(client: &Client) {
    let guard = client.mutex(&name()).lock().await.unwrap();
    guard.release().await.unwrap();
}

#[test]
fn url_schemes_sockets_and_databases_work() {
    run(async {
        let server = server();
        let (port, socket) = (server.port(), server.socket());
        for url in [
            format!("valkey://leasehold:{PASSWORD}@127.0.0.1:{port}"),
            format!("unix://{}?user=leasehold&pass={PASSWORD}", socket.display()),
            format!("redis+unix://{}", socket.display()),
        ] {
            assert_works(&connect(&url).await.unwrap()).await;
        }
        let other = connect(&format!("redis://127.0.0.1:{port}/3"))
            .await
            .unwrap();
        let _guard = other.mutex("in-three").lock().await.unwrap();
        assert!(!exists(&server, "in-three"));
        let mut connection = server.connect();
        connection.ask(&["SELECT", "3"]).unwrap();
        assert_eq!(
            connection.ask(&["EXISTS", &key("in-three")]).unwrap().int(),
            1
        );
    });
}

#[test]
fn prefix_is_used_verbatim() {
    run(async {
        let server = Flavor::one().start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        for prefix in ["", "app:{locks}:"] {
            let builder = with_long_timeouts(Client::connect(&url)).prefix(prefix);
            let client = builder.await.unwrap();
            let _guard = client.mutex("job").lock().await.unwrap();
            assert_eq!(server.ask(&["EXISTS", &format!("{prefix}job")]).int(), 1);
        }
        let builder = with_long_timeouts(Client::connect(&url)).prefix("");
        let client = builder.await.unwrap();
        let reserved = client.mutex("leasehold:token:{3560}").try_lock().await;
        assert!(matches!(reserved, Err(Error::Invalid { what: "name", .. })));
    });
}

#[test]
fn keys_and_channels_share_one_slot() {
    run(async {
        let server = server();
        let cluster = Cluster::start(&Setup::default(), &Flavor::one(), 1, false);
        let slot = |key: &str| cluster.slot(key);
        let client = client(&server).await;
        for name in [
            "job", "{", "}", "{}x", "a{b}c", "a}b{c", "{user}:1", "ключ", "a b",
        ] {
            let _guard = client.mutex(name).lock().await.unwrap();
            let waiting =
                tokio::spawn(self::client(&server).await.mutex(name).lock().into_future());
            eventually("the waiter subscribes", || !channels(&server).is_empty()).await;
            assert_eq!(slot(&channels(&server)[0]), slot(&key(name)), "{name}");
            waiting.abort();
            eventually("the waiter unsubscribes", || channels(&server).is_empty()).await;
        }
    });
}

#[test]
fn tls_requires_trusted_authority() {
    run(async {
        let server = Setup::default().tls().start(&Flavor::one());
        for scheme in ["rediss", "valkeys"] {
            let url = format!("{scheme}://127.0.0.1:{}", server.tls_port());
            let trusting =
                with_long_timeouts(Client::connect(&url)).root_certificate(server.ca_certificate());
            assert_works(&trusting.await.unwrap()).await;
            let error = Client::connect(&url).await.unwrap_err();
            assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        }
        let plain = format!("redis://127.0.0.1:{}", server.tls_port());
        assert!(
            Client::connect(&plain).await.is_err(),
            "the client fell back to plain text"
        );
    });
}

#[test]
fn client_certificate_is_presented() {
    present_certificate(AMPLE);
}

#[test]
#[ignore = "deep: measures how soon errors are returned"]
fn rejected_client_certificate_fails_in_time() {
    present_certificate(Duration::from_secs(8));
}

fn present_certificate(limit: Duration) {
    on_every_server(|plain| async move {
        let flavor = Flavor::named(&plain.name());
        let server = Setup::default().mutual_tls().start(&flavor);
        let stranger = Setup::default().mutual_tls().start(&flavor);
        let url = format!("rediss://127.0.0.1:{}", server.tls_port());
        let trusting = || Client::connect(&url).root_certificate(server.ca_certificate());
        let (certificate, key) = server.client_certificate();
        let known = trusting().client_certificate(certificate, key);
        assert_works(&with_long_timeouts(known).await.unwrap()).await;
        let (certificate, key) = stranger.client_certificate();
        let start = Instant::now();
        for refused in [
            trusting(),
            trusting().client_certificate(certificate.as_str(), key.as_str()),
            Client::connect(&url).client_certificate(certificate.as_str(), key.as_str()),
            trusting().client_certificate("no certificate", "no key"),
        ] {
            let error = refused.await.unwrap_err();
            let expected = matches!(
                error,
                Error::Unavailable(_) | Error::Invalid { what: "url", .. }
            );
            assert!(expected, "{error:?}");
        }
        assert!(start.elapsed() < limit, "the errors took too long");
    });
}

#[test]
fn url_cannot_disable_verification() {
    run(async {
        let server = Setup::default().tls().start(&Flavor::one());
        let url = format!("rediss://127.0.0.1:{}", server.tls_port());
        assert!(Client::connect(&url).await.is_err());
        assert!(Client::connect(&format!("{url}/#insecure")).await.is_err());
        let blind = Client::connect(&url).dangerously_trust_any_certificate();
        assert_works(&with_long_timeouts(blind).await.unwrap()).await;
    });
}

#[test]
fn replica_url_is_rejected_with_hint() {
    connect_to_replica(AMPLE);
}

#[test]
#[ignore = "deep: measures how soon an error is returned"]
fn replica_url_is_rejected_within_two_seconds() {
    connect_to_replica(Duration::from_secs(2));
}

fn connect_to_replica(limit: Duration) {
    on_every_server(|server| async move {
        let replica = Flavor::named(&server.name()).start();
        let port = server.port().to_string();
        replica.tell(&["REPLICAOF", "127.0.0.1", &port]);
        let start = Instant::now();
        let url = format!("redis://127.0.0.1:{}", replica.port());
        let error = connect(&url).await.unwrap_err();
        assert!(start.elapsed() < limit, "{:?}", start.elapsed());
        let why = error.to_string();
        assert!(why.contains("is a replica"), "{why}");
    });
}

#[test]
fn missing_permissions_return_denied() {
    on_every_server(|server| async move {
        let port = server.port();
        let wrong = connect(&format!("redis://leasehold:wrong@127.0.0.1:{port}")).await;
        assert!(matches!(wrong, Err(Error::Denied(_))), "{wrong:?}");
        for (right, what) in [("-set", "acquiring"), ("-incr", "counting")] {
            let client = client(&server).await;
            server.tell(&["ACL", "SETUSER", "leasehold", right]);
            let outcome = client.mutex("denied").lock().timeout(AMPLE).await;
            let denied = matches!(outcome, Err(Error::Denied(_) | Error::OutcomeUnknown(_)));
            assert!(denied, "{what}: {outcome:?}");
            server.tell(&["ACL", "SETUSER", "leasehold", "+set", "+incr"]);
            server.tell(&["DEL", &key("denied")]);
        }
    });
}

#[test]
fn unreachable_server_fails_connect() {
    connect_to_unreachable(AMPLE);
}

#[test]
#[ignore = "deep: measures how soon an error is returned"]
fn unreachable_server_fails_at_connect_timeout() {
    connect_to_unreachable(Duration::from_secs(1));
}

fn connect_to_unreachable(tolerance: Duration) {
    run(async {
        let mut server = server();
        let proxy = Proxy::start(server.port());
        let limit = Duration::from_millis(300);
        let connect = |port| connect_at(port).connect_timeout(limit);
        proxy.black_hole(true);
        let start = Instant::now();
        let silent = connect(proxy.port()).await;
        assert!(matches!(silent, Err(Error::Unavailable(_))), "{silent:?}");
        assert!(start.elapsed() < limit + tolerance);
        server.kill();
        let down = connect(server.port()).await;
        assert!(matches!(down, Err(Error::Unavailable(_))), "{down:?}");
    });
}

#[test]
fn malformed_url_is_rejected() {
    run(async {
        for url in [
            "",
            "localhost",
            "http://127.0.0.1",
            "redis://127.0.0.1/x",
            "rediss://h/#insecure",
        ] {
            let refused = Client::connect(url).await;
            assert!(
                matches!(refused, Err(Error::Invalid { what: "url", .. })),
                "{url}: {refused:?}"
            );
        }
    });
}

#[test]
fn waiter_survives_long_outage() {
    wait_through_outage(Duration::from_secs(1), AMPLE);
}

#[test]
#[ignore = "deep: measures a latency, after an outage longer than the driver's own retries cover"]
fn waiter_is_woken_promptly_after_long_outage() {
    wait_through_outage(Duration::from_secs(8), Duration::from_millis(600));
}

/// Waits through an outage. The waiter must acquire the lock within `limit`
/// after the next release.
fn wait_through_outage(outage: Duration, limit: Duration) {
    run(async {
        let mut server = server();
        let client = client(&server).await;
        let name = name();
        server.tell(&["SET", &key(&name), "foreign"]);
        let mutex = client.mutex(&name);
        let waiting = tokio::spawn(mutex.lock().into_future());
        let waited_for = |server: &Server| !channels(server).is_empty();
        eventually("the waiter subscribes", || waited_for(&server)).await;
        server.kill();
        let at_once = client.mutex("other").try_lock().await;
        assert!(
            matches!(
                at_once,
                Err(Error::Unavailable(_) | Error::OutcomeUnknown(_))
            ),
            "{at_once:?}"
        );
        tokio::time::sleep(outage).await;
        assert!(!waiting.is_finished());
        server.restart().unwrap();
        let got = tokio::time::timeout(AMPLE, waiting).await;
        let guard = got.expect("the waiter acquires the lock").unwrap().unwrap();
        // Subscriptions and renewals work again, too.
        let mutex = client.mutex(&name);
        let next =
            tokio::spawn(async move { mutex.lock().await.map(|guard| (Instant::now(), guard)) });
        eventually("the waiter subscribes", || waited_for(&server)).await;
        wait_for_renewal(&[&guard.lease()]).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        let (got, _guard) = next.await.unwrap().unwrap();
        let took = got - released;
        assert!(took < limit, "woken by polling after {took:?}");
    });
}

#[test]
fn endless_outage_fails_waiters() {
    wait_through_endless_outage(AMPLE);
}

#[test]
#[ignore = "deep: measures how soon an error is returned"]
fn endless_outage_fails_waiters_at_max_outage() {
    wait_through_endless_outage(Duration::from_secs(3));
}

fn wait_through_endless_outage(max_wait: Duration) {
    run(async {
        let mut server = server();
        let limit = Duration::from_secs(1);
        let client = connect_at(server.port())
            .request_timeout(limit)
            .max_outage(limit)
            .await
            .unwrap();
        server.kill();
        let start = Instant::now();
        let error = client.mutex("any").lock().await.unwrap_err();
        assert!(
            matches!(error, Error::Unavailable(_) | Error::OutcomeUnknown(_)),
            "{error:?}"
        );
        let took = start.elapsed();
        assert!(took >= limit && took < max_wait, "{took:?}");
    });
}

#[test]
fn client_outlives_its_runtime() {
    let server = server();
    let client = run(async { connect(&url_at(server.port())).await.unwrap() });
    for _ in 0..3 {
        let client = client.clone();
        run(async move {
            let guard = client.mutex("r").lock().await.unwrap();
            guard.release().await.unwrap();
        });
    }
}

#[test]
fn flushed_scripts_are_loaded_again() {
    on_every_server(|server| async move {
        let client = client(&server).await;
        let guard = client.mutex(&name()).lock().await.unwrap();
        for _ in 0..5 {
            server.tell(&["SCRIPT", "FLUSH"]);
            guard.extend(LEASE).await.unwrap();
            server.tell(&["SCRIPT", "FLUSH"]);
            assert_works(&client).await;
        }
        server.tell(&["SCRIPT", "FLUSH"]);
        wait_for_renewal(&[&guard.lease()]).await;
    });
}

/// Clients reconnect after a random delay, so that many do not reconnect at
/// once.
#[test]
#[ignore = "deep: measures when clients reconnect"]
fn idle_clients_reconnect_with_jitter() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let mut clients = Vec::new();
        for _ in 0..12 {
            clients.push(connect_at(proxy.port()).await.unwrap());
        }
        let keepers = || -> HashSet<String> {
            let clients = server.ask(&["CLIENT", "LIST"]);
            let keepers = clients.text().lines();
            let keepers = keepers.filter(|line| line.contains("name=leasehold-keeper"));
            keepers
                .filter_map(|line| Some(line.split_once(' ')?.0.to_owned()))
                .collect()
        };
        eventually("all clients connect", || keepers().len() == 12).await;
        let before = keepers();
        proxy.sever();
        let start = Instant::now();
        let mut soon = 0;
        eventually("all clients reconnect", || {
            let back = keepers().difference(&before).count();
            if start.elapsed() < Duration::from_millis(100) {
                soon = back;
            }
            back == 12
        })
        .await;
        // One is expected.
        assert!(soon <= 6, "{soon} of 12 reconnected within 100 ms");
    });
}
