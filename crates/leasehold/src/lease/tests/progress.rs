//! Holders that report progress, or stop, against a scripted server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{advance, sleep};

use super::scripted::{LEASE, acquire, engine, yes};
use crate::backend::scripted::Scripted;
use crate::error::Loss;
use crate::lease::Guard;
use crate::options::AcquireOptions;
use crate::time::BootInstant;

/// Returns a server that grants everything, and counts the renewals.
fn server() -> (Arc<Scripted>, Arc<AtomicU32>) {
    let renewals = Arc::new(AtomicU32::new(0));
    let seen = renewals.clone();
    let backend = Scripted::new(move |sent| {
        if sent.name() == "EVALSHA" {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        yes(sent)
    });
    (backend, renewals)
}

async fn held(limit: Option<Duration>) -> (Guard, Arc<AtomicU32>) {
    let (backend, renewals) = server();
    let mut options = AcquireOptions::new(LEASE);
    options.progress_within = limit;
    let guard = acquire(&engine(&backend), &options).await.unwrap();
    (guard, renewals)
}

/// Reports every `period` for `length`.
async fn report_for(guard: &Guard, period: Duration, length: Duration) {
    let start = BootInstant::now();
    while BootInstant::now().since(start) < length {
        sleep(period).await;
        guard.progress();
        guard.check().expect("a holder that reports keeps the lock");
    }
}

/// Every phase between a holder's last report and the keeper's looks, and
/// limits below and above the renewal interval and the lease.
#[tokio::test(start_paused = true)]
async fn stuck_holder_loses_within_limit_and_lease() {
    for limit in [LEASE / 30, LEASE / 4, LEASE / 2, LEASE * 3] {
        for phase in 0..40 {
            let (guard, _) = held(Some(limit)).await;
            report_for(&guard, limit, LEASE).await;
            sleep(limit * phase / 40).await;
            guard.progress();
            let reported = BootInstant::now();
            assert_eq!(guard.lost().await, Some(Loss::Stuck));
            let kept = BootInstant::now().since(reported);
            assert!(kept <= limit + LEASE, "{kept:?} for {limit:?}");
            assert!(kept >= limit + LEASE * 6 / 10, "{kept:?} for {limit:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn holder_that_never_reports_loses_the_lock() {
    let limit = LEASE / 4;
    let (guard, renewals) = held(Some(limit)).await;
    let start = BootInstant::now();
    assert!(!guard.lease().is_stuck());
    assert_eq!(guard.lost().await, Some(Loss::Stuck));
    assert!(guard.lease().is_stuck());
    assert!(BootInstant::now().since(start) <= limit + LEASE);
    assert!(renewals.load(Ordering::SeqCst) <= 1);
}

#[tokio::test(start_paused = true)]
async fn reporting_holder_costs_no_more_renewals() {
    let mut counts = Vec::new();
    for limit in [None, Some(LEASE / 30), Some(LEASE / 2), Some(LEASE * 3)] {
        let (guard, renewals) = held(limit).await;
        let period = limit.unwrap_or(LEASE);
        report_for(&guard, period, LEASE * 20).await;
        let end = BootInstant::now();
        counts.push(renewals.load(Ordering::SeqCst));
        drop((guard, end));
    }
    let without = counts[0];
    // The first renewal is at a random time, and the last report a period
    // after the end.
    let most = without + 11;
    for with in &counts[1..] {
        assert!((without - 1..=most).contains(with), "{counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn report_before_the_deadline_resumes_renewal() {
    let limit = LEASE / 4;
    let (guard, renewals) = held(Some(limit)).await;
    let lease = guard.lease();
    while !lease.is_stuck() {
        sleep(LEASE / 100).await;
    }
    let before = renewals.load(Ordering::SeqCst);
    // The keeper looks twenty times per renewal.
    sleep(lease.remaining() - Duration::from_secs(1)).await;
    assert_eq!(renewals.load(Ordering::SeqCst), before, "it renews");
    guard.progress();
    sleep(Duration::from_millis(600)).await;
    assert!(!lease.is_stuck());
    assert_eq!(renewals.load(Ordering::SeqCst), before + 1);
    report_for(&guard, limit, LEASE * 2).await;
}

/// After a stall of the whole process, the keeper knows only that the report
/// came during the stall. It renews for less, and looks again soon.
#[tokio::test(start_paused = true)]
async fn reporting_holder_survives_a_stalled_keeper() {
    for tenths in 1..=9 {
        let limit = LEASE / 30;
        let (guard, _) = held(Some(limit)).await;
        report_for(&guard, limit, LEASE).await;
        let stall = guard.remaining() * tenths / 10;
        advance(stall).await;
        guard.progress();
        report_for(&guard, limit, LEASE * 2).await;
    }
}

/// A year, without an overflow.
#[tokio::test(start_paused = true)]
async fn longest_limit_keeps_the_lease() {
    let (guard, _) = held(Some(Duration::from_secs(366 * 86_400))).await;
    sleep(LEASE * 20).await;
    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn at_most_ends_a_reporting_holder() {
    let (backend, _) = server();
    let mut options = AcquireOptions::new(LEASE);
    options.progress_within = Some(LEASE / 30);
    options.at_most = Some(LEASE * 3);
    let guard = acquire(&engine(&backend), &options).await.unwrap();
    report_for(&guard, LEASE / 30, LEASE * 2).await;
    let reporter = guard.lease();
    let reports = async {
        loop {
            reporter.progress();
            sleep(LEASE / 30).await;
        }
    };
    tokio::select! {
        loss = guard.lost() => assert_eq!(loss, Some(Loss::AtMost)),
        () = reports => {}
    }
}

/// Extending is explicit: a stuck holder keeps what it extended.
#[tokio::test(start_paused = true)]
async fn stuck_holder_keeps_an_extended_lease() {
    let (guard, _) = held(Some(LEASE / 30)).await;
    guard.extend(LEASE * 5).await.unwrap();
    let lease = guard.lease();
    sleep(LEASE * 4).await;
    assert!(lease.is_stuck());
    guard.check().unwrap();
    report_for(&guard, LEASE / 30, LEASE * 4).await;
    assert!(!lease.is_stuck());
    assert_eq!(guard.lost().await, Some(Loss::Stuck));
}
