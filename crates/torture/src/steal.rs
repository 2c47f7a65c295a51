//! Detects CPU steal: while the hypervisor runs other machines, this one is
//! stalled, which counts as a fault of the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cpu_time::CpuTime;
use crate::fault_log::InjectedFault;
use crate::history::now;
use crate::plan::Fault;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// The percentage of stolen time above which the machine counts as stalled.
const STALL_PERCENT: u64 = 60;

/// A thread that samples CPU steal until it is stopped.
pub(crate) struct StealMonitor {
    stop: Arc<AtomicBool>,
    stalls: JoinHandle<Vec<InjectedFault>>,
}

impl StealMonitor {
    pub(crate) fn start() -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let stalls = std::thread::spawn(move || sample(&stopped));
        Self { stop, stalls }
    }

    /// Stops sampling, and returns the periods in which the machine stalled.
    pub(crate) fn stop(self) -> Vec<InjectedFault> {
        self.stop.store(true, Ordering::Relaxed);
        self.stalls.join().unwrap_or_default()
    }
}

fn sample(stop: &AtomicBool) -> Vec<InjectedFault> {
    let (mut stalls, mut from, mut before) = (Vec::<InjectedFault>::new(), now(), CpuTime::now());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(SAMPLE_INTERVAL);
        let (until, after) = (now(), CpuTime::now());
        if is_stalled(after.since(before)) {
            match stalls.last_mut().filter(|last| last.until == from) {
                Some(last) => last.until = until,
                None => stalls.push(InjectedFault {
                    fault: Fault::CpuSteal,
                    from,
                    until,
                }),
            }
        }
        (from, before) = (until, after);
    }
    stalls
}

fn is_stalled(interval: CpuTime) -> bool {
    interval.stolen * 100 > interval.total * STALL_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_is_detected_above_the_threshold() {
        let stalled = |total, stolen| {
            is_stalled(CpuTime {
                total,
                demanded: stolen,
                stolen,
            })
        };
        assert!(!stalled(50, 0));
        assert!(!stalled(50, 10));
        assert!(stalled(50, 45));
        assert!(!stalled(0, 0));
    }
}
