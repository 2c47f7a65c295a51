//! The machine itself: what its hypervisor gives to others meanwhile is a fault of the run like any other, made by nobody here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::history::now;
use crate::nemesis::Deed;
use crate::plan::Fault;

/// How often it is looked at.
const TICK: Duration = Duration::from_millis(250);

/// From which share of its time on, in hundredths, a machine counts as taken away.
const MUCH: u64 = 60;

/// Looks at the machine until it is told to end.
pub(crate) struct Watch {
    over: Arc<AtomicBool>,
    seen: JoinHandle<Vec<Deed>>,
}

impl Watch {
    pub(crate) fn start() -> Self {
        let over = Arc::<AtomicBool>::default();
        let told = over.clone();
        let seen = std::thread::spawn(move || look(&told));
        Self { over, seen }
    }

    /// When the machine was taken away.
    pub(crate) fn end(self) -> Vec<Deed> {
        self.over.store(true, Ordering::Relaxed);
        self.seen.join().unwrap_or_default()
    }
}

fn look(over: &AtomicBool) -> Vec<Deed> {
    let read = || std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let (mut seen, mut from, mut before): (Vec<Deed>, _, _) =
        (Vec::new(), now(), Times::of(&read()));
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        let (until, after) = (now(), Times::of(&read()));
        if after.is_taken_away_since(&before) {
            match seen.last_mut().filter(|last| last.until == from) {
                Some(last) => last.until = until,
                None => seen.push(Deed {
                    fault: Fault::MachineTaken,
                    from,
                    until,
                }),
            }
        }
        (from, before) = (until, after);
    }
    seen
}

/// Of all processors together since the start, in ticks.
#[derive(Default)]
struct Times {
    all: u64,
    stolen: u64,
}

impl Times {
    /// By the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. All that is not there is zero.
    fn of(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let times = line.split_whitespace().skip(1).take(8);
        let times: Vec<u64> = times.map_while(|time| time.parse().ok()).collect();
        Self {
            all: times.iter().sum(),
            stolen: times.get(7).copied().unwrap_or_default(),
        }
    }

    fn is_taken_away_since(&self, before: &Self) -> bool {
        let all = self.all.saturating_sub(before.all);
        let stolen = self.stolen.saturating_sub(before.stolen);
        stolen * 100 > all * MUCH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_given_to_others_is_seen() {
        let at =
            |idle, stolen| Times::of(&format!("cpu  10 0 5 {idle} 0 0 0 {stolen} 0 0\ncpu0 1"));
        let before = at(100, 50);
        assert!(!at(150, 50).is_taken_away_since(&before));
        assert!(!at(140, 60).is_taken_away_since(&before));
        assert!(at(105, 95).is_taken_away_since(&before));
        let nothing = Times::of("");
        assert!(!nothing.is_taken_away_since(&nothing));
    }
}
