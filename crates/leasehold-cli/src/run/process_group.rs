//! The program and everything it starts: one process group, and those who have left it.
//!
//! On Linux this process adopts what the program leaves behind, so that having no children any more means that nothing
//! of the program is left, wherever it has hidden. Elsewhere only the process group is seen.
//!
//! The number of a group is that of its leader. Once the leader is reaped, and the group is empty, the system may give the
//! number to another group. So from then on processes are signalled one by one.

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

use super::terminal::Terminal;
use super::{SHIM, at};
use crate::exit;
use crate::output::{CliError, hint, say};

/// How often to look where no signal tells that somebody has ended.
const LOOK: Duration = Duration::from_millis(50);

/// The least time between two attempts to continue a program: what has stopped it may do so again at once.
const PAUSE: Duration = Duration::from_millis(500);

const NOT_SUSPENDED: &str = "a program that holds a lock cannot be suspended; it goes on";

/// A program that was started.
pub(super) struct Group {
    leader: Pid,
    code: Option<u8>,
    gone: bool,
    /// Whether this process adopts what the program leaves behind.
    adopts: bool,
    ended: tokio::signal::unix::Signal,
    terminal: Option<Terminal>,
    resumption: Resumption,
    /// Whether it was said that the program wants the terminal.
    wants_terminal: bool,
    /// How often it was asked to end by somebody.
    asked: Cell<u32>,
    /// Whether it was reported that the system refused a signal.
    refused: Cell<bool>,
}

/// When a program that was stopped is continued.
#[derive(Default)]
struct Resumption {
    due: Option<Instant>,
    last: Option<Instant>,
    /// Whether to do it once more after that.
    twice: bool,
}

/// What is left of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Runs,
    /// It has ended, and others that it started have not.
    LeftBehind,
    Gone,
}

impl Group {
    pub(super) fn start(
        command: &[OsString],
        environment: &[(&str, String)],
    ) -> Result<Self, CliError> {
        let failed = |error: std::io::Error| {
            CliError::new(exit::NOT_RUNNABLE, format!("cannot start: {error}"))
        };
        let adopts = adopt_orphans();
        let ended = signal(SignalKind::child()).map_err(failed)?;
        let mut terminal = Terminal::open();
        let own = std::env::current_exe().map_err(failed)?;
        let child = std::process::Command::new(own)
            .arg(SHIM)
            .arg(std::process::id().to_string())
            .args(command)
            .envs(environment.iter().cloned())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let leader = Pid::from_raw(child.id().cast_signed());
        let given = terminal.as_mut().map(|at| at.give_at_start(leader));
        if given == Some(true) {
            // It may have been stopped for reading before the terminal was its own.
            let _ = killpg(leader, Signal::SIGCONT);
        }
        Ok(Self {
            leader,
            code: None,
            gone: false,
            adopts,
            ended,
            terminal,
            resumption: Resumption::default(),
            wants_terminal: false,
            asked: Cell::new(0),
            refused: Cell::new(false),
        })
    }

    /// Waits until somebody may have ended.
    pub(super) async fn changed(&mut self) {
        // Without adoption nobody tells of those who were left behind.
        tokio::select! {
            _ = self.ended.recv() => {}
            () = tokio::time::sleep(LOOK), if self.code.is_some() => {}
            () = at(self.resumption.due), if self.resumption.due.is_some() => self.go_on(),
        }
    }

    /// What is left, now.
    pub(super) fn life(&mut self) -> Life {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        while !self.gone {
            match waitpid(None, Some(flags)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == self.leader => {
                    self.leader_ended(u8::try_from(code).unwrap_or(255));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.leader => {
                    self.leader_ended(exit::by_signal(signal as i32));
                }
                Ok(WaitStatus::Stopped(pid, by)) if pid == self.leader => self.stopped(by),
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => {
                    // Without children, and with adoption, nothing is left.
                    let is_empty = || killpg(self.leader, None) == Err(Errno::ESRCH);
                    self.gone = self.adopts || is_empty();
                    break;
                }
            }
        }
        match (self.gone, self.code) {
            (true, _) => Life::Gone,
            (false, Some(_)) => Life::LeftBehind,
            (false, None) => Life::Runs,
        }
    }

    fn leader_ended(&mut self, code: u8) {
        self.code = Some(code);
        self.terminal = None;
    }

    /// A program that stands still with a lock is what locks are there against: it cannot be stopped.
    fn stopped(&mut self, by: Signal) {
        let wants_terminal = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        match &mut self.terminal {
            Some(terminal) if wants_terminal => {
                let given = terminal.give_on_demand(self.leader);
                // A program that asks for a password may stop itself only now, in answer to the same signal.
                self.resumption.twice = given;
                if !given && !std::mem::replace(&mut self.wants_terminal, true) {
                    say(
                        "the program wants the terminal, and gets it when this job is in the foreground",
                    );
                }
            }
            Some(terminal) if terminal.is_given() => say(NOT_SUSPENDED),
            _ => {}
        }
        self.resumption.ask(Instant::now());
    }

    fn go_on(&mut self) {
        self.resumption.done(Instant::now());
        self.signal_group(Signal::SIGCONT);
    }

    /// Passes a signal on; whoever asks again and again for an end gets it by other means.
    pub(super) fn pass_on(&self, signal: Signal) {
        if signal == Signal::SIGTSTP {
            return say(NOT_SUSPENDED);
        }
        let ends = matches!(
            signal,
            Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT | Signal::SIGHUP
        );
        if ends {
            self.asked.set(self.asked.get() + 1);
        }
        match self.asked.get() {
            3.. if ends => self.stop(Signal::SIGKILL),
            2 if signal == Signal::SIGINT => self.stop(Signal::SIGTERM),
            _ => self.signal_group(signal),
        }
    }

    /// Sends a signal to every process that is left, also outside the group.
    pub(super) fn stop(&self, signal: Signal) {
        self.signal_group(signal);
        for process in descendants() {
            self.signal(process.pid, signal);
        }
        // A stopped process takes no notice of anything but KILL.
        self.signal_group(Signal::SIGCONT);
    }

    /// Sends a signal to the group: as a whole while its leader is not reaped,
    /// else to each process of it.
    fn signal_group(&self, signal: Signal) {
        if self.code.is_none() || !self.adopts {
            let sent = killpg(self.leader, signal);
            return self.report(sent, signal, "the program");
        }
        let members = descendants().into_iter();
        for member in members.filter(|process| process.group == self.leader) {
            self.signal(member.pid, signal);
        }
    }

    fn signal(&self, pid: Pid, signal: Signal) {
        self.report(kill(pid, signal), signal, &format!("process {pid}"));
    }

    /// Reports once that the system refuses a signal, as to a program of
    /// another user. A process that has ended meanwhile is no matter.
    fn report(&self, sent: nix::Result<()>, signal: Signal, whom: &str) {
        if sent == Err(Errno::EPERM) && !self.refused.replace(true) {
            let signal = signal.as_str();
            say(format!(
                "cannot send {signal} to {whom}: it runs as another user"
            ));
            hint("the lock stays held until the program has ended");
        }
    }

    /// The program's own code.
    pub(super) fn code(&self) -> u8 {
        self.code.unwrap_or(exit::NOT_RUNNABLE)
    }

    pub(super) fn left_behind(&self) -> String {
        let left = descendants().into_iter();
        let pids: Vec<_> = left.map(|process| process.pid.to_string()).collect();
        match pids.is_empty() {
            true => "the program has ended, others of its group have not".to_owned(),
            false => format!(
                "the program has ended, what it started has not: process {}",
                pids.join(", ")
            ),
        }
    }
}

impl Resumption {
    fn ask(&mut self, now: Instant) {
        let earliest = self.last.map_or(now, |last| last + PAUSE);
        self.due = Some(earliest.max(now));
    }

    fn done(&mut self, now: Instant) {
        self.last = Some(now);
        self.due = std::mem::take(&mut self.twice).then(|| now + PAUSE);
    }
}

#[cfg(target_os = "linux")]
fn adopt_orphans() -> bool {
    // Where it fails, the process group is seen still.
    nix::sys::prctl::set_child_subreaper(true).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> bool {
    false
}

/// Has the system kill this process when `parent` ends.
#[cfg(target_os = "linux")]
pub(super) fn end_with_parent(parent: i32) {
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    // It may have ended before that.
    if nix::unistd::getppid() != Pid::from_raw(parent) {
        let _ = nix::sys::signal::raise(Signal::SIGKILL);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn end_with_parent(_parent: i32) {}

/// A process, and the group that it belongs to.
struct Process {
    pid: Pid,
    parent: Pid,
    group: Pid,
}

impl Process {
    /// Reads what the system has of it; `None` where it has ended.
    fn read(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may hold anything. The state follows it.
        let mut numbers = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
        let mut next = || Some(Pid::from_raw(numbers.next()?.parse().ok()?));
        Some(Self {
            pid: Pid::from_raw(pid),
            parent: next()?,
            group: next()?,
        })
    }
}

/// All processes that descend from this one.
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
