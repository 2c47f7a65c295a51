//! Typed outcomes: transient errors, and a shutdown that times out.

use std::time::Duration;

use leasehold::{Client, Error};
use testkit::{Flavor, Proxy, ServerExt};

use crate::support::{
    AMPLE, LEASE, PASSWORD, SHORT, client, connect_at, key, name, run, server, url_at,
    with_long_timeouts,
};

fn assert_transient(error: &Error, transient: bool) {
    assert_eq!(error.is_transient(), transient, "{error:?}");
}

#[test]
fn busy_full_or_unreachable_server_is_transient() {
    run(async {
        let mut server = Flavor::one().start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let connect = with_long_timeouts(Client::connect(&url));
        let client = connect.await.unwrap();
        let name = name();
        let _held = client.mutex(&name).lock().await.unwrap();

        let late = client.mutex(&name).lock().timeout(Duration::ZERO).await;
        let late = late.unwrap_err();
        assert!(matches!(late, Error::Timeout { .. }), "{late:?}");
        assert_transient(&late, true);

        let busy = client.mutex(&name).try_lock().await.unwrap_err();
        assert!(matches!(busy, Error::Busy { .. }), "{busy:?}");
        assert_transient(&busy, true);

        let alone = client.mutex("alone").try_lock().replicas(1, SHORT).await;
        let alone = alone.unwrap_err();
        let is_expected = matches!(
            alone,
            Error::Invalid {
                what: "replicas",
                ..
            }
        );
        assert!(is_expected, "{alone:?}");
        assert_transient(&alone, false);

        server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        let full = client.mutex("full").try_lock().await.unwrap_err();
        assert!(matches!(full, Error::OutOfMemory(_)), "{full:?}");
        assert_transient(&full, true);

        server.kill();
        let down = client.mutex("down").try_lock().await.unwrap_err();
        assert!(
            matches!(down, Error::Unavailable(_) | Error::OutcomeUnknown(_)),
            "{down:?}"
        );
        assert_transient(&down, true);
    });
}

#[test]
fn rejected_request_or_lost_lease_is_not_transient() {
    run(async {
        let server = server();
        let client = client(&server).await;

        let unnamed = client.mutex("").try_lock().await.unwrap_err();
        assert!(matches!(unnamed, Error::Invalid { .. }), "{unnamed:?}");
        assert_transient(&unnamed, false);

        server.tell(&["RPUSH", &key("list"), "x"]);
        let list = client.mutex("list").try_lock().await.unwrap_err();
        assert!(matches!(list, Error::WrongType { .. }), "{list:?}");
        assert_transient(&list, false);

        let url = url_at(server.port()).replace(PASSWORD, "wrong");
        let denied = Client::connect(&url).await.unwrap_err();
        assert!(matches!(denied, Error::Denied(_)), "{denied:?}");
        assert_transient(&denied, false);

        let guard = client.mutex(&name()).lock().fixed_lease(SHORT).await;
        let guard = guard.unwrap();
        assert!(guard.lost().await.is_some());
        assert_transient(&guard.check().unwrap_err(), false);

        client.shutdown(AMPLE).await.unwrap();
        let shut_down = client.mutex(&name()).try_lock().await.unwrap_err();
        assert!(matches!(shut_down, Error::ShutDown), "{shut_down:?}");
        assert_transient(&shut_down, false);
    });
}

#[test]
fn shutdown_during_outage_times_out() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = connect_at(proxy.port()).await.unwrap();
        let _guard = client.mutex(&name()).lock().await.unwrap();
        proxy.black_hole(true);
        let outcome = client.shutdown(LEASE / 20).await;
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Unreleased), "{error:?}");
        assert_transient(&error, false);
    });
}
