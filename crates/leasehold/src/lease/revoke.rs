//! Revoking a lock from the holder, and notifying it.

use std::time::Duration;

use super::context::Context;
use crate::backend::{Capabilities, RequestError};
use crate::protocol::{Kind, Participant, ReleaseReply};

/// How often, and at which interval, a holder is notified that the lock was
/// revoked.
const MAX_NOTIFICATIONS: u32 = 10;
const NOTIFY_INTERVAL: Duration = Duration::from_millis(50);

/// Releases a lock in the holder's name, and notifies the holder. Returns
/// `false` if it no longer held the lock.
pub(super) async fn revoke(
    context: &Context,
    kind: &dyn Kind,
    holder: &Participant,
) -> Result<bool, RequestError> {
    let connection = context.connection(kind.slot()).await?;
    let release = kind.release(&holder.value, None, connection.facts().capabilities);
    match release.send(&*connection, context.limits.request).await? {
        // Its process has already released it or handed it over.
        ReleaseReply::Released { .. } if !holder.holder.is_active() => Ok(true),
        ReleaseReply::Released { .. } => {
            // The lock is free. A holder that cannot be notified learns it at
            // its next renewal.
            let server = connection.facts().capabilities;
            if let Err(error) = notify_owner(context, holder, server).await {
                tracing::debug!(lock = kind.name(), %error, "the holder was not notified");
            }
            Ok(true)
        }
        ReleaseReply::NotOwner => Ok(false),
    }
}

/// Notifies a holder, repeatedly while no process receives the message: a
/// process that connected just now is not subscribed yet.
async fn notify_owner(
    context: &Context,
    holder: &Participant,
    server: Capabilities,
) -> Result<(), RequestError> {
    for _ in 0..MAX_NOTIFICATIONS {
        let Some((slot, notify)) = holder.notify(server) else {
            return Ok(());
        };
        if context.send(slot, notify).await? {
            return Ok(());
        }
        tokio::time::sleep(NOTIFY_INTERVAL).await;
    }
    Ok(())
}
