//! How a client gets to its server: addresses, credentials, TLS, and outages.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Release};
use testkit::machine::{self, ran_between, ran_since};
use testkit::{Flavor, Proxy, Server, Setup};

use crate::support::{
    LEASE, PASSWORD, beside_others, builder_at, channels, client, eventually, exists, key, name,
    on_every_server, server, url_at,
};

async fn works(client: &Client) {
    let guard = client.mutex(&name()).lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[test]
fn a_socket_a_database_and_the_other_scheme_work() {
    beside_others(async {
        let server = server();
        let (port, socket) = (server.port(), server.socket());
        for url in [
            format!("valkey://leasehold:{PASSWORD}@127.0.0.1:{port}"),
            format!("unix://{}?user=leasehold&pass={PASSWORD}", socket.display()),
            format!("redis+unix://{}", socket.display()),
        ] {
            works(&Client::connect(&url).await.unwrap()).await;
        }
        let other = Client::connect(&format!("redis://127.0.0.1:{port}/3"))
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
fn a_prefix_is_taken_as_it_is() {
    beside_others(async {
        let server = Server::start(&Flavor::one());
        let url = format!("redis://127.0.0.1:{}", server.port());
        for prefix in ["", "app:{locks}:"] {
            let client = Client::builder(&url)
                .prefix(prefix)
                .connect()
                .await
                .unwrap();
            let _guard = client.mutex("job").lock().await.unwrap();
            assert_eq!(server.ask(&["EXISTS", &format!("{prefix}job")]).int(), 1);
        }
        let client = Client::builder(&url).prefix("").connect().await.unwrap();
        let reserved = client.mutex("leasehold:token:{3560}").try_lock().await;
        assert!(matches!(reserved, Err(Error::Invalid { what: "name", .. })));
    });
}

#[test]
fn a_cluster_would_put_all_of_one_lock_in_one_slot() {
    beside_others(async {
        let server = server();
        let cluster = Setup::default()
            .option("cluster-enabled", "yes")
            .start(&Flavor::one());
        let slot = |key: &str| cluster.ask(&["CLUSTER", "KEYSLOT", key]).int();
        let client = client(&server).await;
        for name in [
            "job", "{", "}", "{}x", "a{b}c", "a}b{c", "{user}:1", "ключ", "a b",
        ] {
            let _guard = client.mutex(name).lock().await.unwrap();
            let waiting =
                tokio::spawn(self::client(&server).await.mutex(name).lock().into_future());
            eventually(Duration::from_secs(2), "subscribed", || {
                !channels(&server).is_empty()
            })
            .await;
            assert_eq!(slot(&channels(&server)[0]), slot(&key(name)), "{name}");
            waiting.abort();
            eventually(Duration::from_secs(2), "unsubscribed", || {
                channels(&server).is_empty()
            })
            .await;
        }
    });
}

#[test]
fn tls_works_with_the_right_authority_only() {
    beside_others(async {
        let server = Setup::default().tls().start(&Flavor::one());
        for scheme in ["rediss", "valkeys"] {
            let url = format!("{scheme}://127.0.0.1:{}", server.tls_port());
            let trusting = Client::builder(&url).root_certificate(server.authority());
            works(&trusting.connect().await.unwrap()).await;
            let error = Client::connect(&url).await.unwrap_err();
            assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        }
        let plain = format!("redis://127.0.0.1:{}", server.tls_port());
        assert!(
            Client::connect(&plain).await.is_err(),
            "no fall-back to plain text"
        );
    });
}

#[test]
fn a_server_that_asks_who_we_are_is_shown_our_certificate() {
    on_every_server(|plain| async move {
        let flavor = Flavor::named(plain.name());
        let server = Setup::default().mutual_tls().start(&flavor);
        let stranger = Setup::default().mutual_tls().start(&flavor);
        let url = format!("rediss://127.0.0.1:{}", server.tls_port());
        let trusting = || Client::builder(&url).root_certificate(server.authority());
        let (certificate, key) = server.visitor();
        let known = trusting().client_certificate(certificate, key);
        works(&known.connect().await.unwrap()).await;
        let (certificate, key) = stranger.visitor();
        let start = Instant::now();
        for refused in [
            trusting(),
            trusting().client_certificate(certificate, key),
            Client::builder(&url).client_certificate(certificate, key),
            trusting().client_certificate("no certificate", "no key"),
        ] {
            let error = refused.connect().await.unwrap_err();
            let told = matches!(
                error,
                Error::Unavailable(_) | Error::Invalid { what: "url", .. }
            );
            assert!(told, "{error:?}");
        }
        assert!(
            ran_since(start) < Duration::from_secs(8),
            "not within the limit"
        );
    });
}

#[test]
fn verification_is_turned_off_by_code_only() {
    beside_others(async {
        let server = Setup::default().tls().start(&Flavor::one());
        let url = format!("rediss://127.0.0.1:{}", server.tls_port());
        assert!(Client::connect(&url).await.is_err());
        assert!(Client::connect(&format!("{url}/#insecure")).await.is_err());
        let blind = Client::builder(&url).dangerously_trust_any_certificate();
        works(&blind.connect().await.unwrap()).await;
    });
}

#[test]
fn a_replica_given_as_master_is_refused_with_a_hint() {
    on_every_server(|server| async move {
        let replica = Server::start(&Flavor::named(server.name()));
        let port = server.port().to_string();
        replica.tell(&["REPLICAOF", "127.0.0.1", &port]);
        let start = Instant::now();
        let url = format!("redis://127.0.0.1:{}", replica.port());
        let error = Client::connect(&url).await.unwrap_err();
        assert!(ran_since(start) < Duration::from_secs(2));
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("it is a replica"), "{why}");
    });
}

#[test]
fn wrong_credentials_and_missing_rights_are_told_apart_from_outages() {
    on_every_server(|server| async move {
        let port = server.port();
        let wrong = Client::connect(&format!("redis://leasehold:wrong@127.0.0.1:{port}")).await;
        assert!(matches!(wrong, Err(Error::Denied(_))), "{wrong:?}");
        for (right, what) in [
            ("-set", "acquiring"),
            ("-incr", "counting"),
            ("&none resetchannels", "waiting"),
        ] {
            let user: Vec<_> = ["ACL", "SETUSER", "leasehold"]
                .into_iter()
                .chain(right.split(' '))
                .collect();
            let client = client(&server).await;
            let _held = client.mutex("denied").lock().lease(LEASE).await.unwrap();
            server.tell(&user);
            let outcome = client.mutex("denied").lock().wait(LEASE * 3).await;
            let denied = matches!(outcome, Err(Error::Denied(_) | Error::Unknown(_)));
            assert!(denied, "{what}: {outcome:?}");
            server.tell(&[
                "ACL",
                "SETUSER",
                "leasehold",
                "+set",
                "+incr",
                "&leasehold:*",
            ]);
            server.tell(&["DEL", &key("denied")]);
        }
    });
}

#[test]
fn a_server_out_of_reach_is_told_within_the_connect_limit() {
    beside_others(async {
        let mut server = server();
        let proxy = Proxy::start(server.port());
        let limit = Duration::from_millis(300);
        let connect = |port| builder_at(port).connect_timeout(limit).connect();
        proxy.black_hole(true);
        let start = Instant::now();
        let silent = connect(proxy.port()).await;
        assert!(matches!(silent, Err(Error::Unavailable(_))), "{silent:?}");
        assert!(ran_since(start) < limit + Duration::from_secs(1));
        server.kill();
        let down = connect(server.port()).await;
        assert!(matches!(down, Err(Error::Unavailable(_))), "{down:?}");
    });
}

#[test]
fn an_address_that_makes_no_sense_is_refused() {
    beside_others(async {
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
fn a_long_outage_is_borne_by_those_who_wait() {
    beside_others(async {
        let mut server = server();
        let client = client(&server).await;
        let name = name();
        server.tell(&["SET", &key(&name), "somebody"]);
        let mutex = client.mutex(&name);
        let waiting = tokio::spawn(mutex.lock().into_future());
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.kill();
        let at_once = client.mutex("other").try_lock().await;
        assert!(
            matches!(at_once, Err(Error::Unavailable(_) | Error::Unknown(_))),
            "{at_once:?}"
        );
        // Longer than the driver's own supervision would bear.
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert!(!waiting.is_finished());
        server.restart();
        let got = tokio::time::timeout(Duration::from_secs(4), waiting).await;
        let guard = got.expect("in time").unwrap().unwrap();
        // Subscriptions and renewals are back, too.
        let mutex = client.mutex(&name);
        let next =
            tokio::spawn(async move { mutex.lock().await.map(|guard| (Instant::now(), guard)) });
        tokio::time::sleep(LEASE * 3).await;
        guard.check().unwrap();
        let released = Instant::now();
        let _ = guard.release().await.unwrap();
        let (got, _guard) = next.await.unwrap().unwrap();
        assert!(
            ran_between(released, got) < Duration::from_millis(600),
            "not by push: {:?}",
            got - released
        );
    });
}

#[test]
fn an_outage_that_does_not_end_is_told_to_those_who_wait() {
    beside_others(async {
        let mut server = server();
        let limit = Duration::from_secs(1);
        let client = builder_at(server.port())
            .outage_limit(limit)
            .connect()
            .await
            .unwrap();
        server.kill();
        let start = Instant::now();
        let error = client.mutex("any").lock().await.unwrap_err();
        assert!(
            matches!(error, Error::Unavailable(_) | Error::Unknown(_)),
            "{error:?}"
        );
        assert!(
            start.elapsed() >= limit && ran_since(start) < limit * 3,
            "{:?}",
            start.elapsed()
        );
    });
}

#[test]
fn a_client_outlives_the_runtime_that_connected_it() {
    let _place = machine::beside_others();
    let server = server();
    let client =
        crate::support::run(async { Client::connect(&url_at(server.port())).await.unwrap() });
    for _ in 0..3 {
        let client = client.clone();
        crate::support::run(async move {
            let guard = client.mutex("r").lock().await.unwrap();
            let _ = guard.release().await.unwrap();
        });
    }
}

#[test]
fn scripts_flushed_from_the_server_are_taught_again() {
    on_every_server(|server| async move {
        let client = client(&server).await;
        let guard = client.mutex(&name()).lock().await.unwrap();
        for _ in 0..20 {
            server.tell(&["SCRIPT", "FLUSH"]);
            guard.extend(LEASE).await.unwrap();
            works(&client).await;
            tokio::time::sleep(LEASE / 10).await;
        }
        guard.check().unwrap();
    });
}
