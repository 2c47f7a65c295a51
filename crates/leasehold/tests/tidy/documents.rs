//! Paths and names in documents. `scripts/check_links.py` checks their links.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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

/// A README cannot include files, so it has a copy of what `lib.rs` includes.
#[test]
fn readme_has_the_texts_of_the_library() {
    let readme = read(&project_root().join("README.md"));
    for name in ["limitations.md", "which_lock.md"] {
        let text = read(&crate_root().join("src").join(name));
        let (_, text) = text.split_once("<!-- ANCHOR: text -->").unwrap();
        let (text, _) = text.split_once("<!-- ANCHOR_END: text -->").unwrap();
        assert!(
            readme.contains(text.trim()),
            "README.md differs from src/{name}"
        );
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

/// Returns the names of items and modules in a document, such as
/// `lease::attempt`: spans of code that are a path of Rust and not a file.
fn item_names(document: &str) -> Vec<String> {
    let prose: String = document.split("```").step_by(2).collect();
    let spans = prose.split('`').skip(1).step_by(2);
    let names = spans.map(|span| span.trim_end_matches("()").trim_end_matches('!'));
    let is_name = |name: &&str| {
        let is_word = |word: &str| word.chars().all(|c| c.is_alphanumeric() || c == '_');
        name.contains([':', '_']) && name.split("::").all(is_word)
    };
    names.filter(is_name).map(str::to_owned).collect()
}

/// Returns the source that a path of modules leads to, and the items after it.
fn module<'a>(home: &Path, path: &'a str) -> Option<(String, Vec<&'a str>)> {
    let mut place = home.to_owned();
    let mut items: Vec<_> = path.split("::").collect();
    while !items.is_empty() && place.join(items[0]).is_dir() {
        place.push(items.remove(0));
    }
    let file = items.first().map(|item| place.join(format!("{item}.rs")));
    if let Some(file) = file.filter(|file| file.exists()) {
        return Some((read(&file), items.split_off(1)));
    }
    let all = files(&place, ".rs");
    (place != home).then(|| (all.iter().map(|file| read(file)).collect(), items))
}

#[test]
fn items_in_documents_exist() {
    let root = project_root();
    let homes = [
        crate_root().join("src"),
        root.join("crates/leasehold-tests/tests/it"),
    ];
    let sources = files(&root.join("crates"), ".rs");
    let everything: String = sources.iter().map(|file| read(file)).collect();
    let has = |text: &str, item: &str| {
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word == item)
    };
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        for name in item_names(&read(&root.join(document))) {
            // A pattern, not a name.
            if name == "subject_condition_result" {
                continue;
            }
            let in_module = |home: &PathBuf| {
                let found = module(home, &name);
                found.is_some_and(|(text, items)| items.iter().all(|item| has(&text, item)))
            };
            let is_path = name.starts_with(char::is_lowercase) && name.contains("::");
            let exists = match is_path {
                true => homes.iter().any(in_module),
                false => name.split("::").all(|item| has(&everything, item)),
            };
            assert!(exists, "{document} names `{name}`, which does not exist");
        }
    }
}

#[test]
fn item_names_leave_out_files_and_blocks() {
    let document =
        "`a::b` `Client::lock()` `conforms!` `a/b.rs` `word` `x y`\n```sh\n`c::d`\n```\n";
    assert_eq!(item_names(document), ["a::b", "Client::lock"]);
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
