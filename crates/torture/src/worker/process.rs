//! The process of a worker, and the final check that every lock is free.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::forking;
use super::job::{Job, lock_name};
use super::locks::{Locks, Request};
use super::session::Session;
use super::tasks;
use crate::history::{Event, EventKind, Log, now};

/// How long the last cancellations of a client may take after its shutdown.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

/// Works until standard input is closed.
pub(crate) fn work(job: Job) {
    if job.plan.forks > 0 {
        return forking::work(&job);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let stop = Arc::<AtomicBool>::default();
    let stdin_closed = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        stdin_closed.store(true, Ordering::SeqCst);
    });
    let log = Log::open(&job.history).expect("a file for the history");
    let grown = runtime.block_on(async {
        let session = Session::connect(job, stop, 0).await;
        let before = memory();
        tasks::run(&session).await;
        session.locks.shutdown().await;
        memory().saturating_sub(before)
    });
    // The library's tasks end with the client. Only cancellations continue,
    // until their requests can no longer take effect.
    let limit = Instant::now() + CANCEL_TIMEOUT;
    while runtime.metrics().num_alive_tasks() > 0 && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    let tasks = runtime.metrics().num_alive_tasks() as u64;
    log.record(&Event {
        lock: 0,
        hold: 0,
        at: now(),
        kind: EventKind::Exited { tasks, grown },
    });
}

/// Returns the locks whose full capacity a single client cannot acquire. Called
/// after all workers have exited.
pub(crate) fn unavailable_locks(job: &Job) -> Vec<u32> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let locks = Locks::connect(job).await;
        let mut unavailable = Vec::new();
        for lock in 0..job.plan.locks {
            let kind = job.plan.kind(lock);
            let request = Request {
                weight: kind.capacity(),
                timeout: Some(job.plan.max_wait()),
            };
            match locks.acquire(kind, &lock_name(lock), request).await {
                Ok(held) => drop(held.release(false).await),
                Err(_) => unavailable.push(lock),
            }
        }
        locks.shutdown().await;
        unavailable
    })
}

/// Returns the resident memory of this process in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}
