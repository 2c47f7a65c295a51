//! Benchmarks of Leasehold against other lock libraries.
//!
//! `cargo run --release` in this folder measures all scenarios on one server
//! and writes tables, JSON and plots to `out`. Arguments select scenarios by
//! name. `--short` measures a small part of each. `--page` also measures other
//! servers, and writes `docs/benchmarks.md`.
//!
//! Rounds are interleaved, and ratios are computed within a round. A table
//! shows their median, minimum and maximum. The server's cost is its own CPU
//! time and its own count of commands.

mod page;
mod peer;
mod report;
mod scenarios;

use std::path::PathBuf;

use testkit::{Flavor, ServerExt};

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let short = arguments.iter().any(|word| word == "--short");
    let wanted: Vec<_> = arguments
        .iter()
        .filter(|word| !word.starts_with("--"))
        .collect();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("out");
    std::fs::create_dir_all(&folder).expect("a folder for the results");
    let server = Flavor::one().start();
    println!("# {}\n", server.name());
    let mut tables = Vec::new();
    let page = arguments.iter().any(|word| word == "--page");
    for (name, scenario) in scenarios::ALL.into_iter().chain([scenarios::LONG]) {
        let by_default = wanted.is_empty() && (page || name != scenarios::LONG.0);
        if by_default || wanted.iter().any(|word| *word == name) {
            for table in scenario(&server, short) {
                println!("{}", table.markdown());
                table.save(&folder);
                tables.push(table);
            }
        }
    }
    if page {
        for flavor in ["redis-8.6", "valkey-9.1"] {
            tables.extend(scenarios::other_servers(&Flavor::named(flavor).start()));
        }
        page::write(&server.name(), &tables);
    }
}
