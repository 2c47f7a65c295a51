//! Malformed arguments, configuration files and durations are rejected without
//! a panic.
//!
//! `scripts/deep models fuzz_inputs` tries a hundred times as many.

use clap::Parser;
use proptest::collection::vec;
use proptest::prelude::*;
use testkit::check_property;

use crate::args::Cli;
use crate::{duration, settings};

#[test]
fn malformed_arguments_do_not_panic() {
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
    let arg = prop_oneof![
        6 => prop::sample::select(known.to_vec()).prop_map(str::to_owned),
        1 => "-{0,2}[a-z]{0,8}=?.{0,8}",
        1 => ".{0,12}",
    ];
    check_property(2_000, &vec(arg, 0..9), |args| {
        let args = ["leasehold".to_owned()].into_iter().chain(args);
        if let Err(error) = Cli::try_parse_from(args) {
            let _ = error.to_string();
        }
    });
}

#[test]
fn malformed_files_do_not_panic() {
    let line = prop_oneof![
        "(url|user|password_file|prefix|lease|root_certificate|client_key|tls_name|other) ?= ?(\"[^\"]{0,20}\"|[0-9]{1,20}|true|\\[\\]|\\{\\})",
        "\\[{1,2}[a-z]{0,5}\\]{1,2}",
        ".{0,30}",
    ];
    check_property(2_000, &vec(line, 0..6), |lines| {
        let _ = settings::ConfigFile::parse(&lines.join("\n"));
    });
}

#[test]
fn malformed_durations_do_not_panic() {
    let text = prop_oneof!["-?[0-9]{0,25}(\\.[0-9]{0,20})?(ms|s|m|h|d|w)?", ".{0,12}"];
    check_property(5_000, &text, |text: String| {
        if let Ok(parsed) = duration::parse(&text) {
            let _ = duration::format(parsed);
        }
    });
}
