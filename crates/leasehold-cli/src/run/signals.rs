//! Signals that are sent to this process: they end a wait, or are passed on to the program.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::exit;
use crate::say::Trouble;

/// Those that end a wait, and those that are only passed on.
const CAUGHT: [(Signal, bool); 7] = [
    (Signal::SIGHUP, true),
    (Signal::SIGINT, true),
    (Signal::SIGQUIT, true),
    (Signal::SIGTERM, true),
    (Signal::SIGUSR1, false),
    (Signal::SIGUSR2, false),
    (Signal::SIGWINCH, false),
];

/// All signals that were caught, in the order in which they came.
pub(super) struct Signals {
    received: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    pub(super) fn catch() -> Result<Self, Trouble> {
        let (sender, received) = mpsc::unbounded_channel();
        for (caught, _) in CAUGHT {
            let stream = signal(SignalKind::from_raw(caught as i32));
            let mut stream = stream.map_err(|error| {
                Trouble::new(exit::UNREACHABLE, format!("cannot catch {caught}: {error}"))
            })?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(caught).is_ok() {}
            });
        }
        Ok(Self { received })
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        match self.received.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// The next one that ends a wait.
    pub(super) async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if CAUGHT.contains(&(signal, true)) {
                return signal;
            }
        }
    }
}
