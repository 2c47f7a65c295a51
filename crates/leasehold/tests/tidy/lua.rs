//! The headers of the Lua files: keys, arguments and replies.

use std::collections::BTreeSet;

use crate::{crate_root, files, read};

/// The keys and arguments of a script: `KEYS[1]` and its name.
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
    // Functions bind keys too.
    for line in body
        .iter()
        .map(|line| line.trim_start())
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

/// Marks the first line of a text that precedes the scripts of its folder.
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
    assert_eq!(title, format!("-- {name}"), "the first line is the name");
    assert_eq!(
        in_header(header),
        in_body(body),
        "{name}: keys and arguments"
    );
    if header[0].ends_with(PRELUDE) {
        assert!(body.len() <= 240, "{name} is too long");
        return;
    }

    let returns = header
        .iter()
        .position(|line| *line == "-- Returns")
        .expect("a list of replies");
    let replies: Vec<_> = header[returns + 1..]
        .iter()
        .map(|line| line.trim_start_matches("--   "))
        .collect();
    let listed = |reply: &str| {
        replies
            .iter()
            .any(|line| line.split_whitespace().next() == Some(reply))
    };
    for line in body.iter().map(|line| line.trim()) {
        match line.strip_prefix("return ") {
            Some(value) if value.parse::<i64>().is_ok() => {
                assert!(listed(value), "{name}: reply {value}");
            }
            Some(value) if value.contains("redis.error_reply") => {
                assert!(listed("error"), "{name}: {value}");
            }
            Some(value) if value.contains('{') || value.contains("status(") => {
                let known = listed("list") || listed("status");
                assert!(known, "{name}: {value}");
            }
            Some(_) => assert!(listed("n"), "{name}: {line}"),
            None => {}
        }
    }
    let continued = |line: &&&str| !line.starts_with("  ");
    for reply in replies
        .iter()
        .filter(continued)
        .filter_map(|line| line.split_whitespace().next())
    {
        let returned = body
            .iter()
            .any(|line| line.trim() == format!("return {reply}"));
        assert!(
            returned || ["n", "error", "list", "status"].contains(&reply),
            "{name}: {reply} is never returned"
        );
    }
    assert!(body.len() <= 45, "{name} is too long");
}

#[test]
fn lua_headers_match_bodies() {
    let folder = crate_root().join("lua");
    let scripts = files(&folder, ".lua");
    assert!(!scripts.is_empty());
    for path in scripts {
        let name = path.strip_prefix(&folder).unwrap().with_extension("");
        check_script(&name.to_string_lossy(), &read(&path));
    }
}

#[test]
fn wrong_lua_headers_are_caught() {
    let honest = "-- a/b\n--\n-- KEYS[1]  lock  x\n-- ARGV[1]  value  x\n--\n-- Returns\n--   1  done\n\n\
                  local lock = KEYS[1]\nlocal value = ARGV[1]\nreturn 1\n";
    check_script("a/b", honest);
    for (from, to) in [
        ("-- a/b", "-- a/c"),
        ("-- ARGV[1]  value  x\n", ""),
        ("local value", "local owner"),
        ("return 1", "return 2"),
        ("--   1  done", "--   1  done\n--   0  not"),
        ("return 1", "return redis.error_reply('x')"),
    ] {
        let wrong = honest.replace(from, to);
        assert!(
            std::panic::catch_unwind(|| check_script("a/b", &wrong)).is_err(),
            "{to} was not caught"
        );
    }
}
