//! The same cron job on two hosts.

use std::time::{Duration, Instant};

use testkit::ServerExt;

use nix::sys::signal::Signal;

use crate::harness::{Finished, Harness, eventually, is_running};

const JOB: &str = "run --nonblock --skip-ok --at-least 60s nightly";

#[test]
fn job_runs_on_one_host_and_is_skipped_on_other() {
    let harness = Harness::new();
    let script = "echo run >> runs; sleep 1";
    let one = harness.leasehold(JOB).script(script).start();
    let other = harness.leasehold(JOB).script(script).start();
    assert_ran_once(&harness, [one.wait(), other.wait()]);
}

#[test]
fn short_job_is_skipped_within_at_least() {
    let harness = Harness::new();
    let job = || harness.leasehold(JOB).script("echo run >> runs").run();
    assert_ran_once(&harness, [job(), job()]);
    let left = harness.lease_remaining("nightly");
    assert!((1..=60_000).contains(&left), "{left} ms");
}

/// Asserts that both processes succeeded and one of them ran the job.
fn assert_ran_once(harness: &Harness, processes: [Finished; 2]) {
    for finished in processes {
        finished.expect_code(0).expect_no_stderr();
    }
    assert_eq!(harness.wait_for_file("runs"), "run");
}

#[test]
#[ignore = "deep: needs a start within a time limit"]
fn host_with_late_clock_skips_short_job() {
    let harness = Harness::new();
    let job = "run --nonblock --skip-ok --at-least 5s nightly";
    let script = "echo run >> runs";
    harness.leasehold(job).script(script).run().expect_code(0);
    std::thread::sleep(Duration::from_secs(3));
    harness.leasehold(job).script(script).run().expect_code(0);
    assert_eq!(harness.wait_for_file("runs"), "run");
    let start = Instant::now();
    eventually("the lock is free", || harness.is_free("nightly"));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn killed_holder_ends_its_command_and_waiter_runs() {
    let job = "run --lease 30s nightly";
    kill_holder(job, |harness| {
        // Ends the lease early.
        harness.server.tell(&["PEXPIRE", "lock:nightly", "1"]);
    });
}

#[test]
#[ignore = "deep: measures the time of a waiter"]
fn waiter_of_killed_holder_runs_within_the_lease() {
    let waited = kill_holder("run --lease 4s nightly", |_| ());
    assert!(waited < Duration::from_millis(4000 + 2500), "{waited:?}");
}

/// Kills a holder with SIGKILL, and returns how long a waiter waits from then.
fn kill_holder(job: &str, after: impl FnOnce(&Harness)) -> Duration {
    let harness = Harness::new();
    let one = harness
        .leasehold(job)
        .script("echo $$ > first; exec sleep 100")
        .start_until_file(&harness, "first");
    let command = harness.wait_for_pid("first");
    let next = harness.leasehold(job).script("echo $$ > second").start();
    one.signal(Signal::SIGKILL);
    let killed = Instant::now();
    eventually("the command ends with its parent", || !is_running(command));
    assert!(
        !harness.has_file("second"),
        "the waiter ran before the lease ended"
    );
    after(&harness);
    next.wait().expect_code(0);
    let waited = killed.elapsed();
    assert!(harness.has_file("second"));
    waited
}

#[test]
fn lease_is_renewed_while_the_command_runs() {
    hold("10s", |harness| {
        let mut left = harness.lease_remaining("dawn");
        eventually("the lease is renewed", || {
            let before = std::mem::replace(&mut left, harness.lease_remaining("dawn"));
            left > before
        });
    });
}

#[test]
#[ignore = "deep: a stall must not outlast a short lease"]
fn lock_is_held_over_many_short_leases() {
    hold("2s", |_| std::thread::sleep(Duration::from_secs(7)));
}

/// Holds a lock while `meanwhile` runs.
fn hold(lease: &str, meanwhile: impl FnOnce(&Harness)) {
    let harness = Harness::new();
    let args = format!("run --lease {lease} --grace 500ms dawn");
    let batch = harness.leasehold(&args).start_holding(&harness);
    meanwhile(&harness);
    let busy = harness.leasehold("run -n dawn").script("true").run();
    busy.expect_code(75)
        .expect_stderr("`dawn`")
        .expect_stderr(" is held by process");
    harness.stop_scripts();
    batch.wait().expect_code(0).expect_free(&harness, "dawn");
}
