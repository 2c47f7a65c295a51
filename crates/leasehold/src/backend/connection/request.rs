//! One request, from registration to the outcome.
//!
//! The caller has one half, [`PendingRequest`], and waits for the outcome. The
//! matcher has the other half, [`ExpectedReplies`], which collects the replies.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::backend::{Admitted, Batch, Channel, Reply};
use crate::sync::Mutex;

/// What a request sends.
pub(super) enum Message<'a> {
    Commands(&'a Batch),
    SubscriptionChange(SubscribeOp, &'a [Channel]),
}

impl Message<'_> {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Commands(batch) => batch.len() == 0,
            Self::SubscriptionChange(_, channels) => channels.is_empty(),
        }
    }

    pub(super) fn write_to(&self, out: &mut Vec<u8>) -> Owed {
        match self {
            Self::Commands(batch) => {
                batch.write_to(out);
                Owed::Replies(batch.len())
            }
            Self::SubscriptionChange(op, channels) => {
                // One command per channel: a cluster node rejects a command
                // whose channels belong to different slots.
                for channel in *channels {
                    let command = Batch::new(command_name(*op, channel)).arg(channel.name());
                    command.write_to(out);
                }
                Owed::Confirmations(*op, channels.iter().cloned().collect())
            }
        }
    }
}

fn command_name(op: SubscribeOp, channel: &Channel) -> &'static str {
    match (op, channel) {
        (SubscribeOp::Subscribe, Channel::Sharded(_)) => "SSUBSCRIBE",
        (SubscribeOp::Unsubscribe, Channel::Sharded(_)) => "SUNSUBSCRIBE",
        (SubscribeOp::Subscribe, Channel::Classic(_)) => "SUBSCRIBE",
        (SubscribeOp::Unsubscribe, Channel::Classic(_)) => "UNSUBSCRIBE",
    }
}

/// Why a request has no replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// The connection was closed first, for this reason.
    Closed(Arc<str>),
    TimedOut,
}

/// A point in time, in ticks of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline(pub(super) u64);

impl Deadline {
    pub(super) const NEVER: Self = Self(u64::MAX);
}

/// One request, shared by the caller and the matcher. Dropped by the caller, it
/// is abandoned.
pub(super) struct PendingRequest(Mutex<RequestState>);

struct RequestState {
    outcome: Option<Result<Vec<Reply>, Unanswered>>,
    waker: Option<Waker>,
}

impl PendingRequest {
    pub(super) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self(Mutex::new(RequestState {
            outcome: None,
            waker: Some(waker),
        })))
    }

    /// Returns the outcome once there is one. Must not be called again after
    /// that.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<Vec<Reply>, Unanswered>> {
        let mut state = self.0.lock();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        if let Some(waker) = &mut state.waker {
            // Keeps a waker that wakes the same task.
            waker.clone_from(context.waker());
        }
        Poll::Pending
    }

    /// Drops the waker. It may own the task, so it must not outlive the caller
    /// in the matcher.
    pub(super) fn abandon(&self) {
        let waker = self.0.lock().waker.take();
        // Not while the mutex is locked: the task may own the connection.
        drop(waker);
    }

    /// Completes the request, unless it has timed out or was abandoned before.
    pub(super) fn complete(
        &self,
        outcome: Result<Vec<Reply>, Unanswered>,
        wakers: &mut Vec<Waker>,
    ) {
        let mut state = self.0.lock();
        // Taken with the first outcome, or by `abandon`.
        if let Some(waker) = state.waker.take() {
            state.outcome = Some(outcome);
            wakers.push(waker);
        }
    }
}

/// Returns whether only the matcher still has the request.
fn is_abandoned(request: &Arc<PendingRequest>) -> bool {
    Arc::strong_count(request) == 1
}

/// A request with the frames that the server still owes.
pub(super) struct ExpectedReplies {
    pub(super) request: Arc<PendingRequest>,
    pub(super) owed: Owed,
    /// Whether a seal follows. `false` during the handshake and on connections
    /// to sentinels.
    pub(super) is_sealed: bool,
    /// When the caller stops waiting.
    pub(super) deadline: Deadline,
    /// Set if the request is an acquire whose number is limited.
    pub(super) admitted: Option<Admitted>,
    replies: Vec<Reply>,
}

/// What completed requests leave to do, with the mutexes unlocked. Each wakes a
/// task, whose runtime may drop it instead, and it may own the connection.
#[derive(Default)]
pub(super) struct Completions {
    pub(super) wakers: Vec<Waker>,
    pub(super) admitted: Vec<Admitted>,
}

impl Completions {
    pub(super) fn announce(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
        self.admitted.clear();
    }
}

/// The replies to a request.
pub(super) enum Owed {
    /// This number of replies.
    Replies(usize),
    /// A confirmation for each channel. It counts as [`Reply::Nil`].
    Confirmations(SubscribeOp, VecDeque<Channel>),
}

impl Owed {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Replies(count) => *count,
            Self::Confirmations(_, channels) => channels.len(),
        }
    }
}

impl ExpectedReplies {
    pub(super) fn new(
        request: Arc<PendingRequest>,
        owed: Owed,
        is_sealed: bool,
        deadline: Deadline,
    ) -> Self {
        Self {
            admitted: None,
            replies: Vec::with_capacity(owed.len()),
            request,
            owed,
            is_sealed,
            deadline,
        }
    }

    /// Returns whether the caller still waits.
    pub(super) fn is_awaited(&self) -> bool {
        self.deadline < Deadline::NEVER && !is_abandoned(&self.request)
    }

    /// Handles a reply at this request's position.
    pub(super) fn accept(&mut self, reply: Reply) -> Result<(), ProtocolViolation> {
        match &mut self.owed {
            Owed::Replies(count) => *count -= 1,
            Owed::Confirmations(_, channels) if matches!(reply, Reply::Refused(_)) => {
                channels.pop_front();
            }
            Owed::Confirmations(..) => {
                return Err(ProtocolViolation(
                    "a reply instead of a confirmation".into(),
                ));
            }
        }
        self.add(reply);
        Ok(())
    }

    /// Takes a push for a confirmation, if it is the next one.
    pub(super) fn confirm(&mut self, op: SubscribeOp, channel: &Channel) -> bool {
        match &mut self.owed {
            Owed::Confirmations(expected, channels)
                if *expected == op && channels.front() == Some(channel) =>
            {
                channels.pop_front();
                self.add(Reply::Nil);
                true
            }
            Owed::Confirmations(..) | Owed::Replies(_) => false,
        }
    }

    fn add(&mut self, reply: Reply) {
        // What no caller reads is not kept.
        if !is_abandoned(&self.request) {
            self.replies.push(reply);
        }
    }

    pub(super) fn complete(mut self, ended: &mut Completions) {
        // A refused script is sent again, and not limited then.
        let is_refused = |reply: &Reply| matches!(reply, Reply::Refused(_));
        if let Some(admitted) = &mut self.admitted
            && !self.replies.iter().any(is_refused)
        {
            admitted.set_answered();
        }
        self.request.complete(Ok(self.replies), &mut ended.wakers);
        ended.admitted.extend(self.admitted);
    }

    /// Ends the caller's wait. The position is kept.
    pub(super) fn expire(&mut self, ended: &mut Completions) {
        self.deadline = Deadline::NEVER;
        if let Some(admitted) = &mut self.admitted {
            admitted.set_late();
        }
        let outcome = Err(Unanswered::TimedOut);
        self.request.complete(outcome, &mut ended.wakers);
    }

    pub(super) fn fail(&mut self, reason: &Arc<str>, ended: &mut Completions) {
        let outcome = Err(Unanswered::Closed(reason.clone()));
        self.request.complete(outcome, &mut ended.wakers);
        ended.admitted.extend(self.admitted.take());
    }
}

/// A change to a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubscribeOp {
    Subscribe,
    Unsubscribe,
}

/// A frame that is not allowed where it arrived.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent {0}")]
pub(super) struct ProtocolViolation(pub(super) Cow<'static, str>);
