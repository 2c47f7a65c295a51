//! The processes below this one, read from `/proc`.
//!
//! After `exec leasehold run`, as at the end of a shell script, this process
//! still has the children that the script started. They are not part of the
//! command: they neither keep the lock held nor are they stopped.

use std::cell::RefCell;
use std::collections::HashSet;

use nix::unistd::Pid;

/// A process with its parent and its group.
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) group: Pid,
    parent: Pid,
    /// When it was started, in ticks since the start of the system.
    started: u64,
}

/// Identifies a process even if its pid is reused.
type Identity = (Pid, u64);

/// The descendants of this process, divided into those of its command and
/// earlier ones.
#[derive(Debug)]
pub(super) struct ProcessTree {
    /// The descendants from before the command, and what they started since.
    earlier: RefCell<HashSet<Identity>>,
}

impl ProcessTree {
    /// Records the descendants that this process has before it starts a
    /// command.
    pub(super) fn before_command() -> Self {
        let earlier = descendants().iter().map(Process::identity).collect();
        Self {
            earlier: RefCell::new(earlier),
        }
    }

    /// Returns the processes of the command.
    ///
    /// If an earlier process starts another one and exits before the next call,
    /// we cannot tell whose the new one is. It then counts as the command's, so
    /// the lock is held too long rather than too short.
    pub(super) fn of_command(&self) -> Vec<Process> {
        self.of_command_among(descendants())
    }

    fn of_command_among(&self, all: Vec<Process>) -> Vec<Process> {
        let mut earlier = self.earlier.borrow_mut();
        if earlier.is_empty() || all.is_empty() {
            return all;
        }
        let mut excluded = HashSet::new();
        // Parents are listed before their children.
        let (others, command): (Vec<_>, _) = all.into_iter().partition(|process| {
            let is_earlier =
                earlier.contains(&process.identity()) || excluded.contains(&process.parent);
            if is_earlier {
                excluded.insert(process.pid);
            }
            is_earlier
        });
        *earlier = others.iter().map(Process::identity).collect();
        command
    }

    /// Returns whether this process has earlier children, and no others.
    /// Returns `false` if `/proc` cannot be read.
    pub(super) fn has_only_earlier(&self) -> bool {
        let all = descendants();
        let is_known = !all.is_empty() && !self.earlier.borrow().is_empty();
        is_known && self.of_command_among(all).is_empty()
    }
}

impl Process {
    fn identity(&self) -> Identity {
        (self.pid, self.started)
    }

    /// Reads `/proc`. Returns `None` if the process has exited.
    fn read(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain any character. The state follows.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        // The start time is the 22nd field; the group is the fifth.
        let started = fields.nth(16)?.parse().ok()?;
        Some(Self {
            pid: Pid::from_raw(pid),
            group: Pid::from_raw(group),
            parent: Pid::from_raw(parent),
            started,
        })
    }
}

/// Returns all descendants of this process, each after its parent.
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_the_field_after_itrealvalue() {
        let this = Process::read(Pid::this().as_raw()).unwrap();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split_whitespace().next().unwrap().parse().unwrap();
        // Linux counts 100 ticks per second.
        let started = this.started as f64 / 100.0;
        assert!(
            started <= uptime && started > uptime - 3600.0,
            "{started} of {uptime}"
        );
        assert_eq!(this.parent, nix::unistd::getppid());
    }
}
