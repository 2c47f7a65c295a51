//! What people do with the command, with real processes and a real server. Each test is a story.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod harness;

/// A thousand at once.
mod concurrency;
/// Jobs on many hosts.
mod cron;
/// Who holds what; and taking it away.
mod inspect;
/// Ctrl-C and its like.
mod interrupts;
/// A lock that cannot be kept.
mod loss;
/// What is printed, whatever others have written.
mod output;
/// Programs of all sorts under a lock.
mod process_group;
/// Programs that read the terminal.
mod terminal;
/// Settings, exit codes, help.
mod usage;
