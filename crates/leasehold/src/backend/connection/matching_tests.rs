//! Tests of [`Matcher`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use proptest::collection::vec;
use proptest::prelude::*;
use testkit::check_property;

use super::matching::*;
use super::resp::Frame;
use crate::backend::Channel;
use crate::backend::{Reply, ServerError};

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
    let id = matcher.register(commands);
    for _ in 0..commands {
        matcher.expect_reply(id);
    }
    matcher.expect_seal(id);
    id
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
    Frame::Seal(number)
}

fn take(matcher: &mut Matcher, frame: Frame) -> Result<Option<PushEvent>, ProtocolViolation> {
    matcher.handle(frame, &mut Vec::new())
}

fn outcome(matcher: &mut Matcher, id: RequestId) -> Option<Result<Vec<Reply>, ConnectionClosed>> {
    let mut context = Context::from_waker(Waker::noop());
    match matcher.poll(id, &mut context) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

#[test]
fn reply_completes_with_its_seal() {
    let mut matcher = Matcher::default();
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
    let mut matcher = Matcher::default();
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
    let mut matcher = Matcher::default();
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
    let mut matcher = Matcher::default();
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
        let mut matcher = Matcher::default();
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
    assert!(take(&mut Matcher::default(), reply(1)).is_err());
}

#[test]
fn refused_seal_reports_the_error() {
    let mut matcher = Matcher::default();
    request(&mut matcher, 1);
    take(&mut matcher, reply(1)).unwrap();
    let error = Reply::Refused(ServerError::new("BUSY", "a script"));
    let violation = take(&mut matcher, Frame::Reply(error)).unwrap_err();
    assert!(
        violation.to_string().contains("BUSY a script"),
        "{violation}"
    );
}

#[test]
fn abandoned_request_keeps_its_position() {
    let mut matcher = Matcher::default();
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
    let mut matcher = Matcher::default();
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
        (0..7usize).prop_map(InjectedFault::Insert),
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

/// Every command expects a unique number, so that a reply to another request is
/// recognized.
#[test]
fn reply_to_another_request_is_never_accepted() {
    let inputs = (vec(1..4usize, 1..12), any::<prop::sample::Index>(), fault());
    check_property(20_000, &inputs, |(requests, position, fault)| {
        let mut matcher = Matcher::default();
        let subscribing = subscribe(&mut matcher, &["c"]);
        take(&mut matcher, push("ssubscribe", "c", Reply::Int(1))).unwrap();
        take(&mut matcher, seal(1)).unwrap();
        assert!(outcome(&mut matcher, subscribing).is_some());
        let (mut registered, mut frames) = (Vec::new(), Vec::new());
        let mut numbers = 0..;
        for commands in requests {
            let expected: Vec<_> = numbers.by_ref().take(commands).map(Reply::Int).collect();
            frames.extend(expected.iter().cloned().map(Frame::Reply));
            frames.push(seal(registered.len() as u64 + 2));
            registered.push((request(&mut matcher, commands), expected));
        }
        let at = position.index(frames.len());
        inject(&mut frames, at, fault);
        for frame in frames {
            if take(&mut matcher, frame).is_err() {
                matcher.close();
                break;
            }
        }
        for (id, expected) in registered {
            if let Some(Ok(mut replies)) = outcome(&mut matcher, id) {
                // Within one request the order is trusted.
                replies.sort_by_key(Reply::int);
                assert_eq!(replies, expected);
            }
        }
    });
}
