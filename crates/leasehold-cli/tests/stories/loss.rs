//! The lock is lost while the program runs.

use std::time::{Duration, Instant};

use testkit::Proxy;
use testkit::machine::ran_since;

use crate::stage::{Stage, eventually, lives, within};

/// A program that ignores TERM and has a child that does so too.
const STUBBORN: &str = "trap '' TERM; (trap '' TERM; echo $$ > parent; sh -c 'echo $$ > child; while :; do sleep 1; done') & \
                        while :; do sleep 1; done";

const LEASE: Duration = Duration::from_secs(8);

#[test]
fn the_server_dies_and_all_of_the_program_is_gone_before_the_lease_ends() {
    let mut stage = Stage::set();
    let words = "run --lease 8s --grace 4s job";
    let run = stage.leasehold(words).playing(STUBBORN).start();
    let child = stage.process("child");
    stage.server.kill();
    let died = Instant::now();
    let gone = within_lease(|| !lives(child));
    // It was renewed before the server died, never after.
    assert!(gone < LEASE, "gone {:?} after", died.elapsed());
    run.ends()
        .with_code(76)
        .saying("lost `job`")
        .saying("killing it");
}

fn within_lease(mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    within(
        LEASE + Duration::from_secs(2),
        "all are gone",
        &mut condition,
    );
    ran_since(start)
}

#[test]
fn one_who_is_cut_off_has_stopped_before_the_next_one_starts() {
    let stage = Stage::set();
    let network = Proxy::start(stage.server.port());
    let far = format!("redis://127.0.0.1:{}", network.port());
    let words = "run --lease 8s --grace 4s job";
    let cut_off = stage.leasehold_at(&far, words).playing(STUBBORN).start();
    let child = stage.process("child");
    let script =
        format!("if kill -0 {child} 2>/dev/null; then echo two > next; else echo alone > next; fi");
    let next = stage.leasehold(words).playing(&script).start();
    network.black_hole(true);
    next.ends().with_code(0);
    assert_eq!(stage.left("next"), "alone");
    cut_off.ends().with_code(76);
}

#[test]
fn a_program_that_ends_well_when_told_has_lost_the_lock_all_the_same() {
    let mut stage = Stage::set();
    let words = "run --lease 6s --grace 2s job";
    let script = "trap 'echo told > told; exit 0' TERM; echo up > up; while :; do sleep 0.1; done";
    let run = stage.leasehold(words).playing(script).start();
    stage.left("up");
    stage.server.kill();
    run.ends().with_code(76);
    assert!(stage.has("told"));
}

#[test]
fn a_lock_taken_away_stops_the_program_at_once() {
    let stage = Stage::set();
    let script = "trap 'echo told > told; exit 0' TERM; echo up > up; while :; do sleep 0.1; done";
    let run = stage.leasehold("run job").playing(script).start();
    stage.left("up");
    let taken = Instant::now();
    let forced = stage.leasehold("release --force job").play();
    forced.with_code(0).saying("took `job` away from process");
    run.ends()
        .with_code(76)
        .saying("the server no longer has it in our name");
    // Long before any renewal: those come after ten seconds.
    assert!(
        ran_since(taken) < Duration::from_secs(2),
        "{:?}",
        taken.elapsed()
    );
    assert!(stage.has("told"));
}

#[test]
fn whoever_wants_can_go_on_without_the_lock() {
    let stage = Stage::set();
    let words = "run --on-lost ignore job";
    let run = stage
        .leasehold(words)
        .playing("echo up > up; sleep 1; echo end > end")
        .start();
    stage.left("up");
    stage.leasehold("release --force job").play().with_code(0);
    run.ends().with_code(76).saying("the program goes on");
    assert!(stage.has("end"));
}

#[test]
fn another_signal_can_be_sent_in_place_of_term() {
    let stage = Stage::set();
    let script = "trap 'echo usr1 > told; exit 0' USR1; echo up > up; while :; do sleep 0.1; done";
    let run = stage
        .leasehold("run --on-lost USR1 job")
        .playing(script)
        .start();
    stage.left("up");
    stage.leasehold("release --force job").play().with_code(0);
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
    let mut stage = Stage::set();
    let words = "run --lease 6s --grace 1s job";
    let run = stage.leasehold(words).playing("sleep 8").start();
    stage.until_held("job");
    stage.server.pause();
    std::thread::sleep(Duration::from_secs(3));
    stage.server.resume();
    run.ends().with_code(0);
    eventually("it is given back", || stage.is_free("job"));
    stage.server.kill();
}
