//! Holds what no compiler checks against the code: the direction of the layers, the headers of the Lua files, and
//! the paths named in documents.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Which layers each may name, besides itself and the leaves.
const LAYERS: [(&str, &[&str]); 4] = [
    ("locks", &["lease", "protocol"]),
    ("lease", &["protocol", "backend"]),
    ("protocol", &["backend"]),
    ("backend", &[]),
];

/// What may appear in which files below `src` only: text, and where it is at home.
const AT_HOME: [(&str, &[&str]); 3] = [
    (
        "tokio::spawn",
        &[
            "backend/acknowledged.rs",
            "backend/connection/wire.rs",
            "backend/requests.rs",
        ],
    ),
    (
        ".spawn(",
        &[
            "client.rs",
            "quorum.rs",
            "backend/assembly.rs",
            "backend/cluster.rs",
            "backend/homes.rs",
            "backend/sentinel.rs",
            "backend/sentries.rs",
            "backend/standalone.rs",
            "backend/subscriptions.rs",
            "lease/keeper.rs",
        ],
    ),
    ("time::sleep", &["backend/", "lease/"]),
];

/// Drawers for things without a place.
const JUNK: [&str; 5] = ["utils", "util", "helpers", "common", "manager"];

fn crate_root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn project_root() -> PathBuf {
    crate_root().join("../..")
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let skipped = ["target", "servers", "node_modules"];
        if path.is_dir() && skipped.iter().any(|name| path.ends_with(name)) {
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

/// A source file without its tests, comments and strings' business.
fn code(path: &Path) -> String {
    let text = read(path);
    let shipped = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = shipped
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

fn is_test(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    let worlds = ["scripted.rs", "simulated.rs", "simulation.rs"];
    name.ends_with("tests.rs") || worlds.contains(&&*name)
}

#[test]
fn layers_name_only_those_below_them() {
    let source = crate_root().join("src");
    for (layer, below) in LAYERS {
        for path in files(&source.join(layer), ".rs")
            .iter()
            .filter(|path| !is_test(path))
        {
            let code = code(path);
            for (other, _) in LAYERS
                .iter()
                .filter(|(other, _)| *other != layer && !below.contains(other))
            {
                let name = format!("crate::{other}");
                assert!(!code.contains(&name), "{} names {name}", path.display());
            }
        }
    }
}

#[test]
fn things_stay_where_they_are_at_home() {
    let source = crate_root().join("src");
    for path in files(&source, ".rs").iter().filter(|path| !is_test(path)) {
        let place = path
            .strip_prefix(&source)
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let code = code(path);
        for (text, homes) in AT_HOME {
            let at_home = homes.iter().any(|home| place.starts_with(home));
            assert!(at_home || !code.contains(text), "`{text}` in {place}");
        }
    }
}

#[test]
fn every_file_says_what_it_is_and_is_one_idea() {
    let bench = ["../../bench/src", "../../bench/peers/rust/src"];
    let own = [
        "src",
        "tests",
        "examples",
        "../leasehold-tests/tests",
        "../testkit/src",
        "../torture/src",
    ];
    let command = ["../leasehold-cli/src", "../leasehold-cli/tests"];
    for folder in own.into_iter().chain(command).chain(bench) {
        for path in files(&crate_root().join(folder), ".rs") {
            let text = read(&path);
            let introduced = text.starts_with("//!") || path.ends_with("src/lib.rs");
            assert!(introduced, "{} does not say what it is", path.display());
            assert!(
                text.lines().count() <= 500,
                "{} is too long",
                path.display()
            );
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            assert!(
                !JUNK.contains(&name.as_str()),
                "{} is a junk drawer",
                path.display()
            );
        }
    }
}

#[test]
fn digests_are_computed_and_not_written_down() {
    for path in files(&crate_root().join("src"), ".rs") {
        for word in read(&path).split(|c: char| !c.is_ascii_alphanumeric()) {
            let digest = word.len() == 40 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(!digest, "a digest in {}", path.display());
        }
    }
}

/// What a Lua header or body says of keys and arguments: `KEYS[1]` and its name.
type Bindings = BTreeSet<(String, String)>;

fn in_header(header: &[&str]) -> Bindings {
    let bindings = header.iter().filter_map(|line| {
        let line = line.strip_prefix("-- ")?;
        let is_binding = line.starts_with("KEYS[") || line.starts_with("ARGV[");
        let mut words = line.split_whitespace();
        is_binding.then(|| {
            (
                words.next().unwrap().to_owned(),
                words.next().unwrap().to_owned(),
            )
        })
    });
    bindings.collect()
}

/// Reads `local a, b = KEYS[1], tonumber(ARGV[1])`.
fn in_body(body: &[&str]) -> Bindings {
    let mut bindings = Bindings::new();
    for line in body
        .iter()
        .filter(|line| line.contains("KEYS[") || line.contains("ARGV["))
    {
        let binding = line
            .strip_prefix("local ")
            .and_then(|line| line.split_once(" = "));
        let (names, values) = binding.unwrap_or_else(|| panic!("not bound to a name: {line}"));
        for (name, value) in names.split(", ").zip(values.split(", ")) {
            let value = value.trim_start_matches("tonumber(").trim_end_matches(')');
            bindings.insert((value.to_owned(), name.to_owned()));
        }
    }
    bindings
}

/// What shares its text with all scripts of its folder says so in its first line.
const PRELUDE: &str = " (prelude)";

/// Checks one script's header against its body.
fn check_script(name: &str, text: &str) {
    let lines: Vec<_> = text.lines().collect();
    let end = lines
        .iter()
        .position(|line| !line.starts_with("--"))
        .expect("a body");
    let (header, body) = lines.split_at(end);
    let title = header[0].trim_end_matches(PRELUDE);
    assert_eq!(title, format!("-- {name}"), "the first line names it");
    assert_eq!(
        in_header(header),
        in_body(body),
        "{name}: keys and arguments"
    );
    if header[0].ends_with(PRELUDE) {
        assert!(body.len() <= 140, "{name} is too long");
        return;
    }

    let returns = header
        .iter()
        .position(|line| *line == "-- Returns")
        .expect("a list of answers");
    let answers: Vec<_> = header[returns + 1..]
        .iter()
        .map(|line| line.trim_start_matches("--   "))
        .collect();
    let listed = |answer: &str| {
        answers
            .iter()
            .any(|line| line.split_whitespace().next() == Some(answer))
    };
    for line in body.iter().map(|line| line.trim()) {
        match line.strip_prefix("return ") {
            Some(value) if value.parse::<i64>().is_ok() => {
                assert!(listed(value), "{name}: answer {value}");
            }
            Some(value) if value.starts_with("redis.error_reply") => {
                assert!(listed("error"), "{name}: {value}");
            }
            Some(value) if value.starts_with('{') || value.contains("status(") => {
                let known = listed("list") || listed("status");
                assert!(known, "{name}: {value}");
            }
            Some(_) => assert!(listed("n"), "{name}: {line}"),
            None => {}
        }
    }
    let continued = |line: &&&str| !line.starts_with("  ");
    for answer in answers
        .iter()
        .filter(continued)
        .filter_map(|line| line.split_whitespace().next())
    {
        let returned = body
            .iter()
            .any(|line| line.trim() == format!("return {answer}"));
        assert!(
            returned || ["n", "error", "list", "status"].contains(&answer),
            "{name}: {answer} is never returned"
        );
    }
    assert!(body.len() <= 45, "{name} is too long");
}

#[test]
fn lua_headers_say_what_the_bodies_do() {
    let folder = crate_root().join("lua");
    let scripts = files(&folder, ".lua");
    assert!(!scripts.is_empty());
    for path in scripts {
        let name = path.strip_prefix(&folder).unwrap().with_extension("");
        check_script(&name.to_string_lossy(), &read(&path));
    }
}

#[test]
fn a_header_that_lies_is_caught() {
    let honest = "-- a/b\n--\n-- KEYS[1]  lock  x\n-- ARGV[1]  mark  x\n--\n-- Returns\n--   1  done\n\n\
                  local lock = KEYS[1]\nlocal mark = ARGV[1]\nreturn 1\n";
    check_script("a/b", honest);
    for (from, to) in [
        ("-- a/b", "-- a/c"),
        ("-- ARGV[1]  mark  x\n", ""),
        ("local mark", "local owner"),
        ("return 1", "return 2"),
        ("--   1  done", "--   1  done\n--   0  not"),
        ("return 1", "return redis.error_reply('x')"),
    ] {
        let lie = honest.replace(from, to);
        assert!(
            std::panic::catch_unwind(|| check_script("a/b", &lie)).is_err(),
            "{to} was not caught"
        );
    }
}

#[test]
fn ignored_tests_say_why_they_are_deep() {
    let mut deep = 0;
    for file in files(&project_root().join("crates"), ".rs") {
        for reason in read(&file).split(concat!("#[", "ignore")).skip(1) {
            let reason = reason.split(']').next().unwrap();
            let is_deep = reason.starts_with(" = \"deep: ");
            let is_worker = reason == " = \"the body of worker processes\"";
            assert!(is_deep || is_worker, "{}: {reason}", file.display());
            deep += u32::from(is_deep);
        }
    }
    assert!(deep > 0, "there are none");
}

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
            // Made by a command that the same document gives.
            let made = ["servers", "target/deep"].contains(&path);
            assert!(exists || made, "{} names {path}", document.display());
        }
    }
}

#[test]
fn links_in_documents_lead_somewhere() {
    for document in files(&project_root(), ".md") {
        for link in read(&document).split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            // What rustdoc resolves, rustdoc checks.
            if !target.contains("://") && !target.starts_with("crate::") {
                let path = document.parent().unwrap().join(target);
                assert!(path.exists(), "{} links to {target}", document.display());
            }
        }
    }
}
