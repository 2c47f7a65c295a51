//! Requests and connections, while the server fails.

use std::time::{Duration, Instant};

use leasehold_metrics::{CONNECTIONS, LOST, Metrics, RECONNECTS, RENEWALS, REQUEST_DURATION};
use testkit::Proxy;

use crate::scrape::Registry;
use crate::{AMPLE, connect, eventually, observed, release, run, server};

#[test]
fn stopped_server_fails_renewals_and_reconnects() {
    run(async {
        let mut server = server();
        let address = format!("127.0.0.1:{}", server.port());
        let own = [("server", address.as_str())];
        let (client, registry) = observed(server.port()).await;
        let lock = client.mutex("job").lock();
        let _guard = lock.lease(Duration::from_secs(3)).await.unwrap();
        let connections = registry.value(CONNECTIONS, &own);
        assert!(connections >= 1.0, "{}", registry.text());
        assert_eq!(registry.find(RECONNECTS, &own), Some(0.0));

        server.kill();
        let failed = || registry.value(RENEWALS, &[("outcome", "failed")]);
        eventually("a renewal fails", || failed() >= 1.0).await;
        let expired = || registry.value(LOST, &[("cause", "expired")]);
        eventually("the lease expires", || expired() == 1.0).await;
        eventually("no connection", || registry.value(CONNECTIONS, &own) == 0.0).await;

        server.restart().unwrap();
        release(client.mutex("job").lock().await.unwrap()).await;
        let reconnects = || registry.value(RECONNECTS, &own);
        eventually("it reconnects", || reconnects() >= 1.0).await;
        assert!(registry.value(CONNECTIONS, &own) >= 1.0);

        client.shutdown(AMPLE).await.unwrap();
        drop((client, _guard));
        eventually("no connection", || registry.value(CONNECTIONS, &[]) == 0.0).await;
    });
}

#[test]
fn request_without_reply_is_unknown() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let (metrics, registry) = Registry::new(Metrics::builder());
        let connect = connect(proxy.port()).observe(metrics.observer());
        let connect = connect.request_timeout(Duration::from_millis(500));
        let client = connect.await.unwrap();
        let count = |outcome| registry.count(REQUEST_DURATION, &[("outcome", outcome)]);
        // A machine that stalls may miss replies before, too.
        let start = Instant::now();
        while count("replied") < 1.0 {
            assert!(start.elapsed() < AMPLE, "no request was replied to");
            drop(client.mutex("job").try_lock().await);
        }

        proxy.black_hole(true);
        client.mutex("job").try_lock().await.unwrap_err();
        assert!(count("unknown") >= 1.0);
        proxy.heal();
    });
}
