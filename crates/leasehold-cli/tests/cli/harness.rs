//! The test harness: a server, a folder for the files of scripts, and the CLI.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::{Flavor, Server, ServerExt};

/// The executable under test.
pub(crate) const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold");

/// The limit for an event that must happen. Only a defect reaches it.
pub(crate) const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A script that runs until [`Harness::stop_scripts`], or until its folder is
/// deleted: a test that kills the CLI leaves the script to itself.
pub(crate) const UNTIL_STOPPED: &str =
    r#"until [ -e stop ] || ! [ -e "$PWD" ]; do sleep 0.05; done"#;

pub(crate) struct Harness {
    pub(crate) server: Server,
    folder: PathBuf,
}

impl Harness {
    pub(crate) fn new() -> Self {
        Self::with_server(Flavor::one().start())
    }

    pub(crate) fn with_server(server: Server) -> Self {
        let name = format!("leasehold-cli-{}-{}", std::process::id(), next_id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self { server, folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.server.port())
    }

    /// Prepares the CLI with arguments separated by spaces. [`Cmd::script`]
    /// adds the command of `run`.
    pub(crate) fn leasehold(&self, args: &str) -> Cmd {
        self.leasehold_with_url(&self.url(), args)
    }

    /// Prepares the CLI for another server.
    pub(crate) fn leasehold_with_url(&self, url: &str, args: &str) -> Cmd {
        let mut command = with_default_signals(LEASEHOLD);
        command.args(args.split_whitespace()).stdin(Stdio::null());
        self.cmd(command, url)
    }

    /// Prepares a copy of the CLI, or another program.
    pub(crate) fn program(&self, program: &Path, args: &str) -> Cmd {
        let mut command = with_default_signals(program);
        command.args(args.split_whitespace()).stdin(Stdio::null());
        self.cmd(command, &self.url())
    }

    /// Prepares a shell script.
    pub(crate) fn shell(&self, script: &str) -> Cmd {
        let mut command = with_default_signals("sh");
        command.args(["-c", script]).stdin(Stdio::null());
        self.cmd(command, &self.url())
    }

    /// Prepares the CLI, started by a shell that ignores some signals.
    pub(crate) fn leasehold_ignoring(&self, signals: &str, args: &str) -> Cmd {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("trap '' {signals}; exec \"$@\""), "sh"])
            .arg(LEASEHOLD)
            .args(args.split_whitespace())
            .stdin(Stdio::null());
        self.cmd(command, &self.url())
    }

    /// Prepares a command on a terminal of its own. Its standard input is the
    /// keyboard.
    pub(crate) fn on_terminal(&self, command_line: &str) -> Cmd {
        let mut command = with_default_signals("script");
        command
            .args(["-qefc", command_line, "/dev/null"])
            .stdin(Stdio::piped());
        self.cmd(command, &self.url())
    }

    fn cmd(&self, mut command: Command, url: &str) -> Cmd {
        command
            .current_dir(&self.folder)
            .env("LEASEHOLD_URL", url)
            .env_remove("LEASEHOLD_CONFIG")
            // A stalled machine must not cause an outage.
            .env("LEASEHOLD_REQUEST_TIMEOUT", "5s")
            .env("XDG_CONFIG_HOME", &self.folder)
            .stdout(Stdio::piped());
        Cmd {
            command,
            stderr: self.path(&format!("stderr-{}", next_id())),
        }
    }

    /// Ends scripts that run [`UNTIL_STOPPED`].
    pub(crate) fn stop_scripts(&self) {
        std::fs::write(self.path("stop"), "").unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Waits until a script has written a line to a file, and returns the text.
    #[track_caller]
    pub(crate) fn wait_for_file(&self, name: &str) -> String {
        eventually(&format!("{name} is written"), || self.has_line(name));
        let text = std::fs::read_to_string(self.path(name)).unwrap();
        text.trim().to_owned()
    }

    fn has_line(&self, name: &str) -> bool {
        let text = std::fs::read_to_string(self.path(name));
        text.is_ok_and(|text| text.ends_with('\n'))
    }

    /// Waits until a script has written a pid to a file.
    pub(crate) fn wait_for_pid(&self, name: &str) -> Pid {
        Pid::from_raw(self.wait_for_file(name).parse().unwrap())
    }

    /// Waits until a script has written `count` lines to a file.
    #[track_caller]
    pub(crate) fn wait_for_lines(&self, name: &str, count: usize) {
        eventually(&format!("{count} lines in {name}"), || {
            let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
            text.lines().count() >= count
        });
    }

    pub(crate) fn has_file(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    pub(crate) fn is_free(&self, lock: &str) -> bool {
        self.server.ask(&["EXISTS", &format!("lock:{lock}")]).int() == 0
    }

    /// Revokes a held lock with `release --force`.
    #[track_caller]
    pub(crate) fn revoke(&self, lock: &str) {
        let finished = self.leasehold(&format!("release --force {lock}")).run();
        finished
            .expect_code(0)
            .expect_stderr(&format!("revoked `{lock}` from process"));
    }

    /// Returns the number of waiters of a held lock, as `show` reports it. For
    /// a mutex, it includes a holder that has waited.
    pub(crate) fn waiter_count(&self, lock: &str) -> u32 {
        let shown = self.leasehold(&format!("show --json {lock}")).run();
        let shown = shown.expect_code(0).stdout;
        let (_, count) = shown.split_once(r#""waiter_count":"#).unwrap();
        let digits = count.split(|c: char| !c.is_ascii_digit()).next();
        digits.unwrap().parse().unwrap()
    }

    /// Returns the milliseconds until the key of a lock expires.
    pub(crate) fn lease_remaining(&self, lock: &str) -> i64 {
        self.server.ask(&["PTTL", &format!("lock:{lock}")]).int()
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns a number that is unique in this process.
fn next_id() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A process that is not started yet.
pub(crate) struct Cmd {
    command: Command,
    /// The file for standard error, which tests read while the process runs.
    stderr: PathBuf,
}

impl Cmd {
    /// Adds a shell script as the command of `run`.
    pub(crate) fn script(mut self, script: &str) -> Self {
        self.command.args(["--", "sh", "-c", script]);
        self
    }

    pub(crate) fn configure(mut self, change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        change(&mut self.command);
        self
    }

    pub(crate) fn start(mut self) -> Running {
        self.command.stderr(File::create(&self.stderr).unwrap());
        Running {
            child: Some(self.command.spawn().unwrap()),
            stderr: self.stderr,
        }
    }

    /// Starts the process, and waits for an event that it causes.
    #[track_caller]
    pub(crate) fn start_until(self, what: &str, condition: impl FnMut() -> bool) -> Running {
        let running = self.start();
        eventually(what, condition);
        running
    }

    /// Starts `run` with a script that runs until [`Harness::stop_scripts`],
    /// and waits for the start of the script.
    #[track_caller]
    pub(crate) fn start_holding(self, harness: &Harness) -> Running {
        let script = format!("echo up > up; {UNTIL_STOPPED}");
        self.script(&script).start_until_file(harness, "up")
    }

    /// Starts the process, and waits until it has written a line to a file.
    #[track_caller]
    pub(crate) fn start_until_file(self, harness: &Harness, name: &str) -> Running {
        self.start_until(&format!("{name} is written"), || harness.has_line(name))
    }

    /// Runs the process to its end.
    pub(crate) fn run(self) -> Finished {
        self.start().wait()
    }
}

/// A running process. Dropping it kills the process, and with it the command
/// of `run`.
pub(crate) struct Running {
    /// `None` after [`wait`](Self::wait).
    child: Option<Child>,
    stderr: PathBuf,
}

impl Running {
    fn child(&mut self) -> &mut Child {
        self.child.as_mut().unwrap()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.as_ref().unwrap().id().cast_signed())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        self.child().try_wait().unwrap().is_some()
    }

    /// Takes the keyboard of a process on a terminal.
    pub(crate) fn take_stdin(&mut self) -> ChildStdin {
        self.child().stdin.take().unwrap()
    }

    pub(crate) fn take_stdout(&mut self) -> ChildStdout {
        self.child().stdout.take().unwrap()
    }

    /// Waits until standard error contains `text`, and returns all of it.
    #[track_caller]
    pub(crate) fn wait_for_stderr(&self, text: &str) -> String {
        let stderr = || std::fs::read_to_string(&self.stderr).unwrap();
        eventually(text, || stderr().contains(text));
        stderr()
    }

    /// Returns the anonymous memory in KiB, or 0 after the exit.
    pub(crate) fn memory(&self) -> u64 {
        let path = Path::new("/proc").join(self.pid().to_string());
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.unwrap_or_default()
    }

    /// Waits for the exit.
    pub(crate) fn wait(mut self) -> Finished {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let stderr = std::fs::read(&self.stderr).unwrap();
        Finished {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The result of a process.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }

    /// Expects that SIGINT terminated the process.
    #[track_caller]
    pub(crate) fn expect_interrupted(self) -> Self {
        assert_eq!(
            self.status.signal(),
            Some(Signal::SIGINT as i32),
            "{self:?}"
        );
        self
    }

    #[track_caller]
    pub(crate) fn expect_stderr(self, text: &str) -> Self {
        assert!(
            self.stderr.contains(text),
            "no `{text}` on stderr\n{self:?}"
        );
        self
    }

    #[track_caller]
    pub(crate) fn expect_no_stderr(self) -> Self {
        assert_eq!(self.stderr, "");
        self
    }

    #[track_caller]
    pub(crate) fn expect_free(self, harness: &Harness, lock: &str) -> Self {
        assert!(harness.is_free(lock), "{lock} is held\n{self:?}");
        self
    }
}

/// Returns whether a process runs. A zombie does not.
pub(crate) fn is_running(pid: Pid) -> bool {
    let fields = stat_fields(pid);
    let state = fields.first().map(String::as_str);
    state.is_some_and(|state| !["Z", "X"].contains(&state))
}

/// Returns the fields of `/proc/PID/stat` after the name.
fn stat_fields(pid: Pid) -> Vec<String> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let stat = stat.unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().map(str::to_owned).collect()
}

/// Returns the foreground process group of the terminal of a process.
pub(crate) fn foreground_group(pid: Pid) -> Pid {
    let group = stat_fields(pid).get(5).and_then(|group| group.parse().ok());
    Pid::from_raw(group.unwrap_or(-1))
}

/// Returns the CPU time of a process.
pub(crate) fn cpu_time(pid: Pid) -> Duration {
    let fields = stat_fields(pid);
    let ticks = |index: usize| fields[index].parse::<u64>().unwrap();
    // Linux counts 100 ticks per second.
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < EVENT_TIMEOUT,
            "not within {EVENT_TIMEOUT:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Prepares a program that ignores no signal, even if the test runner does.
fn with_default_signals(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP,INT,QUIT").arg(program);
    command
}
