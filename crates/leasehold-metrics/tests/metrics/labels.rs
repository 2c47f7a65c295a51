//! The labels and descriptions of the metrics of a real client.

use std::borrow::Cow;

use leasehold_metrics::{
    ACQUIRE_DURATION, BUCKETS, CONNECTIONS, HANDED_OFF, HELD, HOLD_DURATION, LEASE_MARGIN,
    LEASE_MARGIN_RATIO, LOST, Metrics, RECONNECTS, RELEASES_PENDING, RENEWALS, REQUEST_DURATION,
    WAITING,
};
use testkit::scaled;

use crate::scrape::Registry;
use crate::{connect, observed, release, run, server};

#[test]
fn every_metric_is_described_and_exported() {
    run(async {
        let server = server();
        let (client, registry) = observed(server.port()).await;
        release(client.mutex("job").lock().await.unwrap()).await;
        drop(client.mutex("job").try_lock().await.unwrap());
        let text = registry.text();
        let histograms = [
            ACQUIRE_DURATION,
            HOLD_DURATION,
            LEASE_MARGIN,
            LEASE_MARGIN_RATIO,
            REQUEST_DURATION,
        ];
        let names: Vec<_> = BUCKETS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, histograms);
        let gauges = [HELD, WAITING, RELEASES_PENDING, CONNECTIONS];
        let counters = [LOST, HANDED_OFF, RENEWALS, RECONNECTS];
        for (kind, names) in [
            ("histogram", &histograms[..]),
            ("gauge", &gauges),
            ("counter", &counters),
        ] {
            for name in names {
                assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{text}");
                assert!(text.contains(&format!("# HELP {name} ")), "{text}");
            }
        }
        for (name, buckets) in BUCKETS {
            assert!(buckets.is_sorted(), "{name}");
        }
    });
}

#[test]
fn default_label_hides_ids() {
    run(async {
        let server = server();
        let (client, registry) = observed(server.port()).await;
        for name in ["order:1", "order:2", "cart:deadbeef01", "nightly"] {
            release(client.mutex(name).lock().await.unwrap()).await;
        }
        let labels = registry.label_values("lock").into_iter();
        assert!(labels.eq(["cart:*", "nightly", "order:*"]));
        let orders = [("lock", "order:*"), ("outcome", "acquired")];
        assert_eq!(registry.count(ACQUIRE_DURATION, &orders), 2.0);
    });
}

#[test]
fn locks_beyond_the_limit_share_a_label() {
    run(async {
        let server = server();
        let verbatim = Metrics::builder().label(|name| Cow::Borrowed(name));
        let (metrics, registry) = Registry::new(verbatim);
        let connect = connect(server.port()).observe(metrics.observer());
        let client = connect.await.unwrap();
        let names = scaled(500);
        let mut guards = Vec::new();
        for number in 0..names {
            let mutex = client.mutex(&format!("order:{number}"));
            guards.push(mutex.lock().await.unwrap());
        }
        assert_eq!(registry.label_values("lock").len(), 101);
        let held = |labels: &[_]| registry.value(HELD, labels);
        assert_eq!(held(&[("lock", "_other")]), (names - 100) as f64);
        assert_eq!(held(&[("lock", "order:7")]), 1.0);
        for guard in guards {
            release(guard).await;
        }
        assert_eq!(held(&[("lock", "_other")]), 0.0);
        assert_eq!(held(&[("lock", "order:7")]), 0.0);
        assert_eq!(registry.label_values("lock").len(), 101);
    });
}
