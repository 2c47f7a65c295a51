//! Signals sent to this process. They end a wait or `top`, or are forwarded to
//! the command.
//!
//! A signal that was ignored at start stays ignored, here and in the command.
//! `nohup` ignores signals, and shells do so for background jobs.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::exit;
use crate::output::CliError;

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
}

impl Signals {
    /// Starts to catch the [`TERMINATION`] signals.
    pub(crate) fn new() -> Result<Self, CliError> {
        let (sender, received) = mpsc::unbounded_channel();
        let mut signals = Self { received, sender };
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

    /// Returns the next [`TERMINATION`] signal.
    pub(crate) async fn termination(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if TERMINATION.contains(&signal) {
                return signal;
            }
        }
    }
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
