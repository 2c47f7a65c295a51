//! What locks cost, beside everything a user could pick instead.
//!
//! `cargo run --release` in this folder measures all scenarios on one server and writes tables, JSON and plots to `out`;
//! names of scenarios as arguments measure only those, `--short` a small part of each, and `--page` writes what was measured
//! into `docs/benchmarks.md` too. Rounds are interleaved, and ratios are made within a round: what is shown is their
//! median, with the smallest and largest. The server's cost is its own processor time and its own count of commands.

mod page;
mod peer;
mod report;
mod scenarios;

use std::path::PathBuf;

use testkit::{Flavor, Server};

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let short = arguments.iter().any(|word| word == "--short");
    let wanted: Vec<_> = arguments
        .iter()
        .filter(|word| !word.starts_with("--"))
        .collect();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("out");
    std::fs::create_dir_all(&folder).expect("a folder for the results");
    let server = Server::start(&Flavor::one());
    println!("# {}\n", server.name());
    let mut tables = Vec::new();
    for (name, scenario) in scenarios::ALL {
        if wanted.is_empty() || wanted.iter().any(|word| *word == name) {
            for table in scenario(&server, short) {
                println!("{}", table.markdown());
                table.save(&folder);
                tables.push(table);
            }
        }
    }
    if arguments.iter().any(|word| word == "--page") {
        page::write(server.name(), &tables);
    }
}
