//! Worker processes that hold and wait for locks.

mod election;
pub(crate) mod moving;
mod once;
mod queued;
mod redisson;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Replicas};
use testkit::worker::{say, say_ready, task};
use testkit::{SeededRng, Worker};
use tokio::task::JoinSet;

use crate::pairs;
use crate::support::contract::any_lock;
use crate::support::{clock, run, url_at, with_long_timeouts};

/// Starts a worker that connects to the server on `port`, with this lease.
pub(crate) fn start(port: u16, lease: Duration) -> Worker {
    start_at(&url_at(port), lease)
}

/// Starts a worker that connects to `url`.
pub(crate) fn start_at(url: &str, lease: Duration) -> Worker {
    start_with(url, lease, false)
}

/// Starts a worker whose locks all replicas acknowledge.
pub(crate) fn start_with_acks(url: &str, lease: Duration) -> Worker {
    start_with(url, lease, true)
}

fn start_with(url: &str, lease: Duration, acks: bool) -> Worker {
    Worker::spawn(&format!("{url} {} {acks}", lease.as_millis()))
}

/// The body of a worker process. Not a test; only [`Worker`] runs it.
#[test]
#[ignore = "the body of worker processes"]
fn process() {
    let Some(task) = task() else {
        return;
    };
    let words: Vec<_> = task.split(' ').collect();
    let &[url, lease, acks] = words.as_slice() else {
        panic!("a URL, a lease, and whether replicas acknowledge");
    };
    let lease = Duration::from_millis(lease.parse().expect("a lease"));
    run(async {
        let mut connect = with_long_timeouts(Client::connect(url)).lease(lease);
        if acks == "true" {
            connect = connect.replicas(Replicas::All, lease / 2);
        }
        let client = connect.await;
        say_ready();
        serve(client.expect("the server is up"), url, lease).await;
    });
}

async fn serve(client: Client, url: &str, lease: Duration) {
    let mut guard = None;
    let (mut clients, stop) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    let mut lines = std::io::stdin().lines();
    while let Some(Ok(line)) = lines.next() {
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["lock", name] => {
                let held = client.mutex(name).lock().await.expect("the lock");
                say(format_args!("{} {}", clock(), held.token()));
                guard = Some(held);
            }
            ["report", name, limit] => {
                let limit = Duration::from_millis(limit.parse().expect("a time"));
                let lock = client.mutex(name).lock().progress_within(limit);
                let held = lock.await.expect("the lock");
                let lease = held.lease();
                std::thread::spawn(move || {
                    while lease.check().is_ok() {
                        lease.progress();
                        std::thread::sleep(Duration::from_millis(10));
                    }
                });
                say("reports");
                guard = Some(held);
            }
            ["lock-fair", name] => {
                let held = client.fair_mutex(name).lock().await.expect("the lock");
                say(format_args!("{} {}", clock(), held.token()));
                guard = Some(held);
            }
            ["hand-over", within] => {
                let within = Duration::from_millis(within.parse().expect("a time"));
                match guard.take().expect("held").hand_over(within).await {
                    Ok(ticket) => say(ticket),
                    Err(error) => say(error),
                }
            }
            ["adopt", ticket] => match client.adopt(&ticket.parse().expect("a ticket")).await {
                Ok(held) => {
                    say(format_args!("{} {}", clock(), held.token()));
                    guard = Some(held);
                }
                Err(error) => say(error),
            },
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
                queued::serve(&client, name, millis(limit), millis(hold)).await;
            }
            ["permits", name, permits, count, seed] => {
                let number = |word: &str| word.parse::<u64>().expect("a number");
                let permits = permits.parse().expect("a number");
                queued::permits(&client, name, permits, number(count), number(seed)).await;
            }
            ["read", name, tasks, hold] => {
                let number = |word: &str| word.parse::<u64>().expect("a number");
                let hold = Duration::from_millis(number(hold));
                queued::read(&client, name, number(tasks), hold).await;
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
            ["hold-shared", kind, name] => redisson::hold(&client, lease, kind, name).await,
            ["storm", digest, length, seed, kinds] => {
                redisson::storm(&client, url, lease, [digest, length, seed, kinds]).await;
            }
            ["lead", name, long, seed] => {
                let number = |word: &str| word.parse::<u64>().expect("a number");
                election::lead(&client, name, number(long), number(seed)).await;
            }
            ["follow", name] => election::follow(&client, name).await,
            ["tick", jobs, period, offset, seed] => {
                let number = |word: &str| word.parse::<u64>().expect("a number");
                let host = once::Host {
                    period: Duration::from_millis(number(period)),
                    offset: Duration::from_millis(number(offset)),
                    seed: number(seed),
                };
                host.run(&client, number(jobs)).await;
            }
            ["hold", feature, name, port, peer] => {
                let wanted = [*feature, *name, *port, *peer];
                pairs::fork::serve(wanted, &mut lines, say).await;
            }
            ["move", numbers @ ..] => {
                let host = moving::Host::parse(numbers);
                clients = host.start(&stop);
                say("started");
            }
            ["stop"] => {
                stop.store(true, Ordering::Relaxed);
                std::mem::take(&mut clients).join_all().await;
                say("stopped");
            }
            ["self"] => say(this_process()),
            other => panic!("unknown command {other:?}"),
        }
    }
}

/// Acquires and releases a lock `count` times, and prints the interval and the
/// token of each hold. An interval begins when the acquire was sent: the reply
/// to an acquire may be late, after the server lost its data.
async fn cycle(client: &Client, name: &str, lease: Duration, count: usize) {
    let mutex = client.mutex(name);
    let whole = lease - lease / 100 - Duration::from_millis(2);
    let mut holds = 0;
    while holds < count {
        // Retry while the server is down.
        let Ok(held) = mutex.lock().await else {
            continue;
        };
        let left = held.remaining();
        let now = clock();
        if !left.is_zero() {
            let sent = now - u64::try_from((whole - left).as_nanos()).expect("a duration in range");
            say(format_args!("{sent} {} {}", clock(), held.token()));
            holds += 1;
        }
        let _: Result<_, _> = held.release().await;
    }
    say("done");
}

/// Holds a lock `count` times, and prints when it acquired and released it.
async fn ping_pong(client: &Client, name: &str, kind: u64, hold: Duration, count: u64) {
    let mut times = Vec::new();
    for _ in 0..count {
        let held = any_lock(client, name, kind).await.expect("the lock");
        let taken = clock();
        tokio::time::sleep(hold).await;
        let released = clock();
        held.release().await.expect("released");
        times.push((taken, released));
        // Let the other process acquire the lock: the test measures hand-over.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for (taken, released) in times {
        say(format_args!("{taken} {released}"));
    }
    say("done");
}

/// Acquires and releases random locks of `names` names in several tasks. Prints
/// the interval in which each lock was certainly held. Fails on any error:
/// every waiter must acquire its lock.
async fn hold_many(client: &Client, names: u64, count: u64, seed: u64) {
    const TASKS: u64 = 8;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let client = client.clone();
            let mut rng = SeededRng::new(seed * TASKS + task + 1);
            tokio::spawn(async move {
                let mut holds = Vec::new();
                for _ in 0..count / TASKS {
                    let number = rng.below(names);
                    let name = format!("many:{number}");
                    let held = any_lock(&client, &name, number).await.expect("the lock");
                    let taken = clock();
                    let left = held.remaining();
                    tokio::time::sleep(Duration::from_micros(rng.below(2000))).await;
                    if held.check().is_ok() {
                        let until =
                            taken + u64::try_from(left.as_nanos()).expect("a duration in range");
                        holds.push((name, taken, clock().min(until), held.token()));
                    }
                    let _: Result<_, _> = held.release().await;
                }
                holds
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

/// Acquires and releases `cycles` locks of `names` names, some of them
/// contended. Prints the rate.
async fn churn(client: &Client, cycles: u64, names: u64) {
    const TASKS: u64 = 64;
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for number in 0..cycles / TASKS {
                    // Several tasks contend for every hundredth lock.
                    let (name, kind) = match number % 100 {
                        0 => (format!("shared:{number}"), number / 100),
                        _ => {
                            let own = (number * TASKS + task) % names;
                            (format!("own:{own}"), own)
                        }
                    };
                    let held = any_lock(&client, &name, kind).await.expect("the lock");
                    held.release().await.expect("released");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let rate = cycles as f64 / start.elapsed().as_secs_f64();
    // The client cancels unused subscriptions in the background.
    tokio::time::sleep(Duration::from_millis(500)).await;
    say(format_args!("{rate:.0} cycles/s"));
}

/// Returns the threads, tasks and resident MiB of this process.
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
