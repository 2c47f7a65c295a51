//! A worker that uses a client, shuts it down, and forks children that acquire
//! locks.
//!
//! Children inherit the memory of their parent. To expose state that must not
//! be inherited, parent and children run their tasks on the thread that forks,
//! and the children of one generation request the same locks in the same order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::job::Job;
use super::session::Session;
use super::tasks;
use crate::history::{Event, EventKind, Log, now};

/// How long the parent acquires locks before it forks.
const PARENT_TIME: Duration = Duration::from_millis(100);

/// How long children acquire locks.
const CHILD_TIME: Duration = Duration::from_secs(1);

/// How long the threads of a client may take to exit after its shutdown.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The range of hold numbers of one process.
const HOLDS: u64 = 1 << 24;

/// Forks one generation of children after another until standard input is
/// closed.
pub(super) fn work(job: &Job) {
    let _ = rustix::io::ioctl_fionbio(std::io::stdin(), true);
    let mut first_hold = 0;
    for generation in 0.. {
        if rustix::io::read(std::io::stdin(), &mut [0; 1]) == Ok(0) {
            break;
        }
        let mut job = job.clone();
        job.plan.seed = job.plan.seed.wrapping_add(generation);
        acquire_for(PARENT_TIME, &job, first_hold);
        wait_for_single_thread();
        let mut children = Vec::new();
        for _ in 0..job.plan.forks {
            first_hold += HOLDS;
            match fork::fork().expect("a child") {
                fork::Fork::Parent(pid) => children.push(pid),
                fork::Fork::Child => {
                    acquire_for(CHILD_TIME, &job, first_hold);
                    std::process::exit(0);
                }
            }
        }
        first_hold += HOLDS;
        for pid in children {
            fork::waitpid(pid).expect("the child exits");
        }
    }
    let kind = EventKind::Exited { tasks: 0, grown: 0 };
    let log = Log::open(&job.history).expect("a file for the history");
    let (lock, hold, at) = (0, 0, now());
    log.record(&Event {
        lock,
        hold,
        at,
        kind,
    });
}

/// Acquires locks for `time` on this thread, with a new client.
fn acquire_for(time: Duration, job: &Job, first_hold: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let stop = Arc::<AtomicBool>::default();
        let session = Session::connect(job.clone(), stop.clone(), first_hold).await;
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            stop.store(true, Ordering::SeqCst);
        });
        tasks::run(&session).await;
        session.locks.shutdown().await;
    });
}

/// Waits until this thread is the only one: a child inherits no other.
fn wait_for_single_thread() {
    let limit = Instant::now() + EXIT_TIMEOUT;
    while std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        assert!(
            Instant::now() < limit,
            "threads of the client did not exit within {EXIT_TIMEOUT:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
