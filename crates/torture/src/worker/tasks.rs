//! The tasks of a worker.

use std::sync::Arc;

use super::session::Session;
use super::{cli, runtimes};

/// Runs all tasks of the plan until the session is stopped.
pub(super) async fn run(session: &Arc<Session>) {
    let plan = &session.job.plan;
    let mut tasks: Vec<_> = (0..plan.tasks)
        .map(|task| tokio::spawn(session.clone().acquire_loop(task)))
        .collect();
    if plan.cli {
        let session = session.clone();
        tasks.push(tokio::task::spawn_blocking(move || cli::run(&session)));
    }
    if plan.short_runtimes {
        let session = session.clone();
        tasks.push(tokio::task::spawn_blocking(move || {
            runtimes::run(&session);
        }));
    }
    for task in tasks {
        task.await.expect("no task panics");
    }
}
