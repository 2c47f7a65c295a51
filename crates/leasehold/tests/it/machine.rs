//! The machine that the tests share: a few at a time beside each other, and those that measure time alone.
//!
//! Most tests wait more than they work, so there are more threads than processors. Those that measure time wait for each
//! other, so that the rest stands still seldom: they go when enough of them are there, or nobody else is.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

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
    alone: bool,
}

/// Waits for a place beside others.
pub(crate) fn beside_others() -> Place {
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
pub(crate) fn alone() -> Place {
    let mut now = look();
    now.waiting += 1;
    now.turn |= now.waiting == ENOUGH;
    while now.alone || now.beside > 0 || now.next > 0 && !now.turn {
        now = CHANGED.wait(now).unwrap_or_else(PoisonError::into_inner);
    }
    now.waiting -= 1;
    now.alone = true;
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

fn look() -> MutexGuard<'static, Use> {
    USE.lock().unwrap_or_else(PoisonError::into_inner)
}
