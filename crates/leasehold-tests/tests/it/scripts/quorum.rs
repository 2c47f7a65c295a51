//! The scripts of a quorum's node, each on its own.

use testkit::{Flavor, Reply, Server, ServerExt};

use crate::support::lua;

const VOTE: &str = concat!(lua!("quorum/prelude"), lua!("quorum/vote"));
const RENEW: &str = concat!(lua!("quorum/prelude"), lua!("quorum/renew"));
const FILL: &str = concat!(lua!("quorum/prelude"), lua!("quorum/repair"));
const RECORD: &str = concat!(lua!("quorum/prelude"), lua!("quorum/record_token"));
const RELEASE: &str = lua!("quorum/release");
const ADMIT: &str = concat!(lua!("quorum/prelude"), lua!("quorum/rejoin"));

fn eval(server: &Server, script: &str, keys: &[&str], args: &[&str]) -> Reply {
    let count = keys.len().to_string();
    let head = ["EVAL", script, count.as_str()];
    server.ask(&[head.as_slice(), keys, args].concat())
}

/// Returns the leading numbers of a reply.
fn numbers(answer: &Reply) -> Vec<i64> {
    match answer {
        Reply::Int(number) => vec![*number],
        Reply::List(parts) => parts.iter().take(2).map(Reply::int).collect(),
        other => panic!("{other:?}"),
    }
}

fn now(server: &Server) -> i64 {
    let time = server.ask(&["TIME"]);
    let part = |at: usize| time.list()[at].text().parse::<i64>().unwrap();
    part(0) * 1_000_000 + part(1)
}

fn vote(server: &Server, mark: &str, token: i64) -> Vec<i64> {
    let args = [mark, "60000", &token.to_string()];
    numbers(&eval(server, VOTE, &["k", "v", "s"], &args))
}

fn admit(server: &Server, longest: &str, floor: i64) -> Vec<i64> {
    let args = [longest, &floor.to_string()];
    numbers(&eval(server, ADMIT, &["s"], &args))
}

/// Returns whether a node that does not vote knows that it did.
fn has_voted(server: &Server) -> bool {
    let reply = eval(server, ADMIT, &["s"], &["60000", "0"]);
    reply.list()[2].int() == 1
}

fn on_every_server(test: impl Fn(&Server)) {
    for flavor in Flavor::all() {
        test(&flavor.start());
    }
}

#[test]
fn vote_exceeds_granted_token_and_excludes() {
    on_every_server(|server| {
        let start = now(server);
        assert_eq!(
            vote(server, "me", start),
            [3, 0],
            "voted before it rejoined"
        );
        assert!(!has_voted(server), "a new node has voted");
        assert_eq!(admit(server, "0", start), [1, start]);
        assert_eq!(
            vote(server, "me", start),
            [2, start],
            "accepted a token at the floor"
        );
        assert_eq!(vote(server, "me", start + 5), [1, start + 5]);
        assert_eq!(vote(server, "me", start + 5), [1, start + 5], "repeated");
        let busy = eval(
            server,
            VOTE,
            &["k", "v", "s"],
            &["you", "60000", &(start + 9).to_string()],
        );
        assert_eq!(busy.list()[0].int(), 0);
        assert!((1..=60_000).contains(&busy.list()[1].int()));
        assert_eq!(busy.list()[2].text(), "me");
        server.tell(&["DEL", "k"]);
        assert_eq!(
            vote(server, "you", start + 5),
            [2, start + 5],
            "accepted a token at the last one"
        );
        assert_eq!(vote(server, "you", start + 6), [1, start + 6]);
        assert_eq!(
            server.ask(&["HGET", "s", "highest"]).text(),
            (start + 6).to_string()
        );
        assert!(server.ask(&["PTTL", "k"]).int() > 30_000);
        assert!(server.ask(&["TTL", "v"]).int() > 6 * 86_400);
    });
}

#[test]
fn tokens_far_from_clock_are_rejected() {
    on_every_server(|server| {
        admit(server, "0", 1);
        let now = now(server);
        for token in [now + 90_000_000, now - 3 * 86_400_000_000] {
            assert_eq!(vote(server, "me", token)[0], 4);
            assert_eq!(server.ask(&["EXISTS", "k"]).int(), 0);
        }
    });
}

#[test]
fn renew_and_repair_require_voting_node() {
    on_every_server(|server| {
        let start = now(server);
        let renew = |mark: &str| numbers(&eval(server, RENEW, &["k", "s"], &[mark, "90000"]));
        let fill = |mark: &str| {
            let args = [mark, "60000", &(start + 8).to_string()];
            numbers(&eval(server, FILL, &["k", "v", "s"], &args))
        };
        assert_eq!(renew("me"), [3]);
        assert_eq!(fill("me"), [0]);
        admit(server, "0", start);
        assert_eq!(renew("me"), [0], "the renewal created a lock");
        assert_eq!(fill("me"), [1]);
        assert_eq!(server.ask(&["GET", "v"]).text(), (start + 8).to_string());
        assert_eq!(renew("me"), [1]);
        assert!(server.ask(&["PTTL", "k"]).int() > 60_000);
        assert_eq!(renew("you"), [-1]);
        assert_eq!(fill("you"), [0]);
        assert_eq!(server.ask(&["GET", "k"]).text(), "me");
    });
}

#[test]
fn token_is_recorded_for_holder_only() {
    on_every_server(|server| {
        let start = now(server);
        let record = |mark: &str, token: i64| {
            let args = [mark, &token.to_string()];
            numbers(&eval(server, RECORD, &["k", "v", "s"], &args))
        };
        assert_eq!(record("me", start + 9), [0], "this node does not vote");
        admit(server, "0", start);
        assert_eq!(record("me", start + 9), [0], "the lock is free");
        assert_eq!(vote(server, "me", start + 1), [1, start + 1]);
        assert_eq!(record("you", start + 9), [0]);
        assert_eq!(record("me", start + 90_000_000), [0]);
        assert_eq!(server.ask(&["GET", "v"]).text(), (start + 1).to_string());
        assert_eq!(record("me", start + 9), [1]);
        assert_eq!(record("me", start + 5), [1]);
        server.tell(&["DEL", "k"]);
        assert_eq!(vote(server, "you", start + 9), [2, start + 9]);
        assert_eq!(vote(server, "you", start + 10), [1, start + 10]);
    });
}

#[test]
fn release_deletes_only_own_lock() {
    on_every_server(|server| {
        let mut listener = server.connect();
        listener.ask(&["SSUBSCRIBE", "c"]).unwrap();
        server.tell(&["SET", "k", "me"]);
        let release = |mark: &str| numbers(&eval(server, RELEASE, &["k"], &[mark, "c", "this"]));
        assert_eq!(release("you"), [0]);
        assert_eq!(release("me"), [1]);
        assert_eq!(release("me"), [0]);
        assert_eq!(listener.receive().unwrap().list()[2].text(), "this");
    });
}

#[test]
fn restarted_node_waits_before_voting() {
    for flavor in Flavor::all() {
        let mut server = testkit::Setup::default()
            .option("appendonly", "yes")
            .option("appendfsync", "always")
            .start(&flavor);
        let start = now(&server);
        assert_eq!(admit(&server, "0", start), [1, start]);
        assert_eq!(
            admit(&server, "60000", 0),
            [1, start],
            "the node does not vote"
        );
        assert_eq!(vote(&server, "me", start + 1), [1, start + 1]);
        server.restart().unwrap();
        assert_eq!(
            vote(&server, "you", start + 2),
            [3, 0],
            "voted after a restart with its data"
        );
        let left = admit(&server, "60000", 0);
        assert!(left[0] == 0 && left[1] <= 60_000, "{left:?}");
        assert!(has_voted(&server), "the node has forgotten its votes");
        assert_eq!(
            admit(&server, "60000", start + 9)[0],
            0,
            "rejoined too early"
        );
        std::thread::sleep(std::time::Duration::from_millis(310));
        assert_eq!(admit(&server, "300", 0), [2, 0]);
        assert_eq!(admit(&server, "300", start + 9), [1, start + 9]);
        server.tell(&["DEL", "k"]);
        assert_eq!(vote(&server, "you", start + 9), [2, start + 9]);
    }
}

#[test]
fn out_of_range_arguments_change_nothing() {
    on_every_server(|server| {
        admit(server, "0", 1);
        for (script, keys, args) in [
            (
                VOTE,
                ["k", "v", "s"].as_slice(),
                ["me", "0", "5"].as_slice(),
            ),
            (VOTE, &["k", "v", "s"], &["me", "1.5", "5"]),
            (VOTE, &["k", "v", "s"], &["me", "10", "x"]),
            (RENEW, &["k", "s"], &["me", "-1"]),
            (FILL, &["k", "v", "s"], &["me", "10", "0"]),
            (ADMIT, &["s"], &["-1", "0"]),
            (ADMIT, &["s"], &["0", "9007199254740993"]),
        ] {
            let answer = eval(server, script, keys, args);
            assert!(matches!(&answer, Reply::Error(error) if error.contains("LEASEHOLD")));
        }
        assert_eq!(server.ask(&["EXISTS", "k", "v"]).int(), 0);
    });
}
