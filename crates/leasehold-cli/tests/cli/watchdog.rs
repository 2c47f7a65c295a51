//! `--watchdog`: a command that stops reporting progress loses its lock.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::{EVENT_TIMEOUT, Harness, Running, UNTIL_STOPPED, eventually, is_running};

/// Hangs, and records SIGTERM.
const HANGS: &str =
    "trap 'echo term > term; exit 0' TERM; echo up > up; while :; do sleep 0.1; done";

/// Stops [`HANGS`]. It has set its trap before, and can record the signal, also
/// if the machine stalls.
const STUCK: &str = "--lease 20s --grace 5s --watchdog 3s";

/// Writes the socket to a file, and runs until the test ends it.
fn with_socket(script: &str) -> String {
    format!("echo $NOTIFY_SOCKET > socket; {script}")
}

/// Sends a notification to a command's socket, as a daemon does.
fn notify(harness: &Harness, text: &str) {
    let socket = harness.wait_for_file("socket");
    let sender = UnixDatagram::unbound().unwrap();
    sender.send_to(text.as_bytes(), socket).unwrap();
}

#[test]
fn silent_command_is_stopped_as_stuck() {
    let harness = Harness::new();
    let args = format!("run {STUCK} job");
    let run = harness.leasehold(&args).script(HANGS).run();
    let run = run.expect_code(76).expect_stderr("stuck");
    assert!(harness.has_file("term"));
    run.expect_free(&harness, "job");
}

/// A lease that survives a stall of the machine, and a limit. Together they are
/// shorter than [`WHILE_REPORTING`].
const BRIEF: &str = "--lease 10s --grace 500ms --watchdog 3s";

/// A script that reports for 14 seconds or a little more.
const WHILE_REPORTING: &str =
    r#"for i in $(seq 140); do echo > "$LEASEHOLD_WATCHDOG"; sleep 0.1; done"#;

#[test]
fn script_that_reports_keeps_the_lock() {
    let harness = Harness::new();
    let args = format!("run {BRIEF} job");
    let run = harness.leasehold(&args).script(WHILE_REPORTING).run();
    run.expect_code(0).expect_no_stderr();
}

#[test]
fn daemon_that_reports_keeps_the_lock() {
    let harness = Harness::new();
    let mut run = harness
        .leasehold(&format!("run {BRIEF} job"))
        .script(&with_socket(UNTIL_STOPPED))
        .start();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(14) {
        assert!(!run.has_exited(), "it was stopped");
        notify(&harness, "STATUS=working\nWATCHDOG=1");
        std::thread::sleep(Duration::from_millis(100));
    }
    harness.stop_scripts();
    run.wait().expect_code(0);
}

#[test]
fn trigger_stops_the_command_at_once() {
    let harness = Harness::new();
    let script = with_socket(HANGS);
    let args = "run --lease 1h --watchdog 1h job";
    let run = harness.leasehold(args).script(&script);
    let run = run.start_until_file(&harness, "up");
    notify(&harness, "WATCHDOG=trigger");
    let run = run.wait().expect_code(76);
    let run = run.expect_stderr("WATCHDOG=trigger").expect_stderr("stuck");
    run.expect_free(&harness, "job");
}

#[test]
fn notifications_reach_the_outer_socket() {
    let harness = Harness::new();
    let outer = UnixDatagram::bind(harness.path("outer")).unwrap();
    outer.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
    let run = harness
        .leasehold("run --watchdog 1h job")
        .configure(|command| command.env("NOTIFY_SOCKET", harness.path("outer")))
        .script(&with_socket(UNTIL_STOPPED))
        .start();
    for sent in ["READY=1\nSTATUS=ready", "WATCHDOG=1"] {
        notify(&harness, sent);
        let mut text = [0; 100];
        let length = outer.recv(&mut text).unwrap();
        assert_eq!(&text[..length], sent.as_bytes());
    }
    harness.stop_scripts();
    run.wait().expect_code(0);
}

/// A service that reported through the pipe was killed by systemd.
#[test]
fn lines_on_the_pipe_reach_the_outer_socket() {
    let harness = Harness::new();
    let outer = UnixDatagram::bind(harness.path("outer")).unwrap();
    outer.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
    let run = harness
        .leasehold("run --watchdog 1h job")
        .configure(|command| command.env("NOTIFY_SOCKET", harness.path("outer")))
        .script(&format!("echo > $LEASEHOLD_WATCHDOG; {UNTIL_STOPPED}"))
        .start();
    let mut text = [0; 100];
    let length = outer.recv(&mut text).unwrap();
    assert_eq!(&text[..length], b"WATCHDOG=1");
    harness.stop_scripts();
    run.wait().expect_code(0);
}

/// The command had exited before the CLI read them.
#[test]
fn last_notifications_reach_the_outer_socket() {
    let harness = Harness::new();
    let outer = UnixDatagram::bind(harness.path("outer")).unwrap();
    let script = with_socket(&format!("echo $$ > pid; {UNTIL_STOPPED}"));
    let run = harness
        .leasehold("run --watchdog 1h job")
        .configure(|command| command.env("NOTIFY_SOCKET", harness.path("outer")))
        .script(&script)
        .start();
    let command = harness.wait_for_pid("pid");
    run.signal(Signal::SIGSTOP);
    let all = ["WATCHDOG=1", "STATUS=ended", "STOPPING=1"];
    for text in all {
        notify(&harness, text);
    }
    harness.stop_scripts();
    eventually("the command has exited", || !is_running(command));
    run.signal(Signal::SIGCONT);
    run.wait().expect_code(0);
    outer.set_nonblocking(true).unwrap();
    for sent in all {
        let mut text = [0; 100];
        let length = outer.recv(&mut text).expect(sent);
        assert_eq!(&text[..length], sent.as_bytes());
    }
}

#[test]
fn watchdog_sets_the_environment_of_the_command() {
    let harness = Harness::new();
    let script = r#"echo "$WATCHDOG_USEC ${WATCHDOG_PID-none} $NOTIFY_SOCKET $LEASEHOLD_WATCHDOG""#;
    let show = |args: &str| {
        let run = harness.leasehold(args).configure(|command| {
            let command = command.env("WATCHDOG_PID", "1").env("WATCHDOG_USEC", "2");
            command.env("NOTIFY_SOCKET", "/none")
        });
        run.script(script).run().expect_code(0).stdout
    };
    assert_eq!(show("run job").trim_end(), "2 1 /none");
    let shown = show("run --watchdog 1.5s job");
    let words: Vec<_> = shown.split_whitespace().collect();
    assert_eq!(words[..2], ["1500000", "none"]);
    let paths = [words[2], words[3]];
    for path in paths {
        assert!(!std::path::Path::new(path).exists(), "{path} is left");
    }
}

/// The messages reach systemd too late if they are sent for our limit only.
#[test]
fn shorter_limit_of_systemd_is_passed_on() {
    let harness = Harness::new();
    let shown = harness
        .leasehold("run --watchdog 1.5s job")
        .configure(|command| command.env_remove("WATCHDOG_PID").env("WATCHDOG_USEC", "7"))
        .script("echo $WATCHDOG_USEC")
        .run()
        .expect_code(0);
    assert_eq!(shown.stdout.trim_end(), "7");
}

/// The CLI waited for the lock first.
#[test]
fn socket_that_cannot_be_made_fails_before_the_wait() {
    let harness = Harness::new();
    let held = harness.leasehold("run job").script(UNTIL_STOPPED).start();
    let long = harness.path(&"x".repeat(200));
    std::fs::create_dir(&long).unwrap();
    let run = harness
        .leasehold("run --watchdog 1s job")
        .configure(|command| command.env("TMPDIR", &long))
        .script("true")
        .run();
    run.expect_code(126)
        .expect_stderr("the socket of --watchdog");
    harness.stop_scripts();
    held.wait().expect_code(0);
}

#[test]
fn interrupted_command_leaves_no_files() {
    let harness = Harness::new();
    std::fs::create_dir(harness.path("tmp")).unwrap();
    let run = harness
        .leasehold("run --watchdog 1h job")
        .configure(|command| command.env("TMPDIR", harness.path("tmp")))
        .script("trap 'exit 0' INT; echo up > up; while :; do sleep 0.1; done")
        .start_until_file(&harness, "up");
    let files = || std::fs::read_dir(harness.path("tmp")).unwrap().count();
    assert_eq!(files(), 1);
    run.signal(Signal::SIGINT);
    run.wait();
    assert_eq!(files(), 0);
}

#[test]
fn command_elsewhere_finds_the_pipe_of_a_relative_tmpdir() {
    let harness = Harness::new();
    std::fs::create_dir(harness.path("tmp")).unwrap();
    let run = harness
        .leasehold("run --watchdog 1h job")
        .configure(|command| command.env("TMPDIR", "tmp"))
        .script(r#"cd / && test -p "$LEASEHOLD_WATCHDOG" && test -S "$NOTIFY_SOCKET""#)
        .run();
    run.expect_code(0);
}

#[test]
fn stuck_leader_is_replaced() {
    let harness = Harness::new();
    let args = format!("lead {STUCK} job");
    let stuck = harness.leasehold(&args).script(HANGS);
    let stuck = stuck.start_until_file(&harness, "up");
    let next = format!("echo > next; {UNTIL_STOPPED}");
    let next = harness.leasehold("lead job").script(&next).start();
    eventually("the next leader runs", || harness.has_file("next"));
    assert!(harness.has_file("term"));
    stuck.wait_for_stderr("stuck");
    drop(stuck);
    harness.stop_scripts();
    next.wait().expect_code(0);
}

#[test]
fn silent_job_uses_up_its_period() {
    let harness = Harness::new();
    let job = format!("run --once-per 100d {STUCK} job");
    let run = harness.leasehold(&job).script(HANGS).run();
    let run = run.expect_code(76).expect_stderr("stuck");
    assert!(harness.has_file("term"));
    run.expect_free(&harness, "job");
    let next = harness.leasehold(&job).script("true").run();
    next.expect_code(75);
}

#[test]
fn job_that_reports_finishes_its_period() {
    let harness = Harness::new();
    let script = format!("{WHILE_REPORTING}; exit 3");
    let job = format!("run --once-per 100d {BRIEF} job");
    let run = harness.leasehold(&job).script(&script).run();
    run.expect_code(3).expect_no_stderr();
    let next = harness.leasehold(&job).script("true").run();
    next.expect_code(75).expect_stderr(": exit status 3");
}

/// Reports do not extend the time that a command may take.
#[test]
fn command_that_reports_is_stopped_at_most() {
    let harness = Harness::new();
    let script = r#"while :; do echo > "$LEASEHOLD_WATCHDOG"; sleep 0.1; done"#;
    let args = "run --watchdog 1h --at-most 1s job";
    let run = harness.leasehold(args).script(script).run();
    run.expect_code(124).expect_free(&harness, "job");
}

#[test]
fn silent_command_is_stopped_before_at_most() {
    let harness = Harness::new();
    let args = format!("run {STUCK} --at-most 1h job");
    let run = harness.leasehold(&args).script(HANGS).run();
    let run = run.expect_code(76).expect_stderr("stuck");
    assert!(harness.has_file("term"));
    run.expect_free(&harness, "job");
}

#[test]
fn zero_watchdog_is_refused() {
    let harness = Harness::new();
    let run = harness
        .leasehold("run --watchdog 0 job")
        .script("true")
        .run();
    run.expect_code(64);
}

/// systemd's own client of the protocol.
#[test]
#[ignore = "deep: needs systemd-notify"]
fn systemd_notify_reports_progress() {
    let harness = Harness::new();
    let args = "run --lease 3s --grace 500ms --watchdog 3s job";
    let script = "systemd-notify --ready; for i in $(seq 20); do systemd-notify WATCHDOG=1 || exit 9; sleep 0.4; done";
    let run = harness.leasehold(args).script(script).run();
    run.expect_code(0).expect_no_stderr();
    let script = format!("systemd-notify WATCHDOG=trigger; {HANGS}");
    let run = harness.leasehold(args).script(&script).run();
    run.expect_code(76).expect_stderr("WATCHDOG=trigger");
}

/// How many daemons run at once, and how often.
const DAEMONS: u64 = 10;
const ROUNDS: usize = 10;

#[test]
#[ignore = "deep: measures when stuck commands lose their locks"]
fn silent_daemons_lose_their_locks_in_time() {
    let bound = Duration::from_millis(1500);
    let mut kept = Vec::new();
    for _ in 0..ROUNDS {
        let harness = Harness::new();
        let report = r#"until [ -e stop ]; do echo > "$LEASEHOLD_WATCHDOG"; sleep 0.1; done"#;
        let mut reporting = start_brief(&harness, "reporting", report);
        kept.extend(std::thread::scope(|scope| {
            let harness = &harness;
            let daemons =
                (0..DAEMONS).map(|number| scope.spawn(move || fall_silent(harness, number)));
            let daemons: Vec<_> = daemons.collect();
            let kept = daemons.into_iter().map(|daemon| daemon.join().unwrap());
            kept.collect::<Vec<_>>()
        }));
        assert!(!reporting.has_exited(), "a daemon that reports was stopped");
        harness.stop_scripts();
        reporting.wait().expect_code(0);
    }
    kept.sort();
    let (first, last) = (kept[0], kept[kept.len() - 1]);
    println!(
        "daemons: {} locks free {first:?} to {last:?} after the last report",
        kept.len()
    );
    assert!(last <= bound, "{last:?}");
    assert!(first >= Duration::from_millis(500), "{first:?}");
}

fn start_brief(harness: &Harness, lock: &str, script: &str) -> Running {
    let args = format!("run --lease 1s --grace 200ms --watchdog 500ms {lock}");
    harness.leasehold(&args).script(script).start()
}

/// Reports for a while, and returns how long after that the lock is free.
fn fall_silent(harness: &Harness, number: u64) -> Duration {
    let (lock, socket) = (format!("job{number}"), format!("socket{number}"));
    let script = format!("echo $NOTIFY_SOCKET > {socket}; {UNTIL_STOPPED}");
    let run = start_brief(harness, &lock, &script);
    let sender = UnixDatagram::unbound().unwrap();
    sender.connect(harness.wait_for_file(&socket)).unwrap();
    let begin = Instant::now();
    let mut reported = begin;
    while begin.elapsed() < Duration::from_millis(2000 + 100 * number) {
        reported = Instant::now();
        sender.send(b"WATCHDOG=1").unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!harness.is_free(&lock), "it was lost early");
    eventually("the lock is free", || harness.is_free(&lock));
    let kept = reported.elapsed();
    run.wait().expect_code(76).expect_stderr("stuck");
    kept
}
