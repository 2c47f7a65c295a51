//! Applications that are not well: waiters that are not polled, runtimes that block, and runtimes that end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use testkit::SeededRng;

use super::taking::Ask;
use super::{Worker, name};
use crate::history::{Failure, What};

/// Tasks of one runtime that ends.
const TASKS: u64 = 4;

impl Worker {
    /// Waits for a lock, does not poll for longer than others may wait for it, and then polls again or goes away.
    pub(super) async fn take_without_polls(&self, lock: u32, holding: u64, rng: &mut SeededRng) {
        let plan = &self.job.plan;
        // It is not judged by how long it waits.
        let (weight, patient) = (1, false);
        self.note(lock, holding, What::Want { weight, patient });
        let patience = Some(plan.stuck() * 4);
        let name = name(lock);
        let ask = Ask { weight, patience };
        let mut taking = Box::pin(self.locks.take(plan.kind(lock), &name, ask));
        let first = Duration::from_millis(rng.below(20));
        let mut taken = tokio::time::timeout(first, &mut taking).await;
        if taken.is_err() {
            tokio::time::sleep(plan.stuck() * 2).await;
            let second = Duration::from_millis(rng.below(2) * 50);
            taken = tokio::time::timeout(second, &mut taking).await;
        }
        drop(taking);
        match taken {
            Ok(Ok(held)) => self.hold(lock, holding, held, rng).await,
            Ok(Err(failure)) => self.note(lock, holding, What::Failed(failure)),
            Err(_) => self.note(lock, holding, What::Failed(Failure::Abandoned)),
        }
    }

    /// Takes locks on runtimes of one thread, which block for a while and end in the midst of it.
    pub(super) fn run_runtimes(self: Arc<Self>) {
        let mut rng = self.rng(self.job.plan.tasks);
        for round in 1.. {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            for task in 0..TASKS {
                let number = self.job.plan.tasks + round * TASKS + task;
                runtime.spawn(self.clone().take_locks(number));
            }
            runtime.block_on(async {
                for _ in 0..rng.below(8) {
                    tokio::time::sleep(Duration::from_millis(rng.below(60))).await;
                    std::thread::sleep(Duration::from_millis(
                        rng.below(self.job.plan.lease_ms / 4),
                    ));
                    tokio::task::yield_now().await;
                }
            });
        }
    }
}
