//! Tests of the CLI with real processes and a real server.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod harness;

/// Rules and queries for Prometheus.
mod alerts;
/// Many processes at once.
mod concurrency;
/// A cron job that is installed on several hosts.
mod cron;
/// Metrics for Prometheus.
mod export;
/// What the CLI says about a wrong option, setting or key.
mod hints;
/// `ls`, `show`, `queue`, `top`, `release` and the small subcommands.
mod inspect;
/// Ctrl-C and other signals.
mod interrupts;
/// One instance of a command across hosts.
mod lead;
/// Metrics over HTTP.
mod listener;
/// The lock is lost while the command runs.
mod loss;
/// A command that runs once per period.
mod once_per;
/// Hostile text, closed pipes and full disks.
mod output;
/// Passwords that change.
mod password;
/// Exit codes, background processes and output of commands.
mod process_group;
/// Commands that read from the terminal.
mod terminal;
/// Settings, exit codes, help and `doctor`.
mod usage;
/// Commands that report progress, or hang.
mod watchdog;
