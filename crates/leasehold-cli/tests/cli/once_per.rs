//! `run --once-per`: a command that runs once per period on one of many hosts.

use nix::sys::signal::Signal;

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
