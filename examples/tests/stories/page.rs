//! The page `docs/examples.md`: each `text` block below the command of an
//! example is what a process of that example has printed.
//!
//! `LEASEHOLD_BLESS=1` replaces the blocks by what the processes print.

use std::sync::Mutex;

use crate::{read, root};

const PAGE: &str = "docs/examples.md";
const START: &str = "```text\n";
const END: &str = "\n```\n";

/// Words before a word that differs in each run.
const BEFORE_VARYING: [&str; 6] = ["token", "epoch", "process", "client", "instance", "ticket"];

/// Compares the output of the processes of an example, in order, with the
/// blocks of its section. Rewrites them if `LEASEHOLD_BLESS` is set.
pub(crate) fn shows(example: &str, outputs: &[String]) {
    // Tests of one program run at the same time.
    static WRITING: Mutex<()> = Mutex::new(());
    let _writing = WRITING.lock();
    let page = read(PAGE);
    let (before, section, after) = section(&page, example);
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        let section = with_blocks(section, outputs);
        let page = [before, &section, after].concat();
        return std::fs::write(root().join(PAGE), page).expect("the page is written");
    }
    let shown: Vec<_> = blocks(section).into_iter().map(normalized).collect();
    let printed: Vec<_> = outputs.iter().map(|output| normalized(output)).collect();
    assert_eq!(
        shown, printed,
        "{PAGE} shows another output of {example}; run this test with LEASEHOLD_BLESS=1"
    );
}

/// Returns the code block of an example with this language.
pub(crate) fn code(example: &str, language: &str) -> String {
    let page = read(PAGE);
    let (_, section, _) = section(&page, example);
    let start = format!("```{language}\n");
    let (_, code) = section.split_once(&start).expect("a code block");
    code.split("```").next().unwrap_or_default().to_owned()
}

/// Splits the page around the section with the command of `example`.
fn section<'a>(page: &'a str, example: &str) -> (&'a str, &'a str, &'a str) {
    let command = format!("cargo run -p examples --bin {example}");
    let is_it = |at: &usize| !page[*at..].starts_with(&format!("{command}-"));
    let mut found = page.match_indices(&command).map(|(at, _)| at);
    let at = found.find(is_it);
    let at = at.unwrap_or_else(|| panic!("{PAGE} has no {example}"));
    let start = page[..at].rfind("\n## ").unwrap_or(0);
    let end = page[at..].find("\n## ").map_or(page.len(), |end| at + end);
    (&page[..start], &page[start..end], &page[end..])
}

fn blocks(section: &str) -> Vec<&str> {
    let blocks = section.split(START).skip(1);
    let inside = |block: &'_ str| block.find(END).unwrap_or(block.len());
    blocks.map(|block| &block[..inside(block)]).collect()
}

/// Returns the section with its blocks replaced.
fn with_blocks(section: &str, outputs: &[String]) -> String {
    let mut parts = section.split(START);
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    let mut outputs = outputs.iter();
    for part in parts {
        let (_, rest) = part.split_once(END).expect("the end of a block");
        let output = outputs.next().expect("a block for each output");
        replaced.push_str(&[START, output, END, rest].concat());
    }
    assert!(outputs.next().is_none(), "a block for each output");
    replaced
}

/// Replaces what differs in each run: tokens, processes, hosts, ports, times.
fn normalized(output: &str) -> String {
    let lines: Vec<_> = output.trim_end().lines().map(normalized_line).collect();
    lines.join("\n")
}

fn normalized_line(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let before = |at: usize, back: usize| at.checked_sub(back).map_or("", |at| words[at]);
    let word = |(at, word): (usize, &&str)| {
        let bare = word.trim_end_matches([',', ':', ';', ')']);
        let end = &word[bare.len()..];
        let is_seconds = words
            .get(at + 1)
            .is_some_and(|next| ["s", "s,"].contains(next));
        if let Some((address, _port)) = bare.split_once(':').filter(|(ip, _)| *ip == "127.0.0.1") {
            return format!("{address}:#{end}");
        }
        let varies = BEFORE_VARYING.contains(&before(at, 1))
            || (before(at, 1) == "on" && before(at, 3) == "process")
            || (is_seconds && bare.parse::<f64>().is_ok());
        if varies {
            format!("#{end}")
        } else {
            (*word).to_owned()
        }
    };
    let words: Vec<_> = words.iter().enumerate().map(word).collect();
    words.join(" ")
}

#[test]
fn only_what_differs_in_each_run_is_normalized() {
    let line = "order 7: process 12 on web-3 (a note), for 0.1 s, with token 179";
    let expected = "order 7: process # on # (a note), for # s, with token #";
    assert_eq!(normalized_line(line), expected);
    let line = "listening on 127.0.0.1:3000, 2 servers";
    assert_eq!(normalized_line(line), "listening on 127.0.0.1:#, 2 servers");
}

#[test]
fn blocks_are_replaced_in_their_section() {
    let page = "a\n\n## B\ncargo run -p examples --bin b-c\n```text\n1\n```\n\n## B\n\
                cargo run -p examples --bin b\n```text\n2\n```\nand\n```text\n3\n4\n```\n\n## C\n";
    let (before, found, after) = section(page, "b");
    assert_eq!(blocks(found), ["2", "3\n4"]);
    assert_eq!(after, "\n## C\n");
    let replaced = with_blocks(found, &["5".to_owned(), "6".to_owned()]);
    assert_eq!(blocks(&replaced), ["5", "6"]);
    assert!(before.contains("```text\n1\n```\n"));
}
