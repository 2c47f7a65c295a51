//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{duration, exit};

/// Locks around programs, on the Redis or Valkey you already run; and who holds what.
#[derive(Parser, Debug)]
#[command(name = "leasehold", version, max_term_width = 100, after_help = OVERVIEW)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const OVERVIEW: &str = "\
Examples:
  leasehold run -n --skip-ok --at-least 1m nightly -- ./import.sh    a cron job on many hosts, run by one
  leasehold show nightly                                             who holds it, since when, who waits
  leasehold doctor                                                   is this server fit for locks?

Settings: LEASEHOLD_URL, or a file with `url = \"redis://user:password@host:6379/0\"`: $LEASEHOLD_CONFIG,
$XDG_CONFIG_HOME/leasehold.toml, ~/.config/leasehold.toml or /etc/leasehold.toml, the first that is there.
A password on the command line can be seen by all users of the machine.";

/// Where the locks are.
#[derive(Args, Debug, Default)]
pub(crate) struct ServerArgs {
    /// The server: redis://, rediss://, valkey://, redis+sentinel://, redis+cluster:// or unix://
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    pub(crate) url: Option<String>,

    /// What stands before every name to make its key [default: lock:]
    #[arg(long, global = true, value_name = "TEXT", help_heading = "Server")]
    pub(crate) prefix: Option<String>,

    /// Wait at most this long for a reply, and twice as long for a connection [default: 1s]
    #[arg(long, global = true, value_name = "DUR", value_parser = duration::parse, help_heading = "Server")]
    pub(crate) request_timeout: Option<Duration>,

    /// Expect this name in TLS certificates, in place of the host dialled
    #[arg(long, global = true, value_name = "NAME", help_heading = "Server")]
    pub(crate) tls_name: Option<String>,

    /// Reads settings from this file
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Runs a program while holding a lock
    #[command(after_help = exit::TABLE, after_long_help = format!("{RUN_HELP}\n\n{}", exit::TABLE))]
    Run(RunArgs),
    /// Takes a lock away from whoever holds it, and runs a program while holding it
    #[command(after_help = exit::TABLE)]
    Steal(RunArgs),
    /// Lists locks, as the server finds them
    Ls(LsArgs),
    /// Shows one lock: holders and waiters
    Show(NameArgs),
    /// Shows who waits for a lock, in order
    Queue(NameArgs),
    /// Watches locks, full screen
    Top(TopArgs),
    /// Takes a lock away from whoever holds it, who is told at once
    Release(ReleaseArgs),
    /// Waits until nobody holds a lock
    Wait(WaitArgs),
    /// Sets how many permits a semaphore has
    Semaphore {
        #[command(subcommand)]
        verb: SemaphoreVerb,
    },
    /// Sets, counts down, waits for or deletes a latch
    Latch {
        #[command(subcommand)]
        verb: LatchVerb,
    },
    /// Founds a quorum: once, before `run --quorum` is first used
    Quorum {
        #[command(subcommand)]
        verb: QuorumVerb,
    },
    /// Looks whether a server is fit for locks, and says what to do where it is not
    Doctor(DataArgs),
    /// Prints completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Writes manual pages into a folder
    Man {
        /// Where to
        folder: PathBuf,
    },
}

const RUN_HELP: &str = "\
The program is run in a process group of its own, with the terminal if there is one; beside
others of a pipeline it gets the terminal when it reads it. It cannot be suspended. Signals are
passed on to the group; those that were ignored at the start, as by nohup, stay ignored. The
lock is given back when the program and everything it has started are gone, also what it left
in the background.

When the lock cannot be kept because the server is out of reach, the program is told with TERM
and, after --grace, with KILL: early enough that it is gone before the lock can be given to
another. When it is gone already (taken away by force, or forgotten by the server), the same
is done at once. Then the exit status is 76, whatever the program says.

The program finds in its environment:
  LEASEHOLD_NAME      the lock
  LEASEHOLD_TOKEN     the fencing token: larger than that of every earlier holder
  LEASEHOLD_OWNER     who holds it for the program: HOST:PID
  LEASEHOLD_DEADLINE  until when it is held if nothing more is heard, ms since 1970";

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The lock
    pub(crate) name: String,

    /// Fails at once when the lock is held by another
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,

    /// Waits so long for the lock, as in 10, 1.5s, 5m; for ever unless given
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// The exit status when the lock is busy [default: 75]
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Ends with success when the lock is busy
    #[arg(long, conflicts_with = "conflict_exit_code")]
    pub(crate) skip_ok: bool,

    /// Shares the lock with others that use -s
    #[arg(short = 's', long, conflicts_with_all = ["exclusive", "fair", "permits", "quorum"])]
    pub(crate) shared: bool,

    /// Excludes those that use -s
    #[arg(short = 'x', long, conflicts_with_all = ["fair", "permits", "quorum"])]
    pub(crate) exclusive: bool,

    /// Serves those who wait in the order in which they came
    #[arg(long, conflicts_with_all = ["permits", "quorum"])]
    pub(crate) fair: bool,

    /// Lets so many in at the same time
    #[arg(long, value_name = "N", conflicts_with = "quorum")]
    pub(crate) permits: Option<u32>,

    /// Keeps others out for at least so long, even when the program ends earlier
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) at_least: Option<Duration>,

    /// Stops the program after so long
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) at_most: Option<Duration>,

    /// What others see of us [default: the program's name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,

    /// How long a lease lasts; after a crash others wait so long [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,

    /// How long the program has from TERM to KILL [default: 5s, or a third of the lease]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,

    /// What the program gets when the lock is lost: term, kill, ignore, or a signal in place of TERM
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_lost: String,

    /// Counts the lock as held only when so many replicas have it, or `all`
    #[arg(long, value_name = "N|all", conflicts_with = "quorum")]
    pub(crate) replicas: Option<String>,

    /// Holds the lock on a majority of independent servers: given once for each, or URL,URL,URL
    #[arg(long, value_name = "URL")]
    pub(crate) quorum: Vec<String>,

    /// Says on standard error what is being waited for and what is done
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl RunArgs {
    /// The servers of the quorum, each by itself.
    pub(crate) fn quorum_urls(&self) -> Vec<String> {
        self.quorum.iter().flat_map(|list| urls(list)).collect()
    }
}

/// Splits a list at commas before a scheme: other commas are part of a URL, as between sentinels.
fn urls(list: &str) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for piece in list.split(',') {
        let scheme = piece.split_once("://").map_or("", |(scheme, _)| scheme);
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let begins = !scheme.is_empty() && scheme.chars().all(is_scheme);
        match urls.last_mut() {
            Some(url) if !begins => *url += &format!(",{piece}"),
            _ => urls.push(piece.to_owned()),
        }
    }
    urls
}

#[derive(Args, Debug)]
pub(crate) struct DataArgs {
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct NameArgs {
    /// The lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) data: DataArgs,
}

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Which names: a glob of *, ? and [...]
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// Only what somebody waits for
    #[arg(long)]
    pub(crate) waited_for: bool,
    #[command(flatten)]
    pub(crate) data: DataArgs,
}

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Which names: a glob of *, ? and [...]
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// How often to look
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "2s")]
    pub(crate) interval: Duration,
    /// What comes first
    #[arg(long, value_enum, default_value_t = SortKey::Waiters)]
    pub(crate) sort: SortKey,
    /// Allows locks to be taken away, with the key r
    #[arg(long)]
    pub(crate) allow_release: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortKey {
    Waiters,
    Held,
    Name,
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// The lock
    pub(crate) name: String,
    /// Says that you know that the holder may go on working until it has stopped
    #[arg(long, required = true)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) data: DataArgs,
}

#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// The lock
    pub(crate) name: String,
    /// Waits at most so long
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SemaphoreVerb {
    /// Sets how many permits there are, whatever those who ask for one say
    Set {
        /// The semaphore
        name: String,
        /// How many
        permits: u32,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum QuorumVerb {
    /// Lets servers vote that never have; all of them must be up
    Init {
        /// The servers: three or five that do not depend on each other
        #[arg(required = true, value_name = "URL")]
        urls: Vec<String>,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum LatchVerb {
    /// Makes a latch that opens after so many count-downs
    Set {
        /// The latch
        name: String,
        /// How many
        count: u32,
        /// When it is forgotten
        #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "1d")]
        life: Duration,
    },
    /// Counts down once for each caller
    CountDown {
        /// The latch
        name: String,
        /// In whose name [default: HOST:PID]
        #[arg(long, value_name = "CALLER")]
        by: Option<String>,
    },
    /// Waits until it is open
    Wait(WaitArgs),
    /// Deletes it, and wakes all who wait
    Delete {
        /// The latch
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
            assert_eq!(urls(list), expected, "{list}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
