//! The machine that the tests share: a few at a time beside each other, and those that measure time alone.
//!
//! Most tests wait more than they work, so there are more threads than processors. Those that measure time wait for each
//! other, so that the rest stands still seldom: they go when enough of them are there, or nobody else is.
//!
//! A virtual machine is at times given to others. Nothing that is said about time is true then, so tests begin when it is ours again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use testkit::Processors;

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
pub(crate) struct Place {
    /// Of one that measures time, for whom the machine is watched.
    alone: Option<Watch>,
}

/// How late the machine ran those who wanted to be run, at worst, while one that measures time was there, in microseconds.
static WORST: AtomicU64 = AtomicU64::new(0);

/// Waits for a place beside others.
pub(crate) fn beside_others() -> Place {
    until_ours();
    let mut now = look();
    now.next += 1;
    while now.alone || now.turn || now.beside == PLACES {
        now = CHANGED.wait(now).unwrap_or_else(PoisonError::into_inner);
    }
    now.next -= 1;
    now.beside += 1;
    Place { alone: None }
}

/// Waits until nobody else is there.
pub(crate) fn alone() -> Place {
    let mut now = look();
    now.waiting += 1;
    now.turn |= now.waiting == ENOUGH;
    while now.alone || now.beside > 0 || now.next > 0 && !now.turn {
        now = CHANGED.wait(now).unwrap_or_else(PoisonError::into_inner);
    }
    now.waiting -= 1;
    now.alone = true;
    drop(now);
    until_ours();
    let alone = Some(Watch::start());
    Place { alone }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut now = look();
        if self.alone.is_some() {
            now.alone = false;
            now.turn &= now.waiting > 0;
        } else {
            now.beside -= 1;
        }
        CHANGED.notify_all();
    }
}

/// How long the machine itself stood still, at worst, since the one that measures time is there: what takes longer than it may is
/// not always the library's doing.
pub(crate) fn stood_still() -> Duration {
    Duration::from_micros(WORST.load(Ordering::Relaxed))
}

/// Threads that want to be run every millisecond, as many as there are processors, until it is dropped.
struct Watch {
    over: Arc<AtomicBool>,
}

impl Watch {
    fn start() -> Self {
        const TICK: Duration = Duration::from_millis(1);
        WORST.store(0, Ordering::Relaxed);
        let over = Arc::<AtomicBool>::default();
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let over = over.clone();
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    thread::sleep(TICK);
                    let late = (start.elapsed() - TICK).as_micros();
                    WORST.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
                }
            });
        }
        Self { over }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
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

fn look() -> MutexGuard<'static, Use> {
    USE.lock().unwrap_or_else(PoisonError::into_inner)
}
