//! Signals that are sent to this process: they end a wait or a screen, or are passed on to the program.
//!
//! What was ignored when this process was started stays ignored, here and in the program: by `nohup`, and by shells
//! for what they start in the background.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::exit;
use crate::output::CliError;

/// Those that end a wait.
pub(crate) const ENDING: [Signal; 4] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
];

/// All signals that were caught, in the order in which they came.
pub(crate) struct Signals {
    received: mpsc::UnboundedReceiver<Signal>,
    sender: mpsc::UnboundedSender<Signal>,
}

impl Signals {
    /// Catches what ends a wait.
    pub(crate) fn catch() -> Result<Self, CliError> {
        let (sender, received) = mpsc::unbounded_channel();
        let mut signals = Self { received, sender };
        signals.also(&ENDING)?;
        Ok(signals)
    }

    /// Catches more, from now on.
    pub(crate) fn also(&mut self, more: &[Signal]) -> Result<(), CliError> {
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

    /// The next one.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.received.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// The next one that ends a wait.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }
}

/// What is ignored now, a bit for each signal; nothing where the system does not say.
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
    fn ignored_signals_are_read_from_their_bits() {
        // SIGHUP is the first, SIGQUIT the third.
        let bits = 0b101;
        let ignored = ENDING.map(|signal| ignores(bits, signal));
        assert_eq!(ignored, [true, false, true, false]);
    }
}
