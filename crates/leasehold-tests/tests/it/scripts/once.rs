//! The scripts of jobs that run once per tick, each on its own.

use testkit::{Flavor, Reply, Server, ServerExt};

use super::is_error;
use crate::support::lua;

/// A day in milliseconds.
const DAY: &str = "86400000";

fn call(server: &Server, script: &str, args: &[&str]) -> Reply {
    let words = ["EVAL", script, "1", "job"].into_iter();
    server.ask(&words.chain(args.iter().copied()).collect::<Vec<_>>())
}

fn field(server: &Server, name: &str) -> Option<String> {
    match server.ask(&["HGET", "job", name]) {
        Reply::Nil => None,
        reply => Some(reply.text().to_owned()),
    }
}

#[test]
fn claim_out_of_range_changes_nothing() {
    let server = Flavor::one().start();
    let claim = lua!("once/claim");
    for args in [
        ["-1", DAY, "7", "1 host ", DAY],
        ["1.5", DAY, "7", "1 host ", DAY],
        ["x", DAY, "7", "1 host ", DAY],
        ["1", "0", "7", "1 host ", DAY],
        ["1", "", "7", "1 host ", DAY],
        ["9007199254740992", "2", "7", "1 host ", DAY],
        ["1", DAY, "", "1 host ", DAY],
        ["1", DAY, "x", "1 host ", DAY],
        ["1", DAY, "7", "1 host ", "0"],
        ["1", DAY, "7", "1 host ", "inf"],
    ] {
        let reply = call(&server, claim, &args);
        assert!(is_error(&reply, "LEASEHOLD"), "{args:?}: {reply:?}");
    }
    for script in [lua!("once/forget"), lua!("once/finish")] {
        let reply = call(&server, script, &["7", "0", "0"]);
        assert!(is_error(&reply, "LEASEHOLD"), "{reply:?}");
    }
    assert_eq!(server.ask(&["EXISTS", "job"]), Reply::Int(0));
}

#[test]
fn ticks_are_compared_by_their_start() {
    let server = Flavor::one().start();
    let claim = |tick: &str, period: &str, token: &str| {
        let args = [tick, period, token, "1 host ", DAY];
        call(&server, lua!("once/claim"), &args).int()
    };
    assert_eq!(claim("1000", "3600000", "7"), 1);
    assert_eq!(claim("1000", "3600000", "7"), 1, "repeated");
    assert_eq!(claim("1000", "3600000", "8"), 0);
    // The job becomes daily: hour 1000 is in day 41, which has run.
    assert_eq!(claim("41", DAY, "9"), 0);
    assert_eq!(claim("42", DAY, "9"), 1);
    // It becomes hourly again: hour 1008 is the first of day 42.
    assert_eq!(claim("1008", "3600000", "10"), 0);
    assert_eq!(claim("1009", "3600000", "10"), 1);
    // A tick of the next century.
    assert!(claim("47482", DAY, "11") < -86_400_000);
    assert_eq!(field(&server, "token").as_deref(), Some("10"));
}

#[test]
fn forgotten_run_restores_the_one_before() {
    let server = Flavor::one().start();
    let claim = |tick: &str, token: &str| {
        let args = [tick, DAY, token, "1 host note", DAY];
        call(&server, lua!("once/claim"), &args).int()
    };
    let forget = |token: &str| call(&server, lua!("once/forget"), &[token, DAY]).int();
    assert_eq!(forget("6"), 0);
    assert_eq!(claim("1", "7"), 1);
    let finished = call(&server, lua!("once/finish"), &["7", "done", DAY]);
    assert_eq!(finished, Reply::Int(1));
    assert_eq!(claim("2", "8"), 1);
    assert_eq!(field(&server, "report"), None);
    assert_eq!(forget("7"), 0, "not the last run");
    assert_eq!(forget("8"), 1);
    assert_eq!(forget("8"), 0, "repeated");
    assert_eq!(field(&server, "report").as_deref(), Some("done"));
    assert!(server.ask(&["PTTL", "job"]).int() > 0);
    assert_eq!(claim("1", "9"), 0, "the run before is recorded");
    assert_eq!(claim("2", "9"), 1);
    assert_eq!(forget("9"), 1);
    assert_eq!(forget("7"), 1);
    assert_eq!(field(&server, "token"), None);
    assert_eq!(claim("1", "9"), 0, "it was cancelled");
    assert_eq!(claim("1", "10"), 1);
}

/// A claim that arrived after the run was cancelled used up the tick, and no
/// host ran it.
#[test]
fn late_claim_of_a_cancelled_run_is_refused() {
    let server = Flavor::one().start();
    let claim = |tick: &str, token: &str| {
        let args = [tick, DAY, token, "1 host ", DAY];
        call(&server, lua!("once/claim"), &args).int()
    };
    let forget = |token: &str| call(&server, lua!("once/forget"), &[token, DAY]).int();
    assert_eq!(forget("7"), 0, "before the claim arrives");
    assert_eq!(claim("1", "7"), 0);
    assert_eq!(claim("1", "6"), 0, "of an earlier holder");
    assert_eq!(claim("1", "8"), 1);
    assert_eq!(forget("8"), 1);
    assert_eq!(claim("1", "8"), 0);
    // A host whose clock is behind claims the tick before.
    assert_eq!(claim("0", "9"), 1);
    assert_eq!(claim("1", "8"), 0);
    assert_eq!(claim("1", "10"), 1);
    // Another run's record is kept for as long as before.
    assert_eq!(call(&server, lua!("once/forget"), &["9", "1000"]).int(), 0);
    assert!(server.ask(&["PTTL", "job"]).int() > 1000);
}
