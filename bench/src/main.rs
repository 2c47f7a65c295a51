//! Benchmarks of Leasehold against other lock libraries.
//!
//! `cargo run --release` in this folder measures all scenarios on one server
//! and writes tables, JSON and plots to `out`. Arguments select scenarios by
//! name. `--short` measures a small part of each. `--page` measures `many` on
//! other servers as well, and replaces what was measured in
//! `docs/benchmarks.md`.
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
    let page = arguments.iter().any(|word| word == "--page");
    let wanted: Vec<_> = arguments
        .iter()
        .filter(|word| !word.starts_with("--"))
        .collect();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("out");
    std::fs::create_dir_all(&folder).expect("a folder for the results");
    let mut tables = Vec::new();
    let mut servers = vec![Flavor::one()];
    if page {
        let others = scenarios::OTHER_SERVERS.map(Flavor::named);
        servers.extend(others);
    }
    for (at, flavor) in servers.iter().enumerate() {
        let server = flavor.start();
        println!("# {}\n", server.name());
        for (name, scenario) in scenarios::ALL.into_iter().chain([scenarios::LONG]) {
            let by_default = wanted.is_empty() && (page || name != scenarios::LONG.0);
            let is_wanted = by_default || wanted.iter().any(|word| *word == name);
            let is_here = at == 0 || name == scenarios::EVERYWHERE;
            if is_wanted && is_here {
                for table in scenario(&server, short) {
                    println!("{}", table.markdown());
                    table.save(&folder);
                    tables.push(table);
                }
            }
        }
    }
    if page {
        page::write(&tables);
    }
}
