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
//! 2. A request completes only when all replies have arrived, followed by the
//!    seal, or when all of them and the seal are refused.
//! 3. A request whose caller dropped it keeps the position in the order.
//! 4. A frame that matches nothing is a [`ProtocolViolation`]. The connection
//!    is closed, and every incomplete request has an unknown outcome.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::mem;
use std::task::{Context, Poll, Waker};

use super::resp::Frame;
use crate::backend::command::{Digits, write_length};
use crate::backend::{Channel, Reply};

/// The prefix of every seal. Only its number matters; the prefix explains it to
/// a reader of `MONITOR`.
const SEAL: &[u8] = b"lh-seal-";

/// A frame that is not allowed where it arrived.
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

/// One request. Entries are reused, so a request allocates for its replies
/// only.
#[derive(Default)]
struct PendingRequest {
    stage: Stage,
    /// Replies, confirmations and seals that have not arrived.
    remaining: usize,
    /// Whether a reply has arrived that does not prove that the server refused
    /// the command.
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
    /// registers the parts in the order in which it writes them.
    pub(super) fn register(&mut self, replies: usize) -> RequestId {
        let pending = PendingRequest {
            // A request that is registered after the end fails when it is first
            // polled.
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

    /// Expects a seal, and returns the number.
    pub(super) fn expect_seal(&mut self, request: RequestId) -> u64 {
        // The start is random, so it may well wrap around.
        self.last_seal = self.last_seal.wrapping_add(1);
        let number = self.last_seal;
        self.expect(request, Expected::Seal { request, number });
        number
    }

    fn expect(&mut self, request: RequestId, expected: Expected) {
        // Nothing arrives any more, so an entry would never leave.
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
            // Compared as text: parsing would also accept `+1` or `01`.
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
            // We accept messages only on channels that the server has
            // confirmed. Any other one was meant for another connection.
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
            // A request without commands, which waits for nothing.
            Stage::Waiting if pending.remaining == 0 => Ok(Vec::new()),
            Stage::Complete => Ok(mem::take(&mut pending.replies)),
            Stage::Closed => Err(ConnectionClosed),
            Stage::Waiting | Stage::Abandoned => {
                match &mut pending.waker {
                    // `clone_from` keeps a waker that wakes the same task.
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
        };
        self.free.push(request);
        Poll::Ready(outcome)
    }

    /// Drops the caller of a request, but keeps the position (invariant 3).
    pub(super) fn abandon(&mut self, request: RequestId) {
        let pending = &mut self.requests[request];
        match pending.stage {
            Stage::Waiting if pending.remaining > 0 => {
                // The server still replies. The entry is reused once all of it
                // has arrived.
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
/// written without building a [`Batch`](crate::backend::Batch).
pub(super) fn write_seal(out: &mut Vec<u8>, number: u64) {
    let mut digits = Digits::default();
    let digits = digits.of(number);
    out.extend_from_slice(b"*2\r\n$4\r\nECHO\r\n");
    write_length(out, b'$', (SEAL.len() + digits.len()) as u64);
    out.extend_from_slice(SEAL);
    out.extend_from_slice(digits);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use testkit::check_property;

    use super::*;
    use crate::backend::ServerError;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn sharded(name: &str) -> Channel {
        Channel::Sharded(name.as_bytes().to_vec())
    }

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    fn push(kind: &str, channel: &str, last: Reply) -> Frame {
        Frame::Push(vec![text(kind), text(channel), last])
    }

    fn reply(number: i64) -> Frame {
        Frame::Reply(Reply::Int(number))
    }

    /// Registers a sealed request.
    fn request(matcher: &mut Matcher, commands: usize) -> RequestId {
        numbered_request(matcher, commands).0
    }

    /// Registers a sealed request. Also returns the seal's number.
    fn numbered_request(matcher: &mut Matcher, commands: usize) -> (RequestId, u64) {
        let id = matcher.register(commands);
        for _ in 0..commands {
            matcher.expect_reply(id);
        }
        (id, matcher.expect_seal(id))
    }

    /// Registers a sealed subscription to `channels`.
    fn subscribe(matcher: &mut Matcher, channels: &[&str]) -> RequestId {
        let id = matcher.register(channels.len());
        for channel in channels {
            matcher.expect_confirmation(id, SubscribeOp::Subscribe, sharded(channel));
        }
        matcher.expect_seal(id);
        id
    }

    fn seal(number: u64) -> Frame {
        Frame::Reply(text(&format!("lh-seal-{number}")))
    }

    fn take(matcher: &mut Matcher, frame: Frame) -> Result<Option<PushEvent>, ProtocolViolation> {
        matcher.handle(frame, &mut Vec::new())
    }

    fn outcome(
        matcher: &mut Matcher,
        id: RequestId,
    ) -> Option<Result<Vec<Reply>, ConnectionClosed>> {
        let mut context = Context::from_waker(Waker::noop());
        match matcher.poll(id, &mut context) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    #[test]
    fn reply_completes_with_its_seal() {
        let mut matcher = Matcher::new(0);
        let (one, two) = (request(&mut matcher, 1), request(&mut matcher, 2));
        take(&mut matcher, reply(1)).unwrap();
        assert_eq!(outcome(&mut matcher, one), None);
        take(&mut matcher, seal(1)).unwrap();
        assert_eq!(outcome(&mut matcher, one), Some(Ok(vec![Reply::Int(1)])));
        for frame in [reply(2), reply(3)] {
            take(&mut matcher, frame).unwrap();
            assert_eq!(outcome(&mut matcher, two), None);
        }
        take(&mut matcher, seal(2)).unwrap();
        let two = outcome(&mut matcher, two);
        assert_eq!(two, Some(Ok(vec![Reply::Int(2), Reply::Int(3)])));
        assert_eq!(matcher.owed(), 0);
    }

    #[test]
    fn seal_of_another_request_is_rejected() {
        let mut matcher = Matcher::new(0);
        let one = request(&mut matcher, 1);
        request(&mut matcher, 1);
        // The first reply was lost together with its seal.
        take(&mut matcher, reply(2)).unwrap();
        assert!(take(&mut matcher, seal(2)).is_err());
        assert_eq!(outcome(&mut matcher, one), None);
    }

    #[test]
    fn seal_is_written_as_an_echo() {
        let mut out = Vec::new();
        write_seal(&mut out, 120);
        assert_eq!(out, b"*2\r\n$4\r\nECHO\r\n$11\r\nlh-seal-120\r\n");
    }

    #[test]
    fn unexpected_push_is_never_a_reply() {
        let mut matcher = Matcher::new(0);
        let subscribing = subscribe(&mut matcher, &["c"]);
        take(&mut matcher, push("ssubscribe", "c", Reply::Int(1))).unwrap();
        take(&mut matcher, seal(1)).unwrap();
        assert_eq!(
            outcome(&mut matcher, subscribing),
            Some(Ok(vec![Reply::Nil]))
        );
        let (one, two) = (request(&mut matcher, 1), request(&mut matcher, 1));
        let moved = take(&mut matcher, push("sunsubscribe", "c", Reply::Int(0)));
        let channel = sharded("c");
        assert_eq!(moved, Ok(Some(PushEvent::Ended { channel })));
        for frame in [reply(1), seal(2), reply(2), seal(3)] {
            take(&mut matcher, frame).unwrap();
        }
        assert_eq!(outcome(&mut matcher, one), Some(Ok(vec![Reply::Int(1)])));
        assert_eq!(outcome(&mut matcher, two), Some(Ok(vec![Reply::Int(2)])));
    }

    #[test]
    fn refused_subscription_is_an_error_reply() {
        let mut matcher = Matcher::new(0);
        let subscribing = subscribe(&mut matcher, &["a", "b"]);
        let error = Reply::Refused(ServerError::new("MOVED", "1 h:1"));
        take(&mut matcher, Frame::Reply(error.clone())).unwrap();
        take(&mut matcher, push("ssubscribe", "b", Reply::Int(1))).unwrap();
        take(&mut matcher, seal(1)).unwrap();
        let replies = outcome(&mut matcher, subscribing);
        assert_eq!(replies, Some(Ok(vec![error, Reply::Nil])));
    }

    #[test]
    fn unexpected_frame_is_rejected() {
        let fits = |frame: Frame| {
            let mut matcher = Matcher::new(0);
            subscribe(&mut matcher, &["c"]);
            request(&mut matcher, 1);
            take(&mut matcher, frame).is_ok()
        };
        assert!(fits(push("ssubscribe", "c", Reply::Int(1))));
        for frame in [
            reply(1),
            seal(1),
            push("ssubscribe", "other", Reply::Int(1)),
            push("subscribe", "c", Reply::Int(1)),
            push("sunsubscribe", "c", Reply::Int(1)),
            push("smessage", "c", text("early")),
            push("invalidate", "c", Reply::Nil),
            Frame::Push(vec![text("ssubscribe")]),
            Frame::Push(vec![]),
        ] {
            assert!(!fits(frame.clone()), "{frame:?}");
        }
        assert!(take(&mut Matcher::new(0), reply(1)).is_err());
    }

    fn refused(code: &str, detail: &str) -> Frame {
        Frame::Reply(Reply::Refused(ServerError::new(code, detail)))
    }

    /// A value that looks like a seal closed the connection.
    #[test]
    fn value_that_looks_like_a_seal_is_a_reply() {
        let mut matcher = Matcher::new(0);
        for number in [1, 2] {
            let id = request(&mut matcher, 1);
            let value = text("lh-seal-1");
            take(&mut matcher, Frame::Reply(value.clone())).unwrap();
            take(&mut matcher, seal(number)).unwrap();
            assert_eq!(outcome(&mut matcher, id), Some(Ok(vec![value])));
        }
    }

    /// A slow script of any client closed the connections of all, and refused
    /// requests had an unknown outcome.
    #[test]
    fn request_refused_with_its_seal_is_complete() {
        for (code, detail) in [
            ("BUSY", "a script"),
            ("LOADING", "the data"),
            ("MASTERDOWN", "no link"),
            ("NOAUTH", "a password is required"),
            ("NOPERM", "no permission"),
        ] {
            let mut matcher = Matcher::new(0);
            let refusal = refused(code, detail);
            let Frame::Reply(reply) = refusal.clone() else {
                unreachable!()
            };
            let both = [request(&mut matcher, 2), request(&mut matcher, 2)];
            matcher.abandon(both[1]);
            let last = request(&mut matcher, 1);
            for _ in 0..6 {
                take(&mut matcher, refusal.clone()).unwrap();
            }
            let first = outcome(&mut matcher, both[0]);
            assert_eq!(first, Some(Ok(vec![reply.clone(), reply])), "{code}");
            take(&mut matcher, self::reply(1)).unwrap();
            take(&mut matcher, seal(3)).unwrap();
            assert_eq!(outcome(&mut matcher, last), Some(Ok(vec![Reply::Int(1)])));
        }
    }

    /// The server has executed a part of the request, or we cannot tell.
    #[test]
    fn refused_seal_of_executed_request_is_rejected() {
        let busy = || refused("BUSY", "a script");
        for replies in [
            [reply(1), busy(), busy()],
            [busy(), reply(1), busy()],
            [busy(), busy(), refused("ERR", "upstream failure")],
            [refused("ERR", "upstream failure"), busy(), busy()],
            [
                refused("WRONGTYPE", "not a hash script: 0, on @user_script:9."),
                busy(),
                busy(),
            ],
        ] {
            for is_abandoned in [false, true] {
                let mut matcher = Matcher::new(0);
                let id = request(&mut matcher, 2);
                if is_abandoned {
                    matcher.abandon(id);
                }
                let [one, two, seal] = replies.clone();
                take(&mut matcher, one).unwrap();
                take(&mut matcher, two).unwrap();
                assert!(take(&mut matcher, seal).is_err(), "{replies:?}");
            }
        }
    }

    #[test]
    fn abandoned_request_keeps_its_position() {
        let mut matcher = Matcher::new(0);
        let (abandoned, waiting) = (request(&mut matcher, 2), request(&mut matcher, 1));
        take(&mut matcher, reply(1)).unwrap();
        matcher.abandon(abandoned);
        for frame in [reply(2), seal(1), reply(3), seal(2)] {
            take(&mut matcher, frame).unwrap();
        }
        assert_eq!(
            outcome(&mut matcher, waiting),
            Some(Ok(vec![Reply::Int(3)]))
        );
        assert_eq!(matcher.register(1), waiting, "entries are reused");
        assert_eq!(matcher.register(1), abandoned);
    }

    #[test]
    fn close_wakes_every_caller() {
        let mut matcher = Matcher::new(0);
        let count = Arc::<WakeCounter>::default();
        let waker = Waker::from(count.clone());
        let (one, two) = (request(&mut matcher, 1), request(&mut matcher, 1));
        for id in [one, two] {
            assert!(
                matcher
                    .poll(id, &mut Context::from_waker(&waker))
                    .is_pending()
            );
        }
        matcher.close().into_iter().for_each(Waker::wake);
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        assert_eq!(outcome(&mut matcher, one), Some(Err(ConnectionClosed)));
        let late = request(&mut matcher, 1);
        assert_eq!(outcome(&mut matcher, late), Some(Err(ConnectionClosed)));
    }

    /// A fault that a proxy injects into the frames of a server.
    #[derive(Clone, Copy, Debug)]
    enum InjectedFault {
        Drop,
        Repeat,
        /// Lets up to this many frames overtake this one.
        Delay(usize),
        /// Inserts an unexpected frame.
        Insert(usize),
    }

    fn fault() -> impl Strategy<Value = InjectedFault> {
        prop_oneof![
            Just(InjectedFault::Drop),
            Just(InjectedFault::Repeat),
            (1..6usize).prop_map(InjectedFault::Delay),
            (0..9usize).prop_map(InjectedFault::Insert),
        ]
    }

    fn unexpected(kind: usize) -> Frame {
        match kind {
            0 => push("sunsubscribe", "c", Reply::Int(0)),
            1 => push("ssubscribe", "c", Reply::Int(1)),
            2 => push("smessage", "c", text("forged")),
            3 => push("unsubscribe", "d", Reply::Int(0)),
            4 => push("invalidate", "k", Reply::Nil),
            5 => Frame::Reply(text("1")),
            6 => seal(1),
            7 => refused("BUSY", "a script"),
            _ => reply(-1),
        }
    }

    fn inject(frames: &mut Vec<Frame>, at: usize, fault: InjectedFault) {
        match fault {
            InjectedFault::Drop => drop(frames.remove(at)),
            InjectedFault::Repeat => frames.insert(at, frames[at].clone()),
            InjectedFault::Delay(by) => {
                let last = frames.len() - 1;
                frames[at..=(at + by).min(last)].rotate_left(1);
            }
            InjectedFault::Insert(kind) => frames.insert(at, unexpected(kind)),
        }
    }

    /// How a server answers a request.
    #[derive(Clone, Copy, Debug)]
    enum Answer {
        /// With numbers that no other request gets.
        Executed,
        /// With the text of an earlier seal.
        SealText,
        /// With `BUSY` for each command, and for the seal.
        Refused,
    }

    fn answer() -> impl Strategy<Value = Answer> {
        prop_oneof![
            3 => Just(Answer::Executed),
            1 => Just(Answer::SealText),
            1 => Just(Answer::Refused),
        ]
    }

    /// Returns what a server replies to a request of `commands` commands,
    /// without the seal.
    fn replies_to(
        commands: usize,
        answer: Answer,
        numbers: &mut impl Iterator<Item = i64>,
    ) -> Vec<Reply> {
        let one = |_| match answer {
            Answer::Executed => numbers.next().map_or(Reply::Nil, Reply::Int),
            Answer::SealText => text("lh-seal-1"),
            Answer::Refused => Reply::Refused(ServerError::new("BUSY", "a script")),
        };
        (0..commands).map(one).collect()
    }

    /// Registers `requests`. Returns them with their replies, and the frames
    /// that the server sends.
    fn exchange(
        matcher: &mut Matcher,
        requests: &[(usize, Answer)],
        numbers: &mut impl Iterator<Item = i64>,
    ) -> (Vec<(RequestId, Vec<Reply>)>, Vec<Frame>) {
        let mut registered = Vec::new();
        let mut frames = Vec::new();
        for (commands, answer) in requests {
            let expected = replies_to(*commands, *answer, numbers);
            let (id, number) = numbered_request(matcher, *commands);
            frames.extend(expected.iter().cloned().map(Frame::Reply));
            frames.push(match answer {
                Answer::Refused => refused("BUSY", "a script"),
                Answer::Executed | Answer::SealText => seal(number),
            });
            registered.push((id, expected));
        }
        (registered, frames)
    }

    fn take_until_violation(matcher: &mut Matcher, frames: Vec<Frame>) {
        for frame in frames {
            if take(matcher, frame).is_err() {
                matcher.close();
                return;
            }
        }
    }

    /// Every executed command gets a number of its own, so a reply to another
    /// request is recognized.
    #[test]
    fn reply_to_another_request_is_never_accepted() {
        let requests = vec((1..4usize, answer()), 1..12);
        let inputs = (
            requests,
            any::<u64>(),
            any::<prop::sample::Index>(),
            fault(),
        );
        check_property(20_000, &inputs, |(requests, start, position, fault)| {
            let mut matcher = Matcher::new(start);
            let subscribing = subscribe(&mut matcher, &["c"]);
            take(&mut matcher, push("ssubscribe", "c", Reply::Int(1))).unwrap();
            take(&mut matcher, seal(start.wrapping_add(1))).unwrap();
            assert!(outcome(&mut matcher, subscribing).is_some());
            let (registered, mut frames) = exchange(&mut matcher, &requests, &mut (0..));
            let at = position.index(frames.len());
            inject(&mut frames, at, fault);
            take_until_violation(&mut matcher, frames);
            for (id, expected) in registered {
                if let Some(Ok(mut replies)) = outcome(&mut matcher, id) {
                    // Within one request the order is trusted.
                    replies.sort_by_key(Reply::int);
                    assert_eq!(replies, expected);
                }
            }
        });
    }

    /// Two connections that both counted from 1 accepted each other's replies.
    ///
    /// No server refuses a request here: refusals look alike on all
    /// connections. If we take another connection's refusal for ours, we only
    /// believe that we don't hold a lock.
    #[test]
    fn reply_of_another_connection_is_never_accepted() {
        let answer = || prop_oneof![Just(Answer::Executed), Just(Answer::SealText)];
        let requests = || vec((1..4usize, answer()), 1..6);
        let starts = (any::<u64>(), any::<u64>());
        let inputs = (requests(), requests(), starts, any::<prop::sample::Index>());
        check_property(5_000, &inputs, |(ours, theirs, starts, position)| {
            let mut matcher = Matcher::new(starts.0);
            let mut other = Matcher::new(starts.1);
            let numbers = &mut (0..);
            let (registered, mut frames) = exchange(&mut matcher, &ours, numbers);
            let (_, foreign) = exchange(&mut other, &theirs, numbers);
            let at = position.index(frames.len());
            frames.truncate(at);
            frames.extend(foreign.into_iter().skip(at));
            take_until_violation(&mut matcher, frames);
            for (id, expected) in registered {
                if let Some(Ok(replies)) = outcome(&mut matcher, id) {
                    assert_eq!(replies, expected);
                }
            }
        });
    }
}
