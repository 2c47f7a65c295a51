//! The line that says what is being waited for: who holds the lock, since when, and how many are before us.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use leasehold::{Holder, LockInfo};

use super::servers::Servers;
use crate::args::RunArgs;
use crate::output::{printable, say};
use crate::{duration, inspect, me};

/// A lock that is had at once is not worth a word.
const AT_ONCE: Duration = Duration::from_millis(300);

/// How often the line is drawn, and how often it is looked at who holds the lock.
const DRAW: Duration = Duration::from_secs(1);

/// Shows it until dropped: on a terminal live, elsewhere once and only if asked to.
pub(super) async fn show(servers: &Servers, args: &RunArgs) {
    let start = Instant::now();
    tokio::time::sleep(AT_ONCE).await;
    if !stderr().is_terminal() {
        if args.verbose {
            let seen = servers.inspect(&args.name).await;
            say(line(args, start.elapsed(), seen.as_ref()));
        }
        return std::future::pending().await;
    }
    loop {
        let seen = servers.inspect(&args.name).await;
        let text = printable(&line(args, start.elapsed(), seen.as_ref()));
        // Cut off by the terminal rather than wrapped, or it could not be drawn over.
        let _ = write!(stderr(), "\r\x1b[?7l\x1b[Kleasehold: {text}\x1b[?7h");
        let _ = stderr().flush();
        tokio::time::sleep(DRAW).await;
    }
}

/// Leaves nothing of it behind.
pub(super) fn clear() {
    if stderr().is_terminal() {
        let _ = write!(stderr(), "\r\x1b[K");
    }
}

fn line(args: &RunArgs, waited: Duration, seen: Option<&LockInfo>) -> String {
    let mut text = format!("waiting for `{}`, {}", args.name, duration::show(waited));
    let Some(seen) = seen else {
        return text;
    };
    if let Some(holder) = seen.holders.first() {
        text += &format!(" · held by {}", who(holder));
        if seen.holder_count > 1 {
            text += &format!(" and {} more", seen.holder_count - 1);
        }
    }
    match (place(seen), seen.waiter_count) {
        (Some(place), Some(waiting)) => text += &format!(" · number {place} of {waiting} in line"),
        (None, Some(waiting)) if waiting > 1 => text += &format!(" · {waiting} wait"),
        _ => {}
    }
    text
}

fn who(holder: &Holder) -> String {
    let mut text = inspect::who(&holder.host, holder.pid, &holder.redisson);
    if let Some(note) = &holder.note {
        text += &format!(" ({})", printable(note));
    }
    if let Some(since) = holder.since {
        text += &format!(" for {}", duration::show(duration::ago(since)));
    }
    if holder.connected == Some(false) {
        let left = holder.lease_remaining.map(duration::show);
        text += " which is gone";
        text += &left.map_or_else(String::new, |left| format!(", free in {left}"));
    }
    text
}

/// Our own place in line, from 1.
fn place(seen: &LockInfo) -> Option<usize> {
    let own = me();
    let is_own = |at: &leasehold::Waiter| match (&at.host, at.pid) {
        (Some(host), Some(pid)) => format!("{host}:{pid}") == own,
        _ => false,
    };
    seen.waiters.iter().position(is_own).map(|at| at + 1)
}
