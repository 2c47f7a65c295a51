//! Records tables with `scripts/results.py`, which writes them to the page.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::report::Table;

/// Builds the peers, and returns the commit that they are of. Panics if the
/// tree has changes.
pub(crate) fn commit() -> String {
    // `cargo run` does not build the Rust peer again.
    let mut cargo = Command::new("cargo");
    let build = cargo.args(["build", "--release", "--locked"]);
    let built = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(built.expect("cargo").success(), "the peers are built");
    let output = script().arg("stamp").stderr(Stdio::inherit()).output();
    let output = output.expect("scripts/results.py");
    assert!(output.status.success(), "the tree cannot be recorded");
    let commit = String::from_utf8(output.stdout).expect("a commit");
    commit.trim().to_owned()
}

/// Records the tables that this run saved to `folder`.
pub(crate) fn add(commit: &str, folder: &Path, tables: &[Table]) {
    let files = tables
        .iter()
        .map(|table| folder.join(format!("{}.json", table.name)));
    let added = script().args(["add", commit]).args(files).status();
    assert!(added.expect("scripts/results.py").success(), "not recorded");
}

fn script() -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    Command::new(root.join("scripts/results.py"))
}
