//! `run --once-per`: a command that runs once per period on one of many hosts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::Signal;
use testkit::{Fault, Proxy};

use crate::harness::{Harness, Running, eventually};

/// The longest period: no test runs at its end.
const JOB: &str = "run --once-per 100d noon";

fn count_runs(harness: &Harness) -> usize {
    let runs = std::fs::read_to_string(harness.path("runs"));
    runs.unwrap_or_default().lines().count()
}

#[test]
fn one_of_many_processes_runs_a_period() {
    let harness = Harness::new();
    let started: Vec<_> = (0..8)
        .map(|_| harness.leasehold(JOB).script("echo $$ >> runs").start())
        .collect();
    let finished: Vec<_> = started.into_iter().map(Running::wait).collect();
    let codes = |wanted| {
        let codes = finished.iter().map(|one| one.status.code());
        codes.filter(|code| *code == Some(wanted)).count()
    };
    assert_eq!((codes(0), codes(75)), (1, 7), "{finished:?}");
    assert_eq!(count_runs(&harness), 1);
    assert!(harness.is_free("noon"));
}

#[test]
fn skipped_period_names_the_runner_and_its_report() {
    let harness = Harness::new();
    let job = |options: &str| harness.leasehold(&format!("run --once-per 100d {options} noon"));
    job("").script("exit 3").run().expect_code(3);
    let skipped = job("").script("echo ran >> runs").run().expect_code(75);
    skipped
        .expect_stderr("this period of `noon` was run by process ")
        .expect_stderr(": exit status 3");
    job("-E 9").script("true").run().expect_code(9);
    let silent = job("--skip-ok").script("true").run().expect_code(0);
    silent.expect_no_stderr();
    let verbose = job("--skip-ok -v").script("true").run().expect_code(0);
    verbose.expect_stderr("exit status 3");
    assert_eq!(count_runs(&harness), 0);
}

#[test]
fn command_that_never_started_uses_up_no_period() {
    let harness = Harness::new();
    std::fs::write(harness.path("text"), "no program").unwrap();
    std::fs::write(harness.path("lost"), "#!/no/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(harness.path("lost"), mode).unwrap();
    for (command, code) in [("./missing", 127), ("./text", 126), ("./lost", 127)] {
        let failed = harness.leasehold(JOB);
        let failed = failed.configure(|cmd| cmd.args(["--", command])).run();
        failed.expect_code(code).expect_free(&harness, "noon");
        harness
            .leasehold("show noon")
            .run()
            .expect_code(1)
            .expect_stderr("not held");
    }
    // The same line runs once the program is there.
    harness
        .leasehold(JOB)
        .script("echo ran >> runs")
        .run()
        .expect_code(0);
    harness
        .leasehold(JOB)
        .script("echo ran >> runs")
        .run()
        .expect_code(75);
    assert_eq!(count_runs(&harness), 1);
}

#[test]
fn command_that_never_started_keeps_the_last_run() {
    let harness = Harness::new();
    let job = |period: &str| harness.leasehold(&format!("run --once-per {period} noon"));
    job("50d").script("exit 4").run().expect_code(4);
    // A shorter period has another start, unless both begin just now.
    let failed = job("1s").configure(|cmd| cmd.args(["--", "./missing"]));
    failed.run().expect_code(127);
    let shown = harness.leasehold("show noon").run().expect_code(1);
    assert!(shown.stdout.contains(": exit status 4\n"), "{shown:?}");
    job("50d").script("true").run().expect_code(75);
}

/// It said only that the job may run again, but one period was still recorded.
#[test]
fn reset_names_the_period_that_is_still_recorded() {
    let harness = Harness::new();
    let job = |period: &str| harness.leasehold(&format!("run --once-per {period} noon"));
    let reset = || harness.leasehold("once reset noon").run().expect_code(0);
    job("50d").script("exit 4").run().expect_code(4);
    // A shorter period has another start, unless both begin just now.
    job("1s").script("exit 5").run().expect_code(5);
    reset()
        .expect_stderr("`noon` may run again once per 1s; forgot process ")
        .expect_stderr("once per 50d, `noon` may not run before 20")
        .expect_stderr(": exit status 4\n  hint: `leasehold once reset noon` forgets that");
    job("50d").script("true").run().expect_code(75);
    job("1s").script("exit 6").run().expect_code(6);
    reset();
    let last = reset().expect_stderr("`noon` may run again once per 50d; forgot process ");
    assert!(!last.stderr.contains("hint"), "{last:?}");
    job("50d").script("true").run().expect_code(0);
}

#[test]
fn command_that_exits_like_a_missing_one_has_run() {
    let harness = Harness::new();
    for (period, code) in [("100d", 127), ("99d", 126)] {
        let job = || harness.leasehold(&format!("run --once-per {period} job-{code}"));
        job()
            .script(&format!("exit {code}"))
            .run()
            .expect_code(code);
        let skipped = job().script("true").run().expect_code(75);
        skipped.expect_stderr(&format!(": exit status {code}"));
    }
}

#[test]
fn terminated_and_limited_commands_have_run() {
    let harness = Harness::new();
    let run = harness.leasehold(JOB).start_holding(&harness);
    run.signal(Signal::SIGTERM);
    run.wait().expect_code(143);
    let skipped = harness.leasehold(JOB).script("true").run().expect_code(75);
    skipped.expect_stderr(": exit status 143");
    let limited = "run --once-per 100d --at-most 100ms dusk";
    harness
        .leasehold(limited)
        .script("sleep 100")
        .run()
        .expect_code(124);
    let skipped = harness
        .leasehold(limited)
        .script("true")
        .run()
        .expect_code(75);
    skipped.expect_stderr(": exit status 124");
}

/// Returns whether no signal is pending, and the main thread sleeps again.
fn has_handled_signals(run: &Running) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", run.pid())).unwrap();
    let field = |name: &str| {
        let mut lines = status.lines();
        lines
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .trim()
    };
    let is_clear = |name| field(name).bytes().all(|digit| digit == b'0');
    is_clear("SigPnd:") && is_clear("ShdPnd:") && field("State:").starts_with('S')
}

/// The claim was on its way when the signal arrived.
#[test]
fn signal_before_the_start_uses_up_no_period() {
    let harness = Harness::new();
    // The server knows the script from now on: the first request is the claim.
    let other = harness.leasehold("run --once-per 100d other");
    other.script("true").run().expect_code(0);
    let proxy = Proxy::start(harness.server.port());
    let claims = Arc::new(AtomicU32::new(0));
    let counter = claims.clone();
    proxy.inject(move |request| {
        let is_claim = request
            .iter()
            .any(|word| word.starts_with(b"leasehold:once:"));
        match is_claim && counter.fetch_add(1, Ordering::SeqCst) == 0 {
            true => Fault::Hold,
            false => Fault::None,
        }
    });
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let run = harness.leasehold_with_url(&url, JOB);
    let run = run.script("echo ran >> runs");
    let run = run.start_until("the claim is sent", || claims.load(Ordering::SeqCst) > 0);
    run.signal(Signal::SIGTERM);
    eventually("the signal is handled", || has_handled_signals(&run));
    proxy.release_held();
    run.wait().expect_code(143).expect_free(&harness, "noon");
    let next = harness.leasehold(JOB).script("echo ran >> runs");
    next.run().expect_code(0);
    assert_eq!(count_runs(&harness), 1);
}

#[test]
fn last_run_is_shown_and_reset() {
    let harness = Harness::new();
    let shown = |code| {
        harness
            .leasehold("show noon")
            .run()
            .expect_code(code)
            .stdout
    };
    let json = |code| {
        let shown = harness.leasehold("show --json noon").run();
        shown.expect_code(code).stdout
    };
    harness.leasehold("once reset noon").run().expect_code(1);
    harness.leasehold(JOB).script("exit 3").run().expect_code(3);
    let text = shown(1);
    assert!(
        text.starts_with("noon  not held\nlast run  process "),
        "{text}"
    );
    assert!(text.contains("Z: exit status 3\nnext run  20"), "{text}");
    assert!(
        text.ends_with(" 00:00:00Z or later, once per 100d\n"),
        "{text}"
    );
    let object = json(1);
    for part in [
        r#""name":"noon""#,
        r#""holder_count":0"#,
        r#""last_run":{"#,
        r#""report":"exit status 3""#,
        r#""period_ms":8640000000"#,
        r#""next_ms":"#,
    ] {
        assert!(object.contains(part), "no {part} in {object}");
    }
    let skipped = harness.leasehold(JOB).script("true").run().expect_code(75);
    skipped
        .expect_stderr("; the next begins at 20")
        .expect_stderr(" 00:00:00Z\n")
        .expect_stderr("hint: `leasehold once reset noon` lets it run again");
    let reset = harness.leasehold("once reset noon").run().expect_code(0);
    reset
        .expect_stderr("`noon` may run again once per 100d; forgot process ")
        .expect_stderr(": exit status 3");
    harness
        .leasehold("show noon")
        .run()
        .expect_code(1)
        .expect_stderr("not held");
    let run = harness.leasehold(JOB).start_holding(&harness);
    let text = shown(0);
    assert!(
        text.contains(", which has not reported its end\n"),
        "{text}"
    );
    assert!(json(0).contains(r#""report":null"#));
    harness.stop_scripts();
    run.wait().expect_code(0);
    let skipped = harness.leasehold(JOB).script("true").run().expect_code(75);
    assert!(!skipped.stderr.contains("hint"), "{skipped:?}");
}

#[test]
fn killed_runner_is_not_repeated() {
    let harness = Harness::new();
    let runner = harness.leasehold(JOB).start_holding(&harness);
    runner.signal(Signal::SIGKILL);
    let skipped = harness.leasehold(JOB).script("echo ran >> runs").run();
    skipped
        .expect_code(75)
        .expect_stderr("has not reported its end");
    assert_eq!(count_runs(&harness), 0);
}

#[test]
fn next_period_runs_again() {
    let harness = Harness::new();
    let mut succeeded = 0;
    eventually("three periods have run", || {
        let job = harness.leasehold("run --once-per 1s noon");
        let finished = job.script("echo $LEASEHOLD_TOKEN >> runs").run();
        succeeded += usize::from(finished.status.success());
        assert!([Some(0), Some(75)].contains(&finished.status.code()));
        succeeded == 3
    });
    assert_eq!(count_runs(&harness), 3);
}

#[test]
fn lost_lock_stops_the_command() {
    let harness = Harness::new();
    let run = harness.leasehold(JOB).start_holding(&harness);
    harness.revoke("noon");
    run.wait().expect_code(76);
    let skipped = harness.leasehold(JOB).script("true").run().expect_code(75);
    skipped.expect_stderr("noon");
}

#[test]
fn conflicting_options_are_rejected() {
    let harness = Harness::new();
    let quorum = format!("--quorum {}", harness.url());
    for option in [
        "-n",
        "-w 1s",
        "-s",
        "-x",
        "--fair",
        "--permits 2",
        "--at-least 1s",
        "--replicas 1",
        &quorum,
    ] {
        let args = format!("run --once-per 1d {option} noon");
        let rejected = harness.leasehold(&args).script("true").run();
        rejected
            .expect_code(64)
            .expect_stderr("cannot be used with");
    }
    let stolen = harness.leasehold("steal --once-per 1d noon");
    stolen.script("true").run().expect_code(64);
    let short = harness.leasehold("run --once-per 1ms noon").script("true");
    short.run().expect_code(64).expect_stderr("100ms");
}
