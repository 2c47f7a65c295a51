//! Worker processes: a test program, started again and driven line by line.
//!
//! A worker executes the ignored test `support::worker::process` of the program
//! that started it. It reads a command per line, and replies with [`say`].

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// The test that is the body of worker processes.
const BODY: &str = "support::worker::process";

/// The environment variable with the task of a worker.
const TASK: &str = "LEASEHOLD_WORKER";

/// What a worker says when it accepts commands.
const READY: &str = "ready";

/// Precedes each reply, to tell it from the output of the test harness.
const REPLY_PREFIX: &str = "@ ";

/// A process that executes commands of a test. Killed on drop.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker, and waits until it is ready. Its body reads the task
    /// with [`task`].
    ///
    /// # Panics
    ///
    /// If the worker does not start.
    #[must_use]
    pub fn spawn(task: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        Self::start(&mut Command::new(program), task)
    }

    /// Starts a worker that resolves names with this file instead of
    /// `/etc/hosts`. Requires root.
    ///
    /// # Panics
    ///
    /// If the worker does not start.
    #[must_use]
    pub fn spawn_with_hosts(task: &str, hosts: &Path) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new("unshare");
        let mount = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        command.args(["--mount", "sh", "-c", mount]);
        Self::start(command.arg(hosts).arg(program), task)
    }

    fn start(program: &mut Command, task: &str) -> Self {
        let mut child = program
            .args(["--exact", BODY, "--ignored", "--nocapture"])
            .env(TASK, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("this program");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        let mut worker = Self {
            commands: child.stdin.take(),
            child,
            replies,
        };
        assert_eq!(worker.answer(), READY);
        worker
    }

    /// Sends a command.
    ///
    /// # Panics
    ///
    /// If the worker has exited.
    pub fn tell(&mut self, command: &str) {
        let commands = self.commands.as_mut().expect("the input is open");
        writeln!(commands, "{command}").expect("the worker is running");
    }

    /// Waits for the next reply.
    ///
    /// # Panics
    ///
    /// If the worker has exited.
    pub fn answer(&mut self) -> String {
        self.reply_if_alive().expect("the worker is running")
    }

    /// Waits for the next reply. Returns `None` if the worker has exited.
    ///
    /// # Panics
    ///
    /// If the pipe cannot be read.
    #[must_use]
    pub fn reply_if_alive(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            let read = self.replies.read_line(&mut line);
            // Ignore a reply that the exit cut short.
            if read.expect("a pipe") == 0 || !line.ends_with('\n') {
                return None;
            }
            if let Some((_, answer)) = line.trim_end().split_once(REPLY_PREFIX) {
                return Some(answer.to_owned());
            }
        }
    }

    /// Sends a command, and waits for its reply.
    ///
    /// # Panics
    ///
    /// If the worker has exited.
    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Returns a handle that signals this worker while another thread reads its
    /// replies.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote(Pid::from_child(&self.child))
    }

    /// Kills the worker.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Closes the worker's input, and waits until it exits. Returns whether it
    /// succeeded.
    ///
    /// # Panics
    ///
    /// If the worker was waited for.
    #[must_use]
    pub fn finish(&mut self) -> bool {
        drop(self.commands.take());
        self.child.wait().expect("a child").success()
    }

    /// Pauses the worker, and returns when all its threads have stopped.
    ///
    /// # Panics
    ///
    /// If the worker has exited.
    pub fn pause(&self) {
        self.remote().pause();
        // The state is left for the next call: a second pause must not wait
        // for a change that has happened already.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), options).expect("a child");
    }

    /// Resumes a paused worker.
    ///
    /// # Panics
    ///
    /// If the worker has exited.
    pub fn resume(&self) {
        self.remote().resume();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Signals to a worker. The worker must not have been waited for.
#[derive(Clone, Copy, Debug)]
pub struct Remote(Pid);

impl Remote {
    /// Kills the worker.
    ///
    /// # Panics
    ///
    /// If the worker has exited.
    pub fn kill(self) {
        self.signal(Signal::KILL);
    }

    /// Pauses the worker. Its threads stop soon after.
    ///
    /// # Panics
    ///
    /// If the worker has exited.
    pub fn pause(self) {
        self.signal(Signal::STOP);
    }

    /// Resumes a paused worker.
    ///
    /// # Panics
    ///
    /// If the worker has exited.
    pub fn resume(self) {
        self.signal(Signal::CONT);
    }

    fn signal(self, signal: Signal) {
        kill_process(self.0, signal).expect("the signal is delivered");
    }
}

/// Returns the task of this process, or `None` if it is not a worker but runs
/// all ignored tests.
#[must_use]
pub fn task() -> Option<String> {
    std::env::var(TASK).ok()
}

/// Replies to the test that started this worker.
pub fn say(reply: impl Display) {
    println!("{REPLY_PREFIX}{reply}");
}

/// Tells the test that this worker accepts commands.
pub fn say_ready() {
    say(READY);
}
