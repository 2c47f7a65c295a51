//! The status line of a wait: the holder, how long it holds the lock, and the
//! queue position.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use leasehold::{Error, Holder, LockInfo, Process};

use super::servers::Servers;
use crate::duration;
use crate::identity::host_and_pid;
use crate::inspect::{held_until, process_name};
use crate::messages;
use crate::output::{message, printable};

/// A shorter wait shows no status.
const DELAY: Duration = Duration::from_millis(300);

/// How often a wait without a terminal looks for an outage.
const OUTAGE_INTERVAL: Duration = Duration::from_secs(10);

/// The interval at which the lock is inspected and the line is redrawn.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows the status until dropped: live on a terminal; otherwise once, with
/// `--verbose`, and then only outages.
pub(super) async fn show(servers: &Servers, name: &str, verbose: bool) {
    let start = Instant::now();
    tokio::time::sleep(DELAY).await;
    if !stderr().is_terminal() {
        if verbose {
            let lock = servers.inspect(name).await.ok().flatten();
            message(status(name, start.elapsed(), lock.as_ref()));
        }
        return report_outages(servers, name).await;
    }
    let _line = StatusLine;
    loop {
        let (lock, error) = match servers.inspect(name).await {
            Ok(lock) => (lock, None),
            Err(error) => (None, Some(error)),
        };
        let mut text = status(name, start.elapsed(), lock.as_ref());
        if let Some(error) = error.filter(Error::is_transient) {
            text += &format!(" · {error}");
        }
        let text = printable(&text);
        // Disables wrapping: a line that wraps cannot be redrawn.
        messages::write_if_idle(format!("\r\x1b[?7l\x1b[Kleasehold: {text}\x1b[?7h"));
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Reports an outage that lasts, once. A candidate waits through outages, and
/// would otherwise be silent while it cannot take over. An outage between two
/// looks is not seen.
async fn report_outages(servers: &Servers, name: &str) {
    let mut is_failing = false;
    loop {
        tokio::time::sleep(OUTAGE_INTERVAL).await;
        // Another kind of lock is an error too, but no outage.
        let error = servers.probe(name).await.err();
        let error = error.filter(Error::is_transient);
        let was_failing = std::mem::replace(&mut is_failing, error.is_some());
        if let Some(error) = error.filter(|_| !was_failing) {
            message(format!("still waiting for `{name}`: {error}"));
        }
    }
}

/// The line that shows the status. It is erased when this is dropped.
struct StatusLine;

impl Drop for StatusLine {
    fn drop(&mut self) {
        messages::write_if_idle("\r\x1b[K".to_owned());
    }
}

fn status(name: &str, waited: Duration, lock: Option<&LockInfo>) -> String {
    let waited = duration::format(waited);
    let mut text = format!("waiting for `{name}` for {waited}");
    let Some(lock) = lock else {
        return text;
    };
    if let Some(holder) = lock.holders.first() {
        text += &format!(" · {}", describe(holder));
        if lock.holder_count > 1 {
            text += &format!(" and {} more", lock.holder_count - 1);
        }
    }
    match (queue_position(lock), lock.waiter_count) {
        (Some(position), Some(count)) => {
            text += &format!(" · queue position {position} of {count}");
        }
        (None, Some(count)) if count > 1 => text += &format!(" · {count} waiters"),
        _ => {}
    }
    text
}

fn describe(holder: &Holder) -> String {
    let mut name = process_name(&holder.process);
    if let Some(note) = &holder.process.note {
        name += &format!(" ({})", printable(note));
    }
    if let Some(until) = held_until(holder) {
        return format!("{until}, last by {name}");
    }
    let mut text = format!("held by {name}");
    if let Some(since) = holder.process.since {
        text += &format!(" for {}", duration::format(duration::since(since)));
    }
    if holder.process.connected == Some(false) {
        text += ", disconnected";
        if let Some(remaining) = holder.lease_remaining {
            text += &format!(", expires in {}", duration::format(remaining));
        }
    }
    text
}

/// Returns the queue position of this process, starting at 1.
fn queue_position(lock: &LockInfo) -> Option<usize> {
    let own = host_and_pid();
    let is_own = |waiter: &Process| match (&waiter.host, waiter.pid) {
        (Some(host), Some(pid)) => format!("{host}:{pid}") == own,
        _ => false,
    };
    lock.waiters.iter().position(is_own).map(|index| index + 1)
}
