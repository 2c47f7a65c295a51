//! Commands with exit codes, output, background processes and daemons.

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, killpg};

use crate::harness::{Harness, LEASEHOLD, UNTIL_STOPPED, eventually, is_running};

#[test]
fn exit_code_of_the_command_is_passed_on() {
    let harness = Harness::new();
    for code in [0, 1, 75, 76, 200, 255] {
        let run = harness
            .leasehold("run job")
            .script(&format!("exit {code}"))
            .run();
        run.expect_code(code).expect_no_stderr();
    }
    let missing = harness.leasehold("run job -- no-such-program").run();
    missing
        .expect_code(127)
        .expect_stderr("leasehold: cannot run no-such-program");
    std::fs::write(harness.path("data"), "not executable").unwrap();
    harness
        .leasehold("run job -- ./data")
        .run()
        .expect_code(126);
    let args = "run job -- echo -n --help -- --url x -w";
    let last = harness.leasehold(args).run().expect_code(0);
    assert_eq!(last.stdout, "--help -- --url x -w");
    last.expect_free(&harness, "job");
}

#[test]
fn environment_describes_the_lock() {
    let harness = Harness::new();
    let script = "echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN $LEASEHOLD_OWNER $LEASEHOLD_DEADLINE \
                  $LEASEHOLD_KEY";
    let now = || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap().as_millis()
    };
    let before = now();
    let first = harness
        .leasehold("run job")
        .script(script)
        .run()
        .expect_code(0)
        .stdout;
    let after = now();
    let second = harness
        .leasehold("run job")
        .script(script)
        .run()
        .expect_code(0)
        .stdout;
    let fields = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (first, second) = (fields(&first), fields(&second));
    assert_eq!((first.len(), &*first[0]), (5, "job"));
    assert_eq!(first[4], "lock:job");
    let token = |fields: &[String]| fields[1].parse::<u64>().unwrap();
    assert!(token(&second) > token(&first));
    assert!(first[2].contains(':'));
    // A lease of 30 s was granted between `before` and `after`.
    let deadline = first[3].parse::<u128>().unwrap();
    let possible = before + 20_000..after + 31_000;
    assert!(possible.contains(&deadline), "{deadline} in {possible:?}");
    for (options, mode) in [("", "exclusive"), ("-x", "exclusive"), ("-s", "shared")] {
        let command = format!("run {options} {mode}{options}");
        let run = harness.leasehold(&command).script("echo $LEASEHOLD_MODE");
        assert_eq!(run.run().expect_code(0).stdout.trim(), mode, "{options}");
    }
}

#[test]
fn command_ignoring_term_is_killed_at_limit() {
    // Long enough for the script to set its trap.
    run_into_limit(Duration::from_secs(3));
    let harness = Harness::new();
    let polite = harness
        .leasehold("run --at-most 300ms job")
        .script("sleep 100")
        .run();
    polite
        .expect_code(124)
        .expect_stderr("reached --at-most")
        .expect_free(&harness, "job");
}

#[test]
#[ignore = "deep: measures the exit of the command"]
fn command_ignoring_term_is_killed_in_time() {
    let took = run_into_limit(Duration::from_millis(500));
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// Runs a command that ignores SIGTERM, and returns how long it ran.
fn run_into_limit(at_most: Duration) -> Duration {
    let harness = Harness::new();
    let args = format!("run --at-most {}ms --grace 500ms job", at_most.as_millis());
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    let start = Instant::now();
    let run = harness.leasehold(&args).script(script).run();
    let took = start.elapsed();
    run.expect_code(124)
        .expect_stderr("killing it")
        .expect_free(&harness, "job");
    assert!(took >= at_most + Duration::from_millis(500), "{took:?}");
    took
}

#[test]
fn command_reads_or_closes_stdin() {
    let harness = Harness::new();
    let run = harness
        .leasehold("run job")
        .script("exec <&-; echo fine")
        .run();
    assert_eq!(run.expect_code(0).stdout, "fine\n");
    std::fs::write(harness.path("input"), "from the pipe\n").unwrap();
    let input = std::fs::File::open(harness.path("input")).unwrap();
    let reading = harness.leasehold("run job").script("cat");
    let reading = reading.configure(|command| command.stdin(Stdio::from(input)));
    assert_eq!(reading.run().expect_code(0).stdout, "from the pipe\n");
}

#[test]
fn command_prints_a_hundred_megabytes() {
    let harness = Harness::new();
    let run = harness
        .leasehold("run job")
        .script("head -c 100000000 /dev/zero")
        .run();
    assert_eq!(run.expect_code(0).stdout.len(), 100_000_000);
}

#[test]
fn background_process_keeps_the_lock_held() {
    let harness = Harness::new();
    // A daemon: it has its own session and no open files of its parent.
    let script = format!(
        "setsid sh -c 'echo $$ > daemon; {UNTIL_STOPPED}' >/dev/null 2>&1 </dev/null & exit 0"
    );
    let run = harness.leasehold("run job").script(&script);
    let run = run.start_until_file(&harness, "daemon");
    let daemon = harness.wait_for_pid("daemon");
    run.wait_for_stderr("processes that it started have not");
    assert!(!harness.is_free("job"), "released while {daemon} runs");
    harness.stop_scripts();
    let finished = run.wait().expect_code(0).expect_stderr(&daemon.to_string());
    assert!(!is_running(daemon));
    finished.expect_free(&harness, "job");
}

#[test]
fn daemon_is_stopped_when_the_lock_is_lost() {
    let harness = Harness::new();
    let script = "setsid sh -c 'trap \"\" TERM; echo $$ > daemon; sleep 100' >/dev/null 2>&1 </dev/null & exit 0";
    let run = harness.leasehold("run --grace 300ms job").script(script);
    let run = run.start_until_file(&harness, "daemon");
    let daemon = harness.wait_for_pid("daemon");
    harness.revoke("job");
    run.wait().expect_code(76);
    assert!(!is_running(daemon));
}

#[test]
fn children_from_before_run_are_left_alone() {
    let harness = Harness::new();
    for (options, command, code) in [
        ("", "true", 0),
        ("--at-most 300ms", "sleep 1000", 124),
        // A process of the command outlives it.
        ("", "sh -c '(sleep 0.3; echo late > late) &'", 0),
    ] {
        let script = format!(
            "setsid sh -c 'sleep 1000 & wait' >/dev/null 2>&1 & echo $! > child; \
             exec {LEASEHOLD} run {options} job -- {command}"
        );
        let run = harness.shell(&script).run();
        run.expect_code(code).expect_free(&harness, "job");
        let child = harness.wait_for_pid("child");
        assert!(is_running(child), "{options} {command}");
        killpg(child, Signal::SIGKILL).unwrap();
    }
    assert_eq!(harness.wait_for_file("late"), "late");
}

#[test]
fn waiter_runs_after_its_executable_is_replaced() {
    let harness = Harness::new();
    let copy = harness.path("copy");
    std::fs::copy(LEASEHOLD, &copy).unwrap();
    let holder = harness.leasehold("run job").start_holding(&harness);
    let before = harness.waiter_count("job");
    let waiter = harness.program(&copy, "run job").script("echo ran");
    let waiter = waiter.start_until("it is queued", || harness.waiter_count("job") > before);
    std::fs::remove_file(&copy).unwrap();
    harness.stop_scripts();
    holder.wait().expect_code(0);
    assert_eq!(waiter.wait().expect_code(0).stdout, "ran\n");
}

/// SIGRTMIN as a number, because shells have different names for it.
const REAL_TIME_SIGNAL: i32 = 34;

#[test]
fn real_time_signal_of_command_sets_exit_code() {
    let harness = Harness::new();
    let script = format!("echo $$ > pid; kill -{REAL_TIME_SIGNAL} $$; sleep 1000");
    let run = harness.leasehold("run job").script(&script).run();
    run.expect_code(128 + REAL_TIME_SIGNAL)
        .expect_free(&harness, "job");
}

#[test]
fn real_time_signal_of_one_process_keeps_lock() {
    let harness = Harness::new();
    // The leader and an orphan die of the signal, a daemon continues.
    let script = format!(
        "setsid sh -c 'echo $$ > daemon; {UNTIL_STOPPED}' >/dev/null 2>&1 </dev/null & \
         (sh -c 'echo $$ > orphan; kill -{REAL_TIME_SIGNAL} $$; sleep 1000' &); \
         until [ -e daemon ] && [ -e orphan ]; do sleep 0.05; done; kill -{REAL_TIME_SIGNAL} $$"
    );
    let run = harness.leasehold("run job").script(&script);
    let run = run.start_until_file(&harness, "daemon");
    let daemon = harness.wait_for_pid("daemon");
    let orphan = harness.wait_for_pid("orphan");
    eventually("the orphan has died", || !is_running(orphan));
    run.wait_for_stderr("processes that it started have not");
    assert!(!harness.is_free("job"), "released while {daemon} runs");
    let second = harness.leasehold("run -n job").script("true").run();
    second.expect_code(75);
    harness.stop_scripts();
    let finished = run.wait().expect_code(128 + REAL_TIME_SIGNAL);
    assert!(!is_running(daemon));
    finished.expect_free(&harness, "job");
}
