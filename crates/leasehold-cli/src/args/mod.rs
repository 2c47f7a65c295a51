//! The command line.

mod run;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{duration, exit};
use run::{LEAD_HELP, RUN_HELP};
pub(crate) use run::{LeadArgs, RunArgs, WorkArgs};

/// Run commands under distributed locks on Redis or Valkey, and inspect locks
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
  Run a cron job that is installed on many hosts on one of them:
    leasehold run --once-per 1d --skip-ok nightly -- ./import.sh
  Keep one instance of a daemon running on one of many hosts:
    leasehold lead scheduler -- ./scheduler
  Show who holds a lock and who waits:
    leasehold show nightly
  Check whether a server is suitable for locks:
    leasehold doctor

Configuration:
  Set LEASEHOLD_URL, or put `url = \"redis://user:password@host:6379/0\"` in a
  file. --config or $LEASEHOLD_CONFIG names the file; the default is the first
  that exists of $XDG_CONFIG_HOME/leasehold.toml (~/.config/leasehold.toml if
  XDG_CONFIG_HOME is not set) and /etc/leasehold.toml.
  A password on the command line is visible to all users of the machine.
  If the password changes, keep it in a file, or let a command print it: set
  password_file or password_command there, or LEASEHOLD_PASSWORD_FILE or
  LEASEHOLD_PASSWORD_COMMAND, and `user` or LEASEHOLD_USER. The client reads
  the password again for each connection.

Exit status:
    0  success
    1  no: the lock, latch, leader or run does not exist, or `doctor` found a
       problem
   64  invalid command line or configuration, or a name of another kind of lock
   69  the server is unreachable
   74  standard output cannot be written
   75  busy: the lock is held, or the wait timed out
   77  the server denied permission
  run, steal and lead return the status of their command. `leasehold run --help`
  lists what they return otherwise.";

/// The connection to the server.
#[derive(Args, Debug, Default)]
pub(crate) struct ServerArgs {
    /// Connect to URL: redis://, rediss://, valkey://, redis+sentinel://,
    /// redis+cluster:// or unix://
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    pub(crate) url: Option<String>,

    /// Log in as USER, with --password-file or --password-command [default:
    /// default]
    #[arg(long, global = true, value_name = "USER", help_heading = "Server")]
    pub(crate) user: Option<String>,

    /// Read the password from FILE for each connection
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    pub(crate) password_file: Option<PathBuf>,

    /// Run CMD in a shell for each connection; its first line is the password
    #[arg(
        long,
        global = true,
        value_name = "CMD",
        conflicts_with = "password_file",
        help_heading = "Server"
    )]
    pub(crate) password_command: Option<String>,

    /// Prepend TEXT to every name to form its key [default: lock:]
    #[arg(long, global = true, value_name = "TEXT", help_heading = "Server")]
    pub(crate) prefix: Option<String>,

    /// Wait at most DUR for a reply, and twice as long for a connection
    /// [default: 1s; 200ms for each server of a quorum]
    #[arg(long, global = true, value_name = "DUR", value_parser = duration::parse, help_heading = "Server")]
    pub(crate) request_timeout: Option<Duration>,

    /// Expect NAME in TLS certificates instead of the host of the URL
    #[arg(long, global = true, value_name = "NAME", help_heading = "Server")]
    pub(crate) tls_name: Option<String>,

    /// Read settings from FILE
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    #[command(after_help = exit::TABLE, after_long_help = format!("{RUN_HELP}\n\n{}", exit::TABLE))]
    Run(RunArgs),
    /// Revoke a lock from its holder, then run a command while holding it
    #[command(after_help = exit::TABLE)]
    Steal(RunArgs),
    /// Keep one instance of a command running across hosts
    #[command(after_long_help = format!("{LEAD_HELP}\n\n{}", exit::TABLE))]
    Lead(LeadArgs),
    /// Print the leader of an election
    Leader(LeaderArgs),
    /// List locks
    Ls(LsArgs),
    /// Show who holds a lock and who waits, and the last run of a job
    Show(NameArgs),
    /// Show the waiters of a lock in queue order
    Queue(NameArgs),
    /// Watch locks on a full screen
    Top(TopArgs),
    /// Print metrics of locks for Prometheus, or serve them
    #[command(after_long_help = EXPORT_HELP)]
    Export(ExportArgs),
    /// Revoke a lock from its holder, and notify the holder
    Release(ReleaseArgs),
    /// Let a job of `run --once-per` run again
    Once {
        #[command(subcommand)]
        command: OnceCommand,
    },
    /// Wait until a lock is free
    Wait(WaitArgs),
    /// Set the capacity of a semaphore
    Semaphore {
        #[command(subcommand)]
        command: SemaphoreCommand,
    },
    /// Create, count down, wait for or delete a latch
    Latch {
        #[command(subcommand)]
        command: LatchCommand,
    },
    /// Bootstrap a quorum: before the first `run --quorum`, and after a
    /// majority restarted
    Quorum {
        #[command(subcommand)]
        command: QuorumCommand,
    },
    /// Print the SQL with which a database rejects stale writes
    Fence {
        #[command(subcommand)]
        command: FenceCommand,
    },
    /// Check whether a server is suitable for locks
    Doctor(OutputArgs),
    /// Print completions for a shell
    Completions {
        /// Shell to print completions for
        shell: clap_complete::Shell,
    },
    /// Write man pages to a folder
    Man {
        /// Folder to write to
        folder: PathBuf,
    },
}

const EXPORT_HELP: &str = "\
With --lock, only the locks NAME are read. Their metrics have the label `lock`:
  leasehold_lock_holders               number of holders; 0 if it is free
  leasehold_lock_waiters               number of waiters
  leasehold_lock_oldest_hold_seconds   time since the oldest holder acquired it
  leasehold_lock_disconnected_holders  holders whose process is not connected
  leasehold_lock_info                  1 if it exists, with the label `kind`
  leasehold_lock_last_run_timestamp_seconds, leasehold_lock_last_run_period_seconds
                                       last run of a job of `run --once-per`
  leasehold_lock_export_success        0 if it cannot be inspected
Without --lock, every key of the database is read. Locks are summed for each
`kind`: leasehold_other_lock_holders and likewise, and leasehold_locks.

A value that is unknown is missing, as the age of locks of other libraries.

If the server cannot be inspected, nothing is printed, and the exit status is
69. With --listen, leasehold_export_success is then 0, and no lock is listed.

Examples:
  For the textfile collector of node_exporter, which ignores the first name:
    leasehold export --lock nightly > leasehold.tmp && mv leasehold.tmp leasehold.prom
  For a scrape by Prometheus:
    leasehold export --lock nightly --listen 127.0.0.1:18379";

#[derive(Args, Debug)]
pub(crate) struct OutputArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct NameArgs {
    /// Name of the lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct LeaderArgs {
    /// Name of the election
    pub(crate) name: String,
    /// Print every change of the leader until interrupted
    #[arg(long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Glob of the names to list, with *, ? and [...]
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// List only locks with waiters
    #[arg(long)]
    pub(crate) waited_for: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Glob of the names to watch, with *, ? and [...]
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// Refresh every DUR
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "2s")]
    pub(crate) interval: Duration,
    /// Sort by KEY
    #[arg(long, value_name = "KEY", value_enum, default_value_t = SortKey::Waiters)]
    pub(crate) sort: SortKey,
    /// Allow locks to be revoked with the key r
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
pub(crate) struct ExportArgs {
    /// Export the lock NAME, even if it is free, and no others; can be repeated
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) lock: Vec<String>,
    /// Serve http://ADDR/metrics, as in 127.0.0.1:18379, instead of printing
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// Name of the lock, or with --pattern a glob of names
    pub(crate) name: String,
    /// Accept that the holder may continue to work until it has stopped
    #[arg(long, required = true)]
    pub(crate) force: bool,
    /// Release every lock that matches the glob NAME, after a question
    #[arg(long)]
    pub(crate) pattern: bool,
    /// Don't ask
    #[arg(short, long, requires = "pattern")]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// Name to wait for
    pub(crate) name: String,
    /// Wait at most DUR
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum OnceCommand {
    /// Forget the last run of a job, which may then run again in its period
    Reset(NameArgs),
}

#[derive(Subcommand, Debug)]
pub(crate) enum SemaphoreCommand {
    /// Set the capacity, which overrides --permits of all clients
    Set {
        /// Name of the semaphore
        name: String,
        /// Number of permits
        permits: u32,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum QuorumCommand {
    /// Let all servers vote: new ones at once, restarted ones when no lock from
    /// before can be held
    Init {
        /// Three or five independent servers
        #[arg(required = true, value_name = "URL")]
        urls: Vec<String>,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum FenceCommand {
    /// Print the table of fences and the guard of a transaction
    Sql {
        /// Database to print SQL for
        #[arg(value_enum)]
        database: Database,
        /// Print the table only, as for a migration
        #[arg(long)]
        schema: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Database {
    Postgres,
    /// MySQL or MariaDB
    #[value(alias = "mariadb")]
    Mysql,
    Sqlite,
}

#[derive(Subcommand, Debug)]
pub(crate) enum LatchCommand {
    /// Create a latch that opens after COUNT count-downs
    Set {
        /// Name of the latch
        name: String,
        /// Number of count-downs
        count: u32,
        /// Delete the latch after DUR
        #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "1d")]
        life: Duration,
    },
    /// Count down, once per caller
    CountDown {
        /// Name of the latch
        name: String,
        /// Count down as CALLER [default: HOST:PID]
        #[arg(long, value_name = "CALLER")]
        by: Option<String>,
    },
    /// Wait until a latch is open
    Wait(WaitArgs),
    /// Delete a latch and wake its waiters
    Delete {
        /// Name of the latch
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }
}
