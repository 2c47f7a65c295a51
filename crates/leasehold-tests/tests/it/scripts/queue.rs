//! The scripts of queued locks and of latches, each on its own.

use testkit::{Flavor, Reply, Server, ServerExt};

use super::is_error;
use crate::support::lua;

const PRELUDE: &str = lua!("queue/prelude");
const ENTER: &str = lua!("queue/enqueue");
const RENEW: &str = lua!("queue/renew");
const RELEASE: &str = lua!("queue/release");
const SHRINK: &str = lua!("queue/downgrade");
const CAPACITY: &str = lua!("queue/capacity");
const TOKENS: &str = lua!("queue/reserve_tokens");
const HAND_OVER: &str = lua!("queue/hand_over");
const ADOPT: &str = lua!("queue/adopt");

const KEYS: [&str; 6] = [
    "lock",
    "holders",
    "queue",
    "heartbeats",
    "entries",
    "counter",
];
const MINUTE: &str = "60000000";

fn eval(server: &Server, script: &str, args: &[&str]) -> Reply {
    let script = format!("{PRELUDE}{script}");
    let mut words = vec!["EVAL", &script, "6"];
    words.extend(KEYS);
    words.extend(args);
    server.ask(&words)
}

fn lock_value(kind: &str, capacity: &str, weight: &str, owner: &str) -> String {
    format!("lh1:{kind}:{capacity}:{weight} {owner} 1 77 host - note")
}

/// Enqueues with weight 1 at a lock of capacity 2, for a minute.
fn enter(server: &Server, owner: &str, wait: &str) -> Vec<i64> {
    let args = [
        &*lock_value("fair", "2", "1", owner),
        "c",
        MINUTE,
        wait,
        "0",
    ];
    numbers(&eval(server, ENTER, &args))
}

fn numbers(answer: &Reply) -> Vec<i64> {
    let parts = answer.list().iter();
    parts
        .filter_map(|part| match part {
            Reply::Int(number) => Some(*number),
            _ => None,
        })
        .collect()
}

fn members(server: &Server, key: &str) -> Vec<String> {
    let members = server.ask(&["ZRANGE", key, "0", "-1"]);
    let members = members.list().iter();
    let mut members: Vec<_> = members.map(|member| member.text().to_owned()).collect();
    if key == "holders" {
        members.sort();
    }
    members
}

fn entry(server: &Server, owner: &str) -> Reply {
    server.ask(&["HGET", "entries", owner])
}

/// Returns kind, capacity and usage in the value of the lock's own key.
fn summary(server: &Server) -> (String, i64, i64) {
    let summary = server.ask(&["GET", "lock"]);
    let mut words = summary.text().split(' ');
    let kind = words.next().unwrap().strip_prefix("lh1:queue:").unwrap();
    let mut number = || words.next().unwrap().parse().unwrap();
    (kind.to_owned(), number(), number())
}

/// Starts a server where `a` and `b` hold the lock and `c` and `d` wait.
fn full() -> Server {
    let server = Flavor::one().start();
    assert_eq!(enter(&server, "a", "0")[0], 1);
    assert_eq!(enter(&server, "b", MINUTE)[0], 1);
    assert_eq!(enter(&server, "c", MINUTE)[..2], [2, 0]);
    assert_eq!(enter(&server, "d", MINUTE)[..2], [2, 1]);
    server
}

#[test]
fn only_holder_is_one_plain_string() {
    let server = Flavor::one().start();
    let plain = lock_value("fair", "2", "1", "a");
    // By script, by the commands of a mutex, and by script again.
    let taken = enter(&server, "a", MINUTE);
    assert_eq!((taken[0], taken[4]), (1, 1));
    assert_eq!(server.ask(&["GET", "lock"]).text(), plain);
    assert_eq!(server.ask(&["KEYS", "*"]).list().len(), 2, "lock, counter");
    let again = enter(&server, "a", MINUTE);
    assert_eq!((again[0], again[4]), (1, 1));
    let renewed = numbers(&eval(&server, RENEW, &["a", "90000000"]));
    assert_eq!((renewed[0], renewed[4]), (1, 1));
    assert!(server.ask(&["PTTL", "lock"]).int() > 80_000);
    assert_eq!(numbers(&eval(&server, RENEW, &["b", MINUTE]))[0], 0);
    assert_eq!(numbers(&eval(&server, RELEASE, &["b", "0"]))[0], 0);
    assert_eq!(server.ask(&["GET", "lock"]).text(), plain);
    assert_eq!(numbers(&eval(&server, RELEASE, &["a", "0"]))[0], 1);
    assert_eq!(server.ask(&["GET", "lock"]), Reply::Nil);
}

#[test]
fn second_owner_converts_string_to_queue() {
    let server = Flavor::one().start();
    let plain = lock_value("fair", "1", "1", "a");
    server.tell(&["SET", "lock", &plain, "NX", "PX", "60000"]);
    let first = lock_value("fair", "1", "1", "b");
    let second = lock_value("fair", "1", "1", "c");
    let enter = |lock_value: &str, wait| {
        numbers(&eval(&server, ENTER, &[lock_value, "c", MINUTE, wait, "0"]))
    };
    // An owner that does not wait leaves the string unchanged.
    assert_eq!(enter(&first, "0")[..2], [0, 0]);
    assert_eq!(server.ask(&["GET", "lock"]).text(), plain);
    assert_eq!(enter(&first, MINUTE)[..2], [2, 0]);
    assert_eq!(enter(&second, MINUTE)[..2], [2, 1]);
    assert_eq!(summary(&server), ("fair".to_owned(), 1, 1));
    assert_eq!(members(&server, "holders"), ["a"]);
    assert!(entry(&server, "a").text().ends_with(&plain));
    // `SET NX` does not bypass the queue, and the holder keeps its owner.
    let set = server.ask(&["SET", "lock", "x", "NX", "PX", "1"]);
    assert_eq!(set, Reply::Nil);
    assert_eq!(numbers(&eval(&server, RENEW, &["a", MINUTE]))[0], 1);
    for owner in ["a", "b", "c"] {
        assert_eq!(numbers(&eval(&server, RELEASE, &[owner, "0"]))[0], 1);
    }
    assert_eq!(
        server.ask(&["KEYS", "*"]).list().len(),
        1,
        "more than the counter is left"
    );
}

#[test]
fn enqueue_acquires_until_full_then_waits() {
    let server = full();
    assert_eq!(members(&server, "holders"), ["a", "b"]);
    assert_eq!(members(&server, "queue"), ["c", "d"]);
    assert_eq!(summary(&server), ("fair".to_owned(), 2, 2));
    // An owner that does not wait changes nothing, and a repeated call counts
    // once.
    assert_eq!(enter(&server, "e", "0")[0], 0);
    assert_eq!(enter(&server, "a", MINUTE)[0], 1);
    assert_eq!(enter(&server, "c", MINUTE)[..2], [2, 0]);
    assert_eq!(members(&server, "holders").len(), 2);
    assert_eq!(members(&server, "queue").len(), 2);
    // All keys outlast the last lease or queue entry by one to eleven seconds.
    let ends = server.ask(&["ZRANGE", "heartbeats", "-1", "-1", "WITHSCORES"]);
    let last = ends.list()[1].text().parse::<i64>().unwrap();
    for key in &KEYS[..5] {
        let after = server.ask(&["PEXPIRETIME", key]).int() * 1000 - last;
        assert!((1_000_000..=11_001_000).contains(&after), "{key}: {after}");
    }
}

#[test]
fn release_grants_and_notifies_next_waiter() {
    let server = full();
    let mut listener = server.connect();
    listener.ask(&["SSUBSCRIBE", "c"]).unwrap();
    assert_eq!(numbers(&eval(&server, RELEASE, &["a", "0"]))[0], 1);
    assert_eq!(members(&server, "holders"), ["b", "c"]);
    assert_eq!(members(&server, "queue"), ["d"]);
    let message = listener.receive().unwrap().list()[2].text().to_owned();
    let words: Vec<_> = message.split(' ').collect();
    assert_eq!(words[0], "c");
    assert_eq!(words[1], server.ask(&["GET", "counter"]).text());
    assert_eq!(words[2], server.ask(&["ZSCORE", "holders", "c"]).text());
    assert_eq!(numbers(&eval(&server, RELEASE, &["a", "0"]))[0], 0);
    // A cancelled entry is removed, and so is an unused lock.
    assert_eq!(numbers(&eval(&server, RELEASE, &["d", "0"]))[0], 2);
    eval(&server, RELEASE, &["b", "0"]);
    eval(&server, RELEASE, &["c", "0"]);
    assert_eq!(
        server.ask(&["KEYS", "*"]).list().len(),
        1,
        "more than the counter is left"
    );
}

#[test]
fn release_after_excludes_others_until_expiry() {
    let server = full();
    let answer = numbers(&eval(&server, RELEASE, &["a", "5000000"]));
    assert_eq!(answer[0], 1);
    assert_eq!(members(&server, "queue"), ["c", "d"]);
    let end: i64 = server
        .ask(&["ZSCORE", "holders", "a"])
        .text()
        .parse()
        .unwrap();
    assert_eq!(end - answer[1], 5_000_000);
    // Neither a late renewal nor a repeated release moves the expiry.
    let renewed = numbers(&eval(&server, RENEW, &["a", MINUTE]));
    assert_eq!((renewed[0], renewed[3]), (1, end));
    let again = numbers(&eval(&server, RELEASE, &["a", "9000000"]));
    assert_eq!(again[0], 1);
    assert_eq!(
        server.ask(&["ZSCORE", "holders", "a"]).text(),
        end.to_string()
    );
    // A forced release frees it at once.
    assert_eq!(numbers(&eval(&server, RELEASE, &["a", "0"]))[0], 1);
    assert_eq!(members(&server, "holders"), ["b", "c"]);
}

#[test]
fn renew_extends_and_creates_nothing() {
    let server = full();
    let answer = numbers(&eval(&server, RENEW, &["a", "90000000"]));
    assert_eq!((answer[0], answer[3] - answer[2]), (1, 90_000_000));
    let again = numbers(&eval(&server, RENEW, &["a", "1"]));
    assert_eq!(again[3], answer[3], "shortened");
    assert_eq!(numbers(&eval(&server, RENEW, &["d", "1"]))[..2], [2, 1]);
    assert_eq!(numbers(&eval(&server, RENEW, &["e", MINUTE]))[0], 0);
    assert_eq!(members(&server, "holders").len(), 2);
    assert_eq!(members(&server, "queue").len(), 2);
}

#[test]
fn only_holders_reserve_tokens() {
    let server = full();
    let counter = || {
        let counter = server.ask(&["GET", "counter"]);
        counter.text().parse::<i64>().unwrap()
    };
    let block = |first, count| Reply::List(vec![Reply::Int(first), Reply::Int(count)]);
    // Far behind the clock, so that there are enough tokens.
    server.tell(&["SET", "counter", "1494752174808353"]);
    let first = 1_494_752_174_808_354;
    let take = |owner: &str, count: &str, own: &str| eval(&server, TOKENS, &[owner, count, own]);
    assert_eq!(take("a", "16", "7"), block(first, 16));
    assert_eq!(counter(), first + 15);
    for owner in ["c", "nobody"] {
        assert_eq!(take(owner, "16", "7"), Reply::Int(0));
    }
    for (count, own) in [
        ("0", "7"),
        ("-1", "7"),
        ("1.5", "7"),
        ("x", "7"),
        ("1", "-1"),
        ("1", "x"),
    ] {
        assert!(is_error(&take("a", count, own), "LEASEHOLD"));
    }
    assert_eq!(counter(), first + 15, "the counter changed");
    // A lost or lagging counter does not repeat the holder's token.
    let own = 1_594_752_174_808_371;
    assert_eq!(take("a", "16", &own.to_string()), block(own + 1, 16));
    // The next holder gets a larger token.
    eval(&server, RELEASE, &["a", "0"]);
    assert!(enter(&server, "c", MINUTE)[1] > own + 16);
}

#[test]
fn reserved_tokens_stay_below_clock() {
    let server = full();
    let last = server
        .ask(&["GET", "counter"])
        .text()
        .parse::<i64>()
        .unwrap();
    let part = eval(&server, TOKENS, &["a", "1000000000000", "7"]);
    let first = part.list()[0].int();
    let count = part.list()[1].int();
    assert_eq!(first, last + 1);
    // The reply of a step contains the script's own clock.
    let now = numbers(&eval(&server, RENEW, &["a", "1"]))[2];
    assert!(first + count - 1 <= now, "{count} from {first}");
    let ahead = (now + 60_000_000).to_string();
    server.tell(&["SET", "counter", &ahead]);
    assert_eq!(eval(&server, TOKENS, &["a", "1", "7"]), Reply::Int(0));
    assert_eq!(server.ask(&["GET", "counter"]).text(), ahead);
}

/// Makes the next script evict what has expired.
fn make_eviction_due(server: &Server) {
    let summary = server.ask(&["GET", "lock"]);
    let mut words: Vec<_> = summary.text().split(' ').collect();
    words[3] = "1";
    server.tell(&["SET", "lock", &words.join(" "), "KEEPTTL"]);
}

#[test]
fn next_call_evicts_expired_and_dead() {
    let server = full();
    // A holder's lease expired, and the first waiter missed its heartbeats.
    server.tell(&["ZADD", "holders", "1", "b"]);
    server.tell(&["ZADD", "heartbeats", "1", "c"]);
    make_eviction_due(&server);
    assert_eq!(numbers(&eval(&server, RENEW, &["d", MINUTE]))[0], 1);
    assert_eq!(members(&server, "holders"), ["a", "d"]);
    assert_eq!(entry(&server, "b"), Reply::Nil);
    assert_eq!(entry(&server, "c"), Reply::Nil);
}

#[test]
fn capacity_grants_waiters_and_persists() {
    let server = full();
    let answer = eval(&server, CAPACITY, &["fair", "3", MINUTE]);
    assert_eq!(numbers(&answer)[0], 3);
    assert_eq!(members(&server, "queue"), ["d"]);
    for owner in ["a", "b", "c", "d"] {
        eval(&server, RELEASE, &[owner, "0"]);
    }
    assert_eq!(summary(&server), ("fair".to_owned(), 3, 0));
    assert!(server.ask(&["PTTL", "lock"]).int() > 30_000);
}

#[test]
fn downgrade_grants_freed_weight_to_next() {
    let server = Flavor::one().start();
    let enter = |owner: &str, weight: &str| {
        let args = [
            &*lock_value("rw", "9", weight, owner),
            "c",
            MINUTE,
            MINUTE,
            "0",
        ];
        numbers(&eval(&server, ENTER, &args))
    };
    let downgrade = |owner: &str, weight: &str| numbers(&eval(&server, SHRINK, &[owner, weight]));
    let token = enter("a", "9")[1];
    assert_eq!(enter("b", "1")[0], 2);
    let downgraded = downgrade("a", "1");
    assert!(
        downgraded[0] == 1 && downgraded[1] > token,
        "{downgraded:?}"
    );
    assert_eq!(numbers(&eval(&server, RENEW, &["b", "1"]))[0], 1);
    assert_eq!(summary(&server).2, 2);
    assert_eq!(downgrade("a", "5")[0], 1, "the weight increased");
    assert_eq!(summary(&server).2, 2);
}

#[test]
fn deleted_lock_key_revives_no_owner() {
    // As an operator does who deletes a lock by hand.
    let server = full();
    server.tell(&["DEL", "lock"]);
    for owner in ["a", "b", "c", "d"] {
        assert_eq!(numbers(&eval(&server, RELEASE, &[owner, "0"]))[0], 0);
    }
    assert_eq!(enter(&server, "e", "0")[0], 1);
    assert_eq!(enter(&server, "f", "0")[0], 1);
    assert_eq!(enter(&server, "0", "0")[0], 0);
    assert_eq!(members(&server, "holders"), ["e", "f"]);
    let server = full();
    server.tell(&["DEL", "lock"]);
    eval(&server, CAPACITY, &["fair", "2", MINUTE]);
    assert_eq!(numbers(&eval(&server, RENEW, &["a", MINUTE]))[0], 0);
}

#[test]
fn lost_set_does_not_block_the_lock() {
    let server = full();
    server.tell(&["DEL", "holders"]);
    make_eviction_due(&server);
    for owner in ["c", "d"] {
        assert_eq!(numbers(&eval(&server, RENEW, &[owner, MINUTE]))[0], 1);
    }
    assert_eq!(numbers(&eval(&server, RENEW, &["a", MINUTE]))[0], 0);
}

#[test]
fn lost_entries_prolong_no_key() {
    // The scripts fail until all keys have expired.
    let server = full();
    server.tell(&["DEL", "entries"]);
    server.tell(&["ZADD", "holders", "1", "a"]);
    make_eviction_due(&server);
    let expiry = server.ask(&["PEXPIRETIME", "lock"]);
    for _ in 0..2 {
        let answer = eval(&server, RENEW, &["c", "3600000000"]);
        assert!(matches!(answer, Reply::Error(_)), "{answer:?}");
    }
    for key in &KEYS[..4] {
        assert_eq!(server.ask(&["PEXPIRETIME", key]), expiry, "{key}");
    }
}

#[test]
fn empty_queue_allows_other_kinds() {
    let server = Flavor::one().start();
    let enter = |kind: &str, owner: &str| {
        let lock_value = lock_value(kind, "1", "1", owner);
        eval(&server, ENTER, &[&lock_value, "c", MINUTE, MINUTE, "0"])
    };
    enter("fair", "a");
    enter("fair", "b");
    assert!(is_error(&enter("rw", "c"), "WRONGTYPE"));
    eval(&server, RELEASE, &["b", "0"]);
    server.tell(&["ZADD", "holders", "1", "a"]);
    make_eviction_due(&server);
    let taken = numbers(&enter("rw", "c"));
    assert_eq!((taken[0], taken[4]), (1, 1));
    // An unknown owner moves no expiry.
    enter("rw", "d");
    let before = server.ask(&["PEXPIRETIME", "lock"]).int();
    eval(&server, RENEW, &["e", "3600000000"]);
    assert_eq!(server.ask(&["PEXPIRETIME", "lock"]).int(), before);
}

#[test]
fn renew_with_other_holders_always_writes() {
    let server = full();
    eval(&server, RENEW, &["b", "90000000"]);
    let written = || server.info("rdb_changes_since_last_save");
    let before = written();
    eval(&server, RENEW, &["b", "1"]);
    assert!(
        written() > before,
        "the renewal wrote nothing for replicas to acknowledge"
    );
}

#[test]
fn invalid_arguments_and_kinds_change_nothing() {
    let server = full();
    let before = server.ask(&["GET", "lock"]);
    let good = ["c", MINUTE, MINUTE, "0"];
    for (at, values) in [
        (1, ["0", "-1", "nan", "1e99"]),
        (2, ["-1", "0.5", "x", "1e99"]),
        (3, ["-1", "0.5", "x", "1e99"]),
    ] {
        for value in values {
            let mut args = good;
            args[at] = value;
            let lock_value = lock_value("fair", "2", "1", "e");
            let args: Vec<_> = [&*lock_value].into_iter().chain(args).collect();
            let answer = eval(&server, ENTER, &args);
            assert!(is_error(&answer, "LEASEHOLD"), "{at} {value}: {answer:?}");
        }
    }
    let values = [("0", "1"), ("2", "0"), ("2", "x"), ("", "1")];
    let values = values.map(|(capacity, weight)| lock_value("fair", capacity, weight, "e"));
    for lock_value in values.iter().chain([&"lh1 e".to_owned()]) {
        let args: Vec<_> = [&**lock_value].into_iter().chain(good).collect();
        let answer = eval(&server, ENTER, &args);
        assert!(is_error(&answer, "LEASEHOLD"), "{lock_value}: {answer:?}");
    }
    for (script, args) in [
        (RENEW, &["a", "0"][..]),
        (RELEASE, &["a", "-1"]),
        (SHRINK, &["a", "0"]),
        (CAPACITY, &["fair", "0", "1"]),
        (HAND_OVER, &["a", "lh1:fair:1:1 b 1", "1", "0"]),
        (HAND_OVER, &["a", "b", "1", "1"]),
        (ADOPT, &["a", "lh1:fair:1:1 b 1", "c", "0"]),
    ] {
        let answer = eval(&server, script, args);
        assert!(is_error(&answer, "LEASEHOLD"), "{args:?}: {answer:?}");
    }
    let lock_value = lock_value("rw", "2", "1", "e");
    let other: Vec<_> = [&*lock_value].into_iter().chain(good).collect();
    assert!(is_error(&eval(&server, ENTER, &other), "WRONGTYPE"));
    let other = eval(&server, CAPACITY, &["rw", "3", MINUTE]);
    assert!(is_error(&other, "WRONGTYPE"));
    assert_eq!(server.ask(&["GET", "lock"]), before);
    // A mutex of the same name.
    server.tell(&["SET", "lock", "lh1 e 1 77 host - note", "PX", "60000"]);
    assert!(is_error(&eval(&server, RENEW, &["e", "1"]), "WRONGTYPE"));
}
