//! Two processes of each scheduler run every tick once.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use testkit::{Flavor, Server};

/// Longer than any tick takes. Only a defect reaches it.
const AMPLE: Duration = Duration::from_secs(60);

/// How many ticks both processes must have handled.
const TICKS: usize = 2;

/// A process that is killed when the value is dropped.
struct Scheduler(Child);

impl Scheduler {
    /// Starts a scheduler that sends its lines.
    fn start(program: &str, server: &Server, lines: Sender<String>) -> Self {
        let mut child = Command::new(program)
            .env(
                "LEASEHOLD_URL",
                format!("redis://127.0.0.1:{}", server.port()),
            )
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        Self(child)
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn runs_each_tick_once(program: &str) {
    let server = Flavor::one().start();
    let (sender, lines) = channel();
    let start = || Scheduler::start(program, &server, sender.clone());
    let _schedulers = [start(), start()];
    let mut ticks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while ticks.values().filter(|tick| tick.len() == 2).count() < TICKS {
        let line = lines.recv_timeout(AMPLE).expect("a line per tick");
        println!("{line}");
        let (tick, outcome) = line.split_once(": ").expect("a tick and an outcome");
        let outcomes = ticks.entry(tick.to_owned()).or_default();
        outcomes.push(outcome.to_owned());
    }
    for outcomes in ticks.values() {
        let runs = outcomes.iter().filter(|one| one.starts_with("reported"));
        assert_eq!(runs.count(), 1, "{ticks:?}");
    }
}

#[test]
fn apalis_runs_each_tick_once() {
    runs_each_tick_once(env!("CARGO_BIN_EXE_with_apalis"));
}

#[test]
fn tokio_cron_scheduler_runs_each_tick_once() {
    runs_each_tick_once(env!("CARGO_BIN_EXE_with_tokio_cron_scheduler"));
}
