//! The machine that the tests share: a few at a time beside each other, and those that measure time alone.
//!
//! Most tests wait more than they work, so there are more threads than processors. Those that measure time wait for each
//! other, so that the rest stands still seldom: they go when enough of them are there, or nobody else is.
//!
//! A virtual machine is at times given to others. Nothing that is said about time is true then, so tests begin when it is ours again,
//! and what is held against a limit is how long the machine ran ([`ran_since`]), not how long it took by the clock. One that keeps
//! all processors busy for ten milliseconds is not told from a machine that stands still.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Processors;

/// How many are beside each other.
const PLACES: u32 = 6;

/// How many of those that measure time make the others wait.
const ENOUGH: u32 = 8;

static USE: Mutex<Use> = Mutex::new(Use {
    beside: 0,
    next: 0,
    alone: false,
    waiting: 0,
    turn: false,
});
static CHANGED: Condvar = Condvar::new();

struct Use {
    /// How many are there that bear others, and how many of them are about to be.
    beside: u32,
    next: u32,
    /// Whether one that measures time is there, and how many are about to be.
    alone: bool,
    waiting: u32,
    /// Whether it is the turn of those that measure time.
    turn: bool,
}

/// Being there, as long as it is held.
#[derive(Debug)]
#[must_use]
pub struct Place {
    alone: bool,
}

/// Waits for a place beside others.
pub fn beside_others() -> Place {
    watches();
    until_ours();
    let mut now = look();
    now.next += 1;
    while now.alone || now.turn || now.beside == PLACES {
        now = CHANGED.wait(now).unwrap_or_else(PoisonError::into_inner);
    }
    now.next -= 1;
    now.beside += 1;
    Place { alone: false }
}

/// Waits until nobody else is there.
pub fn alone() -> Place {
    let mut now = look();
    now.waiting += 1;
    now.turn |= now.waiting == ENOUGH;
    while now.alone || now.beside > 0 || now.next > 0 && !now.turn {
        now = CHANGED.wait(now).unwrap_or_else(PoisonError::into_inner);
    }
    now.waiting -= 1;
    now.alone = true;
    drop(now);
    watches();
    until_ours();
    Place { alone: true }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut now = look();
        if self.alone {
            now.alone = false;
            now.turn &= now.waiting > 0;
        } else {
            now.beside -= 1;
        }
        CHANGED.notify_all();
    }
}

/// How long it is since `start`, but for what the machine stood still in between: what takes longer than it may by the clock is not
/// always the library's doing.
#[must_use]
pub fn ran_since(start: Instant) -> Duration {
    ran_between(start, Instant::now())
}

/// How long the machine ran from one moment to another.
#[must_use]
pub fn ran_between(start: Instant, end: Instant) -> Duration {
    let lost = watches().iter().map(|watch| watch.late(start, end).sum());
    (end - start).saturating_sub(lost.max().unwrap_or_default())
}

/// How long the machine stood still since `start`, the longest time.
#[must_use]
pub fn worst_since(start: Instant) -> Duration {
    let now = Instant::now();
    let late = watches().iter().flat_map(|watch| watch.late(start, now));
    late.max().unwrap_or_default()
}

/// Waits while the hypervisor gives much of what is wanted of the machine to others, 25 minutes in all.
fn until_ours() {
    const PATIENCE: Duration = Duration::from_secs(1500);
    /// What tells something, in ticks: a second of one processor.
    const ENOUGH: u64 = 100;
    static SEEN: Mutex<Option<(Processors, Duration)>> = Mutex::new(None);
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let (last, waited) = seen
        .take()
        .unwrap_or_else(|| (Processors::now(), Duration::ZERO));
    let (now, start) = (Processors::now(), Instant::now());
    // What the tests before this one wanted tells most; what is not enough to tell is kept for the next.
    let meanwhile = now.since(last);
    let (mut told, mut taken) = match meanwhile.wanted < ENOUGH {
        true => (last, false),
        false => (now, is_taken_away(meanwhile)),
    };
    while taken && waited + start.elapsed() < PATIENCE {
        let before = Processors::now();
        want_it_for(Duration::from_secs(1));
        told = Processors::now();
        taken = is_taken_away(told.since(before));
    }
    *seen = Some((told, waited + start.elapsed()));
}

/// Wants two processors, to see whether they can be had.
fn want_it_for(length: Duration) {
    let end = Instant::now() + length;
    let want = move || {
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    };
    let other = thread::spawn(want);
    want();
    let _ = other.join();
}

/// Whether more than a fifth of what was wanted went to others.
fn is_taken_away(meanwhile: Processors) -> bool {
    meanwhile.stolen * 5 > meanwhile.wanted
}

/// How often a watch wants to be run, and how late it is when the machine has stood still.
const TICK: Duration = Duration::from_millis(2);
const LATE: Duration = Duration::from_millis(10);

/// A thread that wants to be run at every tick, and what kept it from that.
struct Watch {
    seen: Mutex<Seen>,
}

struct Seen {
    last: Instant,
    /// From when to when it was not run.
    late: Vec<(Instant, Instant)>,
}

/// As many as there are processors, from the first use on.
fn watches() -> &'static [Arc<Watch>] {
    static WATCHES: OnceLock<Vec<Arc<Watch>>> = OnceLock::new();
    let start = |_| {
        let watch = Arc::new(Watch::new());
        let watching = watch.clone();
        thread::spawn(move || watching.run());
        watch
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    WATCHES.get_or_init(|| (0..processors).map(start).collect())
}

impl Watch {
    fn new() -> Self {
        let (last, late) = (Instant::now(), Vec::new());
        Self {
            seen: Mutex::new(Seen { last, late }),
        }
    }

    fn run(&self) {
        loop {
            thread::sleep(TICK);
            let mut seen = self.look();
            let (due, now) = (seen.last + TICK, Instant::now());
            if now > due + LATE {
                seen.late.push((due, now));
            }
            seen.last = now;
        }
    }

    /// How long it was late each time, as far as that is between two moments; also when it still is.
    fn late(&self, start: Instant, end: Instant) -> impl Iterator<Item = Duration> + use<> {
        let seen = self.look();
        let due = seen.last + TICK;
        let still = (end > due + LATE).then_some((due, end));
        let all: Vec<_> = seen.late.iter().copied().chain(still).collect();
        all.into_iter()
            .map(move |(from, to)| to.min(end).saturating_duration_since(from.max(start)))
    }

    fn look(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look() -> MutexGuard<'static, Use> {
    USE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_late_between_two_moments_counts() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let watch = Watch {
            seen: Mutex::new(Seen {
                last: at(498),
                late: vec![(at(0), at(100)), (at(200), at(300))],
            }),
        };
        let late = |from, to| watch.late(at(from), at(to)).sum::<Duration>().as_millis();
        assert_eq!(late(0, 500), 200);
        assert_eq!(late(50, 250), 100);
        assert_eq!(late(100, 200), 0);
        // Not run since 500.
        assert_eq!(late(400, 510), 0);
        assert_eq!(late(400, 520), 20);
    }

    #[test]
    fn a_machine_that_runs_runs_all_the_time() {
        let start = Instant::now();
        watches();
        thread::sleep(Duration::from_millis(100));
        let (ran, worst) = (ran_since(start), worst_since(start));
        assert!(
            ran + worst * 10 >= Duration::from_millis(100),
            "{ran:?}, {worst:?}"
        );
    }
}
