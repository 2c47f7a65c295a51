//! Signals sent to this process. They end a wait or `top`, or are forwarded to
//! the command.
//!
//! A signal that was ignored at start stays ignored, here and in the command.
//! `nohup` ignores signals, and shells do so for background jobs.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::output::CliError;
use crate::{exit, messages, password};

/// The signals that end a wait.
pub(crate) const TERMINATION: [Signal; 4] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
];

/// A queue of caught signals.
pub(crate) struct Signals {
    received: mpsc::UnboundedReceiver<Signal>,
    sender: mpsc::UnboundedSender<Signal>,
    hup_ends_wait: bool,
}

impl Signals {
    /// Starts to catch the [`TERMINATION`] signals.
    pub(crate) fn new() -> Result<Self, CliError> {
        let (sender, received) = mpsc::unbounded_channel();
        let mut signals = Self {
            received,
            sender,
            hup_ends_wait: true,
        };
        signals.catch(&TERMINATION)?;
        Ok(signals)
    }

    /// Starts to catch `more` signals, except those ignored at start.
    pub(crate) fn catch(&mut self, more: &[Signal]) -> Result<(), CliError> {
        let ignored = ignored();
        let wanted = more.iter().filter(|signal| !ignores(ignored, **signal));
        for &caught in wanted {
            let stream = signal(SignalKind::from_raw(caught as i32));
            let mut stream = stream.map_err(|error| {
                CliError::new(exit::UNREACHABLE, format!("cannot catch {caught}: {error}"))
            })?;
            let sender = self.sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(caught).is_ok() {}
            });
        }
        Ok(())
    }

    /// Returns the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.received.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// Lets a wait continue after SIGHUP, which asks a daemon to reload.
    pub(crate) fn take_hup_for_reload(&mut self) {
        self.hup_ends_wait = false;
    }

    /// Returns the next [`TERMINATION`] signal.
    pub(crate) async fn termination(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            let is_reload = signal == Signal::SIGHUP && !self.hup_ends_wait;
            if TERMINATION.contains(&signal) && !is_reload {
                return signal;
            }
        }
    }
}

/// How Ctrl-C ended a wait or the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// This process received SIGINT, as did its whole process group.
    Received,
    /// The command had the terminal, and received SIGINT alone.
    CommandOnly,
}

/// Ends this process as SIGINT does by default. Returns only on failure.
///
/// A shell continues its script after any exit status. It stops if it
/// received SIGINT itself and its command died of it.
pub(crate) fn die_of_sigint(interruption: Interruption) {
    password::kill_commands();
    messages::finish();
    if interruption == Interruption::CommandOnly {
        // What the terminal would have done without us.
        let _ = kill(Pid::from_raw(0), Signal::SIGINT);
    }
    let _ = signal_hook::low_level::emulate_default_handler(Signal::SIGINT as i32);
}

/// Returns the ignored signals as a bit set, or 0 on a system without `/proc`.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let digits = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let bits = digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    bits.unwrap_or_default()
}

fn ignores(ignored: u64, signal: Signal) -> bool {
    ignored >> (signal as i32 - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_bits() {
        // SIGHUP is signal 1, SIGQUIT signal 3.
        let bits = 0b101;
        let ignored = TERMINATION.map(|signal| ignores(bits, signal));
        assert_eq!(ignored, [true, false, true, false]);
    }
}
