//! The machine itself: what its hypervisor gives to others meanwhile is a fault of the run like any other, made by nobody here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::history::now;
use crate::nemesis::Deed;
use crate::plan::Fault;
use crate::processors::Processors;

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
    let (mut seen, mut from, mut before) = (Vec::<Deed>::new(), now(), Processors::now());
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        let (until, after) = (now(), Processors::now());
        if is_taken_away(after.since(before)) {
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

fn is_taken_away(meanwhile: Processors) -> bool {
    meanwhile.stolen * 100 > meanwhile.all * MUCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_given_to_others_is_seen() {
        let taken = |all, stolen| {
            is_taken_away(Processors {
                all,
                wanted: stolen,
                stolen,
            })
        };
        assert!(!taken(50, 0));
        assert!(!taken(50, 10));
        assert!(taken(50, 45));
        assert!(!taken(0, 0));
    }
}
