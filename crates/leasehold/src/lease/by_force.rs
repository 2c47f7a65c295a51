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
    /// Gives back what another holds, as its owner would, and tells it; false when it was not its any more.
    pub(crate) async fn take_away(&self, kind: &dyn Kind, from: &Stood) -> Result<bool, Error> {
        let taking = async {
            let link = self.link(kind.slot()).await?;
            let release = kind.release(&from.mark, None, link.facts().capabilities);
            match release.send(&*link, self.limits.request).await? {
                Freed::Freed { .. } => self.tell(from).await.map(|()| true),
                Freed::NotOurs => Ok(false),
            }
        };
        let taken = taking.await;
        taken.map_err(|failure| error_of(failure, kind.name()))
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
