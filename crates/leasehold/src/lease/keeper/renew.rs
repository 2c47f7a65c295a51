//! The keeper's renewals: many leases of one node in one pipeline. Also the
//! writes that keep the server's record of a lease complete.
//!
//! A lease has one renewal that decides when it is renewed next, and that is
//! the latest. If its reply is overdue, the keeper sends another one, which
//! takes its place. The reply to the first still counts, from when it was sent,
//! until the lease has ended. A connection may be dead, or only slow, and so we
//! lose no time in the one case and no reply in the other.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::patience::MIN_SILENCE;
use super::release::{connection_after, release};
use crate::backend::{Backend, Connection, Purpose, RequestError};
use crate::lease::state::{LeaseState, Validity};
use crate::protocol::{Call, RenewReply};
use crate::time::BootInstant;

/// One lease that is due, and the lease to request.
#[derive(Clone)]
pub(super) struct Renewal {
    pub(super) state: Arc<LeaseState>,
    /// The longest lease to request.
    lease: Duration,
    /// Until when a holder that has stopped reporting may keep the lock.
    until: BootInstant,
    /// The number of renewals since the last one that was confirmed in time.
    pub(super) failures: u32,
}

impl Renewal {
    /// Returns the renewal to send now; `None` if the lease has ended, or ends
    /// within a millisecond.
    pub(super) fn now(state: Arc<LeaseState>, failures: u32) -> Option<Self> {
        if !state.is_valid() {
            return None;
        }
        let lease = state.renewal_length()?;
        let until = state.progress.lease_until(state.lease);
        Some(Self {
            state,
            lease,
            until,
            failures,
        })
    }

    /// Returns the lease that a request at `sent` asks for, which can be long
    /// after it was due: on a new connection.
    pub(super) fn length(&self, sent: BootInstant) -> Duration {
        self.allowed(sent).min(self.lease)
    }

    /// Returns how much of the whole lease the holder's last report allows at
    /// `sent`.
    pub(super) fn allowed(&self, sent: BootInstant) -> Duration {
        let allowed = self.until.since(sent);
        // Not zero: no renewal shortens a lease, and the reply shows whether
        // this owner holds the lock.
        allowed.clamp(Duration::from_millis(1), self.state.lease)
    }
}

/// The outcome of one renewal.
pub(super) struct RenewalOutcome {
    pub(super) renewal: Renewal,
    /// When it was sent; the new deadline counts from here.
    pub(super) sent: BootInstant,
    pub(super) reply: Result<RenewReply, RequestError>,
    /// Whether another renewal took the place of this one.
    pub(super) is_late: bool,
}

/// Sends the renewals of `batch` as one pipeline. If no reply has arrived after
/// `patience`, calls `on_overdue`, and continues to wait.
///
/// All must be of one node, with the same number of failures, replica
/// acknowledgement and patience.
pub(super) async fn renew(
    batch: Vec<Renewal>,
    backend: Arc<dyn Backend>,
    patience: Duration,
    timeout: Duration,
    on_overdue: impl FnOnce(Vec<Renewal>) + Send,
) -> Vec<RenewalOutcome> {
    let (first, failures) = (&batch[0].state, batch[0].failures);
    let connection = async {
        let slot = first.kind.slot();
        match first.replica_ack {
            Some(wanted) => {
                let replicated = backend.acknowledged(Purpose::Keeper, slot, wanted, patience);
                replicated.await
            }
            None => connection_after(&*backend, slot, failures).await,
        }
    };
    let connection = match tokio::time::timeout(patience, connection).await {
        Ok(Ok(connection)) => connection,
        _ => return all_failed(batch),
    };
    let sent = BootInstant::now();
    let call = |renewal: &Renewal| {
        let kind = &renewal.state.kind;
        kind.renew(&renewal.state.value, renewal.length(sent))
    };
    let calls = batch.iter().map(call).collect();
    for renewal in &batch {
        renewal.state.request(sent, renewal.length(sent));
    }
    let mut sending = std::pin::pin!(Call::send_all(calls, &*connection, timeout));
    // The server does not reply while it waits for replicas.
    let patience = patience + first.replica_ack.map_or(Duration::ZERO, |ack| ack.timeout);
    let in_time = tokio::time::timeout(patience, &mut sending).await;
    let is_late = in_time.is_err();
    let replies = match in_time {
        Ok(replies) => replies,
        Err(_) => {
            let last = batch.iter().map(|renewal| renewal.state.deadline()).max();
            let rest = last.map_or(Duration::ZERO, |last| last.since(BootInstant::now()));
            on_overdue(batch.clone());
            let late = late_replies(sending, &*connection, patience);
            match tokio::time::timeout(rest, late).await {
                Ok(replies) => replies,
                Err(_) => return Vec::new(),
            }
        }
    };
    match replies {
        Ok(replies) => batch
            .into_iter()
            .zip(replies)
            .map(|(renewal, reply)| RenewalOutcome {
                renewal,
                sent,
                reply,
                is_late,
            })
            .collect(),
        // Overdue, it has failed already.
        Err(_) if is_late => Vec::new(),
        Err(_) => all_failed(batch),
    }
}

/// Waits for replies that are overdue after `patience`. Retires a connection
/// that stays silent.
async fn late_replies<R>(
    mut sending: Pin<&mut impl Future<Output = R>>,
    connection: &dyn Connection,
    patience: Duration,
) -> R {
    let silence = patience.max(MIN_SILENCE);
    if patience < silence {
        let more = tokio::time::timeout(silence - patience, &mut sending);
        if let Ok(replies) = more.await {
            return replies;
        }
    }
    // Without an await if the patience is as long: the next renewal, which the
    // keeper is about to send, then finds another connection.
    connection.retire_if_silent(silence);
    sending.await
}

fn all_failed(batch: Vec<Renewal>) -> Vec<RenewalOutcome> {
    let sent = BootInstant::now();
    let failed = |renewal| RenewalOutcome {
        renewal,
        sent,
        reply: Err(RequestError::Unknown("no reply to the pipeline".into())),
        is_late: false,
    };
    batch.into_iter().map(failed).collect()
}

/// Writes a valid lease to the nodes of a quorum that miss it, for the rest of
/// its validity.
///
/// The holder releases on another connection, and its release can overtake
/// this write. A node that executes the release first would store the lock
/// until the lease expires, so a lease that ended meanwhile is released again.
pub(super) async fn repair(state: Arc<LeaseState>, backend: Arc<dyn Backend>, timeout: Duration) {
    let slot = state.kind.slot();
    let Ok(connection) = backend.connection(Purpose::Keeper, slot).await else {
        return;
    };
    let Validity::Valid { deadline } = state.validity() else {
        return;
    };
    let remaining = deadline.since(BootInstant::now());
    let Some(call) = state.kind.repair(&state.value, remaining, state.token) else {
        return;
    };
    // The node that misses the lease may not be in the first majority.
    if let Err(error) = call.await_all_nodes().send(&*connection, timeout).await {
        tracing::debug!(lock = state.kind.name(), %error, "repair failed");
    }
    match state.validity() {
        Validity::Valid { .. } => {}
        // The keeper releases it when its margin is over.
        Validity::Ended(reason) if reason.by_time().is_some() => {}
        Validity::Ended(_) => {
            // The holder's own release, of up to two requests, comes first: it
            // reports that it released the lock.
            tokio::time::sleep(timeout * 2).await;
            release(state, backend, timeout).await;
        }
    }
}

/// Writes the hold count until the server stores the current one. After a
/// failure it stays wrong until the next change: nothing depends on it.
pub(super) async fn set_hold_count(
    state: Arc<LeaseState>,
    backend: Arc<dyn Backend>,
    timeout: Duration,
) {
    while state.is_valid() {
        let entries = state.entries();
        let is_written = write_hold_count(&state, entries, &*backend, timeout).await;
        if is_written && state.entries() != entries {
            continue;
        }
        state.end_hold_count();
        // A change before the previous line is still unwritten, unless
        // another job writes it.
        if !is_written || state.entries() == entries || !state.begin_hold_count() {
            return;
        }
    }
}

async fn write_hold_count(
    state: &LeaseState,
    entries: u32,
    backend: &dyn Backend,
    timeout: Duration,
) -> bool {
    let connection = backend.connection(Purpose::Keeper, state.kind.slot()).await;
    match (state.kind.set_hold_count(&state.value, entries), connection) {
        (Some(call), Ok(connection)) => call.send(&*connection, timeout).await.is_ok(),
        _ => false,
    }
}
