//! The peers: processes that acquire locks on command; see `peers/README.md`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A lock implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contestant {
    /// The name in tables.
    pub(crate) name: &'static str,
    folder: &'static str,
    library: &'static str,
    /// Whether it only sends commands, and cannot wait for a lock.
    pub(crate) bare: bool,
    /// The threads of its tokio runtime, if not one per core.
    threads: Option<u32>,
}

const fn contestant(name: &'static str, folder: &'static str, library: &'static str) -> Contestant {
    Contestant {
        name,
        folder,
        library,
        bare: false,
        threads: None,
    }
}

/// The baseline of comparisons.
pub(crate) const OURS: Contestant = contestant("leasehold Mutex", "rust", "leasehold");
pub(crate) const FAIR: Contestant = contestant("leasehold FairMutex", "rust", "fair");
/// The blocking API.
pub(crate) const THREADS: Contestant = contestant("leasehold Mutex, blocking", "rust", "threads");
/// Every kind of Leasehold, and Redisson's fair lock.
pub(crate) const KINDS: [Contestant; 6] = [
    OURS,
    FAIR,
    contestant("leasehold Semaphore", "rust", "semaphore"),
    contestant("leasehold RwLock, reading", "rust", "read"),
    contestant("leasehold RwLock, writing", "rust", "write"),
    contestant("Redisson fair lock (Java)", "java", "fair"),
];
/// The mutexes without local hand-off.
pub(crate) const OURS_NO_HANDOFF: Contestant = contestant(
    "leasehold Mutex, no local hand-off",
    "rust",
    "leasehold-off",
);
pub(crate) const FAIR_NO_HANDOFF: Contestant =
    contestant("leasehold FairMutex, no local hand-off", "rust", "fair-off");
pub(crate) const ENGINE: Contestant = Contestant {
    bare: true,
    ..contestant("bare engine", "rust", "engine")
};

pub(crate) const DRIVER: Contestant = Contestant {
    bare: true,
    ..contestant("driver, SET NX PX + script", "rust", "driver")
};
pub(crate) const RSLOCK: Contestant = contestant("rslock (Rust)", "rust", "rslock");

const ALL: [Contestant; 13] = [
    OURS,
    FAIR,
    contestant("leasehold, Redisson's lock", "rust", "shared"),
    ENGINE,
    Contestant {
        bare: true,
        ..contestant("driver, SET NX PX + DEL (unsafe)", "rust", "unsafe")
    },
    DRIVER,
    contestant("Redisson lock (Java)", "java", "lock"),
    contestant("Redisson fair lock (Java)", "java", "fair"),
    RSLOCK,
    contestant("rlock (Rust)", "rust", "rlock"),
    contestant("redsync (Go)", "go", "redsync"),
    contestant("redlock (Node.js)", "node", "redlock"),
    contestant("redis-py (Python)", "python", "redis-py"),
];

impl Contestant {
    /// Returns the contestants that are built, and prints the others.
    pub(crate) fn all() -> Vec<Self> {
        let (built, missing): (Vec<_>, Vec<_>) = ALL.into_iter().partition(Self::is_built);
        for contestant in missing {
            println!("skipped: {} is not built; run peers/build", contestant.name);
        }
        built
    }

    /// Returns this contestant with a tokio runtime of this many threads.
    pub(crate) const fn with_threads(self, threads: u32) -> Self {
        Self {
            threads: Some(threads),
            ..self
        }
    }

    /// Returns this contestant with as many threads as another one, or with
    /// one if the other has no runtime. The engine never has one.
    pub(crate) fn matching(self, other: Self) -> Self {
        if self == ENGINE {
            return self;
        }
        self.with_threads(other.threads.unwrap_or(1))
    }

    /// Returns the name in tables, with the number of threads.
    pub(crate) fn full_name(&self) -> String {
        match self.threads {
            Some(threads) => format!("{}, {threads}t", self.name),
            None => self.name.to_owned(),
        }
    }

    fn is_built(&self) -> bool {
        match self.folder {
            "rust" => rust().exists(),
            "java" => peers().join("java/target/Peer.class").exists(),
            "go" => peers().join("go/target/peer").exists(),
            "node" => peers().join("node/node_modules/redlock").exists(),
            _ => Command::new(PYTHON)
                .args(["-c", "import redis"])
                .status()
                .is_ok_and(|done| done.success()),
        }
    }

    fn command(&self, port: u16) -> Command {
        let mut command = match self.folder {
            "rust" => Command::new(rust()),
            "java" => {
                let jars = peers().join("../../interop/redisson/target/4/lib/*");
                let path = format!(
                    "{}:{}",
                    peers().join("java/target").display(),
                    jars.display()
                );
                let mut java = Command::new("java");
                java.args(["-cp", &path, "Peer"]);
                java
            }
            "go" => Command::new(peers().join("go/target/peer")),
            "node" => with_program("node", "node/peer.js"),
            _ => with_program(PYTHON, "python/peer.py"),
        };
        command.args([&port.to_string(), self.library]);
        if let Some(threads) = self.threads {
            command.env("TOKIO_WORKER_THREADS", threads.to_string());
        }
        command
    }

    /// Starts a process, and waits until it is connected.
    pub(crate) fn start(&self, port: u16) -> Peer {
        let mut child = self
            .command(port)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the peer starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut peer = Peer {
            child,
            input,
            output,
        };
        assert_eq!(peer.line(), "ready", "{}", self.name);
        peer
    }
}

/// Debian's Python, which has redis-py.
const PYTHON: &str = "/usr/bin/python3";

fn with_program(interpreter: &str, program: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(peers().join(program));
    command
}

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Returns the path of the Rust peer, in the folder of this program.
fn rust() -> PathBuf {
    std::env::current_exe()
        .expect("this program")
        .with_file_name("peer")
}

/// A process that acquires locks.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Sends a command without waiting for its response.
    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the peer is running");
    }

    /// Reads the response of a command, up to `done`.
    pub(crate) fn response(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line == "done" => return lines,
                line => lines.push(line),
            }
        }
    }

    /// Sends a command and returns its response.
    pub(crate) fn ask(&mut self, command: &str) -> Vec<String> {
        self.tell(command);
        self.response()
    }

    /// Sends a command, and returns the numbers of its response.
    pub(crate) fn numbers(&mut self, command: &str) -> Vec<f64> {
        let lines = self.ask(command);
        let words = lines.iter().flat_map(|line| line.split(' '));
        words.map(|word| word.parse().expect("a number")).collect()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).expect("a pipe");
        assert!(read > 0, "the peer has exited");
        line.trim_end().to_owned()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
