//! The lock is lost while the program runs.

use std::time::{Duration, Instant};

use testkit::Proxy;

use crate::stage::{Stage, UNTIL_GO, eventually, lives};

/// A program that ignores TERM and has a child that does so too.
const STUBBORN: &str = "trap '' TERM; (trap '' TERM; echo $$ > parent; sh -c 'echo $$ > child; while :; do sleep 1; done') & \
                        while :; do sleep 1; done";

/// A program that says that it got TERM, and ends well.
const POLITE: &str =
    "trap 'echo told > told; exit 0' TERM; echo up > up; while :; do sleep 0.1; done";

#[test]
fn server_death_stops_all_of_the_program() {
    kill_the_server("run --lease 8s --grace 2s job");
}

#[test]
#[ignore = "deep: measures when the program is gone"]
fn the_server_dies_and_all_of_the_program_is_gone_before_the_lease_ends() {
    let gone = kill_the_server("run --lease 8s --grace 4s job");
    // It was renewed before the server died, never after.
    assert!(gone < Duration::from_secs(8), "gone {gone:?} after");
}

/// Kills the server under a command: how long its program runs from then on.
fn kill_the_server(words: &str) -> Duration {
    let mut stage = Stage::set();
    let run = stage.leasehold(words).playing(STUBBORN);
    let run = run.leave(&stage, "child");
    let child = stage.process("child");
    stage.server.kill();
    let died = Instant::now();
    eventually("all are gone", || !lives(child));
    let gone = died.elapsed();
    let said = run.ends().with_code(76).said;
    let at = |text| {
        said.find(text)
            .unwrap_or_else(|| panic!("no {text} in\n{said}"))
    };
    assert!(at("lost `job`") < at("killing it"), "{said}");
    gone
}

#[test]
fn cut_off_holder_is_stopped_and_next_runs() {
    cut_off_a_holder("run --lease 8s --grace 2s job");
}

#[test]
#[ignore = "deep: KILL and the end of the lease are a second apart"]
fn one_who_is_cut_off_has_stopped_before_the_next_one_starts() {
    let met = cut_off_a_holder("run --lease 8s --grace 4s job");
    assert_eq!(met, "alone");
}

/// Cuts a holder off while another command waits: whether that met the program of the holder.
fn cut_off_a_holder(words: &str) -> String {
    let stage = Stage::set();
    let network = Proxy::start(stage.server.port());
    let far = format!("redis://127.0.0.1:{}", network.port());
    let cut_off = stage.leasehold_at(&far, words).playing(STUBBORN);
    let cut_off = cut_off.leave(&stage, "child");
    let child = stage.process("child");
    let script =
        format!("if kill -0 {child} 2>/dev/null; then echo two > next; else echo alone > next; fi");
    let next = stage.leasehold("run job").playing(&script).start();
    network.black_hole(true);
    next.ends().with_code(0);
    cut_off.ends().with_code(76);
    assert!(!lives(child));
    stage.left("next")
}

#[test]
fn a_program_that_ends_well_when_told_has_lost_the_lock_all_the_same() {
    let mut stage = Stage::set();
    let words = "run --lease 12s --grace 5s job";
    let run = stage.leasehold(words).playing(POLITE);
    let run = run.leave(&stage, "up");
    stage.server.kill();
    run.ends().with_code(76);
    assert!(stage.has("told"));
}

#[test]
fn a_lock_taken_away_stops_the_program_at_once() {
    take_away();
}

#[test]
#[ignore = "deep: measures how soon the program is stopped"]
fn lock_taken_away_stops_program_before_renewal() {
    // Renewals come after ten seconds.
    let took = take_away();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// Takes the lock away from a program: how long it runs from then on.
fn take_away() -> Duration {
    let stage = Stage::set();
    let run = stage.leasehold("run job").playing(POLITE);
    let run = run.leave(&stage, "up");
    let taken = Instant::now();
    stage.revoke("job");
    run.ends()
        .with_code(76)
        .saying("this owner no longer holds the lock on the server");
    assert!(stage.has("told"));
    taken.elapsed()
}

#[test]
fn whoever_wants_can_go_on_without_the_lock() {
    let stage = Stage::set();
    let words = "run --on-lost ignore job";
    let script = format!("echo up > up; {UNTIL_GO}; echo end > end");
    let run = stage.leasehold(words).playing(&script);
    let run = run.leave(&stage, "up");
    stage.revoke("job");
    run.until_said("the program goes on");
    stage.go();
    run.ends().with_code(76);
    assert!(stage.has("end"));
}

#[test]
fn another_signal_can_be_sent_in_place_of_term() {
    let stage = Stage::set();
    let script = "trap 'echo usr1 > told; exit 0' USR1; echo up > up; while :; do sleep 0.1; done";
    let run = stage.leasehold("run --on-lost USR1 job").playing(script);
    let run = run.leave(&stage, "up");
    stage.revoke("job");
    run.ends().with_code(76);
    assert_eq!(stage.left("told"), "usr1");
    stage
        .leasehold("run --on-lost nonsense job")
        .playing("true")
        .play()
        .with_code(64);
}

#[test]
fn an_outage_shorter_than_the_lease_harms_nobody() {
    let stage = Stage::set();
    let network = Proxy::start(stage.server.port());
    let far = format!("redis://127.0.0.1:{}", network.port());
    let words = "run --lease 12s --grace 1s --request-timeout 1s job";
    let run = stage.leasehold_at(&far, words).hold(&stage);
    network.black_hole(true);
    // It is renewed after four seconds at the latest.
    eventually("a renewal is missed", || {
        stage.lease_remaining("job") < 7000
    });
    let left = stage.lease_remaining("job");
    network.black_hole(false);
    eventually("the lease is renewed", || {
        stage.lease_remaining("job") > left
    });
    stage.go();
    run.ends().with_code(0).releasing(&stage, "job");
}
