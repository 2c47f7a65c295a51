//! How a client gets to its server: addresses, credentials, TLS, and outages.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, ReleaseOutcome};
use testkit::{Cluster, Flavor, Proxy, Server, Setup};

use crate::support::{
    AMPLE, LEASE, PASSWORD, builder_at, channels, client, eventually, exists, key, name,
    on_every_server, patient, run, server, until_renewed, url_at,
};

/// Connects with timeouts that a stall of the machine does not reach.
async fn connect(url: &str) -> Result<Client, Error> {
    patient(Client::builder(url)).connect().await
}

async fn works(client: &Client) {
    let guard = client.mutex(&name()).lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

#[test]
fn a_socket_a_database_and_the_other_scheme_work() {
    run(async {
        let server = server();
        let (port, socket) = (server.port(), server.socket());
        for url in [
            format!("valkey://leasehold:{PASSWORD}@127.0.0.1:{port}"),
            format!("unix://{}?user=leasehold&pass={PASSWORD}", socket.display()),
            format!("redis+unix://{}", socket.display()),
        ] {
            works(&connect(&url).await.unwrap()).await;
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
fn a_prefix_is_taken_as_it_is() {
    run(async {
        let server = Server::start(&Flavor::one());
        let url = format!("redis://127.0.0.1:{}", server.port());
        for prefix in ["", "app:{locks}:"] {
            let builder = patient(Client::builder(&url)).prefix(prefix);
            let client = builder.connect().await.unwrap();
            let _guard = client.mutex("job").lock().await.unwrap();
            assert_eq!(server.ask(&["EXISTS", &format!("{prefix}job")]).int(), 1);
        }
        let builder = patient(Client::builder(&url)).prefix("");
        let client = builder.connect().await.unwrap();
        let reserved = client.mutex("leasehold:token:{3560}").try_lock().await;
        assert!(matches!(reserved, Err(Error::Invalid { what: "name", .. })));
    });
}

#[test]
fn a_cluster_would_put_all_of_one_lock_in_one_slot() {
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
            eventually("subscribed", || !channels(&server).is_empty()).await;
            assert_eq!(slot(&channels(&server)[0]), slot(&key(name)), "{name}");
            waiting.abort();
            eventually("unsubscribed", || channels(&server).is_empty()).await;
        }
    });
}

#[test]
fn tls_works_with_the_right_authority_only() {
    run(async {
        let server = Setup::default().tls().start(&Flavor::one());
        for scheme in ["rediss", "valkeys"] {
            let url = format!("{scheme}://127.0.0.1:{}", server.tls_port());
            let trusting = patient(Client::builder(&url)).root_certificate(server.ca_certificate());
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
    show_certificate(AMPLE);
}

#[test]
#[ignore = "deep: measures how soon errors are returned"]
fn client_certificate_refused_is_reported_in_time() {
    show_certificate(Duration::from_secs(8));
}

fn show_certificate(limit: Duration) {
    on_every_server(|plain| async move {
        let flavor = Flavor::named(plain.name());
        let server = Setup::default().mutual_tls().start(&flavor);
        let stranger = Setup::default().mutual_tls().start(&flavor);
        let url = format!("rediss://127.0.0.1:{}", server.tls_port());
        let trusting = || Client::builder(&url).root_certificate(server.ca_certificate());
        let (certificate, key) = server.client_certificate();
        let known = trusting().client_certificate(certificate, key);
        works(&patient(known).connect().await.unwrap()).await;
        let (certificate, key) = stranger.client_certificate();
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
        assert!(start.elapsed() < limit, "not within the limit");
    });
}

#[test]
fn verification_is_turned_off_by_code_only() {
    run(async {
        let server = Setup::default().tls().start(&Flavor::one());
        let url = format!("rediss://127.0.0.1:{}", server.tls_port());
        assert!(Client::connect(&url).await.is_err());
        assert!(Client::connect(&format!("{url}/#insecure")).await.is_err());
        let blind = Client::builder(&url).dangerously_trust_any_certificate();
        works(&patient(blind).connect().await.unwrap()).await;
    });
}

#[test]
fn a_replica_given_as_master_is_refused_with_a_hint() {
    connect_to_replica(AMPLE);
}

#[test]
#[ignore = "deep: measures how soon an error is returned"]
fn replica_given_as_master_is_refused_at_once() {
    connect_to_replica(Duration::from_secs(2));
}

fn connect_to_replica(limit: Duration) {
    on_every_server(|server| async move {
        let replica = Server::start(&Flavor::named(server.name()));
        let port = server.port().to_string();
        replica.tell(&["REPLICAOF", "127.0.0.1", &port]);
        let start = Instant::now();
        let url = format!("redis://127.0.0.1:{}", replica.port());
        let error = connect(&url).await.unwrap_err();
        assert!(start.elapsed() < limit, "{:?}", start.elapsed());
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("it is a replica"), "{why}");
    });
}

#[test]
fn wrong_credentials_and_missing_rights_are_told_apart_from_outages() {
    on_every_server(|server| async move {
        let port = server.port();
        let wrong = connect(&format!("redis://leasehold:wrong@127.0.0.1:{port}")).await;
        assert!(matches!(wrong, Err(Error::Denied(_))), "{wrong:?}");
        for (right, what, held) in [
            ("-set", "acquiring", false),
            ("-incr", "counting", false),
            ("&none resetchannels", "waiting", true),
        ] {
            let user: Vec<_> = ["ACL", "SETUSER", "leasehold"]
                .into_iter()
                .chain(right.split(' '))
                .collect();
            let client = client(&server).await;
            if held {
                server.tell(&["SET", &key("denied"), "held"]);
            }
            server.tell(&user);
            let outcome = client.mutex("denied").lock().timeout(AMPLE).await;
            let denied = matches!(outcome, Err(Error::Denied(_) | Error::OutcomeUnknown(_)));
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
    connect_in_vain(AMPLE);
}

#[test]
#[ignore = "deep: measures how soon an error is returned"]
fn connect_timeout_is_kept_within_a_second() {
    connect_in_vain(Duration::from_secs(1));
}

fn connect_in_vain(late: Duration) {
    run(async {
        let mut server = server();
        let proxy = Proxy::start(server.port());
        let limit = Duration::from_millis(300);
        let connect = |port| builder_at(port).connect_timeout(limit).connect();
        proxy.black_hole(true);
        let start = Instant::now();
        let silent = connect(proxy.port()).await;
        assert!(matches!(silent, Err(Error::Unavailable(_))), "{silent:?}");
        assert!(start.elapsed() < limit + late);
        server.kill();
        let down = connect(server.port()).await;
        assert!(matches!(down, Err(Error::Unavailable(_))), "{down:?}");
    });
}

#[test]
fn an_address_that_makes_no_sense_is_refused() {
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
fn a_long_outage_is_borne_by_those_who_wait() {
    wait_through_outage(Duration::from_secs(1), AMPLE);
}

#[test]
#[ignore = "deep: measures a latency, after an outage longer than the driver's own supervision bears"]
fn waiter_after_long_outage_is_woken_at_once() {
    wait_through_outage(Duration::from_secs(8), Duration::from_millis(600));
}

/// After an outage of this length, a waiter gets the lock within `limit` after its release.
fn wait_through_outage(outage: Duration, limit: Duration) {
    run(async {
        let mut server = server();
        let client = client(&server).await;
        let name = name();
        server.tell(&["SET", &key(&name), "somebody"]);
        let mutex = client.mutex(&name);
        let waiting = tokio::spawn(mutex.lock().into_future());
        let waited_for = |server: &Server| !channels(server).is_empty();
        eventually("a waiter", || waited_for(&server)).await;
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
        server.restart();
        let got = tokio::time::timeout(AMPLE, waiting).await;
        let guard = got.expect("in time").unwrap().unwrap();
        // Subscriptions and renewals are back, too.
        let mutex = client.mutex(&name);
        let next =
            tokio::spawn(async move { mutex.lock().await.map(|guard| (Instant::now(), guard)) });
        eventually("a waiter", || waited_for(&server)).await;
        until_renewed(&[guard.lease()]).await;
        let released = Instant::now();
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        let (got, _guard) = next.await.unwrap().unwrap();
        let took = got - released;
        assert!(took < limit, "not by push: {took:?}");
    });
}

#[test]
fn an_outage_that_does_not_end_is_told_to_those_who_wait() {
    wait_in_vain(AMPLE);
}

#[test]
#[ignore = "deep: measures how soon an error is returned"]
fn outage_limit_is_kept() {
    wait_in_vain(Duration::from_secs(3));
}

fn wait_in_vain(most: Duration) {
    run(async {
        let mut server = server();
        let limit = Duration::from_secs(1);
        let client = builder_at(server.port())
            .request_timeout(limit)
            .max_outage(limit)
            .connect()
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
        assert!(took >= limit && took < most, "{took:?}");
    });
}

#[test]
fn a_client_outlives_the_runtime_that_connected_it() {
    let server = server();
    let client = run(async { connect(&url_at(server.port())).await.unwrap() });
    for _ in 0..3 {
        let client = client.clone();
        run(async move {
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
        for _ in 0..5 {
            server.tell(&["SCRIPT", "FLUSH"]);
            guard.extend(LEASE).await.unwrap();
            server.tell(&["SCRIPT", "FLUSH"]);
            works(&client).await;
        }
        server.tell(&["SCRIPT", "FLUSH"]);
        until_renewed(&[guard.lease()]).await;
    });
}

/// A client that lost its server returns to it at a random moment: many clients do not return at once.
#[test]
#[ignore = "deep: measures when clients reconnect"]
fn idle_clients_reconnect_at_different_moments() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let mut clients = Vec::new();
        for _ in 0..12 {
            clients.push(builder_at(proxy.port()).connect().await.unwrap());
        }
        let keepers = || -> HashSet<String> {
            let clients = server.ask(&["CLIENT", "LIST"]);
            let keepers = clients.text().lines();
            let keepers = keepers.filter(|line| line.contains("name=leasehold-keeper"));
            keepers
                .filter_map(|line| Some(line.split_once(' ')?.0.to_owned()))
                .collect()
        };
        eventually("all connected", || keepers().len() == 12).await;
        let before = keepers();
        proxy.sever();
        let start = Instant::now();
        let mut soon = 0;
        eventually("all back", || {
            let back = keepers().difference(&before).count();
            if start.elapsed() < Duration::from_millis(100) {
                soon = back;
            }
            back == 12
        })
        .await;
        // One is expected.
        assert!(soon <= 6, "{soon} of 12 were back within 100 ms");
    });
}
