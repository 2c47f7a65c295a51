//! Waiting in the server's queue: an entry kept by heartbeats, and a lock that
//! arrives by push.
//!
//! A release grants the lock to the next waiter on the server, and notifies it:
//! the message carries the token and the end of the first lease. The waiter
//! thus holds the lock without another request. A lost message is recovered by
//! the next heartbeat, and the ticket restores a lost entry.

use std::time::Duration;

use super::grants::{GrantReceiver, GrantRouter, QueueEvent};
use super::progress::Wait;
use super::slot::MAX_PATIENCE;
use crate::backend::{Purpose, RequestError};
use crate::lease::attempt::{CancelOnDrop, description, establish};
use crate::lease::owned::OwnedLease;
use crate::lease::schedule::floor;
use crate::lease::state::Granted;
use crate::options::margin;
use crate::owner::{Owner, Token};
use crate::protocol::{Grant, LockValue, QueueStatus, ServerQueue};
use crate::time::BootInstant;

/// The longest time that a queue entry lasts without a heartbeat, and the
/// longest first lease of a pushed grant: a dead waiter delays the others by
/// no more. It allows three heartbeats, one a second.
const MAX_QUEUE_TTL: Duration = Duration::from_secs(3);

/// The shortest time that a queue entry lasts, however short the lease: a
/// waiter on a busy machine is not dead.
const MIN_QUEUE_TTL: Duration = Duration::from_millis(500);

/// Heartbeats leave at this many instants per period. Those of one client to
/// one node then leave together, as one pipeline.
const HEARTBEAT_INSTANTS: u32 = 16;

/// Queues until the lock is acquired. `ticket` is the position that an entry
/// restores.
///
/// A caller that waits by itself passes a `patience`: the keeper cancels a
/// pushed grant that the caller does not claim in this time.
pub(super) async fn acquire(
    wait: &Wait<'_>,
    grants: &GrantRouter,
    queue: &dyn ServerQueue,
    ticket: &mut Option<u64>,
    mut patience: Option<Duration>,
) -> Result<OwnedLease, RequestError> {
    loop {
        match enqueue(wait, grants, queue, ticket, patience).await {
            Ok(Some(lease)) => {
                *ticket = None;
                return Ok(lease);
            }
            // The entry was lost: enqueue again with its ticket.
            Ok(None) => {}
            Err(error) => {
                let pause = wait.progress.on_error(error)?;
                // The grant may have been cancelled, because the machine is
                // slow.
                patience = patience.map(|patience| (2 * patience).min(MAX_PATIENCE));
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// Enqueues with a new owner and waits until the lock is acquired, or the
/// entry is lost (`None`).
async fn enqueue(
    wait: &Wait<'_>,
    grants: &GrantRouter,
    queue: &dyn ServerQueue,
    ticket: &mut Option<u64>,
    patience: Option<Duration>,
) -> Result<Option<OwnedLease>, RequestError> {
    let Wait {
        context,
        kind,
        options,
        ..
    } = *wait;
    // The connection that carries the grants: a reconnect is noticed by both.
    let connection = context
        .backend
        .connection(Purpose::Keeper, kind.slot())
        .await?;
    // New for each entry: the last one may still be about to be cancelled
    // (invariant 6).
    let owner = Owner::random();
    let now = BootInstant::now();
    let value = kind.value(&owner, description(context, options, &*connection, now));
    // Registered and subscribed before the entry exists, so no grant is missed.
    let mut events = grants.register(owner);
    grants
        .subscribe(context, queue.delivery(&value), kind.slot(), &mut events)
        .await?;
    let lease = options.first_lease();
    let entry = QueueEntry {
        wait,
        queue,
        value: value.clone(),
        lease,
        queue_ttl: queue_ttl(lease),
    };
    let limit = context.limits.request;
    let admitted = context.admit(&*connection).await?;
    let sent = BootInstant::now();
    let mut pending = CancelOnDrop::new(context, kind, value, connection.clone(), sent)?;
    if let (Some(patience), Some(id)) = (patience, pending.id()) {
        events.watch(&context.keeper, id, patience);
    }
    let call = queue.enqueue(&entry.value, lease, entry.queue_ttl, *ticket);
    let call = call.admitted(admitted);
    let status = match call.send(&*connection, limit).await {
        Err(error) if error.proves_unexecuted() => {
            pending.disarm();
            return Err(error);
        }
        status => status?,
    };
    let first = HeartbeatReply {
        sent,
        connection: connection.id(),
        status,
    };
    // The wait has no limit from here on. Until now, the keeper would have
    // cancelled it as overdue.
    pending.enter_queue()?;
    match entry.wait(first, &mut events, ticket).await? {
        QueueExit::Granted(token, granted) => {
            let lease = establish(context, pending, token, options, granted).await?;
            Ok(Some(lease))
        }
        // The server reported that this owner neither waits nor holds.
        QueueExit::EntryLost => {
            pending.disarm();
            Ok(None)
        }
    }
}

/// One entry in the server's queue, of one owner.
struct QueueEntry<'a> {
    wait: &'a Wait<'a>,
    queue: &'a dyn ServerQueue,
    value: LockValue,
    /// The lease that the waiter wants.
    lease: Duration,
    /// How long the entry lasts without a heartbeat.
    queue_ttl: Duration,
}

/// The reply to an enqueue or a heartbeat.
struct HeartbeatReply {
    sent: BootInstant,
    /// The id of the connection that carried it.
    connection: u64,
    status: QueueStatus,
}

/// How an entry left the queue.
enum QueueExit {
    Granted(Token, Granted),
    EntryLost,
}

impl QueueEntry<'_> {
    /// Sends heartbeats until the lock is granted or the entry is lost.
    async fn wait(
        &self,
        first: HeartbeatReply,
        events: &mut GrantReceiver<'_>,
        ticket: &mut Option<u64>,
    ) -> Result<QueueExit, RequestError> {
        let mut last = first;
        loop {
            let server_now = match last.status {
                QueueStatus::Holds { token, remaining } => {
                    let granted = Granted::new(last.sent, remaining);
                    return Ok(QueueExit::Granted(token, granted));
                }
                QueueStatus::Gone { .. } => return Ok(QueueExit::EntryLost),
                QueueStatus::Waits {
                    ahead,
                    server_now,
                    ticket: place,
                    holder,
                } => {
                    *ticket = place.or(*ticket);
                    self.wait.position.set(ahead + 1);
                    self.wait.progress.on_busy(holder, Some(ahead));
                    server_now
                }
            };
            let mut delay = next_heartbeat_delay(self.queue_ttl);
            last = loop {
                tokio::select! {
                    biased;
                    event = events.next() => match event {
                        QueueEvent::Granted(grant, connection) if connection == last.connection => {
                            let granted = self.lease_from_grant(&grant, last.sent, server_now);
                            return Ok(QueueExit::Granted(grant.token, granted));
                        }
                        // Another connection, perhaps to another server: a
                        // heartbeat must confirm the grant.
                        QueueEvent::Granted(..) | QueueEvent::Ask => delay = Duration::ZERO,
                    },
                    // An event drops a heartbeat in flight, which can be
                    // repeated.
                    reply = self.heartbeat(delay) => match reply {
                        Ok(reply) => break reply,
                        Err(error) => {
                            let pause = self.wait.progress.on_error(error)?;
                            // Or the entry would expire during a long pause.
                            delay = pause.min(self.queue_ttl / 3);
                        }
                    }
                }
            };
        }
    }

    /// Sends a heartbeat after `delay`.
    async fn heartbeat(&self, delay: Duration) -> Result<HeartbeatReply, RequestError> {
        tokio::time::sleep(delay).await;
        let Wait { context, kind, .. } = self.wait;
        let backend = &context.backend;
        let connection = backend.connection(Purpose::Keeper, kind.slot()).await?;
        let sent = BootInstant::now();
        let call = self
            .queue
            .heartbeat(&self.value, self.lease, self.queue_ttl);
        let status = call.send(&*connection, context.limits.request).await?;
        Ok(HeartbeatReply {
            sent,
            connection: connection.id(),
            status,
        })
    }

    /// Returns the lease of a pushed grant (invariant 9).
    ///
    /// By the server's clock, the grant was made some time after a heartbeat's
    /// reply. That heartbeat was sent earlier still. Meanwhile the clock may
    /// have stepped forward, by as much as the margin of the requested lease,
    /// which is more than that of the shorter first one.
    fn lease_from_grant(
        &self,
        grant: &Grant,
        heartbeat_sent: BootInstant,
        server_now: u64,
    ) -> Granted {
        let until_end = Duration::from_micros(grant.end.saturating_sub(server_now));
        // The first lease of a grant is no longer than the entry's TTL.
        let first = self.queue_ttl.min(self.lease);
        let waited = until_end.saturating_sub(first);
        let step = margin(self.lease).saturating_sub(margin(first));
        let start = heartbeat_sent + (waited - waited / 100).saturating_sub(step);
        Granted::new(start.min(BootInstant::now()), first.min(until_end))
    }
}

/// Returns how long an entry lasts without a heartbeat: half of the lease. If
/// a holder and the waiters behind it die together, the server evicts them
/// before the holder's lease expires, and grants them nothing.
fn queue_ttl(lease: Duration) -> Duration {
    (lease / 2).clamp(MIN_QUEUE_TTL, MAX_QUEUE_TTL)
}

/// Returns the delay until the next heartbeat: a third of the entry's TTL, at
/// one of the instants that all waiters of this client share.
pub(crate) fn next_heartbeat_delay(queue_ttl: Duration) -> Duration {
    let (now, period) = (BootInstant::now(), queue_ttl / 3);
    floor(now + period, period / HEARTBEAT_INSTANTS).since(now)
}
