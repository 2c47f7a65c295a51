//! Output with hostile text, to a closed pipe, and to a full disk.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use testkit::{Flavor, ServerExt};

use crate::harness::{Cmd, Harness, eventually};

/// A forged message, a sequence that clears the screen, and a character that
/// reverses text.
const HOSTILE: &str = "a\nleasehold: lost `job`\r\x1b[2J\u{9b}2J\u{202e}b";

/// Characters that no line of output may contain.
const FORBIDDEN: [char; 4] = ['\r', '\x1b', '\u{9b}', '\u{202e}'];

#[track_caller]
fn assert_harmless(text: &str) {
    for line in text.lines() {
        assert!(!line.starts_with("leasehold: lost"), "{text:?}");
        assert!(!line.contains(FORBIDDEN), "{text:?}");
    }
}

fn with_hostile_note(cmd: Cmd) -> Cmd {
    cmd.configure(|command| command.args(["--note", HOSTILE]))
}

#[test]
fn hostile_note_is_harmless() {
    let harness = Harness::new();
    let holder = with_hostile_note(harness.leasehold("run --fair job")).start_holding(&harness);
    let waiter = with_hostile_note(harness.leasehold("run --fair job")).script("true");
    let waiter = waiter.start_until("it is queued", || harness.waiter_count("job") == 1);
    for args in [
        "show job",
        "show --json job",
        "queue job",
        "ls",
        "ls --json",
    ] {
        let shown = harness.leasehold(args).run().expect_code(0).stdout;
        assert_harmless(&shown);
        assert!(shown.contains("leasehold: lost"), "no note in {shown}");
    }
    let busy = harness.leasehold("run -n --fair job").script("true").run();
    assert_harmless(&busy.expect_code(75).expect_stderr("leasehold: lost").stderr);
    let verbose = harness.leasehold("run -v -w 1s --fair job").script("true");
    assert_harmless(&verbose.run().expect_code(75).stderr);
    let revoked = harness.leasehold("release --force job").run();
    assert_harmless(
        &revoked
            .expect_code(0)
            .expect_stderr("leasehold: lost")
            .stderr,
    );
    holder.wait().expect_code(76);
    waiter.wait().expect_code(0);
}

#[test]
fn hostile_server_error_is_harmless() {
    let user = "\x1b[2J\u{202e}poor";
    for flavor in Flavor::all() {
        let harness = Harness::with_server(flavor.start());
        let rules = "on nopass ~* &* +@all -eval -evalsha".split(' ');
        let rules: Vec<_> = ["ACL", "SETUSER", user].into_iter().chain(rules).collect();
        harness.server.tell(&rules);
        let port = harness.server.port();
        let url = format!("redis://%1b%5b2J%e2%80%aepoor:x@127.0.0.1:{port}");
        // Recent servers repeat the name of the user in the error.
        for args in ["doctor", "doctor --json"] {
            let found = harness
                .leasehold_with_url(&url, args)
                .run()
                .expect_code(1)
                .stdout;
            assert!(found.contains("no permissions"), "{found}");
            assert_harmless(&found);
        }
        let denied = harness
            .leasehold_with_url(&url, "run --fair job")
            .script("true");
        assert_harmless(
            &denied
                .run()
                .expect_code(77)
                .expect_stderr("no permissions")
                .stderr,
        );
    }
}

const PRINTING: [&str; 9] = [
    "doctor",
    "doctor --json",
    "completions bash",
    "show --json free",
    "release --force --json free",
    "show --json job",
    "ls",
    "ls --json",
    "export",
];

#[test]
fn closed_stdout_is_not_an_error() {
    let harness = Harness::new();
    let holder = harness.leasehold("run job").start_holding(&harness);
    for args in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let printing = harness.leasehold(args);
        let printing = printing.configure(|command| command.stdout(Stdio::from(writer)));
        let finished = printing.run();
        let code = if args.contains("free") { 1 } else { 0 };
        let doctor = args.contains("doctor") && finished.status.code() == Some(1);
        assert!(
            doctor || finished.status.code() == Some(code),
            "{args}: {finished:?}"
        );
        assert!(
            !finished.stderr.contains("panicked"),
            "{args}: {finished:?}"
        );
    }
    harness.stop_scripts();
    holder.wait().expect_code(0);
}

#[test]
fn follower_ends_when_its_reader_closes() {
    let harness = Harness::new();
    let mut follower = harness.leasehold("leader --follow job").start();
    let mut reader = BufReader::new(follower.take_stdout());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "no leader\n");
    // No change follows, so nothing is written to the closed pipe.
    drop(reader);
    eventually("the follower exits", || follower.has_exited());
    follower.wait().expect_code(0).expect_no_stderr();
}

#[test]
fn full_disk_is_reported() {
    let harness = Harness::new();
    let holder = harness.leasehold("run job").start_holding(&harness);
    for args in PRINTING {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let printing = harness.leasehold(args);
        let printing = printing.configure(|command| command.stdout(Stdio::from(full)));
        printing
            .run()
            .expect_code(74)
            .expect_stderr("cannot write to standard output");
    }
    harness.stop_scripts();
    holder.wait().expect_code(0);
}
