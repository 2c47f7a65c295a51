//! Releasing a lease in the background: after the guard was dropped, or after
//! it was lost.

use std::sync::Arc;
use std::time::Duration;

use super::patience::{MAX_IN_FLIGHT, send_patiently};
use crate::backend::{Backend, Backoff, Connection, Purpose, RequestError, Slot};
use crate::lease::state::LeaseState;
use crate::protocol::ReleaseReply;
use crate::time::BootInstant;

/// Releases a lease until the server has replied, or the lease must have
/// expired there, whichever of its requests the server executed.
pub(super) async fn release(state: Arc<LeaseState>, backend: Arc<dyn Backend>, timeout: Duration) {
    let give_up = state.requested_until() + MAX_IN_FLIGHT;
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));
    for failures in 0.. {
        let sending = async {
            let connection = connection_after(&*backend, state.kind.slot(), failures).await?;
            let call = state.release_call(connection.facts().capabilities);
            let sent = BootInstant::now();
            state.release_sending(sent)?;
            let reply = send_patiently(call.await_all_nodes(), &*connection, timeout).await;
            reply.inspect_err(|error| state.release_failed(sent, error))
        };
        let reply = sending.await;
        // Also after an error: local waiters must then ask the server.
        state.notify_released(match &reply {
            Ok(ReleaseReply::Released { notified }) => *notified,
            _ => 0,
        });
        match reply {
            Ok(_) => return,
            Err(error)
                if error.should_retry()
                    && BootInstant::now() < give_up
                    && state.can_repeat_release() =>
            {
                tokio::time::sleep(backoff.pause()).await;
            }
            Err(error) => {
                tracing::warn!(lock = state.kind.name(), %error, "release failed");
                return;
            }
        }
    }
}

/// Returns the keeper's connection, or after an odd number of failures the one
/// that blocking callers use: a fault of one connection need not affect the
/// other. The keeper's runtime owns both.
pub(super) async fn connection_after(
    backend: &dyn Backend,
    slot: Slot,
    failures: u32,
) -> Result<Arc<dyn Connection>, RequestError> {
    let purpose = match failures % 2 {
        0 => Purpose::Keeper,
        _ => Purpose::Requests,
    };
    backend.connection(purpose, slot).await
}
