//! Tests of the matcher: each reply reaches its own request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use proptest::collection::vec;
use proptest::prelude::*;
use testkit::check_property;

use super::matching::*;
use super::resp::Frame;
use crate::backend::Channel;
use crate::backend::reply::{Reply, ServerError};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
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
fn request(matcher: &mut Matcher, commands: usize) -> Ticket {
    let of = matcher.request(commands);
    for _ in 0..commands {
        matcher.expect_reply(of);
    }
    matcher.expect_seal(of);
    of
}

/// Registers a sealed entry into `channels`.
fn enter(matcher: &mut Matcher, channels: &[&str]) -> Ticket {
    let of = matcher.request(channels.len());
    for channel in channels {
        matcher.expect_change(of, Change::Enter, sharded(channel));
    }
    matcher.expect_seal(of);
    of
}

fn seal(number: u64) -> Frame {
    Frame::Seal(number)
}

fn take(matcher: &mut Matcher, frame: Frame) -> Result<Option<Event>, Distrust> {
    matcher.take(frame, &mut Vec::new())
}

fn outcome(matcher: &mut Matcher, of: Ticket) -> Option<Result<Vec<Reply>, Broken>> {
    let mut context = Context::from_waker(Waker::noop());
    match matcher.poll(of, &mut context) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

#[test]
fn reply_is_believed_when_its_seal_is_back() {
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
fn seal_of_another_request_is_distrusted() {
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
fn unasked_push_is_never_a_reply() {
    let mut matcher = Matcher::default();
    let entering = enter(&mut matcher, &["c"]);
    take(&mut matcher, push("ssubscribe", "c", Reply::Int(1))).unwrap();
    take(&mut matcher, seal(1)).unwrap();
    assert_eq!(outcome(&mut matcher, entering), Some(Ok(vec![Reply::Nil])));
    let (one, two) = (request(&mut matcher, 1), request(&mut matcher, 1));
    let moved = take(&mut matcher, push("sunsubscribe", "c", Reply::Int(0)));
    let channel = sharded("c");
    assert_eq!(moved, Ok(Some(Event::Ended { channel })));
    for frame in [reply(1), seal(2), reply(2), seal(3)] {
        take(&mut matcher, frame).unwrap();
    }
    assert_eq!(outcome(&mut matcher, one), Some(Ok(vec![Reply::Int(1)])));
    assert_eq!(outcome(&mut matcher, two), Some(Ok(vec![Reply::Int(2)])));
}

#[test]
fn refused_change_is_an_error_reply() {
    let mut matcher = Matcher::default();
    let entering = enter(&mut matcher, &["a", "b"]);
    let refusal = Reply::Refused(ServerError::new("MOVED", "1 h:1"));
    take(&mut matcher, Frame::Reply(refusal.clone())).unwrap();
    take(&mut matcher, push("ssubscribe", "b", Reply::Int(1))).unwrap();
    take(&mut matcher, seal(1)).unwrap();
    let replies = outcome(&mut matcher, entering);
    assert_eq!(replies, Some(Ok(vec![refusal, Reply::Nil])));
}

#[test]
fn frame_that_fits_nowhere_is_distrusted() {
    let fits = |frame: Frame| {
        let mut matcher = Matcher::default();
        enter(&mut matcher, &["c"]);
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
fn refused_seal_is_reported_with_its_reason() {
    let mut matcher = Matcher::default();
    request(&mut matcher, 1);
    take(&mut matcher, reply(1)).unwrap();
    let refusal = Reply::Refused(ServerError::new("BUSY", "a script"));
    let why = take(&mut matcher, Frame::Reply(refusal)).unwrap_err();
    assert!(why.to_string().contains("BUSY a script"), "{why}");
}

#[test]
fn abandoned_request_keeps_its_place() {
    let mut matcher = Matcher::default();
    let (gone, waits) = (request(&mut matcher, 2), request(&mut matcher, 1));
    take(&mut matcher, reply(1)).unwrap();
    matcher.abandon(gone);
    for frame in [reply(2), seal(1), reply(3), seal(2)] {
        take(&mut matcher, frame).unwrap();
    }
    assert_eq!(outcome(&mut matcher, waits), Some(Ok(vec![Reply::Int(3)])));
    assert_eq!(matcher.request(1), waits, "slots are used again");
    assert_eq!(matcher.request(1), gone);
}

#[test]
fn closing_wakes_every_caller() {
    let mut matcher = Matcher::default();
    let count = Arc::<Count>::default();
    let waker = Waker::from(count.clone());
    let (one, two) = (request(&mut matcher, 1), request(&mut matcher, 1));
    for of in [one, two] {
        assert!(
            matcher
                .poll(of, &mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    matcher.close().into_iter().for_each(Waker::wake);
    assert_eq!(count.0.load(Ordering::SeqCst), 2);
    assert_eq!(outcome(&mut matcher, one), Some(Err(Broken)));
    let late = request(&mut matcher, 1);
    assert_eq!(outcome(&mut matcher, late), Some(Err(Broken)));
}

/// What a proxy does to the frames of a server.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Swallow,
    Repeat,
    /// Lets up to this many others overtake a frame.
    Delay(usize),
    /// Sends something unasked before it.
    Insert(usize),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        Just(Harm::Swallow),
        Just(Harm::Repeat),
        (1..6usize).prop_map(Harm::Delay),
        (0..7usize).prop_map(Harm::Insert),
    ]
}

fn unasked(kind: usize) -> Frame {
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

fn harmed(frames: &mut Vec<Frame>, at: usize, harm: Harm) {
    match harm {
        Harm::Swallow => drop(frames.remove(at)),
        Harm::Repeat => frames.insert(at, frames[at].clone()),
        Harm::Delay(by) => {
            let last = frames.len() - 1;
            frames[at..=(at + by).min(last)].rotate_left(1);
        }
        Harm::Insert(kind) => frames.insert(at, unasked(kind)),
    }
}

/// Every command asks for a number of its own: replies that are believed must be those of the request.
#[test]
fn no_reply_to_another_request_is_believed() {
    let inputs = (vec(1..4usize, 1..12), any::<prop::sample::Index>(), harm());
    check_property(20_000, &inputs, |(requests, place, harm)| {
        let mut matcher = Matcher::default();
        let entering = enter(&mut matcher, &["c"]);
        take(&mut matcher, push("ssubscribe", "c", Reply::Int(1))).unwrap();
        take(&mut matcher, seal(1)).unwrap();
        assert!(outcome(&mut matcher, entering).is_some());
        let (mut asked, mut frames) = (Vec::new(), Vec::new());
        let mut numbers = 0..;
        for commands in requests {
            let expected: Vec<_> = numbers.by_ref().take(commands).map(Reply::Int).collect();
            frames.extend(expected.iter().cloned().map(Frame::Reply));
            frames.push(seal(asked.len() as u64 + 2));
            asked.push((request(&mut matcher, commands), expected));
        }
        let at = place.index(frames.len());
        harmed(&mut frames, at, harm);
        for frame in frames {
            if take(&mut matcher, frame).is_err() {
                matcher.close();
                break;
            }
        }
        for (of, expected) in asked {
            if let Some(Ok(mut replies)) = outcome(&mut matcher, of) {
                // Within one request the order is trusted.
                replies.sort_by_key(Reply::int);
                assert_eq!(replies, expected);
            }
        }
    });
}
