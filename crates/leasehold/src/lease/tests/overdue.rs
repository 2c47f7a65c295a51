//! Renewals with overdue replies, against a scripted server.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::scripted::{AT_ONCE, acquire, engine, granting, no_reply, yes};
use crate::backend::scripted::{Answer, Scripted};
use crate::backend::{Purpose, Reply};
use crate::error::Loss;
use crate::lease::Guard;
use crate::options::{AcquireOptions, margin};
use crate::sync::Mutex;
use crate::time::BootInstant;

/// Short: a quarter of it is less than the limit of a request.
const LEASE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = LEASE.checked_div(4).unwrap();

/// The connection and the time of each renewal.
type Renewals = Arc<Mutex<Vec<(Purpose, BootInstant)>>>;

/// Acquires a lock whose renewals are answered by `answer`, given the
/// connection and the reply of a server that renews.
async fn held(
    options: &AcquireOptions,
    mut answer: impl FnMut(Purpose, Vec<Reply>) -> Answer + Send + 'static,
) -> (Guard, Renewals) {
    let renewals = Renewals::default();
    let seen = renewals.clone();
    let backend = Scripted::new(move |sent| {
        if sent.name() != "EVALSHA" {
            return yes(sent);
        }
        seen.lock().push((sent.purpose, BootInstant::now()));
        answer(sent.purpose, granting(sent.batch))
    });
    let guard = acquire(&engine(&backend), options).await.unwrap();
    (guard, renewals)
}

/// A renewal without a reply was repeated after a pause.
#[tokio::test(start_paused = true)]
async fn overdue_renewal_is_sent_again_at_once() {
    let options = AcquireOptions::new(LEASE);
    let (guard, renewals) = held(&options, |purpose, kept| match purpose {
        Purpose::Keeper => no_reply(),
        Purpose::Requests => (AT_ONCE, Ok(kept)),
    })
    .await;
    sleep(LEASE * 5).await;
    guard.check().expect("renewed on the other connection");
    let renewals = renewals.lock();
    for pair in renewals.chunks_exact(2) {
        let [(first, sent), (second, again)] = pair else {
            unreachable!("BUG: a pair");
        };
        assert_eq!((*first, *second), (Purpose::Keeper, Purpose::Requests));
        let after = again.since(*sent);
        assert!(
            after >= PATIENCE && after <= PATIENCE + 2 * AT_ONCE,
            "{after:?}"
        );
    }
    assert!(renewals.len() >= 10, "{renewals:?}");
}

/// The reply to a renewal was lost once a quarter of the lease was over.
#[tokio::test(start_paused = true)]
async fn late_reply_extends_from_its_send_time() {
    let slow = PATIENCE * 3 / 2;
    let options = AcquireOptions::new(LEASE);
    let (guard, renewals) = held(&options, move |purpose, kept| match purpose {
        Purpose::Keeper => (slow, Ok(kept)),
        Purpose::Requests => no_reply(),
    })
    .await;
    let first = loop {
        if let Some((_, sent)) = renewals.lock().first() {
            break *sent;
        }
        sleep(AT_ONCE).await;
    };
    sleep(slow + 2 * AT_ONCE).await;
    let end = BootInstant::now() + guard.remaining();
    assert_eq!(end.since(first), LEASE - margin(LEASE));
    sleep(LEASE * 5).await;
    guard.check().expect("kept by late replies");
}

#[tokio::test(start_paused = true)]
async fn slow_replies_start_one_chain_of_renewals() {
    let slow = PATIENCE * 3 / 2;
    let options = AcquireOptions::new(LEASE);
    let (guard, renewals) = held(&options, move |_, kept| (slow, Ok(kept))).await;
    sleep(LEASE * 25).await;
    guard.check().expect("kept by late replies");
    let count = renewals.lock().len();
    assert!((90..=100).contains(&count), "{count} in 25 leases");
}

/// One slow reply must not cause more renewals without end.
#[tokio::test(start_paused = true)]
async fn renewals_are_rare_again_after_a_late_reply() {
    let mut is_slow = true;
    let options = AcquireOptions::new(LEASE);
    let (guard, renewals) = held(&options, move |_, kept| {
        let slow = std::mem::take(&mut is_slow);
        (if slow { PATIENCE * 3 / 2 } else { AT_ONCE }, Ok(kept))
    })
    .await;
    sleep(LEASE * 30).await;
    guard.check().expect("renewed");
    let count = renewals.lock().len();
    assert!((88..=94).contains(&count), "{count} in 30 leases");
}

#[tokio::test(start_paused = true)]
async fn late_reply_that_names_another_owner_counts() {
    let options = AcquireOptions::new(LEASE);
    let (guard, renewals) = held(&options, |purpose, kept| match purpose {
        Purpose::Keeper => (PATIENCE * 3 / 2, Ok(vec![Reply::Int(0); kept.len()])),
        Purpose::Requests => no_reply(),
    })
    .await;
    assert_eq!(guard.lost().await, Some(Loss::Revoked));
    assert_eq!(renewals.lock().len(), 2);
}

/// However late the replies, the lease ends at the limits of its holder.
#[tokio::test(start_paused = true)]
async fn late_replies_respect_limits_of_the_hold() {
    let slow = PATIENCE * 3 / 2;
    let limit = LEASE * 5 / 2;
    for is_stuck in [false, true] {
        let mut options = AcquireOptions::new(LEASE);
        match is_stuck {
            true => options.progress_within = Some(limit),
            false => options.at_most = Some(limit + LEASE),
        }
        let start = BootInstant::now();
        let (guard, _) = held(&options, move |_, kept| (slow, Ok(kept))).await;
        let loss = guard.lost().await;
        let expected = if is_stuck { Loss::Stuck } else { Loss::AtMost };
        assert_eq!(loss, Some(expected));
        let kept = BootInstant::now().since(start);
        assert!(kept <= limit + LEASE, "{kept:?}");
        assert!(kept >= limit, "{kept:?}");
    }
}
