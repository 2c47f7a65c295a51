//! Real processes: this test program, started again, doing as it is told line by line.

mod lines;
mod shared;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::{Client, Guard};
use rustix::process::{Pid, Signal, kill_process};
use testkit::SeededRng;

use crate::contract::any_lock;
use crate::support::{LEASE, clock, run, url_at};

/// What the process says stands behind this, to tell it from what the test program prints.
const MARK: &str = "@ ";

/// A process that holds and waits for locks.
pub(crate) struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one that is connected to the server on `port`, with leases of this length.
    pub(crate) fn start(port: u16, lease: Duration) -> Self {
        Self::start_at(&url_at(port), lease)
    }

    /// Starts one that is connected to `url`.
    pub(crate) fn start_at(url: &str, lease: Duration) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "worker::process", "--ignored", "--nocapture"])
            .env("LEASEHOLD_WORKER", format!("{url} {}", lease.as_millis()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("this program");
        let orders = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut worker = Self {
            child,
            orders,
            answers,
        };
        assert_eq!(worker.answer(), "ready");
        worker
    }

    /// Gives an order.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the worker lives");
    }

    /// Waits for the next answer.
    pub(crate) fn answer(&mut self) -> String {
        self.answer_if_alive().expect("the worker has ended")
    }

    /// Waits for the next answer; `None` when the worker has ended.
    pub(crate) fn answer_if_alive(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).expect("a pipe");
            // What was being said when it ended does not count.
            if read == 0 || !line.ends_with('\n') {
                return None;
            }
            if let Some((_, answer)) = line.trim_end().split_once(MARK) {
                return Some(answer.to_owned());
            }
        }
    }

    /// What can kill this worker while another thread listens to it.
    pub(crate) fn killer(&self) -> Killer {
        Killer(self.pid())
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a signal");
    }

    fn pid(&self) -> Pid {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        Pid::from_raw(pid).expect("a process")
    }
}

/// See [`Worker::killer`].
pub(crate) struct Killer(Pid);

impl Killer {
    /// Kills the worker; it must not have been waited for.
    pub(crate) fn kill(self) {
        kill_process(self.0, Signal::KILL).expect("a signal");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The other side: what a worker process does. Not a test; started by [`Worker`] only.
#[test]
#[ignore = "the body of worker processes"]
fn process() {
    let Ok(task) = std::env::var("LEASEHOLD_WORKER") else {
        return;
    };
    let (url, lease) = task.split_once(' ').expect("an address and a lease");
    let lease = Duration::from_millis(lease.parse().expect("a lease"));
    run(async {
        let client = Client::builder(url)
            .lease(lease)
            .request_timeout(LEASE / 2)
            .connect_timeout(LEASE)
            .connect()
            .await;
        say("ready");
        serve(client.expect("the server is up"), url, lease).await;
    });
}

fn say(answer: impl std::fmt::Display) {
    println!("{MARK}{answer}");
}

async fn serve(client: Client, url: &str, lease: Duration) {
    let mut guard = None;
    let mut lines = std::io::stdin().lines();
    while let Some(Ok(line)) = lines.next() {
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["lock", name] => {
                let held = client.mutex(name).lock().await.expect("the lock");
                say(format_args!("{} {}", clock(), held.token()));
                guard = Some(held);
            }
            ["release"] => {
                let before = clock();
                let release = guard.take().expect("held").release().await;
                say(format_args!("{before} {release:?}"));
            }
            ["check"] => say(guard.as_ref().expect("held").check().is_ok()),
            ["cycle", name, count] => {
                cycle(&client, name, lease, count.parse().expect("a count")).await;
            }
            ["ping-pong", kind, name, hold, count] => {
                let kind = u64::from(*kind == "fair");
                let number = |word: &str| word.parse::<u64>().expect("a number");
                let hold = Duration::from_millis(number(hold));
                ping_pong(&client, name, kind, hold, number(count)).await;
            }
            ["serve", name, limit, hold] => {
                let millis = |word: &str| Duration::from_millis(word.parse().expect("a time"));
                lines::serve(&client, name, millis(limit), millis(hold)).await;
            }
            ["permits", name, permits, count, seed] => {
                let number = |word: &str| word.parse::<u64>().expect("a number");
                let permits = permits.parse().expect("a number");
                lines::permits(&client, name, permits, number(count), number(seed)).await;
            }
            ["read", name, tasks, hold] => {
                let number = |word: &str| word.parse::<u64>().expect("a number");
                let hold = Duration::from_millis(number(hold));
                lines::read(&client, name, number(tasks), hold).await;
            }
            ["hold-many", names, count, seed] => {
                let number = |word: &str| word.parse::<u64>().expect("a number");
                hold_many(&client, number(names), number(count), number(seed)).await;
            }
            ["churn", cycles, names] => {
                churn(
                    &client,
                    cycles.parse().expect("a count"),
                    names.parse().expect("a count"),
                )
                .await;
            }
            ["hold-shared", kind, name] => shared::hold(&client, lease, kind, name).await,
            ["storm", digest, length, seed, kinds] => {
                shared::storm(&client, url, lease, [digest, length, seed, kinds]).await;
            }
            ["self"] => say(this_process()),
            other => panic!("unknown order {other:?}"),
        }
    }
}

/// Takes and releases a lock so many times; says the interval and token of each holding. It begins
/// when the acquire was sent: what the server granted before it lost its data may be answered late.
async fn cycle(client: &Client, name: &str, lease: Duration, count: usize) {
    let mutex = client.mutex(name);
    let whole = lease - lease / 100 - Duration::from_millis(2);
    let mut holdings = 0;
    while holdings < count {
        // The server may be down for a while; a worker only goes on.
        let Ok(held) = mutex.lock().await else {
            continue;
        };
        let (left, now) = (held.remaining(), clock());
        if !left.is_zero() {
            let sent = now - u64::try_from((whole - left).as_nanos()).expect("not so long");
            say(format_args!("{sent} {} {}", clock(), held.token()));
            holdings += 1;
        }
        let _: Result<_, _> = held.release().await;
    }
    say("done");
}

/// Holds a lock for a moment, again and again; says when it got it and when it gave it back.
async fn ping_pong(client: &Client, name: &str, kind: u64, hold: Duration, count: u64) {
    let mut times = Vec::new();
    for _ in 0..count {
        let held: Guard = any_lock(client, name, kind).await.expect("the lock");
        let taken = clock();
        tokio::time::sleep(hold).await;
        let released = clock();
        let _ = held.release().await.expect("released");
        times.push((taken, released));
        // Lets the other side have it: what is measured is the hand-over.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for (taken, released) in times {
        say(format_args!("{taken} {released}"));
    }
    say("done");
}

/// Takes and releases locks of so many names at random, in several tasks; says each holding, by when it was
/// certainly held. No error is borne: whoever waits must be served.
async fn hold_many(client: &Client, names: u64, count: u64, seed: u64) {
    const TASKS: u64 = 8;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let client = client.clone();
            let mut rng = SeededRng::new(seed * TASKS + task + 1);
            tokio::spawn(async move {
                let mut holdings = Vec::new();
                for _ in 0..count / TASKS {
                    let number = rng.below(names);
                    let name = format!("many:{number}");
                    let held = any_lock(&client, &name, number).await.expect("the lock");
                    let (taken, left) = (clock(), held.remaining());
                    tokio::time::sleep(Duration::from_micros(rng.below(2000))).await;
                    if held.check().is_ok() {
                        let until = taken + u64::try_from(left.as_nanos()).expect("not so long");
                        holdings.push((name, taken, clock().min(until), held.token()));
                    }
                    let _: Result<_, _> = held.release().await;
                }
                holdings
            })
        })
        .collect();
    for task in tasks {
        for (name, from, to, token) in task.await.expect("no panic") {
            say(format_args!("{name} {from} {to} {token}"));
        }
    }
    say("done");
}

/// Takes and releases so many locks of so many names, some of them contended; says how fast.
async fn churn(client: &Client, cycles: u64, names: u64) {
    const TASKS: u64 = 64;
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for number in 0..cycles / TASKS {
                    // Every hundredth is shared by several tasks.
                    let (name, kind) = match number % 100 {
                        0 => (format!("shared:{number}"), number / 100),
                        _ => {
                            let own = (number * TASKS + task) % names;
                            (format!("own:{own}"), own)
                        }
                    };
                    let held = any_lock(&client, &name, kind).await.expect("the lock");
                    let _ = held.release().await.expect("released");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let rate = cycles as f64 / start.elapsed().as_secs_f64();
    // Subscriptions that nobody needs any more are given up in the background.
    tokio::time::sleep(Duration::from_millis(500)).await;
    say(format_args!("{rate:.0} cycles/s"));
}

/// Threads, tasks of the runtime, and resident memory in MiB.
fn this_process() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let field = |name: &str| -> f64 {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("a field");
        line.split_whitespace()
            .next()
            .expect("a number")
            .parse()
            .expect("a number")
    };
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    format!(
        "{} {tasks} {:.1}",
        field("Threads:"),
        field("VmRSS:") / 1024.0
    )
}
