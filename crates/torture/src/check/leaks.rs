//! Checks that nothing is left behind after all workers have exited and every
//! lease has expired: only permanent keys, no subscriptions, no tasks, and
//! every lock free.

use super::verdict::Verdict;
use crate::artifacts::{Artifacts, is_permanent};
use crate::history::{Event, EventKind};
use crate::plan::Plan;

/// By how many bytes the servers' memory may grow, for buffers, scripts and
/// counters.
const SERVER_GROWTH: i64 = 24 * 1024 * 1024;

/// By how many bytes the memory of a worker may grow between connect and
/// shutdown, plus `TASK_GROWTH` per task. Independent of the duration of the
/// run.
const WORKER_GROWTH: u64 = 32 * 1024 * 1024;
const TASK_GROWTH: u64 = 8 * 1024;

pub(crate) fn check(plan: &Plan, artifacts: &Artifacts) -> Verdict {
    let mut verdict = Verdict::new("nothing is left behind");
    for (key, ttl) in &artifacts.keys {
        verdict.checked += 1;
        if !is_permanent(key) {
            verdict.violation(|| format!("key {key}, TTL {ttl} ms"));
        }
    }
    for channel in &artifacts.channels {
        verdict.violation(|| format!("channel {channel} has a subscriber"));
    }
    for lock in &artifacts.unavailable {
        verdict.violation(|| format!("lock {lock} is not free"));
    }
    for (process, events) in artifacts.histories.iter().enumerate() {
        check_exit(plan, process, events, &mut verdict);
    }
    if artifacts.grown > SERVER_GROWTH {
        verdict.violation(|| format!("the servers' memory grew by {} bytes", artifacts.grown));
    }
    verdict
}

/// Checks the tasks and the memory of a process that was not killed.
fn check_exit(plan: &Plan, process: usize, events: &[Event], verdict: &mut Verdict) {
    if let Some(EventKind::Exited { tasks, grown }) = events.last().map(|event| event.kind) {
        verdict.checked += 1;
        if tasks > 0 {
            verdict.violation(|| format!("process {process} exited with {tasks} live tasks"));
        }
        if grown > WORKER_GROWTH + plan.tasks * TASK_GROWTH {
            verdict.violation(|| format!("the memory of process {process} grew by {grown} bytes"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, tests::plan_of};

    #[test]
    fn every_kind_of_leak_is_found() {
        let plan = plan_of(Kind::Mutex);
        let clean = Artifacts {
            keys: vec![("leasehold:token:{3560}".to_owned(), 5)],
            ..Artifacts::default()
        };
        assert!(check(&plan, &clean).is_clean());
        let key = Artifacts {
            keys: vec![("lock:torture:1".to_owned(), -1)],
            ..Artifacts::default()
        };
        let channel = Artifacts {
            channels: vec!["leasehold:wake:{1}".to_owned()],
            ..Artifacts::default()
        };
        let lock = Artifacts {
            unavailable: vec![3],
            ..Artifacts::default()
        };
        let task = Artifacts {
            histories: vec![vec!["exited 0 0 5 2 0".parse().unwrap()]],
            ..Artifacts::default()
        };
        let worker = Artifacts {
            histories: vec![vec!["exited 0 0 5 0 40000000".parse().unwrap()]],
            ..Artifacts::default()
        };
        let memory = Artifacts {
            grown: SERVER_GROWTH + 1,
            ..Artifacts::default()
        };
        for artifacts in [key, channel, lock, task, worker, memory] {
            assert_eq!(check(&plan, &artifacts).violations, 1);
        }
    }
}
