//! Which reply belongs to which request.
//!
//! A server replies in the order of the requests, so the next reply is that of the first request that waits. Pushes stand
//! outside of that order, except that a subscription change is confirmed by a push of its own kind and channel.
//!
//! Order alone would trust every proxy between to repeat, lose and swap nothing. So each request is followed by a *seal*:
//! `ECHO` of a number that is new on this connection. Replies are believed when the seal of their request has come back
//! right behind them. Within one request their order is the server's.
//!
//! # Invariants
//!
//! 1. A push is never taken for the reply to a request.
//! 2. A request is complete when all of its replies have arrived with its seal behind them, not before.
//! 3. A request whose caller has gone keeps its place in the order.
//! 4. A frame that fits nowhere is [`ProtocolViolation`]. The connection is then closed, and every request that is not complete has
//!    an unknown outcome.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::mem;
use std::task::{Context, Poll, Waker};

use super::resp::{Frame, SEAL};
use crate::backend::Channel;
use crate::backend::Reply;
use crate::backend::command::{Digits, write_length};

/// A frame that the protocol does not allow at its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent {0}")]
pub(super) struct ProtocolViolation(Cow<'static, str>);

/// What is done to a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubscribeOp {
    Subscribe,
    Unsubscribe,
}

/// What a push says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PushEvent {
    Message {
        channel: Channel,
        text: Vec<u8>,
    },
    /// The server has ended a subscription unasked: the channel's request is another node's now.
    Ended {
        channel: Channel,
    },
}

/// The place of one request in [`Matcher`].
pub(super) type RequestId = usize;

/// Every request that was written, or is about to be, and is not complete.
#[derive(Default)]
pub(super) struct Matcher {
    /// What the server owes, in order.
    expected: VecDeque<Expected>,
    requests: Vec<PendingRequest>,
    free: Vec<RequestId>,
    /// The number of the last seal that was asked for.
    last_seal: u64,
    /// The channels whose messages are awaited.
    subscribed: HashSet<Channel>,
    is_closed: bool,
}

enum Expected {
    Reply {
        of: RequestId,
    },
    SubscribeOp {
        of: RequestId,
        change: SubscribeOp,
        channel: Channel,
    },
    Seal {
        of: RequestId,
        number: u64,
    },
}

/// One request. Slots are used again, so that a request needs no memory of its own but for its replies.
#[derive(Default)]
struct PendingRequest {
    stage: Stage,
    /// Replies, confirmations and seals that are still to come.
    left: usize,
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
    /// The caller has gone.
    Abandoned,
}

/// The connection was closed before a request was complete.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnectionClosed;

impl Matcher {
    /// Registers a request of `replies` replies, whose parts follow in the order in which they are written.
    pub(super) fn request(&mut self, replies: usize) -> RequestId {
        let request = PendingRequest {
            stage: if self.is_closed {
                Stage::Closed
            } else {
                Stage::Waiting
            },
            left: 0,
            replies: Vec::with_capacity(replies),
            waker: None,
        };
        match self.free.pop() {
            Some(at) => {
                self.requests[at] = request;
                at
            }
            None => {
                self.requests.push(request);
                self.requests.len() - 1
            }
        }
    }

    /// Expects the reply to a command of the request.
    pub(super) fn expect_reply(&mut self, of: RequestId) {
        self.expect(of, Expected::Reply { of });
    }

    /// Expects the confirmation of a subscription change, which counts as the reply [`Reply::Nil`].
    pub(super) fn expect_change(&mut self, of: RequestId, change: SubscribeOp, channel: Channel) {
        self.expect(
            of,
            Expected::SubscribeOp {
                of,
                change,
                channel,
            },
        );
    }

    /// Expects a seal, and returns the number to be echoed.
    pub(super) fn expect_seal(&mut self, of: RequestId) -> u64 {
        self.last_seal += 1;
        let number = self.last_seal;
        self.expect(of, Expected::Seal { of, number });
        number
    }

    fn expect(&mut self, of: RequestId, expected: Expected) {
        if !self.is_closed {
            self.requests[of].left += 1;
            self.expected.push_back(expected);
        }
    }

    /// How many replies, confirmations and seals are still to come.
    pub(super) fn owed(&self) -> usize {
        self.expected.len()
    }

    /// Takes in a frame; returns what a push says, and adds to `woken` the callers whose requests are complete.
    pub(super) fn take(
        &mut self,
        frame: Frame,
        woken: &mut Vec<Waker>,
    ) -> Result<Option<PushEvent>, ProtocolViolation> {
        match frame {
            Frame::Push(items) => self.push(items, woken),
            Frame::Reply(reply) => self.reply(reply, woken).map(|()| None),
            Frame::Seal(number) => self.seal(number, woken).map(|()| None),
        }
    }

    fn reply(&mut self, reply: Reply, woken: &mut Vec<Waker>) -> Result<(), ProtocolViolation> {
        let (of, reply) = match (self.expected.pop_front(), reply) {
            (Some(Expected::Reply { of }), reply) => (of, reply),
            (Some(Expected::Seal { .. }), Reply::Refused(error)) => {
                return Err(ProtocolViolation(
                    format!("`{error}` in place of a seal").into(),
                ));
            }
            (Some(Expected::Seal { .. }), _) => {
                return Err(ProtocolViolation("a reply in place of a seal".into()));
            }
            (Some(Expected::SubscribeOp { of, .. }), Reply::Refused(error)) => {
                (of, Reply::Refused(error))
            }
            (Some(Expected::SubscribeOp { .. }), _) => {
                return Err(ProtocolViolation(
                    "a reply in place of a confirmation".into(),
                ));
            }
            (None, _) => return Err(ProtocolViolation("a reply to nothing".into())),
        };
        self.store(of, Some(reply), woken);
        Ok(())
    }

    fn seal(&mut self, number: u64, woken: &mut Vec<Waker>) -> Result<(), ProtocolViolation> {
        match self.expected.pop_front() {
            Some(Expected::Seal {
                of,
                number: expected,
            }) if expected == number => {
                self.store(of, None, woken);
                Ok(())
            }
            _ => Err(ProtocolViolation(
                "a seal where replies or another seal were due".into(),
            )),
        }
    }

    fn push(
        &mut self,
        items: Vec<Reply>,
        woken: &mut Vec<Waker>,
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
            _ => return Err(ProtocolViolation("a push that was not asked for".into())),
        };
        match (what, items.next(), items.next()) {
            (None, Some(Reply::Bytes(text)), None) if self.subscribed.contains(&channel) => {
                Ok(Some(PushEvent::Message { channel, text }))
            }
            (Some(change), Some(Reply::Int(_)), None) => self.confirm(change, channel, woken),
            _ => Err(ProtocolViolation("a push that was not asked for".into())),
        }
    }

    fn confirm(
        &mut self,
        made: SubscribeOp,
        channel: Channel,
        woken: &mut Vec<Waker>,
    ) -> Result<Option<PushEvent>, ProtocolViolation> {
        let asked = match self.expected.front() {
            Some(Expected::SubscribeOp {
                of,
                change,
                channel: of_channel,
            }) if *change == made && *of_channel == channel => Some(*of),
            _ => None,
        };
        if let Some(of) = asked {
            self.expected.pop_front();
            self.store(of, Some(Reply::Nil), woken);
            match made {
                SubscribeOp::Subscribe => self.subscribed.insert(channel),
                SubscribeOp::Unsubscribe => self.subscribed.remove(&channel),
            };
            return Ok(None);
        }
        // Only a request that moves ends a subscription unasked, and only sharded channels have one.
        let moved = made == SubscribeOp::Unsubscribe && matches!(channel, Channel::Sharded(_));
        match moved && self.subscribed.remove(&channel) {
            true => Ok(Some(PushEvent::Ended { channel })),
            false => Err(ProtocolViolation("a confirmation of nothing".into())),
        }
    }

    /// Keeps a part of a request, and ends the request with its last one (invariant 2).
    fn store(&mut self, of: RequestId, reply: Option<Reply>, woken: &mut Vec<Waker>) {
        let request = &mut self.requests[of];
        request.left -= 1;
        match (request.stage, request.left) {
            (Stage::Abandoned, 0) => self.free.push(of),
            (Stage::Abandoned, _) => {}
            (_, left) => {
                request.replies.extend(reply);
                if left == 0 {
                    request.stage = Stage::Complete;
                    woken.extend(request.waker.take());
                }
            }
        }
    }

    /// The replies to a request, once it is complete. It must not be asked again after that.
    pub(super) fn poll(
        &mut self,
        of: RequestId,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Reply>, ConnectionClosed>> {
        let request = &mut self.requests[of];
        let outcome = match request.stage {
            Stage::Waiting if request.left == 0 => Ok(Vec::new()),
            Stage::Complete => Ok(mem::take(&mut request.replies)),
            Stage::Closed => Err(ConnectionClosed),
            Stage::Waiting | Stage::Abandoned => {
                match &mut request.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
        };
        self.free.push(of);
        Poll::Ready(outcome)
    }

    /// Forgets the caller of a request, not its place (invariant 3).
    pub(super) fn abandon(&mut self, of: RequestId) {
        let request = &mut self.requests[of];
        match request.stage {
            Stage::Waiting if request.left > 0 => {
                request.stage = Stage::Abandoned;
                request.replies = Vec::new();
                request.waker = None;
            }
            Stage::Waiting | Stage::Complete | Stage::Closed => {
                request.replies = Vec::new();
                self.free.push(of);
            }
            Stage::Abandoned => {}
        }
    }

    /// Ends every request that is not complete (invariant 4); returns the callers to wake.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        self.is_closed = true;
        self.expected.clear();
        self.subscribed.clear();
        let mut woken = Vec::new();
        for request in self
            .requests
            .iter_mut()
            .filter(|request| request.stage == Stage::Waiting)
        {
            request.stage = Stage::Closed;
            woken.extend(request.waker.take());
        }
        woken
    }
}

/// Appends the command whose reply is the seal of this number. It stands behind every request, so it is written without
/// a [`Command`](crate::backend::Command) of its own.
pub(super) fn write_seal(out: &mut Vec<u8>, number: u64) {
    let mut digits = Digits::default();
    let digits = digits.of(number);
    out.extend_from_slice(b"*2\r\n$4\r\nECHO\r\n");
    write_length(out, b'$', (SEAL.len() + digits.len()) as u64);
    out.extend_from_slice(SEAL);
    out.extend_from_slice(digits);
    out.extend_from_slice(b"\r\n");
}
