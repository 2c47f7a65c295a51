//! The arguments of `run` and `lead`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use crate::duration;

pub(super) const RUN_HELP: &str = "\
The command runs in its own process group. It gets the terminal, if any; in a
pipeline it gets the terminal when it first reads from it. It cannot be
suspended. Signals are forwarded to the process group; a second SIGINT within
10 s becomes SIGTERM, and a third SIGINT or SIGTERM becomes SIGKILL. Signals
that were ignored at start, as under nohup, stay ignored. The lock is released
when the command and all processes that it started have exited, including
background processes.

If the lease cannot be renewed because the server is unreachable, the command
receives SIGTERM and, after --grace, SIGKILL: early enough to exit before the
server can grant the lock to another client. If the lock is already lost
(revoked, or missing on the server), the signals are sent at once. The exit
status is then 76, regardless of the status of the command.

With --watchdog, a command that hangs loses the lock too. It reports progress as
a daemon does under systemd, or with `echo > \"$LEASEHOLD_WATCHDOG\"`. If it does
not report for DUR, the lease is no longer renewed, and the command is stopped as
after any loss. WATCHDOG=trigger stops it at once. Messages are passed on to the
NOTIFY_SOCKET of the CLI, if it has one.

With --once-per, a command that was executed has used up the period, with any
exit status. One that was not found or cannot be executed has not.
`leasehold show NAME` prints the last run, and `leasehold once reset NAME` lets
the job run again in its period. Periods begin in UTC, cron jobs in local time:
keep them an hour apart, or daylight saving time skips a period once a year.

Environment of the command:
  LEASEHOLD_NAME      name of the lock
  LEASEHOLD_KEY       key of the lock, prefix and name: the name of its fence
  LEASEHOLD_TOKEN     fencing token, larger than that of every earlier holder
  LEASEHOLD_MODE      `shared` for a reader or a permit, otherwise `exclusive`
  LEASEHOLD_OWNER     holder of the lock: HOST:PID
  LEASEHOLD_DEADLINE  end of the lease unless it is renewed, in ms since 1970
With --watchdog also:
  NOTIFY_SOCKET       socket that takes WATCHDOG=1 and WATCHDOG=trigger
  WATCHDOG_USEC       time within which to report, in microseconds
  LEASEHOLD_WATCHDOG  pipe on which every line is a report";

pub(super) const LEAD_HELP: &str = "\
The CLI campaigns in FIFO order. While it leads, the command runs as under
`leasehold run`, with the same environment: LEASEHOLD_TOKEN is the epoch. If the
lease is lost, the command is stopped before another host can lead, and the CLI
campaigns again. When the command exits by itself, the CLI resigns and exits
with its status. Signals are forwarded to the command; if it exits, the CLI
resigns. `leasehold leader` prints the leader.";

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Name of the lock
    pub(crate) name: String,

    /// Run once per period of DUR since 1970, from 100ms to 100d, on one of
    /// many hosts; a period that another host runs, or has run, counts as held.
    /// Days begin at midnight UTC
    #[arg(long, value_name = "DUR", value_parser = duration::parse, conflicts_with_all = [
        "nonblock", "wait", "shared", "exclusive", "fair", "permits", "at_least", "replicas", "quorum",
    ])]
    pub(crate) once_per: Option<Duration>,

    /// Fail immediately if the lock is held
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,

    /// Wait at most DUR, as in 10, 1.5s or 5m [default: no limit]
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// Exit with CODE if the lock is held [default: 75]
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Exit with success if the lock is held
    #[arg(long, conflicts_with = "conflict_exit_code")]
    pub(crate) skip_ok: bool,

    /// Acquire a shared (read) lock
    #[arg(short = 's', long, conflicts_with_all = ["exclusive", "fair", "permits", "quorum"])]
    pub(crate) shared: bool,

    /// Acquire an exclusive (write) lock, which excludes -s
    #[arg(short = 'x', long, conflicts_with_all = ["fair", "permits", "quorum"])]
    pub(crate) exclusive: bool,

    /// Acquire in FIFO order
    #[arg(long, conflicts_with_all = ["permits", "quorum"])]
    pub(crate) fair: bool,

    /// Acquire one of N permits of a semaphore
    #[arg(long, value_name = "N", conflicts_with = "quorum")]
    pub(crate) permits: Option<u32>,

    /// Hold the lock for at least DUR, even if the command exits earlier
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) at_least: Option<Duration>,

    /// Stop the command after DUR
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) at_most: Option<Duration>,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    /// Choose what to do if the lock is lost: term, kill, ignore, or a signal
    /// to send instead of SIGTERM
    #[arg(long, value_name = "ACTION", default_value = "term")]
    pub(crate) on_lost: String,

    /// Require N replicas, or `all`, to acknowledge the lock
    #[arg(long, value_name = "N|all", conflicts_with = "quorum")]
    pub(crate) replicas: Option<String>,

    /// Acquire on a majority of independent servers: repeat the option, or use
    /// URL,URL,URL
    #[arg(long, value_name = "URL")]
    pub(crate) quorum: Vec<String>,

    /// Report waiting and skipped runs on standard error
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
}

/// The command that runs under a lease, and its lease.
#[derive(Args, Debug)]
pub(crate) struct WorkArgs {
    /// Show TEXT to other clients [default: the name of the command]
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// Set the lease to DUR; after a crash the lock stays held that long
    /// [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,

    /// Wait DUR between SIGTERM and SIGKILL, also if the SIGTERM is forwarded;
    /// at most half of the lease [default: 5s, at most a third of the lease; no
    /// limit if forwarded]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,

    /// Renew the lease only while the command reports progress every DUR: it
    /// sends WATCHDOG=1 to NOTIFY_SOCKET, or writes to LEASEHOLD_WATCHDOG
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) watchdog: Option<Duration>,

    /// Command to run, and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl RunArgs {
    /// Returns the URLs of the quorum.
    pub(crate) fn quorum_urls(&self) -> Vec<String> {
        self.quorum
            .iter()
            .flat_map(|list| split_urls(list))
            .collect()
    }
}

#[derive(Args, Debug)]
pub(crate) struct LeadArgs {
    /// Name of the election
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) work: WorkArgs,

    /// Report the campaign on standard error
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
}

/// Splits a list at the commas before a scheme. Other commas belong to a URL,
/// as between sentinels.
fn split_urls(list: &str) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for part in list.split(',') {
        let scheme = part.split_once("://").map_or("", |(scheme, _)| scheme);
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let starts_url = !scheme.is_empty() && scheme.chars().all(is_scheme);
        match urls.last_mut() {
            Some(url) if !starts_url => *url += &format!(",{part}"),
            _ => urls.push(part.to_owned()),
        }
    }
    urls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_at_commas_before_a_scheme() {
        for (list, expected) in [
            ("redis://a", &["redis://a"][..]),
            ("redis://a,rediss://b", &["redis://a", "rediss://b"]),
            (
                "redis+sentinel://a:1,b:2/g,redis://c,redis+sentinel://d,e/g/0",
                &[
                    "redis+sentinel://a:1,b:2/g",
                    "redis://c",
                    "redis+sentinel://d,e/g/0",
                ],
            ),
            (
                "redis://u:p,w@a,redis://b",
                &["redis://u:p,w@a", "redis://b"],
            ),
            ("a,b", &["a,b"]),
            ("", &[""]),
        ] {
            assert_eq!(split_urls(list), expected, "{list}");
        }
    }
}
