//! Runtimes that block and shut down while their tasks hold locks or wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::session::Session;

/// The number of tasks on each runtime.
const TASKS: u64 = 4;

/// Acquires locks on one single-threaded runtime after another. Each blocks now
/// and then, and is dropped with its tasks.
pub(super) fn run(session: &Arc<Session>) {
    let plan = &session.job.plan;
    let mut rng = session.rng(plan.tasks);
    for round in 1.. {
        if session.stop.load(Ordering::SeqCst) {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        for task in 0..TASKS {
            let number = plan.tasks + round * TASKS + task;
            runtime.spawn(session.clone().acquire_loop(number));
        }
        runtime.block_on(async {
            for _ in 0..rng.below(8) {
                tokio::time::sleep(Duration::from_millis(rng.below(60))).await;
                std::thread::sleep(Duration::from_millis(rng.below(plan.lease_ms / 4)));
                tokio::task::yield_now().await;
            }
        });
    }
}
