//! Checks what no compiler checks: the direction of the layers, import cycles,
//! the headers of the Lua files, the paths in documents, and the language.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod documents;
mod imports;
mod language;
mod lua;
mod tree;

use std::path::{Path, PathBuf};

/// Folders that hold no source of this project.
const SKIPPED: [&str; 5] = ["target", "servers", "node_modules", ".git", "classes"];

fn crate_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn project_root() -> PathBuf {
    crate_root().join("../..")
}

/// Returns the files below `folder` whose names end with `ending`, sorted.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && SKIPPED.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Returns the library's source files that are shipped, with their paths
/// below `src`.
fn shipped() -> Vec<(String, PathBuf)> {
    let source = crate_root().join("src");
    let below = |path: PathBuf| {
        let place = path.strip_prefix(&source).unwrap();
        (place.to_string_lossy().into_owned(), path)
    };
    let shipped = |(place, _): &(String, PathBuf)| {
        let is_test = ["lease/tests/", "backend/testing/"];
        !is_test.iter().any(|folder| place.starts_with(folder)) && !place.contains("fuzz_inputs")
    };
    let all = files(&source, ".rs").into_iter().map(below);
    all.filter(shipped).collect()
}

/// Returns a source file without its tests and comments.
fn code(path: &Path) -> String {
    let text = read(path);
    let shipped = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    shipped
        .lines()
        .filter(is_code)
        .collect::<Vec<_>>()
        .join("\n")
}
