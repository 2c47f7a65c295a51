//! Where the stories are played: a server, a folder for what programs leave, and the command.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::machine::{self, Place, ran_since};
use testkit::{Flavor, Server};

/// The command under test.
pub(crate) const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold");

/// Long for anything that should happen at once, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(5);

pub(crate) struct Stage {
    pub(crate) server: Server,
    folder: PathBuf,
    /// Left last, when the server is gone.
    _place: Option<Place>,
}

impl Stage {
    pub(crate) fn set() -> Self {
        Self::set_with(plain)
    }

    /// For a story with a server of its own sort.
    pub(crate) fn set_with(server: impl FnOnce() -> Server) -> Self {
        let place = machine::beside_others();
        Self::build(server(), Some(place))
    }

    /// For a story that wants all of the machine, or tells what time something takes.
    pub(crate) fn set_alone(server: impl FnOnce() -> Server) -> Self {
        let place = machine::alone();
        Self::build(server(), Some(place))
    }

    /// One more, for a story that has one.
    pub(crate) fn extend(&self, server: Server) -> Self {
        Self::build(server, None)
    }

    fn build(server: Server, place: Option<Place>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-story-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self {
            server,
            folder,
            _place: place,
        }
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
        let mut command = Command::new(LEASEHOLD);
        command
            .args(words.split_whitespace())
            .current_dir(&self.folder)
            .env("LEASEHOLD_URL", url)
            .env_remove("LEASEHOLD_CONFIG")
            .env("XDG_CONFIG_HOME", &self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Cast { command }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// What a program has left in a file, once it has.
    pub(crate) fn left(&self, name: &str) -> String {
        let path = self.path(name);
        eventually(&format!("{name} is written"), || {
            std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n'))
        });
        std::fs::read_to_string(path).unwrap().trim().to_owned()
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

    pub(crate) fn until_held(&self, lock: &str) {
        eventually(&format!("{lock} is held"), || !self.is_free(lock));
    }
}

/// The server of most stories.
pub(crate) fn plain() -> Server {
    Server::start(&Flavor::one())
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A command that is about to be started.
pub(crate) struct Cast {
    command: Command,
}

impl Cast {
    /// Runs a shell script as the program.
    pub(crate) fn playing(mut self, script: &str) -> Self {
        self.command.args(["--", "sh", "-c", script]);
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Command)) -> Self {
        change(&mut self.command);
        self
    }

    pub(crate) fn start(mut self) -> Actor {
        Actor {
            child: self.command.spawn().unwrap(),
        }
    }

    /// Runs it to its end.
    pub(crate) fn play(mut self) -> Scene {
        let output = self.command.output().unwrap();
        Scene {
            status: output.status,
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A command that runs.
pub(crate) struct Actor {
    child: Child,
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

    /// What it prints, to be read while it does.
    pub(crate) fn take_out(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
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
        Scene {
            status: output.status,
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
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
}

/// Whether a process is there: not when it has ended and nobody has taken notice.
pub(crate) fn lives(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let stat = stat.unwrap_or_default();
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    let state = after_name.and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[track_caller]
pub(crate) fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(SOON, what, condition);
}

#[track_caller]
pub(crate) fn within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(ran_since(start) < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
