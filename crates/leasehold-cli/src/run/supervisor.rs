//! Supervision of a running command: waits for its exit, forwards signals, and
//! stops it when its lock is lost or its time is over.

use std::time::Duration;

use leasehold::{Lease, Loss, Shared};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::process_group::{GroupState, ProcessGroup};
use super::sleep::sleep_until;
use super::watchdog::{Sign, Watchdog};
use crate::exit;
use crate::output::{CliError, hint, message};
use crate::signals::Signals;

/// SIGKILL is sent this long before the lease ends, or later if the grace is
/// short. A machine can stall for half a second.
const KILL_MARGIN: Duration = Duration::from_secs(1);

/// The interval at which SIGKILL is repeated.
const KILL_INTERVAL: Duration = Duration::from_millis(50);

/// The time from the exit of the command until its remaining processes are
/// reported.
const REPORT_DELAY: Duration = Duration::from_secs(1);

/// What happens to the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnLost {
    Stop(Signal),
    Ignore,
}

impl OnLost {
    pub(super) fn parse(text: &str) -> Result<Self, CliError> {
        let name = text.trim_start_matches("signal:").to_ascii_uppercase();
        let full = match name.strip_prefix("SIG") {
            Some(_) => name.clone(),
            None => format!("SIG{name}"),
        };
        match (name.as_str(), full.parse()) {
            ("IGNORE", _) => Ok(Self::Ignore),
            (_, Ok(signal)) => Ok(Self::Stop(signal)),
            _ => Err(
                CliError::usage(format!("invalid --on-lost {text}: no such signal"))
                    .with_hint("use term, kill, ignore, or a signal as in USR1"),
            ),
        }
    }
}

/// When a command is stopped, and how long it then has to exit.
pub(super) struct Times {
    /// The time between SIGTERM and SIGKILL.
    pub(super) grace: Duration,
    /// The same after a forwarded SIGTERM. `None` is no limit: the sender of
    /// the signal decides.
    pub(super) forwarded_grace: Option<Duration>,
    /// The end of `--at-most`.
    pub(super) limit: Option<Instant>,
}

/// Supervises a command that runs under a lease.
pub(super) struct Supervisor {
    lease: Lease<Shared>,
    on_lost: OnLost,
    times: Times,
    /// The last deadline of the lease that was read before a loss.
    deadline: Instant,
    stopping: Option<Stopping>,
    lost: bool,
    limit_reached: bool,
}

/// The progress of stopping a command.
struct Stopping {
    /// When SIGKILL is sent, or repeated.
    kill_at: Instant,
    killed: bool,
}

impl Supervisor {
    pub(super) fn new(lease: Lease<Shared>, on_lost: OnLost, times: Times) -> Self {
        Self {
            deadline: lease.deadline().into(),
            lease,
            on_lost,
            times,
            stopping: None,
            lost: false,
            limit_reached: false,
        }
    }

    /// Waits until all processes of the command have exited.
    pub(super) async fn wait_for_exit(
        &mut self,
        group: &mut ProcessGroup,
        signals: &mut Signals,
        watchdog: &mut Option<Watchdog>,
    ) {
        let lease = self.lease.clone();
        let mut lost = std::pin::pin!(lease.lost());
        let (mut report_at, mut reported) = (None, false);
        loop {
            match (group.state(), report_at) {
                (GroupState::Exited, _) => return,
                (GroupState::Remaining, None) => report_at = Some(Instant::now() + REPORT_DELAY),
                _ => {}
            }
            if !self.lost {
                self.read_deadline();
            }
            tokio::select! {
                () = group.changed() => {}
                signal = signals.next() => self.forward(group, signal),
                loss = &mut lost, if !self.lost => {
                    self.on_loss(group, loss.unwrap_or(Loss::ShutDown));
                }
                sign = next_sign(watchdog) => self.on_sign(group, sign),
                () = sleep_until(self.stop_at()), if !self.lost => self.check_renewal(group),
                () = sleep_until(self.times.limit), if self.is_limited() => self.on_limit(group),
                () = sleep_until(self.kill_at()), if self.kill_at().is_some() => self.kill(group),
                () = sleep_until(report_at), if !reported && report_at.is_some() => {
                    reported = true;
                    message(group.describe_remaining());
                    if !self.lost {
                        hint("the lock is released when they have exited");
                    }
                }
            }
        }
    }

    /// Forwards a signal. After a SIGTERM, SIGKILL follows like after one of
    /// our own, if the user has set a grace.
    fn forward(&mut self, group: &mut ProcessGroup, signal: Signal) {
        let sent = group.forward(signal);
        if let (Some(Signal::SIGTERM), Some(grace)) = (sent, self.times.forwarded_grace) {
            self.stopping.get_or_insert(Stopping {
                kill_at: Instant::now() + grace,
                killed: false,
            });
        }
    }

    /// Returns whether `--at-most` can still end the command.
    fn is_limited(&self) -> bool {
        let stops_for_loss = self.lost && self.stopping.is_some();
        !self.limit_reached && !stops_for_loss
    }

    /// Returns when the command must be stopped unless the lease is renewed.
    fn stop_at(&self) -> Option<Instant> {
        self.deadline
            .checked_sub(self.times.grace + self.kill_margin())
    }

    fn kill_margin(&self) -> Duration {
        KILL_MARGIN.min(self.times.grace / 4)
    }

    fn kill_at(&self) -> Option<Instant> {
        let stopping = self.stopping.as_ref()?;
        // A loss that is ignored leaves no deadline.
        let is_ignored = self.lost && self.on_lost == OnLost::Ignore;
        let latest = self.deadline.checked_sub(self.kill_margin());
        match stopping.killed || is_ignored {
            true => Some(stopping.kill_at),
            false => Some(latest?.min(stopping.kill_at)),
        }
    }

    /// Reads the deadline, unless it is over. After a suspend of the machine it
    /// is earlier than before, by this process's clock.
    fn read_deadline(&mut self) {
        let deadline = self.lease.deadline().into();
        if self.lease.check().is_ok() {
            self.deadline = deadline;
        }
    }

    /// Stops the command unless the lease was renewed since the last check.
    fn check_renewal(&mut self, group: &mut ProcessGroup) {
        self.read_deadline();
        if self.stop_at().is_some_and(|at| at <= Instant::now()) {
            let loss = match self.lease.is_stuck() {
                true => Loss::Stuck,
                false => Loss::Expired,
            };
            self.on_loss(group, loss);
        }
    }

    /// Reports the progress of the command, or stops it if it says that it is
    /// stuck.
    fn on_sign(&mut self, group: &mut ProcessGroup, sign: Sign) {
        match sign {
            Sign::Progress => self.lease.progress(),
            Sign::Stuck if self.lost => {}
            Sign::Stuck => {
                message("the command sent WATCHDOG=trigger");
                self.on_loss(group, Loss::Stuck);
            }
        }
    }

    fn on_loss(&mut self, group: &mut ProcessGroup, loss: Loss) {
        self.lost = true;
        group.on_loss();
        let name = self.lease.name().to_owned();
        if matches!(loss, Loss::Expired | Loss::Stuck) && self.lease.check().is_err() {
            // The lease is already over, as after a suspend of the machine:
            // SIGKILL follows without grace.
            self.deadline = Instant::now();
        }
        match self.on_lost {
            OnLost::Ignore => message(format!("lost `{name}`: {loss}; the command continues")),
            OnLost::Stop(signal) => {
                let signal_name = signal.as_str();
                self.stop(group, signal);
                message(format!(
                    "lost `{name}`: {loss}; stopping the command with {signal_name}"
                ));
            }
        }
    }

    fn on_limit(&mut self, group: &ProcessGroup) {
        self.limit_reached = true;
        self.stop(group, Signal::SIGTERM);
        message("the command reached --at-most; stopping it with SIGTERM");
    }

    fn stop(&mut self, group: &ProcessGroup, signal: Signal) {
        let killed = signal == Signal::SIGKILL;
        let delay = if killed {
            KILL_INTERVAL
        } else {
            self.times.grace
        };
        group.stop(signal);
        self.stopping.get_or_insert(Stopping {
            kill_at: Instant::now() + delay,
            killed,
        });
    }

    /// Sends SIGKILL and schedules the next one, for processes that were being
    /// started.
    fn kill(&mut self, group: &ProcessGroup) {
        group.stop(Signal::SIGKILL);
        if let Some(stopping) = &mut self.stopping {
            if !std::mem::replace(&mut stopping.killed, true) {
                message("the command has not exited; killing it");
            }
            stopping.kill_at = Instant::now() + KILL_INTERVAL;
        }
    }

    /// Returns whether the lock was lost.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(super) fn code(&self, group: &ProcessGroup) -> u8 {
        match (self.lost, self.limit_reached) {
            (true, _) => exit::LOST,
            (false, true) => exit::TOO_LONG,
            (false, false) => group.code(),
        }
    }
}

/// Returns the next sign of a command that has a watchdog.
async fn next_sign(watchdog: &mut Option<Watchdog>) -> Sign {
    match watchdog {
        Some(watchdog) => watchdog.next().await,
        None => std::future::pending().await,
    }
}
