//! Hand-over and adoption against a scripted server.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::scripted::{AT_ONCE, LEASE, REQUEST, acquire, engine, kind, no_reply, yes};
use crate::backend::scripted::{Scripted, Sent};
use crate::backend::{Reply, RequestError};
use crate::error::{Error, Loss};
use crate::lease::{Guard, Lease};
use crate::options::{AcquireOptions, margin};
use crate::owner::Owner;
use crate::sync::Mutex;
use crate::ticket::Ticket;
use crate::time::BootInstant;

const WITHIN: Duration = Duration::from_secs(10);

/// Returns the arguments of the first command.
fn args(sent: &Sent<'_>) -> Vec<String> {
    let args = sent.batch.args(0).map(String::from_utf8_lossy);
    args.map(String::from).collect()
}

/// Returns the owner that a hand-over writes.
fn pending_owner(sent: &Sent<'_>) -> Option<String> {
    let args = args(sent);
    if args[0] != "EVALSHA" {
        return None;
    }
    let pending = args.iter().find(|arg| arg.starts_with("lh1:handover:"))?;
    pending.split(' ').nth(1).map(str::to_owned)
}

/// Returns the owner that a release deletes.
fn deleted_owner(sent: &Sent<'_>) -> Option<String> {
    let args = args(sent);
    (args[0] == "DELEX").then(|| args[3].split(' ').nth(1).unwrap_or_default().to_owned())
}

#[tokio::test(start_paused = true)]
async fn views_end_before_the_request_is_sent() {
    let view: Arc<Mutex<Option<Lease>>> = Arc::default();
    let at_request = Arc::new(Mutex::new(None));
    let (seen, of) = (at_request.clone(), view.clone());
    let backend = Scripted::new(move |sent| {
        if pending_owner(sent).is_some() {
            *seen.lock() = of.lock().as_ref().map(|view| view.check().is_ok());
        }
        yes(sent)
    });
    let engine = engine(&backend);
    let guard = acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap();
    *view.lock() = Some(guard.lease().clone());
    let ticket = guard.hand_over(WITHIN).await.unwrap();
    assert_eq!(*at_request.lock(), Some(false));
    let view = view.lock().take().unwrap();
    assert_eq!(view.lost().await, None);
    assert_eq!(ticket.key, "lock:job");
}

#[tokio::test(start_paused = true)]
async fn handed_over_lease_is_not_renewed_or_released() {
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = requests.clone();
    let backend = Scripted::new(move |sent| {
        seen.lock().push(args(sent).swap_remove(0));
        yes(sent)
    });
    let engine = engine(&backend);
    let guard = acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap();
    sleep(LEASE).await;
    drop(guard.hand_over(WITHIN).await.unwrap());
    let before = requests.lock().len();
    sleep(LEASE * 3).await;
    let after = requests.lock()[before..].to_vec();
    assert_eq!(after, Vec::<String>::new());
}

/// Hands a lock over while the replies of `lost` hand-overs are lost. Returns
/// the outcome, and whether both owners were released.
async fn with_lost_replies(lost: u32) -> (Result<Ticket, Error>, bool) {
    let owners: Arc<Mutex<(Option<String>, Vec<String>)>> = Arc::default();
    let mut lost = lost;
    let seen = owners.clone();
    let backend = Scripted::new(move |sent| {
        if let Some(owner) = pending_owner(sent) {
            seen.lock().0 = Some(owner);
            if lost > 0 {
                lost -= 1;
                return (AT_ONCE, Err(RequestError::Unknown("broken".into())));
            }
        }
        seen.lock().1.extend(deleted_owner(sent));
        yes(sent)
    });
    let guard = acquire(&engine(&backend), &AcquireOptions::new(LEASE))
        .await
        .unwrap();
    let view = guard.lease().clone();
    let giver = view.state().value.clone();
    let giver = String::from_utf8_lossy(&giver);
    let giver = giver.split(' ').nth(1).unwrap().to_owned();
    let outcome = guard.hand_over(WITHIN).await;
    assert!(view.check().is_err());
    sleep(LEASE).await;
    let (pending, deleted) = &*owners.lock();
    let both = deleted.contains(&giver) && deleted.contains(pending.as_ref().unwrap());
    (outcome, both)
}

#[tokio::test(start_paused = true)]
async fn hand_over_is_repeated_after_a_lost_reply() {
    let (outcome, released) = with_lost_replies(1).await;
    assert!(outcome.is_ok() && !released, "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn unknown_hand_over_releases_both_owners() {
    let (outcome, released) = with_lost_replies(2).await;
    assert!(
        matches!(outcome, Err(Error::OutcomeUnknown(_))),
        "{outcome:?}"
    );
    assert!(released);
}

#[tokio::test(start_paused = true)]
async fn dropped_hand_over_releases_both_owners() {
    let deleted: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = deleted.clone();
    let backend = Scripted::new(move |sent| match pending_owner(sent) {
        Some(owner) => {
            seen.lock().push(format!("pending {owner}"));
            no_reply()
        }
        None => {
            seen.lock().extend(deleted_owner(sent));
            yes(sent)
        }
    });
    let engine = engine(&backend);
    let guard = acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap();
    drop(timeout(REQUEST / 2, guard.hand_over(WITHIN)).await);
    sleep(LEASE).await;
    let seen = deleted.lock();
    let pending = seen[0].strip_prefix("pending ").unwrap();
    assert!(seen[1..].iter().any(|owner| owner == pending));
    assert!(seen[1..].iter().any(|owner| owner != pending));
}

#[tokio::test(start_paused = true)]
async fn revoked_lock_cannot_be_handed_over() {
    let backend = Scripted::new(move |sent| match pending_owner(sent) {
        Some(_) => (AT_ONCE, Ok(vec![Reply::Int(0)])),
        None => yes(sent),
    });
    let engine = engine(&backend);
    let guard = acquire(&engine, &AcquireOptions::new(LEASE)).await.unwrap();
    let outcome = guard.hand_over(WITHIN).await;
    let revoked = Loss::Revoked;
    assert!(
        matches!(&outcome, Err(Error::Lost { loss, .. }) if *loss == revoked),
        "{outcome:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn adopted_deadline_counts_from_before_the_request() {
    let slow = Duration::from_millis(700);
    let backend = Scripted::new(move |_| (slow, Ok(vec![Reply::Int(i64::MAX)])));
    let before = BootInstant::now();
    let options = AcquireOptions::new(LEASE);
    let adopted = engine(&backend)
        .adopt(&kind(), &Owner::random(), &options)
        .await;
    let guard: Guard = Guard::new(adopted.unwrap());
    let end = BootInstant::now() + guard.remaining();
    assert_eq!(end.since(before), LEASE - margin(LEASE));
}

#[tokio::test(start_paused = true)]
async fn unknown_adoption_is_cancelled() {
    let owners: Arc<Mutex<(Option<String>, Vec<String>)>> = Arc::default();
    let seen = owners.clone();
    let backend = Scripted::new(move |sent| match deleted_owner(sent) {
        None => {
            let value = args(sent).into_iter().find(|arg| arg.starts_with("lh1 "));
            seen.lock().0 = value;
            (AT_ONCE, Err(RequestError::Unknown("broken".into())))
        }
        Some(owner) => {
            seen.lock().1.push(owner);
            yes(sent)
        }
    });
    let options = AcquireOptions::new(LEASE);
    let engine = engine(&backend);
    let adopted = engine.adopt(&kind(), &Owner::random(), &options).await;
    assert!(matches!(adopted, Err(Error::OutcomeUnknown(_))));
    sleep(LEASE).await;
    let (value, deleted) = &*owners.lock();
    let owner = value.as_ref().unwrap().split(' ').nth(1).unwrap();
    assert!(deleted.iter().all(|deleted| deleted == owner) && !deleted.is_empty());
}
