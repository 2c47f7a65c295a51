//! A worker that forks: it uses a client, shuts it down, and forks children that lock.
//!
//! What the parent has in memory its children have too. So that this matters, parent and children
//! run their tasks on the thread that forks, and the children of one generation want the same locks
//! in the same order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Job, Worker};
use crate::history::{Event, Log, What, now};

/// How long the parent locks before it forks.
const BEFORE: Duration = Duration::from_millis(100);

/// How long children lock.
const LIFE: Duration = Duration::from_secs(1);

/// How long the threads of a client that was shut down may take to end.
const ENDING: Duration = Duration::from_secs(30);

/// How many holdings one process can number.
const HOLDINGS: u64 = 1 << 24;

/// Forks one generation of children after the other until standard input is closed.
pub(super) fn work(job: &Job) {
    let _ = rustix::io::ioctl_fionbio(std::io::stdin(), true);
    let mut first = 0;
    for generation in 0.. {
        if rustix::io::read(std::io::stdin(), &mut [0; 1]) == Ok(0) {
            break;
        }
        let mut job = job.clone();
        job.plan.seed = job.plan.seed.wrapping_add(generation);
        lock(&job, first, BEFORE);
        until_alone();
        let mut children = Vec::new();
        for _ in 0..job.plan.forks {
            first += HOLDINGS;
            match fork::fork().expect("a child") {
                fork::Fork::Parent(pid) => children.push(pid),
                fork::Fork::Child => {
                    lock(&job, first, LIFE);
                    std::process::exit(0);
                }
            }
        }
        first += HOLDINGS;
        for pid in children {
            fork::waitpid(pid).expect("a child that ends");
        }
    }
    let what = What::Over { tasks: 0, grown: 0 };
    let log = Log::open(&job.history).expect("a file for the history");
    let (lock, holding, at) = (0, 0, now());
    log.note(&Event {
        lock,
        holding,
        at,
        what,
    });
}

/// Locks for a while on this thread, with a client of its own.
fn lock(job: &Job, first: u64, time: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let over = Arc::<AtomicBool>::default();
        let worker = Worker::connect(job.clone(), over.clone(), first).await;
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            over.store(true, Ordering::SeqCst);
        });
        worker.clone().work().await;
        worker.locks.shutdown().await;
    });
}

/// Waits until this thread is the only one: a child has no other.
fn until_alone() {
    let limit = Instant::now() + ENDING;
    while std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        assert!(Instant::now() < limit, "a client leaves a thread behind");
        std::thread::sleep(Duration::from_millis(1));
    }
}
