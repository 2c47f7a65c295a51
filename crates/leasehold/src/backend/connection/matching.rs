//! Matches replies to requests.
//!
//! A server replies in request order, so the next reply belongs to the oldest
//! pending request. Pushes are outside of that order, with one exception: a
//! push of matching kind and channel confirms a subscription change.
//!
//! Order alone would require that no proxy in between repeats or loses replies.
//! Therefore each write, of one request or many, ends with a *seal*: an `ECHO`
//! of a number that is new on this connection. Numbers start at random, so
//! replies of another connection don't carry them. Replies are accepted only
//! when the seal of their write follows them. Between two seals, the order of
//! replies is trusted: a connection does not reorder.
//!
//! A server that is busy, loading or denies `ECHO` replies with an error
//! instead. If every reply of the write is such an error too, the server has
//! refused all requests in it; otherwise we don't know what it executed.
//!
//! # Invariants
//!
//! 1. A push is never taken for the reply to a request.
//! 2. A request completes only when all replies of its write have arrived,
//!    followed by the seal, or when all of them and the seal are refused.
//! 3. A request whose caller dropped it keeps the position in the order.
//! 4. A frame that matches nothing is a [`ProtocolViolation`]. The connection
//!    is closed, and every incomplete request has an unknown outcome.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::request::{Completions, Deadline, ExpectedReplies, ProtocolViolation, SubscribeOp};
use super::resp::Frame;
use crate::backend::command::{Digits, write_length};
use crate::backend::{Channel, Reply};

/// The prefix of every seal. Only its number matters; the prefix explains it to
/// a reader of `MONITOR`.
const SEAL: &[u8] = b"lh-seal-";

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

/// What the server still has to send.
pub(super) enum Expected {
    Replies(ExpectedReplies),
    /// The seal with this number, which ends a write.
    Seal(u64),
}

/// The requests that the server has not answered, and the subscriptions.
#[derive(Default)]
pub(super) struct Matcher {
    /// In the order in which it is written.
    expected: VecDeque<Expected>,
    /// Requests of the oldest write that have all replies, but not the seal.
    unsealed: Vec<ExpectedReplies>,
    /// Whether a reply of that write does not prove that the server refused the
    /// command.
    is_executed: bool,
    /// How many replies, confirmations and seals were accepted.
    accepted: u64,
    /// How many requests were completed.
    completed: usize,
    /// The channels with a confirmed subscription.
    subscribed: HashSet<Channel>,
}

impl Matcher {
    /// Expects further frames, in the order in which their requests and seals
    /// are written.
    pub(super) fn expect(&mut self, expected: impl Iterator<Item = Expected>) {
        self.expected.extend(expected);
    }

    /// Returns whether no request is pending.
    pub(super) fn is_idle(&self) -> bool {
        self.expected.is_empty() && self.unsealed.is_empty()
    }

    /// Returns whether a caller waits for a reply.
    pub(super) fn is_awaited(&mut self) -> bool {
        self.pending().any(|pending| pending.is_awaited())
    }

    /// Returns how many replies, confirmations and seals were accepted.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Returns how many requests were completed.
    pub(super) fn completed(&self) -> usize {
        self.completed
    }

    pub(super) fn is_subscribed(&self, channel: &Channel) -> bool {
        self.subscribed.contains(channel)
    }

    /// Handles a frame. Returns the event of a push, and adds to `ended`
    /// the callers whose requests completed.
    pub(super) fn handle(
        &mut self,
        frame: Frame,
        ended: &mut Completions,
    ) -> Result<Option<PushEvent>, ProtocolViolation> {
        match frame {
            Frame::Push(items) => self.push(items, ended),
            Frame::Reply(reply) => self.reply(reply, ended).map(|()| None),
        }
    }

    fn reply(&mut self, reply: Reply, ended: &mut Completions) -> Result<(), ProtocolViolation> {
        match self.expected.front_mut() {
            Some(Expected::Replies(oldest)) => {
                self.is_executed |= match &reply {
                    Reply::Refused(error) => !error.proves_unexecuted(),
                    _ => true,
                };
                oldest.accept(reply)?;
            }
            Some(Expected::Seal(number)) => check_seal(*number, self.is_executed, &reply)?,
            None => return Err(ProtocolViolation("a reply without a request".into())),
        }
        self.advance(ended);
        Ok(())
    }

    /// Counts an accepted frame. The last one of a write completes all requests
    /// in it (invariant 2).
    fn advance(&mut self, ended: &mut Completions) {
        self.accepted += 1;
        if let Some(Expected::Replies(oldest)) = self.expected.front()
            && oldest.owed.len() > 0
        {
            return;
        }
        match self.expected.pop_front() {
            Some(Expected::Replies(answered)) if answered.is_sealed => self.unsealed.push(answered),
            Some(Expected::Replies(answered)) => {
                self.is_executed = false;
                self.completed += 1;
                answered.complete(ended);
            }
            Some(Expected::Seal(_)) | None => {
                self.is_executed = false;
                self.completed += self.unsealed.len();
                for answered in self.unsealed.drain(..) {
                    answered.complete(ended);
                }
            }
        }
    }

    fn push(
        &mut self,
        items: Vec<Reply>,
        ended: &mut Completions,
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
            (Some(op), Some(Reply::Int(_)), None) => self.confirm(op, channel, ended),
            _ => Err(ProtocolViolation("an unexpected push".into())),
        }
    }

    fn confirm(
        &mut self,
        op: SubscribeOp,
        channel: Channel,
        ended: &mut Completions,
    ) -> Result<Option<PushEvent>, ProtocolViolation> {
        if let Some(Expected::Replies(oldest)) = self.expected.front_mut()
            && oldest.confirm(op, &channel)
        {
            self.is_executed = true;
            self.advance(ended);
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

    fn pending(&mut self) -> impl Iterator<Item = &mut ExpectedReplies> {
        let expected = self.expected.iter_mut();
        let expected = expected.filter_map(|expected| match expected {
            Expected::Replies(replies) => Some(replies),
            Expected::Seal(_) => None,
        });
        self.unsealed.iter_mut().chain(expected)
    }

    /// Fails the requests whose deadline has passed. They keep the position
    /// (invariant 3).
    pub(super) fn expire(&mut self, now: Deadline, ended: &mut Completions) {
        let late = self.pending().filter(|pending| pending.deadline <= now);
        late.for_each(|late| late.expire(ended));
    }

    /// Fails every incomplete request (invariant 4).
    pub(super) fn close(&mut self, reason: &Arc<str>, ended: &mut Completions) {
        self.pending().for_each(|lost| lost.fail(reason, ended));
        self.expected.clear();
        self.unsealed.clear();
        self.subscribed.clear();
    }
}

/// Checks the reply in the place of a seal. An error is allowed there if the
/// server has refused the whole write (invariant 2).
fn check_seal(number: u64, is_executed: bool, reply: &Reply) -> Result<(), ProtocolViolation> {
    match reply {
        // Compared as text: parsing would also accept `+1` or `01`.
        Reply::Bytes(text) if text.strip_prefix(SEAL) == Some(Digits::default().of(number)) => {
            Ok(())
        }
        Reply::Refused(error) if error.proves_unexecuted() && !is_executed => Ok(()),
        Reply::Refused(error) => {
            let what = format!("`{error}` instead of a seal");
            Err(ProtocolViolation(what.into()))
        }
        _ => Err(ProtocolViolation("a reply instead of a seal".into())),
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
    use std::mem;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use proptest::collection::vec;
    use proptest::prelude::*;
    use testkit::check_property;

    use super::*;
    use crate::backend::ServerError;
    use crate::backend::connection::request::{Owed, PendingRequest, Unanswered};

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

    /// A matcher with the callers of its requests. The first seal has the
    /// number after `last_seal`.
    struct Exchange {
        matcher: Matcher,
        callers: Vec<Option<Arc<PendingRequest>>>,
        last_seal: u64,
    }

    impl Exchange {
        fn new(last_seal: u64) -> Self {
            Self {
                matcher: Matcher::default(),
                callers: Vec::new(),
                last_seal,
            }
        }

        /// Registers a request, and returns the caller's index.
        fn expect(&mut self, owed: Owed, deadline: Deadline) -> usize {
            let request = PendingRequest::new(Waker::noop().clone());
            let expected = ExpectedReplies::new(request.clone(), owed, true, deadline);
            self.matcher
                .expect(std::iter::once(Expected::Replies(expected)));
            self.callers.push(Some(request));
            self.callers.len() - 1
        }

        /// Ends a write.
        fn seal(&mut self) {
            self.last_seal = self.last_seal.wrapping_add(1);
            let seal = Expected::Seal(self.last_seal);
            self.matcher.expect(std::iter::once(seal));
        }

        /// Registers a request that is a write of its own.
        fn request(&mut self, commands: usize) -> usize {
            let caller = self.expect(Owed::Replies(commands), Deadline::NEVER);
            self.seal();
            caller
        }

        fn subscribe(&mut self, channels: &[&str]) -> usize {
            let channels = channels.iter().map(|name| sharded(name)).collect();
            let owed = Owed::Confirmations(SubscribeOp::Subscribe, channels);
            let caller = self.expect(owed, Deadline::NEVER);
            self.seal();
            caller
        }

        fn take(&mut self, frame: Frame) -> Result<Option<PushEvent>, ProtocolViolation> {
            self.matcher.handle(frame, &mut Completions::default())
        }

        fn abandon(&mut self, caller: usize) {
            self.callers[caller] = None;
        }

        fn outcome(&self, caller: usize) -> Option<Result<Vec<Reply>, Unanswered>> {
            let mut context = Context::from_waker(Waker::noop());
            match self.callers[caller].as_ref()?.poll(&mut context) {
                Poll::Ready(outcome) => Some(outcome),
                Poll::Pending => None,
            }
        }

        fn close(&mut self) {
            self.matcher
                .close(&"cut".into(), &mut Completions::default());
        }
    }

    fn seal(number: u64) -> Frame {
        Frame::Reply(text(&format!("lh-seal-{number}")))
    }

    #[test]
    fn reply_completes_with_its_seal() {
        let mut matcher = Exchange::new(0);
        let (one, two) = (matcher.request(1), matcher.request(2));
        matcher.take(reply(1)).unwrap();
        assert_eq!(matcher.outcome(one), None);
        matcher.take(seal(1)).unwrap();
        assert_eq!(matcher.outcome(one), Some(Ok(vec![Reply::Int(1)])));
        for frame in [reply(2), reply(3)] {
            matcher.take(frame).unwrap();
            assert_eq!(matcher.outcome(two), None);
        }
        matcher.take(seal(2)).unwrap();
        let two = matcher.outcome(two);
        assert_eq!(two, Some(Ok(vec![Reply::Int(2), Reply::Int(3)])));
        assert!(matcher.matcher.is_idle());
    }

    #[test]
    fn seal_completes_all_requests_of_its_write() {
        let mut matcher = Exchange::new(0);
        let one = matcher.expect(Owed::Replies(1), Deadline::NEVER);
        let two = matcher.request(1);
        for frame in [reply(1), reply(2)] {
            matcher.take(frame).unwrap();
            assert_eq!(matcher.outcome(one), None);
        }
        matcher.take(seal(1)).unwrap();
        assert_eq!(matcher.outcome(one), Some(Ok(vec![Reply::Int(1)])));
        assert_eq!(matcher.outcome(two), Some(Ok(vec![Reply::Int(2)])));
    }

    /// The server may have executed one of them.
    #[test]
    fn refused_seal_of_an_executed_write_is_rejected() {
        let mut matcher = Exchange::new(0);
        let refusal = matcher.expect(Owed::Replies(1), Deadline::NEVER);
        matcher.request(1);
        matcher.take(refused("BUSY", "a script")).unwrap();
        matcher.take(reply(1)).unwrap();
        assert!(matcher.take(refused("BUSY", "a script")).is_err());
        matcher.close();
        let closed = Unanswered::Closed("cut".into());
        assert_eq!(matcher.outcome(refusal), Some(Err(closed)));
    }

    #[test]
    fn seal_of_another_request_is_rejected() {
        let mut matcher = Exchange::new(0);
        let one = matcher.request(1);
        matcher.request(1);
        // The first reply was lost together with its seal.
        matcher.take(reply(2)).unwrap();
        assert!(matcher.take(seal(2)).is_err());
        assert_eq!(matcher.outcome(one), None);
    }

    #[test]
    fn seal_is_written_as_an_echo() {
        let mut out = Vec::new();
        write_seal(&mut out, 120);
        assert_eq!(out, b"*2\r\n$4\r\nECHO\r\n$11\r\nlh-seal-120\r\n");
    }

    #[test]
    fn unexpected_push_is_never_a_reply() {
        let mut matcher = Exchange::new(0);
        let subscribing = matcher.subscribe(&["c"]);
        matcher
            .take(push("ssubscribe", "c", Reply::Int(1)))
            .unwrap();
        matcher.take(seal(1)).unwrap();
        assert_eq!(matcher.outcome(subscribing), Some(Ok(vec![Reply::Nil])));
        let (one, two) = (matcher.request(1), matcher.request(1));
        let moved = matcher.take(push("sunsubscribe", "c", Reply::Int(0)));
        let channel = sharded("c");
        assert_eq!(moved, Ok(Some(PushEvent::Ended { channel })));
        for frame in [reply(1), seal(2), reply(2), seal(3)] {
            matcher.take(frame).unwrap();
        }
        assert_eq!(matcher.outcome(one), Some(Ok(vec![Reply::Int(1)])));
        assert_eq!(matcher.outcome(two), Some(Ok(vec![Reply::Int(2)])));
    }

    #[test]
    fn refused_subscription_is_an_error_reply() {
        let mut matcher = Exchange::new(0);
        let subscribing = matcher.subscribe(&["a", "b"]);
        let error = Reply::Refused(ServerError::new("MOVED", "1 h:1"));
        matcher.take(Frame::Reply(error.clone())).unwrap();
        matcher
            .take(push("ssubscribe", "b", Reply::Int(1)))
            .unwrap();
        matcher.take(seal(1)).unwrap();
        let replies = matcher.outcome(subscribing);
        assert_eq!(replies, Some(Ok(vec![error, Reply::Nil])));
    }

    #[test]
    fn unexpected_frame_is_rejected() {
        let fits = |frame: Frame| {
            let mut matcher = Exchange::new(0);
            matcher.subscribe(&["c"]);
            matcher.request(1);
            matcher.take(frame).is_ok()
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
        assert!(Exchange::new(0).take(reply(1)).is_err());
    }

    fn refused(code: &str, detail: &str) -> Frame {
        Frame::Reply(Reply::Refused(ServerError::new(code, detail)))
    }

    /// A value that looks like a seal closed the connection.
    #[test]
    fn value_that_looks_like_a_seal_is_a_reply() {
        let mut matcher = Exchange::new(0);
        for number in [1, 2] {
            let id = matcher.request(1);
            let value = text("lh-seal-1");
            matcher.take(Frame::Reply(value.clone())).unwrap();
            matcher.take(seal(number)).unwrap();
            assert_eq!(matcher.outcome(id), Some(Ok(vec![value])));
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
            let mut matcher = Exchange::new(0);
            let refusal = refused(code, detail);
            let Frame::Reply(reply) = refusal.clone() else {
                unreachable!()
            };
            let both = [matcher.request(2), matcher.request(2)];
            matcher.abandon(both[1]);
            let last = matcher.request(1);
            for _ in 0..6 {
                matcher.take(refusal.clone()).unwrap();
            }
            let first = matcher.outcome(both[0]);
            assert_eq!(first, Some(Ok(vec![reply.clone(), reply])), "{code}");
            matcher.take(self::reply(1)).unwrap();
            matcher.take(seal(3)).unwrap();
            assert_eq!(matcher.outcome(last), Some(Ok(vec![Reply::Int(1)])));
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
                let mut matcher = Exchange::new(0);
                let id = matcher.request(2);
                if is_abandoned {
                    matcher.abandon(id);
                }
                let [one, two, seal] = replies.clone();
                matcher.take(one).unwrap();
                matcher.take(two).unwrap();
                assert!(matcher.take(seal).is_err(), "{replies:?}");
            }
        }
    }

    #[test]
    fn abandoned_request_keeps_its_position() {
        let mut matcher = Exchange::new(0);
        let (abandoned, waiting) = (matcher.request(2), matcher.request(1));
        matcher.take(reply(1)).unwrap();
        matcher.abandon(abandoned);
        for frame in [reply(2), seal(1), reply(3), seal(2)] {
            matcher.take(frame).unwrap();
        }
        assert_eq!(matcher.outcome(waiting), Some(Ok(vec![Reply::Int(3)])));
    }

    #[test]
    fn close_wakes_every_caller() {
        let mut matcher = Exchange::new(0);
        let count = Arc::<WakeCounter>::default();
        let waker = Waker::from(count.clone());
        let (one, two) = (matcher.request(1), matcher.request(1));
        for caller in [one, two] {
            let caller = matcher.callers[caller].as_ref().unwrap();
            let polled = caller.poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        let mut ended = Completions::default();
        matcher.matcher.close(&"cut".into(), &mut ended);
        ended.announce();
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        let closed = Unanswered::Closed("cut".into());
        assert_eq!(matcher.outcome(one), Some(Err(closed)));
    }

    /// The ticks stopped, and the request never timed out.
    #[test]
    fn answered_request_without_seal_is_pending() {
        let mut matcher = Exchange::new(0);
        matcher.expect(Owed::Replies(1), Deadline::NEVER);
        matcher.take(reply(1)).unwrap();
        assert!(!matcher.matcher.is_idle());
    }

    #[test]
    fn late_request_keeps_its_position() {
        let mut matcher = Exchange::new(0);
        let late = matcher.expect(Owed::Replies(1), Deadline(5));
        matcher.seal();
        let next = matcher.expect(Owed::Replies(1), Deadline(6));
        matcher.seal();
        matcher
            .matcher
            .expire(Deadline(4), &mut Completions::default());
        assert_eq!(matcher.outcome(late), None);
        matcher
            .matcher
            .expire(Deadline(5), &mut Completions::default());
        assert_eq!(matcher.outcome(late), Some(Err(Unanswered::TimedOut)));
        for frame in [reply(1), seal(1), reply(2), seal(2)] {
            matcher.take(frame).unwrap();
        }
        assert_eq!(matcher.outcome(next), Some(Ok(vec![Reply::Int(2)])));
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

    /// Harms the frame at `at`. A delayed frame passes the seal at `seal`,
    /// because the order between two seals is trusted.
    fn inject(frames: &mut Vec<Frame>, at: usize, seal: usize, fault: InjectedFault) {
        match fault {
            InjectedFault::Drop => drop(frames.remove(at)),
            InjectedFault::Repeat => frames.insert(at, frames[at].clone()),
            InjectedFault::Delay(by) => {
                let last = frames.len() - 1;
                frames[at..=(at + by).max(seal).min(last)].rotate_left(1);
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

    /// A request: the number of commands, the answer, and whether it is the
    /// last one of a write.
    type Planned = (usize, Answer, bool);

    /// What was registered, and what the server sends.
    struct Sent {
        /// The callers, and the replies that each expects.
        callers: Vec<(usize, Vec<Reply>)>,
        frames: Vec<Frame>,
        /// The positions of the seals in `frames`, except refused ones.
        seals: Vec<usize>,
    }

    fn send(
        matcher: &mut Exchange,
        requests: &[Planned],
        numbers: &mut impl Iterator<Item = i64>,
    ) -> Sent {
        let mut sent = Sent {
            callers: Vec::new(),
            frames: Vec::new(),
            seals: Vec::new(),
        };
        let mut is_executed = false;
        for (index, (commands, answer, ends_write)) in requests.iter().enumerate() {
            let expected = replies_to(*commands, *answer, numbers);
            let owed = Owed::Replies(*commands);
            let caller = matcher.expect(owed, Deadline::NEVER);
            sent.frames
                .extend(expected.iter().cloned().map(Frame::Reply));
            sent.callers.push((caller, expected));
            is_executed |= !matches!(answer, Answer::Refused);
            if *ends_write || index + 1 == requests.len() {
                matcher.seal();
                if mem::take(&mut is_executed) {
                    sent.seals.push(sent.frames.len());
                    sent.frames.push(seal(matcher.last_seal));
                } else {
                    sent.frames.push(refused("BUSY", "a script"));
                }
            }
        }
        sent
    }

    fn take_until_violation(matcher: &mut Exchange, frames: Vec<Frame>) {
        for frame in frames {
            if matcher.take(frame).is_err() {
                matcher.close();
                return;
            }
        }
    }

    /// Every executed command gets a number of its own, so a reply to another
    /// request is recognized.
    #[test]
    fn reply_to_another_request_is_never_accepted() {
        let requests = vec((1..4usize, answer(), any::<bool>()), 1..12);
        let inputs = (
            requests,
            any::<u64>(),
            any::<prop::sample::Index>(),
            fault(),
        );
        check_property(20_000, &inputs, |(requests, start, position, fault)| {
            let mut matcher = Exchange::new(start);
            let subscribing = matcher.subscribe(&["c"]);
            matcher
                .take(push("ssubscribe", "c", Reply::Int(1)))
                .unwrap();
            matcher.take(seal(start.wrapping_add(1))).unwrap();
            assert!(matcher.outcome(subscribing).is_some());
            let mut sent = send(&mut matcher, &requests, &mut (0..));
            let at = position.index(sent.frames.len());
            let mut seals = sent.seals.into_iter();
            let seal = seals.find(|seal| *seal >= at).unwrap_or(usize::MAX);
            inject(&mut sent.frames, at, seal, fault);
            take_until_violation(&mut matcher, sent.frames);
            for (caller, expected) in sent.callers {
                if let Some(Ok(replies)) = matcher.outcome(caller) {
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
        let requests = || vec((1..4usize, answer(), any::<bool>()), 1..6);
        let starts = (any::<u64>(), any::<u64>());
        let inputs = (requests(), requests(), starts, any::<prop::sample::Index>());
        check_property(5_000, &inputs, |(ours, theirs, starts, position)| {
            let mut matcher = Exchange::new(starts.0);
            let mut other = Exchange::new(starts.1);
            let numbers = &mut (0..);
            let mut sent = send(&mut matcher, &ours, numbers);
            let foreign = send(&mut other, &theirs, numbers);
            let at = position.index(sent.frames.len());
            sent.frames.truncate(at);
            sent.frames.extend(foreign.frames.into_iter().skip(at));
            take_until_violation(&mut matcher, sent.frames);
            for (caller, expected) in sent.callers {
                if let Some(Ok(replies)) = matcher.outcome(caller) {
                    assert_eq!(replies, expected);
                }
            }
        });
    }
}
