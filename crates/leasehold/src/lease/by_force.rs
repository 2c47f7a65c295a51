//! Taking a lock away from whoever holds it, and telling them.

use std::time::Duration;

use super::{Engine, error_of};
use crate::backend::RequestError;
use crate::error::Error;
use crate::protocol::{Kind, Participant, ReleaseReply};

/// How often, and how long apart, one is told whose lock was taken away.
const TELLINGS: u32 = 10;
const TELLING: Duration = Duration::from_millis(50);

impl Engine {
    /// Releases what another owner holds, as that owner would, and notifies it; false when it held nothing any more.
    pub(crate) async fn take_away(
        &self,
        kind: &dyn Kind,
        from: &Participant,
    ) -> Result<bool, Error> {
        let taking = async {
            let connection = self.connection(kind.slot()).await?;
            let release = kind.release(&from.value, None, connection.facts().capabilities);
            release.send(&*connection, self.limits.request).await
        };
        let freed = taking.await;
        match freed.map_err(|failure| error_of(failure, kind.name()))? {
            // Its process has released it already.
            ReleaseReply::Released { .. } if from.holder.released => Ok(true),
            ReleaseReply::Released { .. } => {
                // The lock is free by now. A holder that cannot be notified finds out at its next renewal.
                if let Err(failure) = self.tell(from).await {
                    tracing::debug!(lock = kind.name(), %failure, "the holder was not notified");
                }
                Ok(true)
            }
            ReleaseReply::NotOwner => Ok(false),
        }
    }

    /// Tells it again for a while where nobody hears it: one who has only just connected does not listen yet.
    async fn tell(&self, holder: &Participant) -> Result<(), RequestError> {
        for _ in 0..TELLINGS {
            let Some((slot, telling)) = holder.notify() else {
                return Ok(());
            };
            let connection = self.connection(slot).await?;
            if telling.send(&*connection, self.limits.request).await? {
                return Ok(());
            }
            tokio::time::sleep(TELLING).await;
        }
        Ok(())
    }
}
