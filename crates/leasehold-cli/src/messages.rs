//! Standard error, written by a thread of its own.
//!
//! A terminal that is stopped with Ctrl-S, a pager or a full log takes no text.
//! This process must not wait for it: it would not stop its command when the
//! lock is lost.

use std::collections::VecDeque;
use std::io::{Write, stderr};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long a text may delay this process, so that it precedes later output.
const MAX_DELAY: Duration = Duration::from_millis(100);

/// How long texts that are not written delay the exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// How many texts wait to be written. Further ones are dropped.
const MAX_UNWRITTEN: usize = 1000;

/// What is not written yet, the oldest first.
static UNWRITTEN: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Notified of every text that is added or written.
static CHANGED: Condvar = Condvar::new();

/// Writes `text` unless earlier texts are not written yet.
pub(crate) fn write_if_idle(text: String) {
    if unwritten().is_empty() {
        write(text);
    }
}

/// Writes `text` behind earlier texts, and waits for a moment until it is
/// written.
pub(crate) fn write(text: String) {
    static HAS_THREAD: OnceLock<bool> = OnceLock::new();
    let start = || std::thread::Builder::new().spawn(write_all).is_ok();
    if !HAS_THREAD.get_or_init(start) {
        return write_now(&text);
    }
    let mut unwritten = unwritten();
    let is_stuck = !unwritten.is_empty();
    if unwritten.len() < MAX_UNWRITTEN {
        unwritten.push_back(text);
        CHANGED.notify_all();
    }
    if !is_stuck {
        let wait = CHANGED.wait_timeout_while(unwritten, MAX_DELAY, |texts| !texts.is_empty());
        drop(wait);
    }
}

/// Waits until everything is written, before this process exits. After some
/// time the rest is dropped, because a parent may wait for the exit.
pub(crate) fn finish() {
    drop(CHANGED.wait_timeout_while(unwritten(), EXIT_TIMEOUT, |texts| !texts.is_empty()));
}

/// Writes each text that is added.
fn write_all() {
    loop {
        let added = CHANGED.wait_while(unwritten(), |texts| texts.is_empty());
        let next = added.unwrap_or_else(PoisonError::into_inner)[0].clone();
        write_now(&next);
        unwritten().pop_front();
        CHANGED.notify_all();
    }
}

fn write_now(text: &str) {
    // A closed standard error leaves no place to report the failure.
    let _ = stderr().write_all(text.as_bytes());
}

fn unwritten() -> MutexGuard<'static, VecDeque<String>> {
    UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}
