//! Examples of one process at a time: jobs, batches, and one's first lock.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use testkit::{Flavor, Reply, ServerExt, Setup};

use crate::page::shows;
use crate::process::{AMPLE, Process, client, locks, program, run, start};
use crate::read;

const LEDGER: &str = "{ledger}:invoices";

#[test]
fn quick_start_is_the_first_example_of_the_readme() {
    let readme = read("README.md");
    let (_, block) = readme.split_once("```rust").expect("a Rust example");
    let (_, block) = block.split_once('\n').expect("lines");
    let block = block.split("```").next().expect("an end").trim();
    let program = read("examples/quick-start.rs");
    let program: Vec<_> = program
        .lines()
        .filter(|line| !line.starts_with("//!"))
        .collect();
    assert_eq!(block, program.join("\n").trim());
    assert!(block.lines().count() <= 30, "{block}");
}

#[test]
#[ignore = "deep: needs port 6379"]
fn quick_start_runs_against_the_local_server() {
    let _server = Setup::default().port(6379).start(&Flavor::one());
    let output = Process::start(Command::new(program!("quick-start"))).succeeds();
    shows("quick-start", &[output]);
}

/// Waits for the next day if it is about to begin, since both runs must be on
/// the same day.
fn wait_out_midnight() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let left = 86_400 - now.expect("a time after 1970").as_secs() % 86_400;
    if left < AMPLE.as_secs() {
        std::thread::sleep(Duration::from_secs(left + 1));
    }
}

#[test]
fn ten_instances_draw_once_a_day() {
    let server = Flavor::one().start();
    wait_out_midnight();
    let first = run(program!("noon-lottery"), &server);
    let draws = first.lines().filter(|line| line.contains(" with token "));
    assert_eq!(draws.count(), 1, "{first}");
    let second = run(program!("noon-lottery"), &server);
    assert_eq!(first.lines().last(), second.lines().last(), "one record");
    assert_eq!(locks(&server), [""; 0]);
    shows("noon-lottery", &[first, second]);
}

#[test]
fn instance_that_starts_late_does_not_draw() {
    let server = Flavor::one().start();
    let noon = server.ask(&["TIME"]).list()[0].text().to_owned();
    let draw = |name| start(program!("noon-lottery"), &server, &[name, &noon]).succeeds();
    assert!(draw("instance 1").contains("drew ticket "));
    assert_eq!(
        draw("instance 2"),
        "instance 2: Some(\"instance 1\") has drawn"
    );
}

#[test]
fn batch_runs_once_and_stops_when_it_is_lost() {
    let server = Flavor::one().start();
    let mut batch = start(program!("dawn-batch"), &server, &[]);
    batch.enter("invoice-1 30");
    batch.prints("posted invoice-1");
    let refused = start(program!("dawn-batch"), &server, &[]).succeeds();
    batch.enter("invoice-2 20");
    batch.end_input();
    let complete = batch.succeeds();
    let token = complete.lines().next().expect("a line").rsplit(' ').next();
    let fence = server.ask(&["GET", "fence:{ledger}"]);
    assert_eq!(token, Some(fence.text()), "{complete}");

    // An operator revokes the lock: the batch is dropped before its next row.
    let operator = client(&server);
    let mut batch = start(program!("dawn-batch"), &server, &[]);
    batch.enter("invoice-3 50");
    batch.prints("posted invoice-3");
    assert_eq!(
        operator
            .force_release("dawn-batch")
            .wait()
            .expect("a holder")
            .len(),
        1
    );
    let revoked = batch.fails();

    // A batch that hangs: no row arrives.
    let hung = start(program!("dawn-batch"), &server, &["4"]).fails();
    assert_eq!(server.ask(&["HLEN", LEDGER]).int(), 3);
    assert_eq!(locks(&server), [""; 0]);
    shows("dawn-batch", &[complete, refused, revoked, hung]);
}

#[test]
fn paused_batch_does_not_write_after_its_successor() {
    let server = Flavor::one().start();
    let operator = client(&server);
    let mut paused = start(program!("dawn-batch"), &server, &[]);
    paused.enter("invoice-1 30");
    paused.prints("posted invoice-1");
    paused.signal(Signal::STOP);
    let revoked = operator.force_release("dawn-batch").wait();
    assert_eq!(revoked.expect("a server").len(), 1);
    let mut successor = start(program!("dawn-batch"), &server, &[]);
    successor.enter("invoice-1 31");
    successor.end_input();
    assert!(successor.succeeds().ends_with("posted 1 rows"));

    // It learns of the loss, or the fence rejects its write.
    paused.enter("invoice-1 32");
    paused.signal(Signal::CONT);
    let output = paused.fails();
    assert!(output.contains("stopped: "), "{output}");
    let amount = server.ask(&["HGET", LEDGER, "invoice-1"]);
    assert_eq!(amount, Reply::Text("31".to_owned()), "{output}");
}

#[test]
fn lock_is_handed_over_to_a_worker() {
    let server = Flavor::one().start();
    let output = run(program!("hand-over"), &server);
    assert_eq!(locks(&server), [""; 0]);
    shows("hand-over", &[output]);
}

#[test]
fn threads_import_under_one_lock() {
    let server = Flavor::one().start();
    let output = run(program!("threads"), &server);
    assert_eq!(locks(&server), [""; 0]);
    shows("threads", &[output]);
}

#[test]
fn stopped_leader_is_replaced_at_once() {
    let server = Flavor::one().start();
    let first = start(program!("election"), &server, &["10.0.0.7:8080"]);
    first.prints("leading");
    let second = start(program!("election"), &server, &["10.0.0.8:8080"]);
    second.prints("following 10.0.0.7:8080");
    first.signal(Signal::INT);
    let first = first.succeeds();
    second.prints("leading");
    second.signal(Signal::INT);
    let second = second.succeeds();
    assert_eq!(locks(&server), [""; 0]);
    shows("election", &[first, second]);
}
