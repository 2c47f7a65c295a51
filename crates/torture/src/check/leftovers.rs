//! When all have ended and every lease is over, the servers have nothing but counters, nobody listens, no task is left, and everything
//! can be had.

use super::Verdict;
use crate::history::{Event, What};
use crate::plan::Plan;
use crate::site::Remains;

/// How much more memory servers may use than before: buffers, scripts, counters.
const MEMORY: i64 = 24 * 1024 * 1024;

/// How much more a worker may have when its client has gone than when it had just connected, and how much more for
/// each of its tasks: what they had at the same time, and no more the longer it ran.
const OF_A_WORKER: u64 = 32 * 1024 * 1024;
const OF_A_TASK: u64 = 8 * 1024;

/// Keys that are meant to stay: tokens, the standing and the votes of a quorum's node, and the tokens of Redisson's fenced locks.
const MEANT_TO_STAY: [&str; 4] = [
    "leasehold:token:",
    "leasehold:voter:",
    "leasehold:votes:",
    "redisson_lock_token:",
];

pub(crate) fn check(plan: &Plan, remains: &Remains) -> Verdict {
    let mut verdict = Verdict::new("nothing is left behind");
    for (key, life) in &remains.keys {
        verdict.looked_at += 1;
        if !is_meant_to_stay(key) {
            verdict.wrong(|| format!("key {key}, for {life} ms more"));
        }
    }
    for channel in &remains.channels {
        verdict.wrong(|| format!("somebody listens to {channel}"));
    }
    for lock in &remains.not_to_be_had {
        verdict.wrong(|| format!("lock {lock} cannot be had in full"));
    }
    for (process, events) in remains.histories.iter().enumerate() {
        check_end(plan, process, events, &mut verdict);
    }
    if remains.grown > MEMORY {
        verdict.wrong(|| format!("the servers' memory has grown by {} bytes", remains.grown));
    }
    verdict
}

pub(crate) fn is_meant_to_stay(key: &str) -> bool {
    MEANT_TO_STAY.iter().any(|start| key.starts_with(start))
}

/// Processes that were not killed end with nothing under way.
fn check_end(plan: &Plan, process: usize, events: &[Event], verdict: &mut Verdict) {
    if let Some(What::Over { tasks, grown }) = events.last().map(|event| event.what) {
        verdict.looked_at += 1;
        if tasks > 0 {
            verdict.wrong(|| format!("process {process} ended with {tasks} tasks"));
        }
        if grown > OF_A_WORKER + plan.tasks * OF_A_TASK {
            verdict.wrong(|| format!("process {process} has grown by {grown} bytes"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, tests::plan_of};

    #[test]
    fn what_is_left_is_found() {
        let plan = plan_of(Kind::Mutex);
        let clean = Remains {
            keys: vec![("leasehold:token:{3560}".to_owned(), 5)],
            ..Remains::default()
        };
        assert!(check(&plan, &clean).is_clean());
        let key = Remains {
            keys: vec![("lock:torture:1".to_owned(), -1)],
            ..Remains::default()
        };
        let channel = Remains {
            channels: vec!["leasehold:wake:{1}".to_owned()],
            ..Remains::default()
        };
        let permits = Remains {
            not_to_be_had: vec![3],
            ..Remains::default()
        };
        let task = Remains {
            histories: vec![vec!["over 0 0 5 2 0".parse().unwrap()]],
            ..Remains::default()
        };
        let worker = Remains {
            histories: vec![vec!["over 0 0 5 0 40000000".parse().unwrap()]],
            ..Remains::default()
        };
        let memory = Remains {
            grown: MEMORY + 1,
            ..Remains::default()
        };
        for remains in [key, channel, permits, task, worker, memory] {
            assert_eq!(check(&plan, &remains).wrong, 1);
        }
    }
}
