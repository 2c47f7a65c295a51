//! Adopting a lock that another process handed over.

use std::panic::Location;
use std::sync::Arc;

use super::Client;
use crate::error::Error;
use crate::lease::Guard;
use crate::lease::Pending;
use crate::options::AcquireOptions;
use crate::protocol::{Kind, QueueParams, Queued, SingleKey};
use crate::ticket::{Ticket, TicketKind};

impl Client {
    /// Adopts a lock that another process [handed
    /// over](crate::Guard::hand_over).
    ///
    /// The guard has this client's lease, is renewed, and has a larger
    /// [`token`](crate::Lease::token) than the guard that was handed over. A
    /// ticket can be adopted once.
    ///
    /// The client must use the same server, and a prefix with which the lock's
    /// key begins.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is safe. If the adoption was executed, or still is,
    /// the lock is released in the background.
    ///
    /// # Errors
    ///
    /// - [`Error::TicketSpent`] if the ticket was adopted, has expired or was
    ///   revoked.
    /// - [`Error::Invalid`] if the ticket is for another prefix.
    /// - [`Error::OutcomeUnknown`] if no reply arrived. Nothing is held: an
    ///   adoption that was executed is cancelled, and the lock is then free.
    ///   Trying again with the same ticket is safe. It fails with
    ///   [`Error::TicketSpent`] if the first request was executed.
    /// - [`Error::Unavailable`], [`Error::Denied`], [`Error::OutOfMemory`] or
    ///   [`Error::ShutDown`] if the request was not executed. The ticket is
    ///   still valid.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client, text: String) -> Result<(), Error> {
    /// let guard = client.adopt(&text.parse()?).await?;
    /// println!("continues `{}` with token {}", guard.name(), guard.token());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn adopt(&self, ticket: &Ticket) -> Pending<'static, Guard> {
        let mut options = AcquireOptions {
            caller: Location::caller(),
            ..self.options.clone()
        };
        let (kind, pending) = (self.kind_of(ticket), ticket.owner.clone());
        let engine = self.engine.clone();
        self.engine.pending(async move {
            options.add_trace_parent();
            engine
                .adopt(&kind?, &pending, &options)
                .await
                .map(Guard::new)
        })
    }

    /// Returns the calls of the lock that a ticket is for.
    fn kind_of(&self, ticket: &Ticket) -> Result<Arc<dyn Kind>, Error> {
        let Some(name) = self.keyspace.name_of(ticket.key.as_bytes()) else {
            let prefix = self.keyspace.prefix();
            let why = format!("its lock does not have the prefix `{prefix}` of this client");
            return Err(Error::invalid("ticket", why));
        };
        let invalid = |why| Error::invalid("ticket", why);
        Ok(match ticket.kind {
            TicketKind::Mutex => {
                let keys = self.keyspace.lock(name).map_err(invalid)?;
                Arc::new(SingleKey::new(keys))
            }
            TicketKind::FairMutex => {
                let keys = self.keyspace.queue(name).map_err(invalid)?;
                Arc::new(Queued::new(keys, QueueParams::FAIR))
            }
        })
    }
}
