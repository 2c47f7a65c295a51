//! Random inputs from outside: URLs, names, replies and messages.
//!
//! Every input is parsed or rejected, without a panic. `scripts/deep models`
//! runs a hundred times as many.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use testkit::check_property;

use crate::backend::{ConnectOptions, Reply, ServerError, ServerErrorKind, Target};
use crate::info::Messages;
use crate::owner::{Owner, Token};
use crate::protocol::{
    Call, Counters, Description, Electorate, FollowUp, Keyspace, Kind, LatchCalls, Probe,
    QueueParams, Queued, QuorumLock, SingleKey, WaitStrategy, clock, is_connected, page, report,
};

const LEASE: Duration = Duration::from_secs(3);

/// A password, which no error may contain.
const SECRET: &str = "s3cr3t";

#[test]
fn urls_are_parsed_or_rejected() {
    check_property(5_000, &url(), |url| {
        if let Err(error) = Target::new(&url, &ConnectOptions::default()) {
            assert!(!error.to_string().contains(SECRET), "{error}");
        }
    });
}

/// Generates URLs from valid and invalid parts, and arbitrary text.
fn url() -> impl Strategy<Value = String> {
    let scheme = prop::sample::select(vec![
        "redis",
        "rediss",
        "valkey",
        "valkeys",
        "unix",
        "redis+unix",
        "redis+sentinel",
        "rediss+sentinel",
        "redis+cluster",
        "valkey+cluster",
        "http",
        "",
        "redis+",
    ]);
    let credentials = prop::sample::select(vec![
        "",
        "user:s3cr3t@",
        ":s3cr3t@",
        "user@",
        "@",
        ":@",
        "a:b:s3cr3t@",
    ]);
    let host = prop_oneof![
        Just("127.0.0.1".to_owned()),
        Just("[::1]".to_owned()),
        Just("[::1".to_owned()),
        Just("host:6379,other:6380".to_owned()),
        Just(",,:,".to_owned()),
        Just("host:99999".to_owned()),
        ".{0,12}",
    ];
    let rest = prop_oneof![
        Just(String::new()),
        Just("/0".to_owned()),
        Just("/group?sentinel_password=s3cr3t".to_owned()),
        Just("/group/0?sentinel_password".to_owned()),
        Just("/-1#insecure".to_owned()),
        Just("?%zz=%00&&=".to_owned()),
        ".{0,20}",
    ];
    let built = (scheme, credentials, host, rest)
        .prop_map(|(scheme, user, host, rest)| format!("{scheme}://{user}{host}{rest}"));
    prop_oneof![9 => built, 1 => ".{0,60}"]
}

#[test]
fn names_are_accepted_or_rejected() {
    let spaces: Vec<_> = ["lock:", "", "{", "a}b{c", "{tag}"]
        .into_iter()
        .filter_map(|prefix| Keyspace::new(prefix, Counters::one()).ok())
        .collect();
    check_property(5_000, &name(), |name: String| {
        for space in &spaces {
            let _ = space.pattern(&name);
            if let Ok(keys) = space.lock(&name) {
                let key = keys.lock().as_bytes();
                assert_eq!(space.name_of(key), Some(name.as_str()));
            }
            let _ = space.queue(&name);
        }
    });
}

pub(crate) fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => ".{0,40}",
        2 => "[{}:*?\\[\\]\\\\\0\r\n]{0,12}",
        1 => "a{900,1100}",
    ]
}

#[test]
fn replies_are_parsed_or_rejected() {
    check_property(3_000, &vec(reply(), 0..5), |replies| {
        for kind in kinds() {
            read_as_kind(&*kind, &replies);
        }
        read_as_others(&replies);
    });
}

/// Generates replies, mostly from the parts of real ones.
pub(crate) fn reply() -> impl Strategy<Value = Reply> {
    let words = [
        "OK",
        "lock",
        "redis",
        "1",
        "0",
        "-1",
        "18446744073709551615",
        "mutex",
        "mode",
        "read",
        "write",
        "UUID:1",
    ];
    let words = prop::sample::select(words.to_vec());
    let kinds = prop::sample::select(vec![
        ServerErrorKind::Denied,
        ServerErrorKind::NoScript,
        ServerErrorKind::Other,
    ]);
    let leaf = prop_oneof![
        Just(Reply::Nil),
        (-3_i64..5).prop_map(Reply::Int),
        any::<i64>().prop_map(Reply::Int),
        words.prop_map(|word| Reply::Bytes(word.into())),
        vec(any::<u8>(), 0..20).prop_map(Reply::Bytes),
        (kinds, ".{0,20}")
            .prop_map(|(kind, message)| Reply::Refused(ServerError { kind, message })),
    ];
    leaf.prop_recursive(4, 24, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(Reply::List),
            vec(prop::option::of(inner), 1..6).prop_map(|each| {
                let each = each.into_iter();
                Reply::PerNode(
                    each.map(|reply| reply.ok_or_else(|| "no reply".into()))
                        .collect(),
                )
            }),
        ]
    })
}

fn kinds() -> Vec<Box<dyn Kind>> {
    let space = Keyspace::new("lock:", Counters::one()).expect("a prefix");
    let params = QueueParams {
        kind: "semaphore",
        capacity: 3,
        weight: 1,
        shared: true,
        local_handoff: true,
        hand_over: true,
    };
    let electorate = Arc::new(Electorate::new(&space.voter()));
    vec![
        Box::new(SingleKey::new(space.lock("a").expect("a name"))),
        Box::new(Queued::new(space.queue("a").expect("a name"), params)),
        Box::new(QuorumLock::new(
            space.lock("a").expect("a name"),
            &electorate,
        )),
    ]
}

/// Reads the replies. Only a panic fails the test.
pub(crate) fn read<R>(call: Call<R>, replies: &[Reply]) {
    let _ = call.read(replies.to_vec());
}

pub(crate) fn read_as_kind(kind: &dyn Kind, replies: &[Reply]) {
    let value = kind.value(&Owner::random(), Description::default());
    let server = crate::backend::Capabilities::default();
    read(kind.acquire(&value, LEASE, true), replies);
    read(kind.acquire(&value, LEASE, false), replies);
    read(kind.renew(&value, LEASE), replies);
    read(kind.release(&value, None, server), replies);
    read(kind.release(&value, Some(LEASE), server), replies);
    read(kind.cancel(&value, server), replies);
    read(kind.holder(), replies);
    if let Some(call) = kind.set_hold_count(&value, 2) {
        read(call, replies);
    }
    if let Some(call) = kind.raise_token(5) {
        read(call, replies);
    }
    if let Some(call) = kind.record_token(&value, Token::new(5)) {
        read(call, replies);
    }
    if let Some(call) = kind.downgrade(&value) {
        read(call, replies);
    }
    if let Some(call) = kind.reserve_tokens(&value, 4, Token::new(3)) {
        read(call, replies);
    }
    if let Some(lock) = kind.hand_over() {
        let (owner, token) = (Owner::random(), Token::new(3));
        let pending = lock.pending_value(&value, &owner, token);
        read(lock.hand_over(&value, &pending, token, LEASE), replies);
        read(lock.adopt(&owner, &value, LEASE), replies);
    }
    match kind.wait_strategy() {
        WaitStrategy::Notified(wakeups) => read(wakeups.poll(), replies),
        WaitStrategy::Queued(queue) => {
            read(queue.enqueue(&value, LEASE, LEASE, Some(7)), replies);
            read(queue.heartbeat(&value, LEASE, LEASE), replies);
        }
    }
}

fn read_as_others(replies: &[Reply]) {
    let space = Keyspace::new("lock:", Counters::one()).expect("a prefix");
    let queue = space.queue("a").expect("a name");
    let electorate = Electorate::new(&space.voter());
    let latch = LatchCalls::new(space.lock("a").expect("a name"));
    read(Probe::key(&queue, Messages::Sharded), replies);
    read(Probe::follow_up(&queue, FollowUp::Queue, 5), replies);
    let left = Some(LEASE);
    read(
        Probe::follow_up(&queue, FollowUp::Hash { remaining: left }, 5),
        replies,
    );
    read(page(&space, "*", 0, 10), replies);
    read(is_connected("process", Messages::Classic).1, replies);
    read(report(), replies);
    read(clock(), replies);
    read(electorate.poll_nodes(LEASE), replies);
    read(electorate.rejoin(LEASE, 9), replies);
    read(latch.set(3, LEASE), replies);
    read(latch.count_down("caller"), replies);
    read(latch.remaining(), replies);
    read(latch.delete(), replies);
}

#[test]
fn messages_are_parsed_or_rejected() {
    let message = prop_oneof![
        vec(any::<u8>(), 0..80),
        "[0-9a-f]{0,34}( [0-9]{0,22}){0,4}".prop_map(String::into_bytes),
    ];
    check_property(5_000, &message, |message| {
        let _ = crate::protocol::Grant::read(&message);
        let _ = String::from_utf8_lossy(&message).parse::<Owner>();
        let _ = String::from_utf8_lossy(&message).parse::<crate::ticket::Ticket>();
    });
}
