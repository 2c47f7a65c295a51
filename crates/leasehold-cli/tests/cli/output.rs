//! What others have written is shown, and does nothing else; and nobody may be there to read it.

use std::fs::File;
use std::process::Stdio;

use testkit::{Flavor, Server};

use crate::harness::{Cast, Stage};

/// A line that the command could have printed, a sequence that clears the screen, and one that turns text around.
const HOSTILE: &str = "a\nleasehold: lost `job`\r\x1b[2J\u{9b}2J\u{202e}b";

/// Characters that none of the command's lines may have.
const FORBIDDEN: [char; 4] = ['\r', '\x1b', '\u{9b}', '\u{202e}'];

#[track_caller]
fn is_harmless(text: &str) {
    for line in text.lines() {
        assert!(!line.starts_with("leasehold: lost"), "{text:?}");
        assert!(!line.contains(FORBIDDEN), "{text:?}");
    }
}

fn noted(cast: Cast) -> Cast {
    cast.with(|command| command.args(["--note", HOSTILE]))
}

#[test]
fn note_forges_no_line_and_moves_no_text() {
    let stage = Stage::set();
    let holder = noted(stage.leasehold("run --fair job")).hold(&stage);
    let waiter = noted(stage.leasehold("run --fair job")).playing("true");
    let waiter = waiter.start_until("it waits", || stage.waiting("job") == 1);
    for words in [
        "show job",
        "show --json job",
        "queue job",
        "ls",
        "ls --json",
    ] {
        let shown = stage.leasehold(words).play().with_code(0).out;
        is_harmless(&shown);
        assert!(shown.contains("leasehold: lost"), "no note in {shown}");
    }
    let busy = stage.leasehold("run -n --fair job").playing("true").play();
    is_harmless(&busy.with_code(75).saying("leasehold: lost").said);
    let curious = stage.leasehold("run -v -w 1s --fair job").playing("true");
    is_harmless(&curious.play().with_code(75).said);
    let taken = stage.leasehold("release --force job").play();
    is_harmless(&taken.with_code(0).saying("leasehold: lost").said);
    holder.ends().with_code(76);
    waiter.ends().with_code(0);
}

#[test]
fn servers_text_reaches_no_terminal_raw() {
    let user = "\x1b[2J\u{202e}poor";
    for flavor in Flavor::all() {
        let stage = Stage::at(Server::start(&flavor));
        let rules = "on nopass ~* &* +@all -eval -evalsha".split(' ');
        let rules: Vec<_> = ["ACL", "SETUSER", user].into_iter().chain(rules).collect();
        stage.server.tell(&rules);
        let port = stage.server.port();
        let url = format!("redis://%1b%5b2J%e2%80%aepoor:x@127.0.0.1:{port}");
        // What it refuses is in the user's name, where the server is new enough.
        for words in ["doctor", "doctor --json"] {
            let found = stage.leasehold_at(&url, words).play().with_code(1).out;
            assert!(found.contains("no permissions"), "{found}");
            is_harmless(&found);
        }
        let denied = stage.leasehold_at(&url, "run --fair job").playing("true");
        is_harmless(&denied.play().with_code(77).saying("no permissions").said);
    }
}

const PRINTING: [&str; 8] = [
    "doctor",
    "doctor --json",
    "completions bash",
    "show --json free",
    "release --force --json free",
    "show --json job",
    "ls",
    "ls --json",
];

#[test]
fn closed_output_is_no_error() {
    let stage = Stage::set();
    let holder = stage.leasehold("run job").hold(&stage);
    for words in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let printing = stage.leasehold(words);
        let printing = printing.with(|command| command.stdout(Stdio::from(writer)));
        let scene = printing.play();
        let code = if words.contains("free") { 1 } else { 0 };
        let doctor = words.contains("doctor") && scene.status.code() == Some(1);
        assert!(
            doctor || scene.status.code() == Some(code),
            "{words}: {scene:?}"
        );
        assert!(!scene.said.contains("panicked"), "{words}: {scene:?}");
    }
    stage.go();
    holder.ends().with_code(0);
}

#[test]
fn full_disk_is_reported() {
    let stage = Stage::set();
    let holder = stage.leasehold("run job").hold(&stage);
    for words in PRINTING {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let printing = stage.leasehold(words);
        let printing = printing.with(|command| command.stdout(Stdio::from(full)));
        printing.play().with_code(74).saying("cannot print");
    }
    stage.go();
    holder.ends().with_code(0);
}
