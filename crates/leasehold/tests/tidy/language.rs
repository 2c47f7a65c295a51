//! The language of comments and documents: banned phrases and widths.

use std::path::{Path, PathBuf};

use crate::{files, project_root, read};

/// Phrases that hide the actor, and what to write instead.
const BANNED: [(&str, &str); 16] = [
    ("those who", "name the actor: holders, waiters, callers"),
    ("one who", "name the actor: a holder, a waiter"),
    ("whoever", "name the actor"),
    ("somebody", "name the actor: another client"),
    ("anybody", "name the actor: any client"),
    ("nobody", "name the actor: no client"),
    ("told", "returned, notified, reported"),
    ("so many", "name the quantity"),
    ("so long as", "while"),
    ("give back", "release"),
    ("gives back", "releases"),
    ("given back", "released"),
    ("in line", "queued"),
    ("out of reach", "unreachable"),
    ("for ever", "without end"),
    ("goes on", "continues"),
];

/// The dialect of the first drafts, counted over all prose.
const DIALECT: [&str; 22] = [
    "those who",
    "those that",
    "one who",
    "one that",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "told",
    "look",
    "looks",
    "looked",
    "looking",
    "whoever",
    "whatever",
    "give back",
    "gives back",
    "given back",
    "so many",
    "so long",
    "in line",
    "goes on",
];

/// The most dialect phrases per 10,000 words.
const MAX_RATE: f64 = 12.0;

const COMMENT_WIDTH: usize = 80;
const PROSE_WIDTH: usize = 100;

/// A line of prose: its file, its number, and its text.
struct Line {
    file: PathBuf,
    number: usize,
    text: String,
    width: usize,
}

fn is_own(path: &Path) -> bool {
    let place = path.to_string_lossy();
    !place.contains("/docs/torture/") && !place.contains("tests/tidy/")
}

/// Returns the comment marker of a file, if it is source code.
fn marker(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "rs" | "java" | "js" | "go" | "c" => Some("//"),
        "lua" => Some("--"),
        "py" | "toml" | "yml" => Some("#"),
        _ => None,
    }
}

fn comments() -> Vec<Line> {
    let mut lines = Vec::new();
    for file in files(&project_root(), "") {
        let Some(marker) = marker(&file).filter(|_| is_own(&file)) else {
            continue;
        };
        for (at, line) in read(&file).lines().enumerate() {
            if line.trim_start().starts_with(marker) {
                lines.push(Line {
                    file: file.clone(),
                    number: at + 1,
                    text: line.trim_start().to_owned(),
                    width: line.chars().count(),
                });
            }
        }
    }
    lines
}

/// Returns the prose of the documents, without code blocks and tables.
fn prose() -> Vec<Line> {
    let mut lines = Vec::new();
    for file in files(&project_root(), ".md")
        .into_iter()
        .filter(|path| is_own(path))
    {
        let mut in_code = false;
        for (at, line) in read(&file).lines().enumerate() {
            in_code ^= line.trim_start().starts_with("```");
            if !in_code && !line.trim_start().starts_with("```") {
                lines.push(Line {
                    file: file.clone(),
                    number: at + 1,
                    text: line.to_owned(),
                    width: line.chars().count(),
                });
            }
        }
    }
    lines
}

/// Returns how often `phrase` occurs in `text` as whole words.
fn occurrences(text: &str, phrase: &str) -> usize {
    let text = text.to_lowercase();
    let is_letter = |c: char| c.is_alphabetic();
    text.match_indices(phrase)
        .filter(|(at, _)| {
            let before = text[..*at].chars().next_back();
            let after = text[at + phrase.len()..].chars().next();
            !before.is_some_and(is_letter) && !after.is_some_and(is_letter)
        })
        .count()
}

#[test]
fn prose_has_no_banned_phrase() {
    let mut found = Vec::new();
    for line in comments().iter().chain(&prose()) {
        for (phrase, instead) in BANNED {
            if occurrences(&line.text, phrase) > 0 {
                let place = line.file.display();
                found.push(format!("{place}:{}: `{phrase}`: {instead}", line.number));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn prose_has_little_dialect() {
    let lines: Vec<_> = comments().into_iter().chain(prose()).collect();
    let words: usize = lines
        .iter()
        .map(|line| line.text.split_whitespace().count())
        .sum();
    let count = |phrase: &&str| -> usize {
        lines
            .iter()
            .map(|line| occurrences(&line.text, phrase))
            .sum()
    };
    let phrases: usize = DIALECT.iter().map(count).sum();
    let rate = phrases as f64 * 10_000.0 / words as f64;
    println!("{phrases} dialect phrases in {words} words: {rate:.1} per 10,000");
    assert!(rate <= MAX_RATE, "{rate:.1} per 10,000 words");
}

#[test]
fn phrases_match_whole_words_only() {
    assert_eq!(occurrences("She told nobody.", "told"), 1);
    assert_eq!(occurrences("nobody_waits", "nobody"), 1);
    assert_eq!(occurrences("an untold story", "told"), 0);
    assert_eq!(occurrences("Those who wait", "those who"), 1);
}

#[test]
fn comments_and_prose_keep_their_width() {
    let mut wide = Vec::new();
    let is_breakable = |line: &&Line| {
        let words = line.text.split_whitespace().count();
        words > 2 && !line.text.contains("://") && !line.text.contains("](")
    };
    let source = ["rs", "lua"];
    let comments = comments();
    let comments = comments.iter().filter(|line| {
        let extension = line
            .file
            .extension()
            .and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| source.contains(&extension))
    });
    for line in comments.filter(is_breakable) {
        // Tables in rustdoc cannot be wrapped.
        if line.width > COMMENT_WIDTH && !line.text.contains('|') {
            wide.push(format!("{}:{}", line.file.display(), line.number));
        }
    }
    for line in prose().iter().filter(is_breakable) {
        let is_table = line.text.trim_start().starts_with('|');
        if line.width > PROSE_WIDTH && !is_table {
            wide.push(format!("{}:{}", line.file.display(), line.number));
        }
    }
    assert!(
        wide.is_empty(),
        "{} too wide:\n{}",
        wide.len(),
        wide.join("\n")
    );
}
