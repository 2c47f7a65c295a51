//! Somebody presses Ctrl-C, or sends a signal.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::harness::{LEASEHOLD, Stage, UNTIL_GO, eventually, lives};

const KINDS: [&str; 2] = ["", "--fair"];

#[test]
fn ctrl_c_while_waiting_leaves_the_line_and_ends_at_once() {
    for kind in KINDS {
        interrupt_a_waiter(kind);
    }
}

#[test]
#[ignore = "deep: measures how long a waiter takes to end"]
fn interrupted_waiter_ends_within_a_second() {
    for kind in KINDS {
        let (took, left_at_once) = interrupt_a_waiter(kind);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(left_at_once);
    }
}

/// Interrupts a command that waits: how long it takes to end, and whether it has left the queue by then.
fn interrupt_a_waiter(kind: &str) -> (Duration, bool) {
    let stage = Stage::set();
    let words = format!("run {kind} job");
    let holder = stage.leasehold(&words).hold(&stage);
    let waiting = || stage.waiting("job");
    let before = waiting();
    let waiter = stage.leasehold(&words).playing("echo ran > ran");
    let waiter = waiter.start_until("it waits", || waiting() == before + 1);
    let start = Instant::now();
    waiter.gets(Signal::SIGINT);
    waiter.ends().with_code(130);
    let took = start.elapsed();
    let left_at_once = waiting() == before;
    eventually("it has left the queue", || waiting() == before);
    stage.go();
    holder.ends().with_code(0).releasing(&stage, "job");
    assert!(!stage.has("ran"));
    (took, left_at_once)
}

#[test]
fn signal_reaches_the_group_after_its_leader_ended() {
    let stage = Stage::set();
    let script = "sleep 1000 & echo $! > child";
    let run = stage.leasehold("run job").playing(script);
    let run = run.leave(&stage, "child");
    let child = stage.process("child");
    run.until_said("the program has ended");
    assert!(lives(child) && !stage.is_free("job"));
    run.gets(Signal::SIGUSR1);
    run.ends().with_code(0).releasing(&stage, "job");
}

/// A program that has become another user cannot be signalled. It was not said.
#[test]
fn refused_signal_is_reported() {
    let user = std::fs::metadata("/proc/self").unwrap().uid();
    if user != 0 {
        // Only root can make a program that becomes root.
        return;
    }
    let stage = Stage::set();
    let sudo = stage.path("sudo");
    std::fs::copy("/usr/bin/setpriv", &sudo).unwrap();
    let mode = Permissions::from_mode(0o4755);
    std::fs::set_permissions(&sudo, mode).unwrap();
    let script = "echo $$ > program; exec sleep 1000";
    std::fs::write(stage.path("script"), script).unwrap();
    let words = "run job -- ./sudo --reuid 0 sh script";
    let run = stage.leasehold(words).with(|command| command.uid(65_534));
    let run = run.leave(&stage, "program");
    run.gets(Signal::SIGTERM);
    run.until_said("cannot send SIGTERM");
    assert!(!stage.is_free("job"), "released while the program runs");
    kill(stage.process("program"), Signal::SIGKILL).unwrap();
    run.ends().with_code(137).saying("another user");
}

#[test]
fn ctrl_c_while_running_reaches_the_program_and_the_lock_is_free_after_it() {
    let stage = Stage::set();
    let script = format!(
        "trap 'echo int > int; {UNTIL_GO}; echo end > end; exit 3' INT; echo up > up; while :; do sleep 0.1; done"
    );
    let run = stage.leasehold("run job").playing(&script);
    let run = run.leave(&stage, "up");
    run.gets(Signal::SIGINT);
    stage.left("int");
    assert!(!stage.is_free("job"), "released while the program runs");
    stage.go();
    let scene = run.ends().with_code(3);
    assert!(stage.has("end"));
    scene.releasing(&stage, "job");
}

#[test]
fn a_program_that_a_signal_ends_is_told_from_one_that_fails() {
    let stage = Stage::set();
    let run = stage.leasehold("run job").playing("kill -KILL $$").play();
    run.with_code(137);
    let run = stage
        .leasehold("run job")
        .playing("echo up > up; exec sleep 100")
        .leave(&stage, "up");
    run.gets(Signal::SIGTERM);
    run.ends().with_code(143).releasing(&stage, "job");
}

#[test]
fn one_who_presses_ctrl_c_again_and_again_is_heard() {
    let stage = Stage::set();
    let script = "trap 'echo int > int' INT; trap 'echo term > term' TERM; echo up > up; while :; do sleep 0.1; done";
    let run = stage.leasehold("run job").playing(script);
    let run = run.leave(&stage, "up");
    for heard in ["int", "term"] {
        run.gets(Signal::SIGINT);
        stage.left(heard);
    }
    run.gets(Signal::SIGINT);
    run.ends().with_code(137).releasing(&stage, "job");
}

#[test]
fn on_a_terminal_ctrl_c_goes_to_the_program_and_what_is_typed_is_read_by_it() {
    let stage = Stage::set();
    let program = "trap 'echo interrupted > end; exit 5' INT; echo up > up; read line; echo \"$line\" > typed; while :; do sleep 0.1; done";
    std::fs::write(stage.path("program.sh"), program).unwrap();
    let words = format!("{LEASEHOLD} run job -- sh program.sh");
    let mut typist = stage.on_a_terminal(&words).leave(&stage, "up");
    let mut keys = typist.take_keys();
    keys.write_all(b"hello\n").unwrap();
    assert_eq!(stage.left("typed"), "hello");
    keys.write_all(b"\x03").unwrap();
    assert_eq!(stage.left("end"), "interrupted");
    typist.ends().with_code(5);
    eventually("it is free", || stage.is_free("job"));
}

#[test]
fn a_program_that_is_suspended_with_the_lock_is_made_to_go_on() {
    let stage = Stage::set();
    let script = "echo up > up; kill -TSTP $$; echo on > on";
    let run = stage.leasehold("run job").playing(script).start();
    run.ends().with_code(0);
    assert_eq!(stage.left("on"), "on");
}

#[test]
fn ignored_signals_stay_ignored() {
    let stage = Stage::set();
    let script = format!(
        "trap 'echo usr1 > usr1' USR1; echo up > up; {UNTIL_GO}; kill -HUP $$; kill -INT $$; exit 7"
    );
    let run = stage.leasehold_ignoring("HUP INT", "run job");
    let run = run.playing(&script).leave(&stage, "up");
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGUSR1] {
        run.gets(signal);
    }
    stage.left("usr1");
    stage.go();
    run.ends().with_code(7).releasing(&stage, "job");
}

#[test]
fn ignored_signals_do_not_end_a_wait() {
    let stage = Stage::set();
    let holder = stage.leasehold("run job").hold(&stage);
    let before = stage.waiting("job");
    let waiter = stage.leasehold_ignoring("HUP INT", "run job");
    let waiter = waiter.playing("echo ran");
    let waiter = waiter.start_until("it waits", || stage.waiting("job") == before + 1);
    waiter.gets(Signal::SIGHUP);
    waiter.gets(Signal::SIGINT);
    stage.go();
    holder.ends().with_code(0);
    assert_eq!(waiter.ends().with_code(0).out, "ran\n");
}
