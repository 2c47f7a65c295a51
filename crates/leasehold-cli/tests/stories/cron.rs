//! Two hosts have the same line in their crontab.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testkit::machine::ran_since;

use crate::stage::{SOON, Stage, lives, within};

const JOB: &str = "run --nonblock --skip-ok --at-least 5s nightly";

#[test]
fn at_noon_one_host_runs_the_job_and_the_other_skips_it() {
    let stage = Stage::set();
    let script = "echo run >> runs; sleep 1";
    let one = stage.leasehold(JOB).playing(script).start();
    let other = stage.leasehold(JOB).playing(script).start();
    one.ends().with_code(0).saying_nothing();
    other.ends().with_code(0).saying_nothing();
    assert_eq!(stage.left("runs"), "run");
}

#[test]
fn a_host_whose_clock_is_three_seconds_late_skips_a_job_that_took_no_time() {
    let stage = Stage::set();
    let script = "echo run >> runs";
    stage.leasehold(JOB).playing(script).play().with_code(0);
    std::thread::sleep(Duration::from_secs(3));
    stage.leasehold(JOB).playing(script).play().with_code(0);
    assert_eq!(stage.left("runs"), "run");
    within(SOON, "the next night may come", || stage.is_free("nightly"));
}

#[test]
fn the_holder_is_killed_and_the_next_runs_within_the_lease() {
    const LEASE: Duration = Duration::from_secs(4);
    let stage = Stage::set();
    let job = "run --lease 4s nightly";
    let one = stage
        .leasehold(job)
        .playing("echo $$ > first; exec sleep 100")
        .start();
    let program = stage.process("first");
    let next = stage.leasehold(job).playing("echo $$ > second").start();
    one.gets(Signal::SIGKILL);
    let killed = Instant::now();
    within(SOON, "the program ends with its parent", || !lives(program));
    assert!(!stage.has("second"), "before the lease was over");
    next.ends().with_code(0);
    let waited = ran_since(killed);
    assert!(waited < LEASE + SOON / 2, "{waited:?}");
    assert!(stage.has("second"));
}

#[test]
fn a_batch_of_unknown_length_keeps_the_lock_over_many_leases() {
    let stage = Stage::set();
    let batch = stage
        .leasehold("run --lease 2s dawn")
        .playing("sleep 9")
        .start();
    stage.until_held("dawn");
    let busy = stage.leasehold("run -n dawn").playing("true");
    std::thread::sleep(Duration::from_secs(7));
    busy.play()
        .with_code(75)
        .saying("`dawn` is held by process");
    batch.ends().with_code(0);
    assert!(stage.is_free("dawn"));
}
