//! Matches replies to requests.
//!
//! A server replies in request order, so the next reply belongs to the oldest
//! pending request. Pushes are outside of that order, with one exception: a
//! push of matching kind and channel confirms a subscription change.
//!
//! Order alone would require that no proxy in between repeats, loses or
//! reorders replies. Therefore each request is followed by a *seal*: an `ECHO`
//! of a number that is new on this connection. Numbers start at random, so
//! replies of another connection don't carry them. Replies are accepted only
//! when the seal of their request follows them. Within one request, the order
//! of replies is trusted.
//!
//! A server that is busy, loading or denies `ECHO` replies with an error
//! instead. If every reply of the request is such an error too, the server has
//! refused the request; otherwise we don't know what it executed.
//!
//! # Invariants
//!
//! 1. A push is never taken for the reply to a request.
//! 2. A request completes only when all of its replies have arrived, followed
//!    by its seal, or when all of them and its seal are refused.
//! 3. A request whose caller dropped it keeps its position in the order.
//! 4. A frame that matches nothing is a [`ProtocolViolation`]. The connection
//!    is closed, and every incomplete request has an unknown outcome.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::mem;
use std::task::{Context, Poll, Waker};

use super::resp::Frame;
use crate::backend::Channel;
use crate::backend::Reply;
use crate::backend::command::{Digits, write_length};

/// The prefix of every seal. Only its number matters; the prefix explains it to
/// a reader of `MONITOR`.
const SEAL: &[u8] = b"lh-seal-";

/// A frame that is not allowed at its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent {0}")]
pub(super) struct ProtocolViolation(Cow<'static, str>);

/// A change to a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubscribeOp {
    Subscribe,
    Unsubscribe,
}

/// A push that is not a confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PushEvent {
    Message {
        channel: Channel,
        text: Vec<u8>,
    },
    /// The server ended a subscription: the channel's slot moved away.
    Ended {
        channel: Channel,
    },
}

/// The index of a request in [`Matcher`].
pub(super) type RequestId = usize;

/// All requests that are not complete, including those about to be written.
pub(super) struct Matcher {
    /// What the server still has to send, in order.
    expected: VecDeque<Expected>,
    requests: Vec<PendingRequest>,
    free: Vec<RequestId>,
    /// The number of the last seal that was sent.
    last_seal: u64,
    /// The channels with a confirmed subscription.
    subscribed: HashSet<Channel>,
    is_closed: bool,
}

enum Expected {
    Reply {
        request: RequestId,
    },
    Confirmation {
        request: RequestId,
        op: SubscribeOp,
        channel: Channel,
    },
    Seal {
        request: RequestId,
        number: u64,
    },
}

/// One request. Entries are reused, so that a request allocates for its replies
/// only.
#[derive(Default)]
struct PendingRequest {
    stage: Stage,
    /// Replies, confirmations and seals that have not arrived.
    remaining: usize,
    /// Whether a reply has arrived that does not prove that the server refused
    /// its command.
    is_executed: bool,
    replies: Vec<Reply>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Waiting,
    Complete,
    /// The connection was closed first.
    Closed,
    /// The caller dropped the request.
    Abandoned,
}

/// The connection was closed before the request completed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnectionClosed;

impl Matcher {
    /// Creates a matcher whose first seal has the number after `last_seal`.
    pub(super) fn new(last_seal: u64) -> Self {
        Self {
            expected: VecDeque::new(),
            requests: Vec::new(),
            free: Vec::new(),
            last_seal,
            subscribed: HashSet::new(),
            is_closed: false,
        }
    }

    /// Registers a request with capacity for `replies` replies. The caller then
    /// registers its parts in the order in which it writes them.
    pub(super) fn register(&mut self, replies: usize) -> RequestId {
        let pending = PendingRequest {
            stage: if self.is_closed {
                Stage::Closed
            } else {
                Stage::Waiting
            },
            remaining: 0,
            is_executed: false,
            replies: Vec::with_capacity(replies),
            waker: None,
        };
        match self.free.pop() {
            Some(request) => {
                self.requests[request] = pending;
                request
            }
            None => {
                self.requests.push(pending);
                self.requests.len() - 1
            }
        }
    }

    /// Expects the reply to one command of the request.
    pub(super) fn expect_reply(&mut self, request: RequestId) {
        self.expect(request, Expected::Reply { request });
    }

    /// Expects the confirmation of a subscription change. It counts as
    /// [`Reply::Nil`].
    pub(super) fn expect_confirmation(
        &mut self,
        request: RequestId,
        op: SubscribeOp,
        channel: Channel,
    ) {
        self.expect(
            request,
            Expected::Confirmation {
                request,
                op,
                channel,
            },
        );
    }

    /// Expects a seal, and returns its number.
    pub(super) fn expect_seal(&mut self, request: RequestId) -> u64 {
        self.last_seal = self.last_seal.wrapping_add(1);
        let number = self.last_seal;
        self.expect(request, Expected::Seal { request, number });
        number
    }

    fn expect(&mut self, request: RequestId, expected: Expected) {
        if !self.is_closed {
            self.requests[request].remaining += 1;
            self.expected.push_back(expected);
        }
    }

    /// Returns how many replies, confirmations and seals have not arrived.
    pub(super) fn owed(&self) -> usize {
        self.expected.len()
    }

    pub(super) fn is_subscribed(&self, channel: &Channel) -> bool {
        self.subscribed.contains(channel)
    }

    /// Handles a frame. Returns the event of a push, and adds to `wakers` the
    /// callers whose requests completed.
    pub(super) fn handle(
        &mut self,
        frame: Frame,
        wakers: &mut Vec<Waker>,
    ) -> Result<Option<PushEvent>, ProtocolViolation> {
        match frame {
            Frame::Push(items) => self.push(items, wakers),
            Frame::Reply(reply) => self.reply(reply, wakers).map(|()| None),
        }
    }

    fn reply(&mut self, reply: Reply, wakers: &mut Vec<Waker>) -> Result<(), ProtocolViolation> {
        let (request, reply) = match (self.expected.pop_front(), reply) {
            (Some(Expected::Reply { request }), reply)
            | (Some(Expected::Confirmation { request, .. }), reply @ Reply::Refused(_)) => {
                (request, Some(reply))
            }
            (Some(Expected::Confirmation { .. }), _) => {
                return Err(ProtocolViolation(
                    "a reply instead of a confirmation".into(),
                ));
            }
            (Some(Expected::Seal { request, number }), reply) => {
                self.check_seal(request, number, &reply)?;
                (request, None)
            }
            (None, _) => return Err(ProtocolViolation("a reply without a request".into())),
        };
        self.store(request, reply, wakers);
        Ok(())
    }

    /// Checks the reply in the place of a seal. An error is allowed there if
    /// the server has refused the whole request (invariant 2).
    fn check_seal(
        &self,
        request: RequestId,
        number: u64,
        reply: &Reply,
    ) -> Result<(), ProtocolViolation> {
        match reply {
            Reply::Bytes(text) if text.strip_prefix(SEAL) == Some(Digits::default().of(number)) => {
                Ok(())
            }
            Reply::Refused(error) if error.proves_unexecuted() => {
                match self.requests[request].is_executed {
                    false => Ok(()),
                    true => {
                        let what = format!("`{error}` instead of a seal");
                        Err(ProtocolViolation(what.into()))
                    }
                }
            }
            _ => Err(ProtocolViolation("a reply instead of a seal".into())),
        }
    }

    fn push(
        &mut self,
        items: Vec<Reply>,
        wakers: &mut Vec<Waker>,
    ) -> Result<Option<PushEvent>, ProtocolViolation> {
        let mut items = items.into_iter();
        let (Some(Reply::Bytes(kind)), Some(Reply::Bytes(name))) = (items.next(), items.next())
        else {
            return Err(ProtocolViolation("a push without a channel".into()));
        };
        let (channel, what) = match kind.as_slice() {
            b"message" => (Channel::Classic(name), None),
            b"smessage" => (Channel::Sharded(name), None),
            b"subscribe" => (Channel::Classic(name), Some(SubscribeOp::Subscribe)),
            b"ssubscribe" => (Channel::Sharded(name), Some(SubscribeOp::Subscribe)),
            b"unsubscribe" => (Channel::Classic(name), Some(SubscribeOp::Unsubscribe)),
            b"sunsubscribe" => (Channel::Sharded(name), Some(SubscribeOp::Unsubscribe)),
            _ => return Err(ProtocolViolation("an unexpected push".into())),
        };
        match (what, items.next(), items.next()) {
            (None, Some(Reply::Bytes(text)), None) if self.subscribed.contains(&channel) => {
                Ok(Some(PushEvent::Message { channel, text }))
            }
            (Some(op), Some(Reply::Int(_)), None) => self.confirm(op, channel, wakers),
            _ => Err(ProtocolViolation("an unexpected push".into())),
        }
    }

    fn confirm(
        &mut self,
        op: SubscribeOp,
        channel: Channel,
        wakers: &mut Vec<Waker>,
    ) -> Result<Option<PushEvent>, ProtocolViolation> {
        let matched = match self.expected.front() {
            Some(Expected::Confirmation {
                request,
                op: expected_op,
                channel: expected_channel,
            }) if *expected_op == op && *expected_channel == channel => Some(*request),
            _ => None,
        };
        if let Some(request) = matched {
            self.expected.pop_front();
            self.store(request, Some(Reply::Nil), wakers);
            match op {
                SubscribeOp::Subscribe => self.subscribed.insert(channel),
                SubscribeOp::Unsubscribe => self.subscribed.remove(&channel),
            };
            return Ok(None);
        }
        // A server ends a subscription only when a slot moves, and only sharded
        // channels have a slot.
        let moved = op == SubscribeOp::Unsubscribe && matches!(channel, Channel::Sharded(_));
        match moved && self.subscribed.remove(&channel) {
            true => Ok(Some(PushEvent::Ended { channel })),
            false => Err(ProtocolViolation("a confirmation without a request".into())),
        }
    }

    /// Records a part of a request, and completes the request with the last one
    /// (invariant 2).
    fn store(&mut self, request: RequestId, reply: Option<Reply>, wakers: &mut Vec<Waker>) {
        let pending = &mut self.requests[request];
        pending.remaining -= 1;
        // Also of an abandoned request, which keeps no replies.
        pending.is_executed |= match &reply {
            Some(Reply::Refused(error)) => !error.proves_unexecuted(),
            Some(_) => true,
            None => false,
        };
        match (pending.stage, pending.remaining) {
            (Stage::Abandoned, 0) => self.free.push(request),
            (Stage::Abandoned, _) => {}
            (_, remaining) => {
                pending.replies.extend(reply);
                if remaining == 0 {
                    pending.stage = Stage::Complete;
                    wakers.extend(pending.waker.take());
                }
            }
        }
    }

    /// Returns the replies once the request is complete. Must not be called
    /// again after that.
    pub(super) fn poll(
        &mut self,
        request: RequestId,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Reply>, ConnectionClosed>> {
        let pending = &mut self.requests[request];
        let outcome = match pending.stage {
            Stage::Waiting if pending.remaining == 0 => Ok(Vec::new()),
            Stage::Complete => Ok(mem::take(&mut pending.replies)),
            Stage::Closed => Err(ConnectionClosed),
            Stage::Waiting | Stage::Abandoned => {
                match &mut pending.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
        };
        self.free.push(request);
        Poll::Ready(outcome)
    }

    /// Drops the caller of a request, but keeps its position (invariant 3).
    pub(super) fn abandon(&mut self, request: RequestId) {
        let pending = &mut self.requests[request];
        match pending.stage {
            Stage::Waiting if pending.remaining > 0 => {
                pending.stage = Stage::Abandoned;
                pending.replies = Vec::new();
                pending.waker = None;
            }
            Stage::Waiting | Stage::Complete | Stage::Closed => {
                pending.replies = Vec::new();
                self.free.push(request);
            }
            Stage::Abandoned => {}
        }
    }

    /// Fails every incomplete request (invariant 4), and returns the callers to
    /// wake.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        self.is_closed = true;
        self.expected.clear();
        self.subscribed.clear();
        let mut wakers = Vec::new();
        for pending in self
            .requests
            .iter_mut()
            .filter(|pending| pending.stage == Stage::Waiting)
        {
            pending.stage = Stage::Closed;
            wakers.extend(pending.waker.take());
        }
        wakers
    }
}

/// Appends the `ECHO` command of a seal. It follows every request, so it is
/// written without building a [`Command`](crate::backend::Command).
pub(super) fn write_seal(out: &mut Vec<u8>, number: u64) {
    let mut digits = Digits::default();
    let digits = digits.of(number);
    out.extend_from_slice(b"*2\r\n$4\r\nECHO\r\n");
    write_length(out, b'$', (SEAL.len() + digits.len()) as u64);
    out.extend_from_slice(SEAL);
    out.extend_from_slice(digits);
    out.extend_from_slice(b"\r\n");
}
