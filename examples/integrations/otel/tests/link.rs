//! The link of a waiter's span names the trace of the holder, across two
//! processes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use testkit::{Flavor, Server};

fn start(server: &Server, what: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_otel"))
        .arg(what)
        .env(
            "LEASEHOLD_URL",
            format!("redis://127.0.0.1:{}", server.port()),
        )
        .stdout(Stdio::piped())
        .spawn()
        .expect("the example starts")
}

/// Returns the words that follow `prefix` in the lines of `output`.
fn after<'a>(output: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    output
        .lines()
        .filter_map(move |line| line.strip_prefix(prefix))
}

#[test]
fn waiter_links_to_the_trace_of_the_holder() {
    let server = Flavor::one().start();
    let mut holder = start(&server, "hold");
    let mut output = BufReader::new(holder.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "holding\n");
    let waiter = start(&server, "wait").wait_with_output().expect("an exit");
    let waiter = String::from_utf8(waiter.stdout).expect("text");
    let mut held = String::new();
    output.read_to_string(&mut held).expect("text");
    assert!(holder.wait().expect("an exit").success());

    let trace = |output: &str| {
        let mut traces = after(output, "span request in trace ");
        traces.next().expect("the span of the request").to_owned()
    };
    assert_ne!(trace(&held), trace(&waiter));
    let wait = after(&waiter, "span leasehold.wait in trace ").next();
    assert_eq!(
        wait,
        Some(&*trace(&waiter)),
        "the wait is part of the request"
    );
    let links: Vec<_> = after(&waiter, "  links to trace ").collect();
    assert_eq!(links, [trace(&held)], "{waiter}");
    // The holder did not wait, so it has no span of a wait.
    assert_eq!(after(&held, "span leasehold.wait").count(), 0, "{held}");
}
