//! Leasehold, the bare driver, the bare engine and other crates, driven line by
//! line; see `../README.md`.
//!
//! Commands in addition to those of all peers:
//!
//! - `hot NAME TASKS MILLISECONDS`: prints how often all tasks together
//!   acquired
//!   one lock.
//! - `once NAME`: acquires and releases a lock once.
//! - `hold PREFIX COUNT`: acquires `COUNT` locks and keeps them.
//! - `valid`: prints how many of these locks are still held.
//! - `latency PREFIX MILLISECONDS`: runs one pair after another, and prints the
//!   p50 and p99 in nanoseconds.
//! - `drop`: releases all locks.
//! - `self`: prints the CPU time in microseconds, the memory in KiB and the
//!   number of allocations.
//!
//! The engine and threads support only `pairs` and `self`.

mod engine;
mod library;
mod threads;
mod usage;

use std::time::{Duration, Instant};

use engine::Engine;
use library::{Held, Library};
use threads::Threads;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().expect("a port").parse().expect("a port");
    let name = arguments.next().expect("a library");
    match name.as_str() {
        "engine" => {
            let mut engine = Engine::connect(port);
            serve_pairs(|prefix, tasks, count| engine.pairs(prefix, tasks, count));
        }
        "threads" => {
            let threads = Threads::connect(port);
            serve_pairs(|prefix, tasks, count| threads.pairs(prefix, tasks, count));
        }
        _ => serve(&name, port),
    }
}

/// Serves a contestant that is not a task of a runtime.
fn serve_pairs(mut pairs: impl FnMut(&str, u64, u64)) {
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("a pipe");
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["pairs", prefix, tasks, count] => pairs(prefix, number(tasks), number(count)),
            ["self"] => usage::print(),
            other => panic!("unsupported command {other:?}"),
        }
        println!("done");
    }
}

#[tokio::main]
async fn serve(name: &str, port: u16) {
    let library = Library::connect(name, port).await;
    println!("ready");
    let mut kept = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.expect("a pipe");
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["pairs", prefix, tasks, count] => {
                pairs(&library, prefix, number(tasks), number(count)).await;
            }
            ["hand", name, count] => hand(&library, name, number(count)).await,
            ["hot", name, tasks, millis] => {
                let length = Duration::from_millis(number(millis));
                println!("{}", hot(&library, name, number(tasks), length).await);
            }
            ["hold", prefix, count] => keep(&library, prefix, number(count), &mut kept).await,
            ["latency", prefix, millis] => {
                latency(&library, prefix, Duration::from_millis(number(millis))).await;
            }
            ["once", name] => library.hold(name).await.release().await,
            ["valid"] => println!("{}", valid(&kept)),
            ["drop"] => kept.clear(),
            ["self"] => usage::print(),
            other => panic!("unknown command {other:?}"),
        }
        println!("done");
    }
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}

async fn pairs(library: &Library, prefix: &str, tasks: u64, count: u64) {
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (library, name) = (library.clone(), format!("{prefix}:{task}"));
            tokio::spawn(async move {
                for _ in 0..count / tasks {
                    library.hold(&name).await.release().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

async fn hand(library: &Library, name: &str, count: u64) {
    let mut times = Vec::new();
    for _ in 0..count {
        let held = library.hold(name).await;
        let acquired = clock();
        tokio::time::sleep(Duration::from_millis(4)).await;
        times.push((acquired, clock()));
        held.release().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for (acquired, released) in times {
        println!("{acquired} {released}");
    }
}

async fn hot(library: &Library, name: &str, tasks: u64, length: Duration) -> u64 {
    let end = Instant::now() + length;
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let (library, name) = (library.clone(), name.to_owned());
            tokio::spawn(async move {
                let mut held = 0;
                while Instant::now() < end {
                    library.hold(&name).await.release().await;
                    held += 1;
                }
                held
            })
        })
        .collect();
    let mut held = 0;
    for task in tasks {
        held += task.await.expect("no panic");
    }
    held
}

async fn keep(library: &Library, prefix: &str, count: u64, kept: &mut Vec<Held>) {
    const TASKS: u64 = 64;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (library, prefix) = (library.clone(), prefix.to_owned());
            tokio::spawn(async move {
                let mut held = Vec::new();
                for number in (task..count).step_by(64) {
                    held.push(library.hold(&format!("{prefix}:{number}")).await);
                }
                held
            })
        })
        .collect();
    for task in tasks {
        kept.extend(task.await.expect("no panic"));
    }
    println!("{}", valid(kept));
}

/// Returns how many locks are still held, as far as the library reports it.
fn valid(kept: &[Held]) -> usize {
    kept.iter().filter(|held| held.is_valid()).count()
}

async fn latency(library: &Library, prefix: &str, length: Duration) {
    let end = Instant::now() + length;
    let mut times = Vec::new();
    while Instant::now() < end {
        let start = Instant::now();
        library
            .hold(&format!("{prefix}:probe"))
            .await
            .release()
            .await;
        times.push(start.elapsed().as_nanos());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    times.sort_unstable();
    println!(
        "{} {}",
        times[times.len() / 2],
        times[times.len() * 99 / 100]
    );
}

/// Reads the clock that all processes share, in nanoseconds.
fn clock() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
