//! Many at once.

use std::time::{Duration, Instant};

use testkit::scaled;

use crate::harness::{Actor, Stage, eventually};

/// Reads a number and writes one more: wrong whenever two do it at the same time.
const COUNT: &str = "n=$(cat $LEASEHOLD_NAME.count); echo $((n + 1)) > $LEASEHOLD_NAME.count";

#[test]
fn commands_on_four_names_count_right() {
    count(scaled(5), |_| ());
}

#[test]
#[ignore = "deep: hundreds of processes at once"]
fn a_thousand_on_four_names_count_right() {
    let took = count(scaled(50), |said| assert_eq!(said, ""));
    assert!(took < Duration::from_secs(300), "{took:?}");
}

/// Starts `each` commands for each of four names; what each command says is checked.
fn count(each: u64, check: impl Fn(&str)) -> Duration {
    let stage = Stage::set();
    let names = ["a", "b", "c", "d"];
    for name in names {
        std::fs::write(stage.path(&format!("{name}.count")), "0\n").unwrap();
    }
    let before = stage.server.info("total_commands_processed");
    let start = Instant::now();
    let mut running: Vec<Actor> = Vec::new();
    for _ in 0..each {
        for (name, kind) in names.iter().zip(["", "--fair", "", "-x"]) {
            let words = format!("run {kind} {name}");
            running.push(stage.leasehold(&words).playing(COUNT).start());
        }
    }
    let memory: u64 = running.iter().map(Actor::memory).sum();
    let alive = running
        .iter_mut()
        .filter_map(|actor| (!actor.has_ended()).then_some(()))
        .count();
    for actor in running {
        let scene = actor.ends().with_code(0).saying_nothing();
        check(&scene.said);
    }
    let commands = stage.server.info("total_commands_processed") - before;
    let took = start.elapsed();
    println!(
        "{} in {took:?}; {alive} at once with {memory} KiB of their own in all; {:.0} commands each",
        each * 4,
        commands / (each * 4) as f64
    );
    for name in names {
        let counted = stage.left(&format!("{name}.count"));
        assert_eq!(counted, each.to_string(), "{name}");
        eventually("it is free", || stage.is_free(name));
    }
    took
}
