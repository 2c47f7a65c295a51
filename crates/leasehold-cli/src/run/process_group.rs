//! The process group of the command, and its descendants outside the group.
//!
//! On Linux this process is a subreaper: it adopts orphaned descendants of the
//! command. Having no children then means that all of them have exited.
//! Elsewhere only the process group is tracked.
//!
//! A group's id is the pid of its leader. Once the leader is reaped and the
//! group is empty, the system may reuse the id. Processes are therefore
//! signaled one by one after the leader has exited.

use std::cell::Cell;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::process_tree::ProcessTree;
use super::shim::SHIM;
use super::sleep::sleep_until;
use super::start_report::StartReport;
use super::terminal::Terminal;
use crate::exit;
use crate::output::{CliError, hint, message};
use crate::signals::Interruption;

/// The poll interval after the leader has exited. Processes that are not
/// adopted cause no `SIGCHLD`.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The minimum time between two attempts to continue a stopped command: the
/// cause may stop it again at once.
const RESUME_INTERVAL: Duration = Duration::from_millis(500);

/// A termination signal escalates if the previous one is at most this long ago.
/// The second Ctrl-C is impatience; a SIGTERM an hour later is not.
const ESCALATION_WINDOW: Duration = Duration::from_secs(10);

const NOT_SUSPENDED: &str = "a command that holds a lock cannot be suspended; it continues";

/// A started command.
pub(super) struct ProcessGroup {
    leader: Pid,
    tree: ProcessTree,
    /// `None` once it was read.
    start_report: Option<StartReport>,
    /// Whether the command was executed.
    started: bool,
    code: Option<u8>,
    /// Set if SIGINT terminated the leader.
    interruption: Option<Interruption>,
    exited: bool,
    /// Whether this process adopts orphaned descendants.
    adopts: bool,
    child_signals: tokio::signal::unix::Signal,
    terminal: Option<Terminal>,
    resumption: Resumption,
    /// Whether it was reported that the command waits for the terminal.
    terminal_wait_reported: bool,
    escalation: Escalation,
    /// Whether the lock is still held while the command is stopped.
    lock_held: bool,
    /// Whether a signal without permission was reported.
    refusal_reported: Cell<bool>,
}

/// The SIGINT and SIGTERM that were forwarded. Other signals do not end a
/// command: daemons reload their configuration on SIGHUP.
#[derive(Default)]
struct Escalation {
    /// How many signals followed one another closely.
    count: u32,
    last: Option<Instant>,
}

/// The schedule for continuing a stopped command.
#[derive(Default)]
struct Resumption {
    due: Option<Instant>,
    last: Option<Instant>,
    /// Whether to continue it once more after that.
    twice: bool,
}

/// The state of a command and its descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupState {
    Running,
    /// The command has exited, and processes that it started have not.
    Remaining,
    Exited,
}

impl ProcessGroup {
    /// Starts `command`. A variable of `environment` without a value is
    /// removed.
    pub(super) fn start(
        command: &[OsString],
        environment: &[(&str, Option<OsString>)],
    ) -> Result<Self, CliError> {
        let failed = |error: std::io::Error| {
            let text = format!("cannot start the command: {error}");
            CliError::new(exit::NOT_RUNNABLE, text)
        };
        let adopts = adopt_orphans();
        let child_signals = signal(SignalKind::child()).map_err(failed)?;
        let start_report = StartReport::new().map_err(failed)?;
        let mut terminal = Terminal::open();
        let tree = ProcessTree::before_command();
        let mut shim = std::process::Command::new(own_executable().map_err(failed)?);
        for (name, value) in environment {
            match value {
                Some(value) => shim.env(name, value),
                None => shim.env_remove(name),
            };
        }
        let child = shim
            .arg0("leasehold")
            .arg(SHIM)
            .arg(std::process::id().to_string())
            .arg(start_report.path())
            .args(command)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let leader = Pid::from_raw(child.id().cast_signed());
        let lent = terminal.as_mut().map(|tty| tty.lend_at_start(leader));
        if lent == Some(true) {
            // It may have read from the terminal, and been stopped, before.
            let _ = killpg(leader, Signal::SIGCONT);
        }
        Ok(Self {
            leader,
            tree,
            start_report: Some(start_report),
            started: true,
            code: None,
            interruption: None,
            exited: false,
            adopts,
            child_signals,
            terminal,
            resumption: Resumption::default(),
            terminal_wait_reported: false,
            escalation: Escalation::default(),
            lock_held: true,
            refusal_reported: Cell::new(false),
        })
    }

    /// Waits until the state may have changed.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            _ = self.child_signals.recv() => {}
            () = tokio::time::sleep(POLL_INTERVAL), if self.code.is_some() => {}
            () = sleep_until(self.resumption.due), if self.resumption.due.is_some() => {
                self.resumption.done(Instant::now());
                self.signal_group(Signal::SIGCONT);
            }
        }
    }

    /// Reaps exited processes, and returns the current state.
    pub(super) fn state(&mut self) -> GroupState {
        while !self.exited {
            match self.reap() {
                Ok(Some((pid, status))) if pid == self.leader => self.on_leader(status),
                Ok(Some(_)) | Err(Errno::EINTR) => {}
                Err(Errno::ECHILD) => {
                    // With adoption there are also no other descendants.
                    let is_empty = || killpg(self.leader, None) == Err(Errno::ESRCH);
                    self.exited = self.adopts || is_empty();
                    break;
                }
                Ok(None) => {
                    self.exited = self.code.is_some() && self.tree.has_only_earlier();
                    break;
                }
                // Any other error says nothing about the processes: the lock
                // stays held, and the next poll asks again.
                Err(_) => break,
            }
        }
        match (self.exited, self.code) {
            (true, _) => GroupState::Exited,
            (false, Some(_)) => GroupState::Remaining,
            (false, None) => GroupState::Running,
        }
    }

    /// Returns the next child that has exited or stopped. The status is raw,
    /// because `nix` has no name for real-time signals and rejects them.
    fn reap(&self) -> nix::Result<Option<(Pid, WaitStatus)>> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let waited = match self.adopts {
            true => rustix::process::wait(options),
            false => {
                let leader = rustix::process::Pid::from_raw(self.leader.as_raw());
                rustix::process::waitpid(leader, options)
            }
        };
        match waited {
            Ok(None) => Ok(None),
            Ok(Some((pid, status))) => Ok(Some((Pid::from_raw(pid.as_raw_pid()), status))),
            Err(error) => Err(Errno::from_raw(error.raw_os_error())),
        }
    }

    fn on_leader(&mut self, status: WaitStatus) {
        if let Some(code) = status.exit_status() {
            self.on_leader_exit(u8::try_from(code).unwrap_or(255));
        } else if let Some(number) = status.terminating_signal() {
            let lent = self.terminal.as_ref().is_some_and(Terminal::is_lent);
            self.interruption = match lent {
                _ if number != Signal::SIGINT as i32 => None,
                true => Some(Interruption::CommandOnly),
                false => Some(Interruption::Received),
            };
            self.on_leader_exit(exit::by_signal(number));
        } else if let Some(number) = status.stopping_signal() {
            self.on_stop(number);
        }
    }

    fn on_leader_exit(&mut self, code: u8) {
        self.code = Some(code);
        self.terminal = None;
        let report = self.start_report.take();
        self.started = !report.is_some_and(StartReport::read_failure);
    }

    /// Continues a stopped command: a suspended holder could act after the
    /// lease has ended.
    fn on_stop(&mut self, by: i32) {
        let needs_terminal = [Signal::SIGTTIN as i32, Signal::SIGTTOU as i32].contains(&by);
        match &mut self.terminal {
            Some(terminal) if needs_terminal => {
                let lent = terminal.lend_on_demand(self.leader);
                // A command that reads a password may handle the same signal by
                // stopping itself again.
                self.resumption.twice = lent;
                if !lent && !std::mem::replace(&mut self.terminal_wait_reported, true) {
                    message("the command waits for the terminal; bring this job to the foreground");
                }
            }
            Some(terminal) if terminal.is_lent() => message(NOT_SUSPENDED),
            _ => {}
        }
        self.resumption.request(Instant::now());
    }

    /// Forwards a signal. A second SIGINT within seconds becomes SIGTERM, and a
    /// third SIGINT or SIGTERM becomes SIGKILL. Returns what was sent.
    pub(super) fn forward(&mut self, signal: Signal) -> Option<Signal> {
        let escalated = match signal {
            Signal::SIGTSTP => {
                message(NOT_SUSPENDED);
                return None;
            }
            Signal::SIGINT | Signal::SIGTERM => {
                match (self.escalation.next(Instant::now()), signal) {
                    (3.., _) => Some(Signal::SIGKILL),
                    (2, Signal::SIGINT) => Some(Signal::SIGTERM),
                    _ => None,
                }
            }
            _ => None,
        };
        match escalated {
            Some(stronger) => self.stop(stronger),
            None => self.signal_group(signal),
        }
        escalated.or(Some(signal))
    }

    /// Sends a signal to the group and to all descendants outside it.
    pub(super) fn stop(&self, signal: Signal) {
        self.signal_group(signal);
        for process in self.tree.of_command() {
            // Members have the signal already.
            if process.group != self.leader {
                self.signal(process.pid, signal);
            }
        }
        // A stopped process handles no signal except SIGKILL.
        self.signal_group(Signal::SIGCONT);
    }

    /// Sends a signal to the group as a whole, or to its members one by one
    /// after the leader was reaped.
    fn signal_group(&self, signal: Signal) {
        if self.code.is_none() || !self.adopts {
            let sent = killpg(self.leader, signal);
            return self.report_refusal(sent, signal, "the command");
        }
        let members = self.tree.of_command().into_iter();
        for member in members.filter(|process| process.group == self.leader) {
            self.signal(member.pid, signal);
        }
    }

    fn signal(&self, pid: Pid, signal: Signal) {
        self.report_refusal(kill(pid, signal), signal, &format!("process {pid}"));
    }

    /// Reports once that this process may not signal `target`. Other failures
    /// mean that the target has exited.
    fn report_refusal(&self, sent: nix::Result<()>, signal: Signal, target: &str) {
        if sent == Err(Errno::EPERM) && !self.refusal_reported.replace(true) {
            let signal = signal.as_str();
            message(format!(
                "cannot send {signal} to {target}: it runs as another user"
            ));
            hint(match self.lock_held {
                true => "the lock stays held until the command has exited",
                false => {
                    "the command continues without the lock, which another client may acquire: stop it as that user"
                }
            });
        }
    }

    /// Records that the lock is lost. A command that cannot be stopped is
    /// reported again, because it is not protected any more.
    pub(super) fn on_loss(&mut self) {
        self.lock_held = false;
        self.refusal_reported.set(false);
    }

    /// Returns the exit code of the command.
    pub(super) fn code(&self) -> u8 {
        self.code.unwrap_or(exit::NOT_RUNNABLE)
    }

    /// Returns how SIGINT terminated the command, if it did.
    pub(super) fn interruption(&self) -> Option<Interruption> {
        self.interruption
    }

    /// Returns whether the command was executed, after its exit.
    pub(super) fn has_started(&self) -> bool {
        self.started
    }

    /// Returns whether SIGINT or SIGTERM was forwarded.
    pub(super) fn was_terminated(&self) -> bool {
        self.escalation.last.is_some()
    }

    pub(super) fn describe_remaining(&self) -> String {
        let remaining = self.tree.of_command().into_iter();
        let pids: Vec<_> = remaining.map(|process| process.pid.to_string()).collect();
        match pids.is_empty() {
            true => "the command has exited, but processes of its group have not".to_owned(),
            false => format!(
                "the command has exited, but processes that it started have not: {}",
                pids.join(", ")
            ),
        }
    }
}

impl Escalation {
    /// Returns which one in a row this signal is.
    fn next(&mut self, now: Instant) -> u32 {
        let in_a_row = self
            .last
            .is_some_and(|last| now - last <= ESCALATION_WINDOW);
        self.count = if in_a_row { self.count + 1 } else { 1 };
        self.last = Some(now);
        self.count
    }
}

impl Resumption {
    fn request(&mut self, now: Instant) {
        let earliest = self.last.map_or(now, |last| last + RESUME_INTERVAL);
        self.due = Some(earliest.max(now));
    }

    fn done(&mut self, now: Instant) {
        self.last = Some(now);
        self.due = std::mem::take(&mut self.twice).then(|| now + RESUME_INTERVAL);
    }
}

/// Returns the path of the running executable. The link refers to the file
/// itself: a waiter that was started before an upgrade finds the old one, which
/// has no name any more.
#[cfg(target_os = "linux")]
fn own_executable() -> std::io::Result<std::path::PathBuf> {
    Ok("/proc/self/exe".into())
}

#[cfg(not(target_os = "linux"))]
fn own_executable() -> std::io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

#[cfg(target_os = "linux")]
fn adopt_orphans() -> bool {
    // On failure only the process group is tracked.
    nix::sys::prctl::set_child_subreaper(true).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signals_in_a_row_escalate() {
        let start = Instant::now();
        let mut escalation = Escalation::default();
        let mut counts = Vec::new();
        for seconds in [0, 3, 13, 24, 25] {
            counts.push(escalation.next(start + Duration::from_secs(seconds)));
        }
        assert_eq!(counts, [1, 2, 3, 1, 2]);
    }
}
