//! Many at once.

use std::time::{Duration, Instant};

use testkit::scaled;

use crate::stage::{Actor, Stage, eventually, plain};

/// Reads a number and writes one more: wrong whenever two do it at the same time.
const COUNT: &str = "n=$(cat $LEASEHOLD_NAME.count); echo $((n + 1)) > $LEASEHOLD_NAME.count";

#[test]
fn a_thousand_on_four_names_count_right() {
    let stage = Stage::set_alone(plain);
    let names = ["a", "b", "c", "d"];
    for name in names {
        std::fs::write(stage.path(&format!("{name}.count")), "0\n").unwrap();
    }
    let each = scaled(50);
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
        actor.ends().with_code(0).saying_nothing();
    }
    let commands = stage.server.info("total_commands_processed") - before;
    println!(
        "{} in {:?}; {alive} at once with {} KiB of their own in all; {:.0} commands each",
        each * 4,
        start.elapsed(),
        memory,
        commands / (each * 4) as f64
    );
    for name in names {
        assert_eq!(
            stage.left(&format!("{name}.count")),
            each.to_string(),
            "{name}"
        );
        eventually("it is free", || stage.is_free(name));
    }
    assert!(start.elapsed() < Duration::from_secs(300));
}
