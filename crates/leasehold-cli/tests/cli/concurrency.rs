//! Many processes that contend for a few locks.

use std::time::{Duration, Instant};

use testkit::{ServerExt, scaled};

use crate::harness::{Harness, Running, eventually};

/// Increments a counter in a file. Two processes at once lose an increment.
const INCREMENT: &str = "n=$(cat $LEASEHOLD_NAME.count); echo $((n + 1)) > $LEASEHOLD_NAME.count";

#[test]
fn counters_are_exact_under_contention() {
    increment(scaled(5), |_| ());
}

#[test]
#[ignore = "deep: hundreds of processes at once"]
fn counters_are_exact_with_a_thousand_processes() {
    let took = increment(scaled(50), |stderr| assert_eq!(stderr, ""));
    assert!(took < Duration::from_secs(300), "{took:?}");
}

/// Runs `each` processes for each of four locks, and returns the total time.
/// `check` receives the standard error of each process.
fn increment(each: u64, check: impl Fn(&str)) -> Duration {
    let harness = Harness::new();
    let names = ["a", "b", "c", "d"];
    for name in names {
        std::fs::write(harness.path(&format!("{name}.count")), "0\n").unwrap();
    }
    let before = harness.server.info("total_commands_processed");
    let start = Instant::now();
    let mut running: Vec<Running> = Vec::new();
    for _ in 0..each {
        for (name, kind) in names.iter().zip(["", "--fair", "", "-x"]) {
            let args = format!("run {kind} {name}");
            running.push(harness.leasehold(&args).script(INCREMENT).start());
        }
    }
    let memory: u64 = running.iter().map(Running::memory).sum();
    let concurrent = running
        .iter_mut()
        .filter_map(|process| (!process.has_exited()).then_some(()))
        .count();
    for process in running {
        let finished = process.wait().expect_code(0).expect_no_stderr();
        check(&finished.stderr);
    }
    let commands = harness.server.info("total_commands_processed") - before;
    let took = start.elapsed();
    println!(
        "{} processes in {took:?}; {concurrent} at once with {memory} KiB in total; {:.0} server commands each",
        each * 4,
        commands / (each * 4) as f64
    );
    for name in names {
        let counted = harness.wait_for_file(&format!("{name}.count"));
        assert_eq!(counted, each.to_string(), "{name}");
        eventually("the lock is free", || harness.is_free(name));
    }
    took
}
