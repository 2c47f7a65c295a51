//! Where the stories are played: a server, a folder for what programs leave, and the command.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::{Flavor, Server};

/// The command under test.
pub(crate) const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold");

/// The limit of an event that must happen. Only a defect reaches it.
const AMPLE: Duration = Duration::from_secs(60);

/// A script that runs until [`Stage::go`].
pub(crate) const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.05; done";

pub(crate) struct Stage {
    pub(crate) server: Server,
    folder: PathBuf,
}

impl Stage {
    pub(crate) fn set() -> Self {
        Self::at(Server::start(&Flavor::one()))
    }

    /// On a server that runs.
    pub(crate) fn at(server: Server) -> Self {
        let name = format!("leasehold-story-{}-{}", std::process::id(), number());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self { server, folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.server.port())
    }

    /// The command with words separated by blanks; programs are given with [`Cast::playing`].
    pub(crate) fn leasehold(&self, words: &str) -> Cast {
        self.leasehold_at(&self.url(), words)
    }

    /// The same, which talks to another address.
    pub(crate) fn leasehold_at(&self, url: &str, words: &str) -> Cast {
        let mut command = with_default_signals(LEASEHOLD);
        command.args(words.split_whitespace()).stdin(Stdio::null());
        self.cast(command, url)
    }

    /// The command, started by a shell that ignores some signals.
    pub(crate) fn leasehold_ignoring(&self, signals: &str, words: &str) -> Cast {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("trap '' {signals}; exec \"$@\""), "sh"])
            .arg(LEASEHOLD)
            .args(words.split_whitespace())
            .stdin(Stdio::null());
        self.cast(command, &self.url())
    }

    /// A command on a terminal of its own, which a script gives it; keys are written to its standard input.
    pub(crate) fn on_a_terminal(&self, script: &str) -> Cast {
        let mut command = with_default_signals("script");
        command
            .args(["-qefc", script, "/dev/null"])
            .stdin(Stdio::piped());
        self.cast(command, &self.url())
    }

    fn cast(&self, mut command: Command, url: &str) -> Cast {
        command
            .current_dir(&self.folder)
            .env("LEASEHOLD_URL", url)
            .env_remove("LEASEHOLD_CONFIG")
            // A stalled machine is no outage.
            .env("LEASEHOLD_REQUEST_TIMEOUT", "5s")
            .env("XDG_CONFIG_HOME", &self.folder)
            .stdout(Stdio::piped());
        Cast {
            command,
            said: self.path(&format!("said-{}", number())),
        }
    }

    /// Ends what runs [`UNTIL_GO`].
    pub(crate) fn go(&self) {
        std::fs::write(self.path("go"), "").unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// What a program has left in a file, once it has.
    #[track_caller]
    pub(crate) fn left(&self, name: &str) -> String {
        eventually(&format!("{name} is written"), || self.has_line(name));
        let text = std::fs::read_to_string(self.path(name)).unwrap();
        text.trim().to_owned()
    }

    fn has_line(&self, name: &str) -> bool {
        let text = std::fs::read_to_string(self.path(name));
        text.is_ok_and(|text| text.ends_with('\n'))
    }

    /// The process whose number a program has left in a file.
    pub(crate) fn process(&self, name: &str) -> Pid {
        Pid::from_raw(self.left(name).parse().unwrap())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    pub(crate) fn is_free(&self, lock: &str) -> bool {
        self.server.ask(&["EXISTS", &format!("lock:{lock}")]).int() == 0
    }

    /// Takes a lock away from its holder by command.
    #[track_caller]
    pub(crate) fn revoke(&self, lock: &str) {
        let scene = self.leasehold(&format!("release --force {lock}")).play();
        scene
            .with_code(0)
            .saying(&format!("took `{lock}` away from process"));
    }

    /// How many wait for a lock that is held, as the command shows it. Of a mutex, a holder that has waited counts.
    pub(crate) fn waiting(&self, lock: &str) -> u32 {
        let shown = self.leasehold(&format!("show --json {lock}")).play();
        let shown = shown.with_code(0).out;
        let (_, count) = shown.split_once(r#""waiting":"#).unwrap();
        count.split(',').next().unwrap().parse().unwrap()
    }

    /// The milliseconds until the server forgets a lock.
    pub(crate) fn lease_remaining(&self, lock: &str) -> i64 {
        self.server.ask(&["PTTL", &format!("lock:{lock}")]).int()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A number that no other stage or command of this process has.
fn number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// A command that is about to be started.
pub(crate) struct Cast {
    command: Command,
    /// The file for its standard error, which can be read while it runs.
    said: PathBuf,
}

impl Cast {
    /// Runs a shell script as the program.
    pub(crate) fn playing(mut self, script: &str) -> Self {
        self.command.args(["--", "sh", "-c", script]);
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        change(&mut self.command);
        self
    }

    pub(crate) fn start(mut self) -> Actor {
        self.command.stderr(File::create(&self.said).unwrap());
        Actor {
            child: self.command.spawn().unwrap(),
            said: self.said,
        }
    }

    /// Starts it, and waits for an event that it causes.
    #[track_caller]
    pub(crate) fn start_until(self, what: &str, condition: impl FnMut() -> bool) -> Actor {
        let actor = self.start();
        eventually(what, condition);
        actor
    }

    /// Starts it with a program that runs until [`Stage::go`], and waits for that.
    #[track_caller]
    pub(crate) fn hold(self, stage: &Stage) -> Actor {
        let script = format!("echo up > up; {UNTIL_GO}");
        self.playing(&script).leave(stage, "up")
    }

    /// Starts it, and waits until its program has written a line to a file.
    #[track_caller]
    pub(crate) fn leave(self, stage: &Stage, name: &str) -> Actor {
        self.start_until(&format!("{name} is written"), || stage.has_line(name))
    }

    /// Runs it to its end.
    pub(crate) fn play(self) -> Scene {
        self.start().ends()
    }
}

/// A command that runs.
pub(crate) struct Actor {
    child: Child,
    said: PathBuf,
}

impl Actor {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    pub(crate) fn gets(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The keyboard of a command on a terminal.
    pub(crate) fn take_keys(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    /// What it prints, to be read while it does.
    pub(crate) fn take_out(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    /// Waits until it says this.
    #[track_caller]
    pub(crate) fn until_said(&self, text: &str) {
        let said = || std::fs::read_to_string(&self.said).unwrap();
        eventually(text, || said().contains(text));
    }

    /// The memory that is its own and nobody else's, in KiB; 0 when it has ended.
    pub(crate) fn memory(&self) -> u64 {
        let path = Path::new("/proc").join(self.pid().to_string());
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.unwrap_or_default()
    }

    /// Waits for its end.
    pub(crate) fn ends(self) -> Scene {
        let output = self.child.wait_with_output().unwrap();
        let said = std::fs::read(&self.said).unwrap();
        Scene {
            status: output.status,
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            said: String::from_utf8_lossy(&said).into_owned(),
        }
    }
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) said: String,
}

impl Scene {
    #[track_caller]
    pub(crate) fn with_code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn saying(self, text: &str) -> Self {
        assert!(self.said.contains(text), "not said: {text}\n{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn saying_nothing(self) -> Self {
        assert_eq!(self.said, "");
        self
    }

    /// It has released the lock.
    #[track_caller]
    pub(crate) fn releasing(self, stage: &Stage, lock: &str) -> Self {
        assert!(stage.is_free(lock), "{lock} is held\n{self:?}");
        self
    }
}

/// Whether a process is there: not when it has ended and nobody has taken notice.
pub(crate) fn lives(pid: Pid) -> bool {
    let words = words_about(pid);
    let state = words.first().map(String::as_str);
    state.is_some_and(|state| !["Z", "X"].contains(&state))
}

/// The words that the system has about a process, from its state on.
fn words_about(pid: Pid) -> Vec<String> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let stat = stat.unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().map(str::to_owned).collect()
}

/// The group that has the terminal of a process.
pub(crate) fn foreground(pid: Pid) -> Pid {
    let group = words_about(pid).get(5).and_then(|group| group.parse().ok());
    Pid::from_raw(group.unwrap_or(-1))
}

/// The processor time that a process has used.
pub(crate) fn processor_time(pid: Pid) -> Duration {
    let words = words_about(pid);
    let ticks = |at: usize| words[at].parse::<u64>().unwrap();
    // A hundred a second, on every Linux.
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < AMPLE, "not within {AMPLE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A program that ignores no signal, although the tests themselves may be started with some ignored.
fn with_default_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT", program]);
    command
}
