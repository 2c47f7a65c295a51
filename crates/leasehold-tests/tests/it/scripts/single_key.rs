//! The scripts of single-key locks, each on its own.

use testkit::{Flavor, Reply, Server, ServerExt};

use super::is_error;
use crate::support::lua;

const RENEW: &str = lua!("single_key/renew");
const RELEASE: &str = lua!("single_key/release");
const KEEP: &str = lua!("single_key/replace");
const TOKENS: &str = lua!("single_key/reserve_tokens");
const ADOPT: &str = lua!("single_key/adopt");
const RAISE: &str = lua!("token/raise");

fn eval(server: &Server, script: &str, key: &str, args: &[&str]) -> Reply {
    let words: Vec<_> = ["EVAL", script, "1", key]
        .into_iter()
        .chain(args.iter().copied())
        .collect();
    server.ask(&words)
}

/// Starts a server where `me` holds `k` for a hundred seconds.
fn server_with_holder() -> Server {
    let server = Flavor::one().start();
    server.tell(&["SET", "k", "me", "PX", "100000"]);
    server
}

fn ttl(server: &Server) -> i64 {
    server.ask(&["PTTL", "k"]).int()
}

/// Returns the server's clock in microseconds.
fn clock(server: &Server) -> i64 {
    let time = server.ask(&["TIME"]);
    time.list()[0].int() * 1_000_000 + time.list()[1].int()
}

#[test]
fn renew_extends_and_never_shortens() {
    let server = server_with_holder();
    assert_eq!(eval(&server, RENEW, "k", &["me", "200000"]), Reply::Int(1));
    assert!(ttl(&server) > 150_000);
    let written = server.info("rdb_changes_since_last_save");
    assert_eq!(eval(&server, RENEW, "k", &["me", "50000"]), Reply::Int(1));
    assert!(ttl(&server) > 150_000, "shortened");
    let again = server.info("rdb_changes_since_last_save");
    assert!(
        again > written,
        "the renewal wrote nothing for replicas to acknowledge"
    );
}

#[test]
fn only_holder_reserves_tokens() {
    let server = server_with_holder();
    let take = |mark: &str, count: &str, own: &str| {
        server.ask(&["EVAL", TOKENS, "2", "k", "counter", mark, count, own])
    };
    let counter = || server.ask(&["GET", "counter"]).text().to_owned();
    let block = |first, count| Reply::List(vec![Reply::Int(first), Reply::Int(count)]);
    server.tell(&["SET", "counter", "1494752174808353"]);
    assert_eq!(take("me", "16", "7"), block(1_494_752_174_808_354, 16));
    assert_eq!(counter(), "1494752174808369");
    assert_eq!(take("me", "1", "7"), block(1_494_752_174_808_370, 1));
    assert_eq!(
        server.ask(&["INCR", "counter"]).int(),
        1_494_752_174_808_371
    );
    assert_eq!(take("you", "16", "7"), Reply::Int(0));
    for (count, own) in [
        ("0", "7"),
        ("-1", "7"),
        ("1.5", "7"),
        ("x", "7"),
        ("1", "-1"),
        ("1", "x"),
    ] {
        assert!(
            is_error(&take("me", count, own), "LEASEHOLD"),
            "{count} {own}"
        );
    }
    assert_eq!(counter(), "1494752174808371");
    // A lost or lagging counter does not repeat the holder's token.
    assert_eq!(
        take("me", "16", "1594752174808371"),
        block(1_594_752_174_808_372, 16)
    );
}

#[test]
fn reserved_tokens_stay_below_clock() {
    let server = server_with_holder();
    let take = |count: &str| server.ask(&["EVAL", TOKENS, "2", "k", "counter", "me", count, "7"]);
    let start = clock(&server);
    server.tell(&["SET", "counter", &start.to_string()]);
    let part = take("1000000000000");
    let first = part.list()[0].int();
    let count = part.list()[1].int();
    assert_eq!(first, start + 1);
    assert!(first + count - 1 <= clock(&server), "{count} from {first}");
    assert_eq!(
        server.ask(&["GET", "counter"]).text(),
        (start + count).to_string()
    );
    let ahead = (clock(&server) + 60_000_000).to_string();
    server.tell(&["SET", "counter", &ahead]);
    assert_eq!(take("1"), Reply::Int(0));
    assert_eq!(server.ask(&["GET", "counter"]).text(), ahead);
}

#[test]
fn renew_leaves_foreign_and_missing_keys() {
    let server = server_with_holder();
    assert_eq!(
        eval(&server, RENEW, "k", &["you", "200000"]),
        Reply::Int(-1)
    );
    assert!(ttl(&server) <= 100_000);
    assert_eq!(
        eval(&server, RENEW, "absent", &["me", "20000"]),
        Reply::Int(0)
    );
    assert_eq!(server.ask(&["EXISTS", "absent"]), Reply::Int(0));
}

#[test]
fn out_of_range_times_change_nothing() {
    let server = server_with_holder();
    for script in [RENEW, KEEP] {
        for time in ["0", "-1", "1.5", "", "x", "nan"] {
            let answer = eval(&server, script, "k", &["me", time, "kept"]);
            assert!(is_error(&answer, "LEASEHOLD"), "{time}: {answer:?}");
            assert!(ttl(&server) > 50_000, "{time}");
        }
    }
}

#[test]
fn release_deletes_own_lock_and_publishes() {
    let server = server_with_holder();
    let mut listener = server.connect();
    let subscribed = listener.ask(&["SSUBSCRIBE", "c"]).unwrap();
    assert_eq!(subscribed.list()[0].text(), "ssubscribe");
    assert_eq!(eval(&server, RELEASE, "k", &["you", "c"]), Reply::Int(0));
    assert_eq!(server.ask(&["GET", "k"]).text(), "me");
    // One subscriber was notified.
    assert_eq!(eval(&server, RELEASE, "k", &["me", "c"]), Reply::Int(2));
    assert_eq!(server.ask(&["EXISTS", "k"]), Reply::Int(0));
    assert_eq!(eval(&server, RELEASE, "k", &["me", "c"]), Reply::Int(0));
    let message = listener.receive().unwrap();
    assert_eq!(message.list()[1].text(), "c");
}

#[test]
fn replaced_lock_expires_exactly() {
    let server = server_with_holder();
    let keep = |mark: &str, ttl: &str| eval(&server, KEEP, "k", &[mark, ttl, "kept"]);
    assert_eq!(keep("you", "30000"), Reply::Int(0));
    assert!(ttl(&server) > 50_000);
    assert_eq!(keep("me", "30000"), Reply::Int(1));
    assert!((1..=30_000).contains(&ttl(&server)));
    assert_eq!(
        eval(&server, KEEP, "absent", &["me", "3000", "kept"]),
        Reply::Int(0)
    );
}

#[test]
fn released_lock_is_not_renewed() {
    let server = server_with_holder();
    let keep = || eval(&server, KEEP, "k", &["me", "30000", "kept"]);
    assert_eq!(keep(), Reply::Int(1));
    assert_eq!(eval(&server, RENEW, "k", &["me", "200000"]), Reply::Int(-1));
    let end = server.ask(&["PEXPIRETIME", "k"]);
    assert_eq!(keep(), Reply::Int(1), "repeated");
    assert_eq!(server.ask(&["PEXPIRETIME", "k"]), end);
    assert_eq!(server.ask(&["GET", "k"]).text(), "kept");
}

#[test]
fn adoption_replaces_the_pending_owner() {
    let server = server_with_holder();
    let adopt = |owner: &str, value: &str, lease: &str| {
        server.ask(&["EVAL", ADOPT, "2", "k", "counter", owner, value, lease])
    };
    let pending = "lh1:handover:41 abc 1 77 host - note";
    // Neither a holder nor a free lock can be adopted.
    assert_eq!(adopt("me", "you", "9000"), Reply::Int(0));
    let handed = eval(&server, KEEP, "k", &["me", "30000", pending]);
    assert_eq!(handed, Reply::Int(1));
    assert_eq!(eval(&server, RENEW, "k", &["me", "200000"]), Reply::Int(-1));
    assert_eq!(eval(&server, RELEASE, "k", &["me", "c"]), Reply::Int(0));
    assert_eq!(adopt("abd", "you", "9000"), Reply::Int(0));
    for lease in ["0", "-1", "1.5", "x", ""] {
        assert!(is_error(&adopt("abc", "you", lease), "LEASEHOLD"));
    }
    assert_eq!(server.ask(&["GET", "k"]).text(), pending);
    assert_eq!(server.ask(&["GET", "counter"]), Reply::Nil);
    // Above the token of the giver, although the counter is below.
    assert_eq!(adopt("abc", "you", "90000"), Reply::Int(42));
    assert_eq!(server.ask(&["GET", "k"]).text(), "you");
    assert!((60_000..=90_000).contains(&ttl(&server)));
    assert_eq!(adopt("abc", "third", "9000"), Reply::Int(0), "spent");
    assert_eq!(adopt("abc", "you", "90000"), Reply::Int(43), "repeated");
    assert_eq!(server.ask(&["GET", "counter"]).text(), "43");
    server.tell(&["DEL", "k"]);
    assert_eq!(adopt("abc", "you", "9000"), Reply::Int(0));
    assert_eq!(server.ask(&["EXISTS", "k"]).int(), 0);
}

#[test]
fn raise_returns_tokens_above_clock_and_floor() {
    let server = Flavor::one().start();
    let clock = || clock(&server);
    let before = clock();
    let first = eval(&server, RAISE, "t", &["0"]).int();
    assert!(first >= before && first <= clock());
    let second = eval(&server, RAISE, "t", &["0"]).int();
    assert!(second > first);
    let ahead = clock() + 60_000_000;
    assert_eq!(
        eval(&server, RAISE, "t", &[&ahead.to_string()]).int(),
        ahead
    );
    assert_eq!(eval(&server, RAISE, "t", &["0"]).int(), ahead + 1);
    assert_eq!(
        server.ask(&["INCR", "t"]).int(),
        ahead + 2,
        "not stored in full digits"
    );
    for floor in ["-1", "x", "", "9007199254740992"] {
        assert!(
            is_error(&eval(&server, RAISE, "t", &[floor]), "LEASEHOLD"),
            "{floor}"
        );
    }
}
