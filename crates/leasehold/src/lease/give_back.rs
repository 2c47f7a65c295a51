//! Giving back what nobody wants any more: cancelled acquires and dropped or lost holdings.
//!
//! Both run on the keeper's thread and repeat themselves until it is certain that nothing is left.

use std::sync::Arc;
use std::time::Duration;

use super::held::Held;
use crate::backend::{Backend, Backoff, Failure, Lane, Link, Slot};
use crate::clock::Moment;
use crate::protocol::{Freed, Kind, Mark};

/// How long a request that was on its way when its connection broke may still reach the server: it
/// sits in a buffer of the server, or of something in between. See `docs/decisions/`.
const LATE: Duration = Duration::from_secs(15);

/// An acquire of which nobody knows whether it was, or will be, executed.
pub(super) struct Claim {
    pub(super) kind: Arc<dyn Kind>,
    pub(super) mark: Mark,
    /// The connection that carried it.
    pub(super) link: Arc<dyn Link>,
}

/// Cancels `claim` until its owner can no longer appear (invariant 6).
///
/// An answer on the connection that carried the acquire proves it: the server takes requests of one
/// connection in order. Where that connection is gone, the cancel is repeated on others until a late
/// request would have come through.
pub(super) async fn cancel(claim: Claim, backend: Arc<dyn Backend>, patience: Duration) {
    let release = |link: &dyn Link| {
        let server = link.facts().capabilities;
        claim.kind.cancel(&claim.mark, server).of_all()
    };
    let in_order = release(&*claim.link).send(&*claim.link, LATE);
    let mut in_order = std::pin::pin!(in_order);
    // From when on an answer elsewhere is final; known once the first connection has spoken or broken.
    let mut final_from = None;
    let mut backoff = Backoff::new(Duration::from_millis(40), Duration::from_secs(1));
    loop {
        tokio::select! {
            biased;
            answer = &mut in_order, if final_from.is_none() => match answer {
                Ok(_) => return,
                // The acquire is over, but this cancel was not executed.
                Err(Failure::Refused(_)) => final_from = Some(Moment::now()),
                Err(_) => final_from = Some(Moment::now() + LATE),
            },
            () = tokio::time::sleep(backoff.pause()) => {}
        }
        let again = async {
            let link = backend.link(Lane::Keeper, claim.kind.slot()).await?;
            release(&*link).send(&*link, patience).await
        };
        match again.await {
            Ok(_) if final_from.is_some_and(|moment| Moment::now() >= moment) => return,
            Err(failure) if !failure.leaves_doubt() => {
                tracing::warn!(lock = claim.kind.name(), %failure, "could not be cancelled");
                return;
            }
            _ => {}
        }
    }
}

/// Releases `held` until the server has answered, or its lease must have ended there.
pub(super) async fn release(held: Arc<Held>, backend: Arc<dyn Backend>, patience: Duration) {
    let give_up = Moment::now() + held.lease;
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));
    for failures in 0.. {
        let released = async {
            let link = link_after(&*backend, held.kind.slot(), failures).await?;
            let call = held.release_call(link.facts().capabilities).of_all();
            call.send(&*link, patience).await
        };
        let released = released.await;
        // Also where that is not certain: those who wait must see for themselves.
        held.is_gone(match &released {
            Ok(Freed::Freed { told }) => *told,
            _ => 0,
        });
        match released {
            Ok(_) => return,
            Err(failure) if failure.leaves_doubt() && Moment::now() < give_up => {
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(failure) => {
                tracing::warn!(lock = held.kind.name(), %failure, "could not be released");
                return;
            }
        }
    }
}

/// The keeper's link, or after an odd number of failures the callers' link where that is open: what broke one
/// connection need not have broken the other.
pub(super) async fn link_after(
    backend: &dyn Backend,
    slot: Slot,
    failures: u32,
) -> Result<Arc<dyn Link>, Failure> {
    if failures % 2 == 1
        && let Some(link) = backend.open_link(Lane::Requests, slot)
    {
        return Ok(link);
    }
    backend.link(Lane::Keeper, slot).await
}
