//! Somebody presses Ctrl-C, or sends a signal.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::stage::{LEASEHOLD, Stage, eventually};

#[test]
fn ctrl_c_while_waiting_leaves_the_line_and_ends_at_once() {
    for kind in ["", "--fair"] {
        let stage = Stage::set();
        let words = format!("run {kind} job");
        let holder = stage.leasehold(&words).playing("sleep 2").start();
        stage.until_held("job");
        let waiter = stage.leasehold(&words).playing("echo ran > ran").start();
        let waiting = || {
            let seen = stage.leasehold("show --json job").play().with_code(0).out;
            seen.contains(r#""waiting":1"#)
        };
        eventually("it waits", waiting);
        let start = Instant::now();
        waiter.gets(Signal::SIGINT);
        waiter.ends().with_code(130);
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
        let seen = stage.leasehold("show --json job").play().with_code(0).out;
        assert!(seen.contains(r#""waiting":0"#), "{seen}");
        holder.ends().with_code(0);
        assert!(stage.is_free("job") && !stage.has("ran"));
    }
}

#[test]
fn ctrl_c_while_running_reaches_the_program_and_the_lock_is_free_after_it() {
    let stage = Stage::set();
    let script =
        "trap 'sleep 0.5; echo end > end; exit 3' INT; echo up > up; while :; do sleep 0.1; done";
    let run = stage.leasehold("run job").playing(script).start();
    stage.left("up");
    run.gets(Signal::SIGINT);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!stage.is_free("job"), "given back while the program runs");
    run.ends().with_code(3);
    assert!(stage.has("end") && stage.is_free("job"));
}

#[test]
fn a_program_that_a_signal_ends_is_told_from_one_that_fails() {
    let stage = Stage::set();
    let run = stage.leasehold("run job").playing("kill -KILL $$").play();
    run.with_code(137);
    let run = stage
        .leasehold("run job")
        .playing("echo up > up; exec sleep 10")
        .start();
    stage.left("up");
    run.gets(Signal::SIGTERM);
    run.ends().with_code(143);
    assert!(stage.is_free("job"));
}

#[test]
fn one_who_presses_ctrl_c_again_and_again_is_heard() {
    let stage = Stage::set();
    let script = "trap '' INT TERM; echo up > up; while :; do sleep 0.1; done";
    let run = stage.leasehold("run job").playing(script).start();
    stage.left("up");
    for _ in 0..3 {
        run.gets(Signal::SIGINT);
        std::thread::sleep(Duration::from_millis(100));
    }
    run.ends().with_code(137);
    assert!(stage.is_free("job"));
}

#[test]
fn on_a_terminal_ctrl_c_goes_to_the_program_and_what_is_typed_is_read_by_it() {
    let stage = Stage::set();
    let program = "trap 'echo interrupted > end; exit 5' INT; read line; echo \"$line\" > typed; while :; do sleep 0.1; done";
    std::fs::write(stage.path("program.sh"), program).unwrap();
    let words = format!("{LEASEHOLD} run job -- sh program.sh");
    // `script` gives it a terminal of its own.
    let mut typist = Command::new("script")
        .args(["-qefc", &words, "/dev/null"])
        .current_dir(stage.path(""))
        .env("LEASEHOLD_URL", stage.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    stage.until_held("job");
    let mut keys = typist.stdin.take().unwrap();
    keys.write_all(b"hello\n").unwrap();
    assert_eq!(stage.left("typed"), "hello");
    keys.write_all(b"\x03").unwrap();
    assert_eq!(stage.left("end"), "interrupted");
    assert_eq!(typist.wait().unwrap().code(), Some(5));
    assert!(stage.is_free("job"));
}

#[test]
fn a_program_that_is_suspended_with_the_lock_is_made_to_go_on() {
    let stage = Stage::set();
    let script = "echo up > up; kill -TSTP $$; echo on > on";
    let run = stage.leasehold("run job").playing(script).start();
    stage.left("on");
    run.ends().with_code(0);
}
