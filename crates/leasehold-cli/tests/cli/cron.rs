//! Two hosts have the same line in their crontab.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::{Scene, Stage, eventually, lives};

const JOB: &str = "run --nonblock --skip-ok --at-least 60s nightly";

#[test]
fn at_noon_one_host_runs_the_job_and_the_other_skips_it() {
    let stage = Stage::set();
    let script = "echo run >> runs; sleep 1";
    let one = stage.leasehold(JOB).playing(script).start();
    let other = stage.leasehold(JOB).playing(script).start();
    ran_once(&stage, [one.ends(), other.ends()]);
}

#[test]
fn job_that_took_no_time_is_skipped_within_at_least() {
    let stage = Stage::set();
    let job = || stage.leasehold(JOB).playing("echo run >> runs").play();
    ran_once(&stage, [job(), job()]);
    let left = stage.lease_remaining("nightly");
    assert!((1..=60_000).contains(&left), "{left} ms");
}

/// Of two commands that do not wait, one has run the job.
fn ran_once(stage: &Stage, scenes: [Scene; 2]) {
    for scene in scenes {
        scene.with_code(0).saying_nothing();
    }
    assert_eq!(stage.left("runs"), "run");
}

#[test]
#[ignore = "deep: a job is late by less than a time limit"]
fn a_host_whose_clock_is_three_seconds_late_skips_a_job_that_took_no_time() {
    let stage = Stage::set();
    let job = "run --nonblock --skip-ok --at-least 5s nightly";
    let script = "echo run >> runs";
    stage.leasehold(job).playing(script).play().with_code(0);
    std::thread::sleep(Duration::from_secs(3));
    stage.leasehold(job).playing(script).play().with_code(0);
    assert_eq!(stage.left("runs"), "run");
    let start = Instant::now();
    eventually("the next night may come", || stage.is_free("nightly"));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn killed_holder_ends_its_program_and_next_runs() {
    let job = "run --lease 30s nightly";
    kill_a_holder(job, |stage| {
        // The lease ends.
        stage.server.tell(&["PEXPIRE", "lock:nightly", "1"]);
    });
}

#[test]
#[ignore = "deep: measures how long the next waits"]
fn the_holder_is_killed_and_the_next_runs_within_the_lease() {
    let waited = kill_a_holder("run --lease 4s nightly", |_| ());
    assert!(waited < Duration::from_millis(4000 + 2500), "{waited:?}");
}

/// Kills a holder while another command waits: how long that waits from then on.
fn kill_a_holder(job: &str, after: impl FnOnce(&Stage)) -> Duration {
    let stage = Stage::set();
    let one = stage
        .leasehold(job)
        .playing("echo $$ > first; exec sleep 100")
        .leave(&stage, "first");
    let program = stage.process("first");
    let next = stage.leasehold(job).playing("echo $$ > second").start();
    one.gets(Signal::SIGKILL);
    let killed = Instant::now();
    eventually("the program ends with its parent", || !lives(program));
    assert!(!stage.has("second"), "before the lease was over");
    after(&stage);
    next.ends().with_code(0);
    let waited = killed.elapsed();
    assert!(stage.has("second"));
    waited
}

#[test]
fn a_batch_of_unknown_length_keeps_the_lock_over_many_leases() {
    keep("10s", |stage| {
        let mut left = stage.lease_remaining("dawn");
        eventually("the lease is renewed", || {
            let before = std::mem::replace(&mut left, stage.lease_remaining("dawn"));
            left > before
        });
    });
}

#[test]
#[ignore = "deep: a short lease must not be missed"]
fn lock_is_kept_over_many_short_leases() {
    keep("2s", |_| std::thread::sleep(Duration::from_secs(7)));
}

/// Holds a lock `meanwhile`.
fn keep(lease: &str, meanwhile: impl FnOnce(&Stage)) {
    let stage = Stage::set();
    let words = format!("run --lease {lease} --grace 500ms dawn");
    let batch = stage.leasehold(&words).hold(&stage);
    meanwhile(&stage);
    let busy = stage.leasehold("run -n dawn").playing("true").play();
    busy.with_code(75)
        .saying("`dawn`")
        .saying(" is held by process");
    stage.go();
    batch.ends().with_code(0).releasing(&stage, "dawn");
}
