//! The scripts of a node of a quorum: state before, call, answer, state after.

use testkit::{Flavor, Reply, Server};

const VOTE: &str = include_str!("../../../leasehold/lua/quorum/vote.lua");
const RENEW: &str = include_str!("../../../leasehold/lua/quorum/renew.lua");
const FILL: &str = include_str!("../../../leasehold/lua/quorum/fill.lua");
const RELEASE: &str = include_str!("../../../leasehold/lua/quorum/release.lua");
const ADMIT: &str = include_str!("../../../leasehold/lua/quorum/admit.lua");

fn eval(server: &Server, script: &str, keys: &[&str], args: &[&str]) -> Reply {
    let count = keys.len().to_string();
    let head = ["EVAL", script, count.as_str()];
    server.ask(&[head.as_slice(), keys, args].concat())
}

/// The numbers of an answer, a single one or those that a list begins with.
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

fn on_every_server(test: impl Fn(&Server)) {
    for flavor in Flavor::all() {
        test(&Server::start(&flavor));
    }
}

#[test]
fn a_node_votes_above_what_it_granted_and_for_one_at_a_time() {
    on_every_server(|server| {
        let start = now(server);
        assert_eq!(vote(server, "me", start), [3, 0], "not let in yet");
        assert_eq!(admit(server, "0", start), [1, start]);
        assert_eq!(vote(server, "me", start), [2, start], "not above the floor");
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
            "not above the last"
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
fn tokens_far_from_the_nodes_clock_are_refused() {
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
fn renewing_and_filling_in_need_a_node_that_votes() {
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
        assert_eq!(renew("me"), [0], "it makes nothing");
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
fn release_deletes_ours_and_says_which() {
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
fn a_node_started_again_waits_and_learns_before_it_votes() {
    for flavor in Flavor::all() {
        let mut server = testkit::Setup::default()
            .option("appendonly", "yes")
            .option("appendfsync", "always")
            .start(&flavor);
        let start = now(&server);
        assert_eq!(admit(&server, "0", start), [1, start]);
        assert_eq!(admit(&server, "60000", 0), [1, start], "it votes already");
        assert_eq!(vote(&server, "me", start + 1), [1, start + 1]);
        server.restart();
        assert_eq!(
            vote(&server, "you", start + 2),
            [3, 0],
            "also with its data"
        );
        let left = admit(&server, "60000", 0);
        assert!(left[0] == 0 && left[1] <= 60_000, "{left:?}");
        assert_eq!(admit(&server, "60000", start + 9)[0], 0, "too early");
        std::thread::sleep(std::time::Duration::from_millis(310));
        assert_eq!(admit(&server, "300", 0), [2, 0]);
        assert_eq!(admit(&server, "300", start + 9), [1, start + 9]);
        server.tell(&["DEL", "k"]);
        assert_eq!(vote(&server, "you", start + 9), [2, start + 9]);
    }
}

#[test]
fn arguments_out_of_range_change_nothing() {
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
