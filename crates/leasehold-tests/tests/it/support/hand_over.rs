//! The kinds of locks that can be handed over.

use std::time::Duration;

use leasehold::{Acquire, Client, Error, Guard, Ticket};

use super::AMPLE;

/// Far longer than any test, so that neither a ticket nor a lock expires.
pub(crate) const LONG: Duration = AMPLE.saturating_mul(10);

/// The kinds of locks that can be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandOverKind {
    Mutex,
    Fair,
}

pub(crate) const HAND_OVER_KINDS: [HandOverKind; 2] = [HandOverKind::Mutex, HandOverKind::Fair];

impl HandOverKind {
    pub(crate) fn lock(self, client: &Client, name: &str) -> Acquire {
        match self {
            Self::Mutex => client.mutex(name).lock(),
            Self::Fair => client.fair_mutex(name).lock(),
        }
    }

    pub(crate) async fn try_lock(self, client: &Client, name: &str) -> Option<Guard> {
        let tried = match self {
            Self::Mutex => client.mutex(name).try_lock(),
            Self::Fair => client.fair_mutex(name).try_lock(),
        };
        match tried.await {
            Ok(guard) => Some(guard),
            Err(Error::Busy { .. }) => None,
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Returns the command by which a worker acquires the lock.
    pub(crate) fn command(self, name: &str) -> String {
        match self {
            Self::Mutex => format!("lock {name}"),
            Self::Fair => format!("lock-fair {name}"),
        }
    }
}

/// Returns whether a ticket is spent.
pub(crate) async fn is_spent(client: &Client, ticket: &Ticket) -> bool {
    match client.adopt(ticket).await {
        Err(Error::TicketSpent { .. }) => true,
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}
