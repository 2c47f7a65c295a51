//! The process group of the command, and its descendants outside the group.
//!
//! On Linux this process is a subreaper: it adopts orphaned descendants of the
//! command. Having no children then means that all of them have exited.
//! Elsewhere only the process group is tracked.
//!
//! The id of a group is the pid of its leader. Once the leader is reaped and
//! the group is empty, the system may reuse the id. Processes are therefore
//! signaled one by one after the leader has exited.

use std::cell::Cell;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::shim::SHIM;
use super::sleep::sleep_until;
use super::terminal::Terminal;
use crate::exit;
use crate::output::{CliError, hint, message};
use crate::signals::TERMINATION;

/// The poll interval after the leader has exited. Processes that are not
/// adopted cause no `SIGCHLD`.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The minimum time between two attempts to continue a stopped command: the
/// cause may stop it again at once.
const RESUME_INTERVAL: Duration = Duration::from_millis(500);

const NOT_SUSPENDED: &str = "a command that holds a lock cannot be suspended; it continues";

/// A started command.
pub(super) struct ProcessGroup {
    leader: Pid,
    code: Option<u8>,
    exited: bool,
    /// Whether this process adopts orphaned descendants.
    adopts: bool,
    child_signals: tokio::signal::unix::Signal,
    terminal: Option<Terminal>,
    resumption: Resumption,
    /// Whether it was reported that the command waits for the terminal.
    terminal_wait_reported: bool,
    /// The number of forwarded termination signals.
    terminations: Cell<u32>,
    /// Whether a signal without permission was reported.
    refusal_reported: Cell<bool>,
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
    pub(super) fn start(
        command: &[OsString],
        environment: &[(&str, String)],
    ) -> Result<Self, CliError> {
        let failed = |error: std::io::Error| {
            let text = format!("cannot start the command: {error}");
            CliError::new(exit::NOT_RUNNABLE, text)
        };
        let adopts = adopt_orphans();
        let child_signals = signal(SignalKind::child()).map_err(failed)?;
        let mut terminal = Terminal::open();
        let executable = std::env::current_exe().map_err(failed)?;
        let child = std::process::Command::new(executable)
            .arg(SHIM)
            .arg(std::process::id().to_string())
            .args(command)
            .envs(environment.iter().cloned())
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
            code: None,
            exited: false,
            adopts,
            child_signals,
            terminal,
            resumption: Resumption::default(),
            terminal_wait_reported: false,
            terminations: Cell::new(0),
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
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        while !self.exited {
            match waitpid(None, Some(flags)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == self.leader => {
                    self.on_leader_exit(u8::try_from(code).unwrap_or(255));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.leader => {
                    self.on_leader_exit(exit::by_signal(signal as i32));
                }
                Ok(WaitStatus::Stopped(pid, by)) if pid == self.leader => self.on_stop(by),
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => {
                    // No children are left. With adoption there are also no
                    // other descendants.
                    let is_empty = || killpg(self.leader, None) == Err(Errno::ESRCH);
                    self.exited = self.adopts || is_empty();
                    break;
                }
            }
        }
        match (self.exited, self.code) {
            (true, _) => GroupState::Exited,
            (false, Some(_)) => GroupState::Remaining,
            (false, None) => GroupState::Running,
        }
    }

    fn on_leader_exit(&mut self, code: u8) {
        self.code = Some(code);
        self.terminal = None;
    }

    /// Continues a stopped command: a suspended holder could act after its
    /// lease has ended.
    fn on_stop(&mut self, by: Signal) {
        let needs_terminal = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
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

    /// Forwards a signal. The second SIGINT becomes SIGTERM, and the third
    /// termination signal becomes SIGKILL.
    pub(super) fn forward(&self, signal: Signal) {
        if signal == Signal::SIGTSTP {
            return message(NOT_SUSPENDED);
        }
        let terminates = TERMINATION.contains(&signal);
        if terminates {
            self.terminations.set(self.terminations.get() + 1);
        }
        match self.terminations.get() {
            3.. if terminates => self.stop(Signal::SIGKILL),
            2 if signal == Signal::SIGINT => self.stop(Signal::SIGTERM),
            _ => self.signal_group(signal),
        }
    }

    /// Sends a signal to the group and to all descendants outside it.
    pub(super) fn stop(&self, signal: Signal) {
        self.signal_group(signal);
        for process in descendants() {
            self.signal(process.pid, signal);
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
        let members = descendants().into_iter();
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
            hint("the lock stays held until the command has exited");
        }
    }

    /// Returns the exit code of the command.
    pub(super) fn code(&self) -> u8 {
        self.code.unwrap_or(exit::NOT_RUNNABLE)
    }

    /// Returns whether a termination signal was forwarded.
    pub(super) fn was_terminated(&self) -> bool {
        self.terminations.get() > 0
    }

    pub(super) fn describe_remaining(&self) -> String {
        let remaining = descendants().into_iter();
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

#[cfg(target_os = "linux")]
fn adopt_orphans() -> bool {
    // On failure only the process group is tracked.
    nix::sys::prctl::set_child_subreaper(true).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> bool {
    false
}

/// A process with its parent and its group.
struct Process {
    pid: Pid,
    parent: Pid,
    group: Pid,
}

impl Process {
    /// Reads `/proc`. Returns `None` if the process has exited.
    fn read(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain any character. The state follows.
        let mut numbers = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
        let mut next = || Some(Pid::from_raw(numbers.next()?.parse().ok()?));
        Some(Self {
            pid: Pid::from_raw(pid),
            parent: next()?,
            group: next()?,
        })
    }
}

/// Returns all descendants of this process.
fn descendants() -> Vec<Process> {
    let Ok(folder) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut others: Vec<_> = pids.filter_map(Process::read).collect();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![Pid::this()];
    while let Some(parent) = parents.pop() {
        let processes = others.into_iter();
        let (children, rest): (Vec<_>, _) = processes.partition(|process| process.parent == parent);
        parents.extend(children.iter().map(|child| child.pid));
        found.extend(children);
        others = rest;
    }
    found
}
