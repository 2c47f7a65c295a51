//! Giving back what nobody wants any more: cancelled acquires and dropped or lost holdings.
//!
//! Both run on the keeper's thread and repeat themselves until it is certain that nothing is left.

use std::sync::Arc;
use std::time::Duration;

use super::held::Held;
use crate::backend::{Backend, Backoff, Connection, Purpose, RequestError, Slot};
use crate::protocol::{Kind, LockValue, ReleaseReply};
use crate::time::BootInstant;

/// How long a request that was on its way when its connection broke may still reach the server: it
/// sits in a buffer of the server, or of something in between. See `docs/decisions/`.
const LATE: Duration = Duration::from_secs(15);

/// An acquire of which nobody knows whether it was, or will be, executed.
pub(super) struct Claim {
    pub(super) kind: Arc<dyn Kind>,
    pub(super) value: LockValue,
    /// The connection that carried it.
    pub(super) connection: Arc<dyn Connection>,
}

/// Cancels `claim` until its owner can no longer appear (invariant 6).
///
/// An answer on the connection that carried the acquire proves it: the server takes requests of one
/// connection in order. Where that connection is gone, the cancel is repeated on others until a late
/// request would have come through.
pub(super) async fn cancel(claim: Claim, backend: Arc<dyn Backend>, timeout: Duration) {
    let release = |connection: &dyn Connection| {
        let server = connection.facts().capabilities;
        claim.kind.cancel(&claim.value, server).await_all_nodes()
    };
    let in_order = release(&*claim.connection).send(&*claim.connection, LATE);
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
                Err(RequestError::Refused(_)) => final_from = Some(BootInstant::now()),
                Err(_) => final_from = Some(BootInstant::now() + LATE),
            },
            () = tokio::time::sleep(backoff.pause()) => {}
        }
        let again = async {
            let connection = backend
                .connection(Purpose::Keeper, claim.kind.slot())
                .await?;
            release(&*connection).send(&*connection, timeout).await
        };
        match again.await {
            Ok(_) if final_from.is_some_and(|moment| BootInstant::now() >= moment) => return,
            Err(failure) if !failure.should_retry() => {
                tracing::warn!(lock = claim.kind.name(), %failure, "could not be cancelled");
                return;
            }
            _ => {}
        }
    }
}

/// Releases `held` until the server has answered, or its lease must have ended there.
pub(super) async fn release(held: Arc<Held>, backend: Arc<dyn Backend>, timeout: Duration) {
    let give_up = BootInstant::now() + held.lease;
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));
    for failures in 0.. {
        let released = async {
            let connection = connection_after(&*backend, held.kind.slot(), failures).await?;
            let call = held
                .release_call(connection.facts().capabilities)
                .await_all_nodes();
            call.send(&*connection, timeout).await
        };
        let released = released.await;
        // Also where that is not certain: those who wait must see for themselves.
        held.is_gone(match &released {
            Ok(ReleaseReply::Released { notified }) => *notified,
            _ => 0,
        });
        match released {
            Ok(_) => return,
            Err(failure) if failure.should_retry() && BootInstant::now() < give_up => {
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(failure) => {
                tracing::warn!(lock = held.kind.name(), %failure, "could not be released");
                return;
            }
        }
    }
}

/// The keeper's connection, or after an odd number of failures the callers' connection where that is open: what broke one
/// connection need not have broken the other.
pub(super) async fn connection_after(
    backend: &dyn Backend,
    slot: Slot,
    failures: u32,
) -> Result<Arc<dyn Connection>, RequestError> {
    if failures % 2 == 1
        && let Some(connection) = backend.open_connection(Purpose::Requests, slot)
    {
        return Ok(connection);
    }
    backend.connection(Purpose::Keeper, slot).await
}
