//! Paths in documents. `scripts/check_links.py` checks their links.

use std::collections::BTreeSet;

use crate::{crate_root, files, project_root, read};

#[test]
fn paths_in_documents_exist() {
    let root = project_root();
    for document in files(&root, ".md") {
        for span in read(&document).split('`').skip(1).step_by(2) {
            let path = span.trim_end_matches('/');
            let is_path = path.contains('/')
                && !path.contains([' ', ':', '*', '<', '{', '"', '$', '~'])
                && !path.starts_with('/');
            if !is_path {
                continue;
            }
            let homes = [
                root.clone(),
                crate_root(),
                crate_root().join("src"),
                document.parent().unwrap().to_owned(),
            ];
            let exists = homes.iter().any(|home| home.join(path).exists());
            // Created by a command of the same document.
            let created = ["servers", "target/book", "target/deep"].contains(&path);
            assert!(exists || created, "{} names {path}", document.display());
        }
    }
}

/// Returns the module tree of the architecture.
pub(crate) fn module_tree() -> String {
    let document = read(&project_root().join("ARCHITECTURE.md"));
    let tree = document.split("```text\nsrc/").nth(1).unwrap();
    tree.split("```").next().unwrap().to_owned()
}

/// Returns the files that the module tree names. A line names files, or a
/// folder, and may describe them; lines below a folder are indented.
fn named_files(tree: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    let mut folders: Vec<(usize, &str)> = Vec::new();
    for line in tree.lines() {
        let indent = line.len() - line.trim_start().len();
        folders.retain(|(outer, _)| *outer < indent);
        let folder: String = folders.iter().map(|(_, name)| *name).collect();
        let mut words = line.split_whitespace();
        if let Some(name) = words.clone().next().filter(|name| name.ends_with('/')) {
            folders.push((indent, name));
            continue;
        }
        let is_file = |word: &&str| word.ends_with(".rs") || word.ends_with(".md");
        // A description follows the files.
        while let Some(file) = words.next().filter(is_file) {
            assert!(named.insert(format!("{folder}{file}")), "{file} is twice");
        }
    }
    named
}

#[test]
fn module_tree_names_every_file() {
    let named = named_files(&module_tree());
    let source = crate_root().join("src");
    let paths = files(&source, "").into_iter();
    let existing: BTreeSet<_> = paths
        .map(|path| path.strip_prefix(&source).unwrap().display().to_string())
        .filter(|path| !path.ends_with("mod.rs"))
        .collect();
    let missing: Vec<_> = existing.difference(&named).collect();
    let gone: Vec<_> = named.difference(&existing).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md omits {missing:?}");
    assert!(gone.is_empty(), "ARCHITECTURE.md names {gone:?}");
}

#[test]
fn named_files_follow_the_indentation() {
    let tree = "  lib.rs  not main.rs\n  a/  text\n    b.rs c.rs\n    d/\n      e.rs\n  f.rs\n";
    let named = named_files(tree);
    let expected = ["lib.rs", "a/b.rs", "a/c.rs", "a/d/e.rs", "f.rs"];
    assert_eq!(named, expected.map(str::to_owned).into());
}

#[test]
fn directory_table_names_every_directory() {
    let root = project_root();
    let document = read(&root.join("ARCHITECTURE.md"));
    let folders = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let names = paths.filter(|path| path.is_dir());
        names.map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
    };
    let crates = folders("crates").map(|name| format!("crates/{name}"));
    let is_own = |name: &String| {
        !name.starts_with('.') && name != "crates" && !crate::SKIPPED.contains(&name.as_str())
    };
    for name in folders("").filter(is_own).chain(crates) {
        let row = format!("\n| `{name}` |");
        assert!(document.contains(&row), "ARCHITECTURE.md omits `{name}`");
    }
}
