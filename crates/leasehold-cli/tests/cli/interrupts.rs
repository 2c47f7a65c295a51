//! Ctrl-C and other signals.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::harness::{Harness, LEASEHOLD, UNTIL_STOPPED, eventually, is_running};

const KINDS: [&str; 2] = ["", "--fair"];

#[test]
fn interrupted_waiter_leaves_the_queue() {
    for kind in KINDS {
        interrupt_waiter(kind);
    }
}

#[test]
#[ignore = "deep: measures the exit of a waiter"]
fn interrupted_waiter_exits_within_a_second() {
    for kind in KINDS {
        let (took, left_at_once) = interrupt_waiter(kind);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(left_at_once);
    }
}

/// Interrupts a waiter. Returns how long it takes to exit, and whether it has
/// left the queue by then.
fn interrupt_waiter(kind: &str) -> (Duration, bool) {
    let harness = Harness::new();
    let args = format!("run {kind} job");
    let holder = harness.leasehold(&args).start_holding(&harness);
    let waiting = || harness.waiter_count("job");
    let before = waiting();
    let waiter = harness.leasehold(&args).script("echo ran > ran");
    let waiter = waiter.start_until("it is queued", || waiting() == before + 1);
    let start = Instant::now();
    waiter.signal(Signal::SIGINT);
    waiter.wait().expect_interrupted();
    let took = start.elapsed();
    let left_at_once = waiting() == before;
    eventually("it has left the queue", || waiting() == before);
    harness.stop_scripts();
    holder.wait().expect_code(0).expect_free(&harness, "job");
    assert!(!harness.has_file("ran"));
    (took, left_at_once)
}

#[test]
fn signal_reaches_group_after_leader_exited() {
    let harness = Harness::new();
    let script = "sleep 1000 & echo $! > child";
    let run = harness.leasehold("run job").script(script);
    let run = run.start_until_file(&harness, "child");
    let child = harness.wait_for_pid("child");
    run.wait_for_stderr("the command has exited");
    assert!(is_running(child) && !harness.is_free("job"));
    run.signal(Signal::SIGUSR1);
    run.wait().expect_code(0).expect_free(&harness, "job");
}

#[test]
fn refused_signal_is_reported() {
    let user = std::fs::metadata("/proc/self").unwrap().uid();
    if user != 0 {
        // Only root can create a setuid program.
        return;
    }
    let harness = Harness::new();
    let sudo = harness.path("sudo");
    std::fs::copy("/usr/bin/setpriv", &sudo).unwrap();
    let mode = Permissions::from_mode(0o4755);
    std::fs::set_permissions(&sudo, mode).unwrap();
    let script = "echo $$ > pid; exec sleep 1000";
    std::fs::write(harness.path("script"), script).unwrap();
    let args = "run job -- ./sudo --reuid 0 sh script";
    let run = harness
        .leasehold(args)
        .configure(|command| command.uid(65_534));
    let run = run.start_until_file(&harness, "pid");
    run.signal(Signal::SIGTERM);
    run.wait_for_stderr("cannot send SIGTERM");
    run.wait_for_stderr("the lock stays held");
    assert!(!harness.is_free("job"), "released while the command runs");
    harness.revoke("job");
    run.wait_for_stderr("continues without the lock");
    kill(harness.wait_for_pid("pid"), Signal::SIGKILL).unwrap();
    run.wait().expect_code(76).expect_stderr("another user");
}

#[test]
fn ctrl_c_reaches_the_command_before_the_release() {
    let harness = Harness::new();
    let script = format!(
        "trap 'echo int > int; {UNTIL_STOPPED}; echo end > end; exit 3' INT; echo up > up; while :; do sleep 0.1; done"
    );
    let run = harness.leasehold("run job").script(&script);
    let run = run.start_until_file(&harness, "up");
    run.signal(Signal::SIGINT);
    harness.wait_for_file("int");
    assert!(!harness.is_free("job"), "released while the command runs");
    harness.stop_scripts();
    let finished = run.wait().expect_code(3);
    assert!(harness.has_file("end"));
    finished.expect_free(&harness, "job");
}

#[test]
fn exit_code_reports_the_terminating_signal() {
    let harness = Harness::new();
    let run = harness.leasehold("run job").script("kill -KILL $$").run();
    run.expect_code(137);
    let run = harness
        .leasehold("run job")
        .script("echo up > up; exec sleep 100")
        .start_until_file(&harness, "up");
    run.signal(Signal::SIGTERM);
    run.wait().expect_code(143).expect_free(&harness, "job");
}

#[test]
fn repeated_ctrl_c_escalates_to_kill() {
    let harness = Harness::new();
    let script = "trap 'echo int > int' INT; trap 'echo term > term' TERM; echo up > up; while :; do sleep 0.1; done";
    let run = harness.leasehold("run job").script(script);
    let run = run.start_until_file(&harness, "up");
    for file in ["int", "term"] {
        run.signal(Signal::SIGINT);
        harness.wait_for_file(file);
    }
    run.signal(Signal::SIGINT);
    run.wait().expect_code(137).expect_free(&harness, "job");
}

/// Only a TERM that was sent to the CLI started the grace.
#[test]
fn grace_counts_from_the_term_of_a_second_ctrl_c() {
    let harness = Harness::new();
    let script =
        "trap 'echo int > int' INT; trap '' TERM; echo up > up; while :; do sleep 0.1; done";
    let run = harness.leasehold("run --grace 300ms job").script(script);
    let run = run.start_until_file(&harness, "up");
    run.signal(Signal::SIGINT);
    harness.wait_for_file("int");
    run.signal(Signal::SIGINT);
    run.wait().expect_code(137).expect_free(&harness, "job");
}

#[test]
fn repeated_hup_reloads_without_escalation() {
    let harness = Harness::new();
    let script = "trap 'echo hup >> hups' HUP; echo up > up; while :; do sleep 0.1; done";
    let run = harness.leasehold("run job").script(script);
    let run = run.start_until_file(&harness, "up");
    for count in 1..=4 {
        run.signal(Signal::SIGHUP);
        harness.wait_for_lines("hups", count);
    }
    run.signal(Signal::SIGTERM);
    run.wait().expect_code(143).expect_free(&harness, "job");
}

#[test]
fn stopped_command_receives_one_sigterm() {
    let harness = Harness::new();
    // `wait` returns when a signal arrives, and the trap runs at once.
    let script = "trap 'echo term >> terms' TERM; sleep 1000 & echo $! > sleeper; echo up > up; \
                  until [ -e stop ]; do wait; done; kill -KILL $(cat sleeper)";
    let run = harness.leasehold("run job").script(script);
    let run = run.start_until_file(&harness, "up");
    harness.revoke("job");
    harness.wait_for_file("terms");
    run.wait_for_stderr("stopping the command");
    // Its second SIGTERM would be here before this second process has run.
    harness
        .leasehold("run job")
        .script("true")
        .run()
        .expect_code(0);
    harness.stop_scripts();
    let sleeper = harness.wait_for_pid("sleeper");
    eventually("the sleeper received the signal", || !is_running(sleeper));
    run.wait().expect_code(76);
    assert_eq!(harness.wait_for_file("terms"), "term");
}

#[test]
fn forwarded_sigterm_is_followed_by_sigkill() {
    let harness = Harness::new();
    let script = "trap '' TERM; echo up > up; while :; do sleep 0.1; done";
    let run = harness.leasehold("run --grace 300ms job").script(script);
    let mut run = run.start_until_file(&harness, "up");
    run.signal(Signal::SIGTERM);
    eventually("the command is killed", || run.has_exited());
    run.wait()
        .expect_code(137)
        .expect_stderr("killing it")
        .expect_free(&harness, "job");
}

#[test]
fn ctrl_c_ends_the_script_that_calls_run() {
    for shell in ["bash", "sh"] {
        let harness = Harness::new();
        let script = format!(
            "for i in 1 2 3; do {LEASEHOLD} run job -- sh -c 'echo up > up; exec sleep 1000'; \
             echo after >> after; done; echo end >> after"
        );
        std::fs::write(harness.path("loop.sh"), script).unwrap();
        let terminal = harness.on_terminal(&format!("{shell} loop.sh"));
        let mut terminal = terminal.start_until_file(&harness, "up");
        let mut keys = terminal.take_stdin();
        keys.write_all(b"\x03").unwrap();
        eventually("the script ends", || terminal.has_exited());
        assert!(!harness.has_file("after"), "{shell} goes on");
        eventually("the lock is free", || harness.is_free("job"));
    }
}

#[test]
fn command_on_terminal_gets_input_and_ctrl_c() {
    let harness = Harness::new();
    let script = "trap 'echo interrupted > end; exit 5' INT; echo up > up; read line; echo \"$line\" > typed; while :; do sleep 0.1; done";
    std::fs::write(harness.path("script.sh"), script).unwrap();
    let args = format!("{LEASEHOLD} run job -- sh script.sh");
    let mut terminal = harness.on_terminal(&args).start_until_file(&harness, "up");
    let mut keys = terminal.take_stdin();
    keys.write_all(b"hello\n").unwrap();
    assert_eq!(harness.wait_for_file("typed"), "hello");
    keys.write_all(b"\x03").unwrap();
    assert_eq!(harness.wait_for_file("end"), "interrupted");
    terminal.wait().expect_code(5);
    eventually("the lock is free", || harness.is_free("job"));
}

#[test]
fn suspended_command_is_continued() {
    let harness = Harness::new();
    let script = "echo up > up; kill -TSTP $$; echo on > on";
    let run = harness.leasehold("run job").script(script).start();
    run.wait().expect_code(0);
    assert_eq!(harness.wait_for_file("on"), "on");
}

#[test]
fn ignored_signals_stay_ignored() {
    let harness = Harness::new();
    let script = format!(
        "trap 'echo usr1 > usr1' USR1; echo up > up; {UNTIL_STOPPED}; kill -HUP $$; kill -INT $$; exit 7"
    );
    let run = harness.leasehold_ignoring("HUP INT", "run job");
    let run = run.script(&script).start_until_file(&harness, "up");
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGUSR1] {
        run.signal(signal);
    }
    harness.wait_for_file("usr1");
    harness.stop_scripts();
    run.wait().expect_code(7).expect_free(&harness, "job");
}

#[test]
fn ignored_signals_do_not_end_a_wait() {
    let harness = Harness::new();
    let holder = harness.leasehold("run job").start_holding(&harness);
    let before = harness.waiter_count("job");
    let waiter = harness.leasehold_ignoring("HUP INT", "run job");
    let waiter = waiter.script("echo ran");
    let waiter = waiter.start_until("it is queued", || harness.waiter_count("job") == before + 1);
    waiter.signal(Signal::SIGHUP);
    waiter.signal(Signal::SIGINT);
    harness.stop_scripts();
    holder.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(0).stdout, "ran\n");
}
