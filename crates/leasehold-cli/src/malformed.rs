//! What people, cron and files say that is not what it should be: arguments, settings and spans of time. Whatever it is, it is refused or
//! understood, and nothing panics.
//!
//! `scripts/deep models malformed` tries a hundred times as many.

use clap::Parser;
use proptest::collection::vec;
use proptest::prelude::*;
use testkit::check_property;

use crate::args::Cli;
use crate::{settings, span};

#[test]
fn arguments() {
    let known = [
        "run",
        "ls",
        "show",
        "wait",
        "top",
        "doctor",
        "release",
        "force-release",
        "man",
        "completions",
        "help",
        "--",
        "-n",
        "-w",
        "--wait",
        "--lease",
        "--at-least",
        "--at-most",
        "--grace",
        "--permits",
        "--replicas",
        "all",
        "--quorum",
        "--url",
        "redis://127.0.0.1",
        "--on-lost",
        "term",
        "KILL",
        "-s",
        "-x",
        "--fair",
        "--json",
        "-E",
        "75",
        "0",
        "-1",
        "1.5s",
        "5m",
        "99999999999999999999",
        "name",
        "sh",
        "-c",
        "true",
    ];
    let word = prop_oneof![
        6 => prop::sample::select(known.to_vec()).prop_map(str::to_owned),
        1 => "-{0,2}[a-z]{0,8}=?.{0,8}",
        1 => ".{0,12}",
    ];
    check_property(2_000, &vec(word, 0..9), |words| {
        let words = ["leasehold".to_owned()].into_iter().chain(words);
        if let Err(error) = Cli::try_parse_from(words) {
            let _ = error.to_string();
        }
    });
}

#[test]
fn files() {
    let line = prop_oneof![
        "(url|prefix|lease|root_certificate|client_key|tls_name|other) ?= ?(\"[^\"]{0,20}\"|[0-9]{1,20}|true|\\[\\]|\\{\\})",
        "\\[{1,2}[a-z]{0,5}\\]{1,2}",
        ".{0,30}",
    ];
    check_property(2_000, &vec(line, 0..6), |lines| {
        let _ = settings::File::read(&lines.join("\n"));
    });
}

#[test]
fn spans() {
    let text = prop_oneof!["-?[0-9]{0,25}(\\.[0-9]{0,20})?(ms|s|m|h|d|w)?", ".{0,12}"];
    check_property(5_000, &text, |text: String| {
        if let Ok(span) = span::parse(&text) {
            let _ = span::show(span);
        }
    });
}
