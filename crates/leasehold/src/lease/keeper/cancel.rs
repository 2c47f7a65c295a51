//! Cancelling an acquire of unknown outcome, until it can no longer take
//! effect.

use std::sync::Arc;
use std::time::Duration;

use super::patience::{MAX_IN_FLIGHT, MIN_SILENCE, send_patiently};
use crate::backend::{Backend, Backoff, Connection, Purpose};
use crate::protocol::{Kind, LockValue};
use crate::time::BootInstant;

/// An acquire that may have been executed, or may still be.
#[derive(Clone)]
pub(crate) struct PendingAcquire {
    pub(crate) kind: Arc<dyn Kind>,
    pub(crate) value: LockValue,
    /// The connection that carried it.
    pub(crate) connection: Arc<dyn Connection>,
}

/// Cancels `acquire` until the owner can no longer appear (invariant 6).
///
/// A reply on the connection that carried the acquire proves it: the server
/// executes the requests of one connection in order. If that connection is
/// gone, the cancel is repeated on others until a late request would have
/// arrived.
pub(super) async fn cancel(acquire: PendingAcquire, backend: Arc<dyn Backend>, timeout: Duration) {
    let release = |connection: &dyn Connection| {
        let server = connection.facts().capabilities;
        acquire
            .kind
            .cancel(&acquire.value, server)
            .await_all_nodes()
    };
    let in_order = release(&*acquire.connection).send(&*acquire.connection, MAX_IN_FLIGHT);
    let mut in_order = std::pin::pin!(in_order);
    // When a reply on another connection becomes final. Known once the first
    // connection has replied or broken.
    let mut final_from = None;
    let mut backoff = Backoff::new(Duration::from_millis(40), Duration::from_secs(1));
    loop {
        tokio::select! {
            biased;
            reply = &mut in_order, if final_from.is_none() => match reply {
                Ok(_) => return,
                // The acquire is over, but this cancel was not executed.
                Err(error) if error.proves_unexecuted() => final_from = Some(BootInstant::now()),
                Err(_) => final_from = Some(BootInstant::now() + MAX_IN_FLIGHT),
            },
            // Meanwhile also on other connections if this one hangs: the lock
            // need not stay held until it breaks. If it is only slow, a second
            // cancel would make it slower.
            () = tokio::time::sleep(backoff.pause()) => {
                if final_from.is_none() && !acquire.connection.is_silent_for(MIN_SILENCE) {
                    continue;
                }
            }
        }
        let repeated = async {
            let slot = acquire.kind.slot();
            let connection = backend.connection(Purpose::Keeper, slot).await?;
            send_patiently(release(&*connection), &*connection, timeout).await
        };
        // Before it is sent: the acquire could arrive between the execution of
        // this cancel and its reply.
        let is_final = final_from.is_some_and(|instant| BootInstant::now() >= instant);
        let outcome = repeated.await;
        match outcome {
            Ok(_) if is_final => return,
            // A proxy's error may pass, so we retry while the acquire can still
            // appear.
            Err(error) if !error.should_retry() || (is_final && error.is_unclassified()) => {
                tracing::warn!(lock = acquire.kind.name(), %error, "cancel failed");
                return;
            }
            _ => {}
        }
    }
}
