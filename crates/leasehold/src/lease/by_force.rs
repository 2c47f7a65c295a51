//! Taking a lock away from whoever holds it, and telling them.

use std::time::Duration;

use super::{Engine, error_of};
use crate::backend::Failure;
use crate::error::Error;
use crate::protocol::{Freed, Kind, Stood};

/// How often, and how long apart, one is told whose lock was taken away.
const TELLINGS: u32 = 10;
const TELLING: Duration = Duration::from_millis(50);

impl Engine {
    /// Releases what another owner holds, as that owner would, and notifies it; false when it held nothing any more.
    pub(crate) async fn take_away(&self, kind: &dyn Kind, from: &Stood) -> Result<bool, Error> {
        let taking = async {
            let link = self.link(kind.slot()).await?;
            let release = kind.release(&from.mark, None, link.facts().capabilities);
            release.send(&*link, self.limits.request).await
        };
        let freed = taking.await;
        match freed.map_err(|failure| error_of(failure, kind.name()))? {
            // Its process has released it already.
            Freed::Freed { .. } if from.holder.released => Ok(true),
            Freed::Freed { .. } => {
                // The lock is free by now. A holder that cannot be notified finds out at its next renewal.
                if let Err(failure) = self.tell(from).await {
                    tracing::debug!(lock = kind.name(), %failure, "the holder was not notified");
                }
                Ok(true)
            }
            Freed::NotOurs => Ok(false),
        }
    }

    /// Tells it again for a while where nobody hears it: one who has only just connected does not listen yet.
    async fn tell(&self, holder: &Stood) -> Result<(), Failure> {
        for _ in 0..TELLINGS {
            let Some((slot, telling)) = holder.tell() else {
                return Ok(());
            };
            let link = self.link(slot).await?;
            if telling.send(&*link, self.limits.request).await? {
                return Ok(());
            }
            tokio::time::sleep(TELLING).await;
        }
        Ok(())
    }
}
