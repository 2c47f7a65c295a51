//! What people do with the command, with real processes and a real server. Each test is a story.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod stage;

/// Programs of all sorts under a lock.
mod children;
/// Jobs on many hosts.
mod cron;
/// A thousand at once.
mod crowd;
/// Ctrl-C and its like.
mod interrupts;
/// Who holds what; and taking it away.
mod looking;
/// A lock that cannot be kept.
mod loss;
/// What is printed, whatever others have written.
mod output;
/// Programs that read the terminal.
mod terminal;
/// Settings, exit codes, help.
mod usage;
