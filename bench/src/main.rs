//! Benchmarks of Leasehold against other lock libraries.
//!
//! `cargo run --release` in this folder measures all scenarios on one server
//! and writes tables, JSON and plots to `out`. Arguments select scenarios by
//! name. `--short` measures a small part of each. `--record` measures some
//! scenarios on other servers as well, and records the tables for
//! `docs/benchmarks.md`.
//!
//! Rounds are interleaved, and ratios are computed within a round. A table
//! shows their median, minimum and maximum. The server's cost is its own CPU
//! time and its own count of commands.

mod peer;
mod record;
mod report;
mod scenarios;

use std::path::PathBuf;

use testkit::{Flavor, ServerExt};

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let short = arguments.iter().any(|word| word == "--short");
    let is_recorded = arguments.iter().any(|word| word == "--record");
    assert!(!(short && is_recorded), "a short run is not recorded");
    let commit = is_recorded.then(record::commit);
    let wanted: Vec<_> = arguments
        .iter()
        .filter(|word| !word.starts_with("--"))
        .collect();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("out");
    std::fs::create_dir_all(&folder).expect("a folder for the results");
    let mut tables = Vec::new();
    let mut servers = vec![Flavor::one()];
    if is_recorded {
        let others = scenarios::OTHER_SERVERS.map(Flavor::named);
        servers.extend(others);
    }
    for (at, flavor) in servers.iter().enumerate() {
        let server = flavor.start();
        println!("# {}\n", server.name());
        for (name, scenario) in scenarios::ALL.into_iter().chain([scenarios::LONG]) {
            let by_default = wanted.is_empty() && (is_recorded || name != scenarios::LONG.0);
            let is_wanted = by_default || wanted.iter().any(|word| *word == name);
            let is_here = at == 0 || scenarios::EVERYWHERE.contains(&name);
            if is_wanted && is_here {
                for table in scenario(&server, short) {
                    println!("{}", table.markdown());
                    table.save(&folder);
                    tables.push(table);
                }
            }
        }
    }
    if let Some(commit) = commit {
        record::add(&commit, &folder, &tables);
    }
}
