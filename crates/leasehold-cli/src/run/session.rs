//! The steps that `run` and `lead` share: connecting, waiting, supervising a
//! command, and releasing.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use leasehold::{Error, Guard, Lease, Shared};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::process_group::ProcessGroup;
use super::servers::Servers;
use super::supervisor::{OnLost, Supervisor, Times};
use super::watchdog::Watchdog;
use super::{progress, terminal};
use crate::args::{ServerArgs, WorkArgs};
use crate::identity::host_and_pid;
use crate::output::{CliError, message};
use crate::settings::{DEFAULT_LEASE, Settings};
use crate::signals::{Interruption, Signals, die_of_sigint};
use crate::{duration, exit};

/// The default time between SIGTERM and SIGKILL.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// The pause after a failed attempt to extend the first lease.
const EXTEND_DELAY: Duration = Duration::from_millis(50);

/// The time for background work of the client after the release.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(100);

/// The signals that are only forwarded to the command.
const FORWARDED: [Signal; 3] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH];

/// A connection, the signals of this process, and the times of a lease.
pub(super) struct Session {
    pub(super) servers: Servers,
    pub(super) signals: Signals,
    lease: Duration,
    grace: Duration,
    /// The grace that the user has set.
    chosen_grace: Option<Duration>,
    watchdog: Option<Watchdog>,
    /// Set if SIGINT ended a wait or the command.
    interruption: Option<Interruption>,
}

/// A command, and when it is stopped.
pub(super) struct Plan<'a> {
    pub(super) command: &'a [OsString],
    /// The value of `LEASEHOLD_MODE`.
    pub(super) mode: &'static str,
    pub(super) on_lost: OnLost,
    pub(super) at_most: Option<Duration>,
}

/// How a command ended.
pub(super) struct Ended {
    /// The code to exit with.
    pub(super) code: u8,
    /// Whether it was executed.
    pub(super) started: bool,
    /// Whether its lease was lost while it ran.
    pub(super) lost: bool,
    /// Whether a signal that ends this process was forwarded to it.
    pub(super) terminated: bool,
}

impl Ended {
    /// A lease that was lost before the command was started.
    pub(super) fn before_start() -> Self {
        Self {
            code: exit::LOST,
            started: false,
            lost: true,
            terminated: false,
        }
    }
}

impl Session {
    /// Connects, or returns the code to exit with.
    pub(super) async fn start(
        server: &ServerArgs,
        work: &WorkArgs,
        quorum_urls: &[String],
    ) -> Result<ControlFlow<u8, Self>, CliError> {
        let settings = Settings::load(server)?;
        let lease = work.lease.or(settings.lease).unwrap_or(DEFAULT_LEASE);
        let grace = grace(work.grace, lease)?;
        terminal::block_stops();
        let mut signals = Signals::new()?;
        signals.catch(&FORWARDED)?;
        let servers = tokio::select! {
            biased;
            signal = signals.termination() => {
                if signal == Signal::SIGINT {
                    die_of_sigint(Interruption::Received);
                }
                return Ok(ControlFlow::Break(exit::by_signal(signal as i32)));
            }
            servers = Servers::connect(&settings, work.lease, quorum_urls) => servers?,
        };
        Ok(ControlFlow::Continue(Self {
            servers,
            signals,
            lease,
            grace,
            chosen_grace: work.grace,
            // Before anything is acquired: it can fail.
            watchdog: work.watchdog.map(Watchdog::start).transpose()?,
            interruption: None,
        }))
    }

    /// Waits for `acquired` with a status line. Returns the code to exit with
    /// if a signal ends the wait.
    pub(super) async fn wait<T>(
        &mut self,
        name: &str,
        verbose: bool,
        acquired: impl Future<Output = T>,
    ) -> ControlFlow<u8, T> {
        tokio::select! {
            biased;
            signal = self.signals.termination() => {
                self.interruption = (signal == Signal::SIGINT).then_some(Interruption::Received);
                ControlFlow::Break(exit::by_signal(signal as i32))
            }
            acquired = acquired => ControlFlow::Continue(acquired),
            () = progress::show(&self.servers, name, verbose) => {
                unreachable!("BUG: the status ended")
            }
        }
    }

    /// Extends the short lease with which a granted queue entry starts. It
    /// would leave no time for the grace.
    pub(super) async fn extend(&self, guard: &Guard<Shared>) -> Result<(), Error> {
        while guard.remaining() < self.lease / 2 {
            match guard.extend(self.lease).await {
                // The wait may have taken hours, and the lock is still held. A
                // signal that arrives here is handled once the command could
                // start.
                Err(error) if error.is_transient() && guard.check().is_ok() => {
                    tokio::time::sleep(EXTEND_DELAY).await;
                }
                outcome => return outcome,
            }
        }
        Ok(())
    }

    /// Runs a command under a lease until all its processes have exited.
    pub(super) async fn execute(
        &mut self,
        lease: Lease<Shared>,
        plan: &Plan<'_>,
    ) -> Result<Ended, CliError> {
        let limit = plan
            .at_most
            .and_then(|at_most| Instant::now().checked_add(at_most));
        let mut environment = environment(&lease, plan.mode).to_vec();
        environment.extend(self.watchdog.iter().flat_map(Watchdog::environment));
        // The limit counts from here.
        lease.progress();
        let mut group = ProcessGroup::start(plan.command, &environment)?;
        let times = Times {
            grace: self.grace,
            forwarded_grace: self.chosen_grace,
            limit,
        };
        let mut supervisor = Supervisor::new(lease, plan.on_lost, times);
        supervisor
            .wait_for_exit(&mut group, &mut self.signals, &mut self.watchdog)
            .await;
        if let Some(watchdog) = &self.watchdog {
            watchdog.finish();
        }
        let code = supervisor.code(&group);
        // A loss or the limit has a status of its own.
        self.interruption = group.interruption().filter(|_| code == group.code());
        Ok(Ended {
            code,
            started: group.has_started(),
            lost: supervisor.is_lost(),
            terminated: group.was_terminated(),
        })
    }

    /// Awaits the release of a lock, and reports a failure. Returns how the
    /// command ended: a loss that only the release finds is one too.
    pub(super) async fn release<T>(
        &mut self,
        name: &str,
        release: impl Future<Output = Result<T, Error>>,
        ended: Result<Ended, CliError>,
    ) -> Result<Ended, CliError> {
        let timeout = self.servers.release_timeout();
        let failure = match tokio::time::timeout(timeout, release).await {
            Ok(Ok(_)) => return ended,
            Ok(Err(Error::Lost { loss, .. })) => {
                let mut ended = ended?;
                // Otherwise it was reported when the command was stopped.
                if ended.started && !ended.lost {
                    message(format!("lost `{name}`: {loss}; the command has exited"));
                    if !ended.terminated {
                        ended.code = exit::LOST;
                        self.interruption = None;
                    }
                }
                return Ok(ended);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => no_reply_within(timeout),
        };
        message(format!(
            "cannot release `{name}`: {failure}; it is free when its lease ends"
        ));
        ended
    }

    /// Ends the client after a release.
    pub(super) async fn close(self) {
        self.end(SHUTDOWN_TIMEOUT).await;
    }

    /// Ends the client after a wait: leaves the queue, and releases an unwanted
    /// grant.
    pub(super) async fn abandon(self) {
        let timeout = self.servers.release_timeout();
        self.end(timeout).await;
    }

    /// Ends the client, and the process if SIGINT ended the work.
    async fn end(self, timeout: Duration) {
        self.servers.shutdown(timeout).await;
        // Removes its files, which SIGINT would leave behind.
        drop(self.watchdog);
        if let Some(interruption) = self.interruption {
            die_of_sigint(interruption);
        }
    }
}

/// Describes a request that took longer than `limit`.
pub(super) fn no_reply_within(limit: Duration) -> String {
    format!("no reply within {}", duration::format(limit))
}

fn grace(chosen: Option<Duration>, lease: Duration) -> Result<Duration, CliError> {
    let max = lease / 2;
    match chosen {
        Some(grace) if grace > max => Err(CliError::usage(format!(
            "invalid --grace: {} is above the maximum of {}, half of the lease",
            duration::format(grace),
            duration::format(max)
        ))
        .with_hint("use a longer --lease; after a crash the lock stays held that long")),
        Some(grace) => Ok(grace),
        None => Ok(DEFAULT_GRACE.min(lease / 3)),
    }
}

fn environment(lease: &Lease<Shared>, mode: &str) -> [(&'static str, Option<OsString>); 6] {
    let deadline = SystemTime::now() + lease.remaining();
    let since_epoch = deadline.duration_since(SystemTime::UNIX_EPOCH);
    let deadline_millis = since_epoch.unwrap_or_default().as_millis();
    let text = |value: &dyn Display| Some(OsString::from(value.to_string()));
    [
        ("LEASEHOLD_NAME", text(&lease.name())),
        ("LEASEHOLD_KEY", text(&lease.key())),
        ("LEASEHOLD_TOKEN", text(&lease.token())),
        ("LEASEHOLD_MODE", text(&mode)),
        ("LEASEHOLD_OWNER", text(&host_and_pid())),
        ("LEASEHOLD_DEADLINE", text(&deadline_millis)),
    ]
}
