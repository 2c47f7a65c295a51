//! The programs that lock, each a process that is told what to do; see `peers/README.md`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// One way to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contestant {
    /// As tables call it.
    pub(crate) name: &'static str,
    folder: &'static str,
    library: &'static str,
    /// Whether it only sends commands, and waits for no lock.
    pub(crate) bare: bool,
    /// Whether its runtime has one thread, where it has one at all.
    one_thread: bool,
}

const fn contestant(name: &'static str, folder: &'static str, library: &'static str) -> Contestant {
    Contestant {
        name,
        folder,
        library,
        bare: false,
        one_thread: false,
    }
}

/// What all are compared with.
pub(crate) const OURS: Contestant = contestant("leasehold Mutex", "rust", "leasehold");
pub(crate) const FAIR: Contestant = contestant("leasehold FairMutex", "rust", "fair");
const ONE_THREAD: Contestant = Contestant {
    one_thread: true,
    ..contestant("leasehold Mutex, one thread", "rust", "leasehold")
};
/// Every kind of ours, and the fair lock of Redisson's.
pub(crate) const KINDS: [Contestant; 6] = [
    OURS,
    FAIR,
    contestant("leasehold Semaphore", "rust", "semaphore"),
    contestant("leasehold RwLock, reading", "rust", "read"),
    contestant("leasehold RwLock, writing", "rust", "write"),
    contestant("Redisson fair lock (Java)", "java", "fair"),
];
/// The same with hand-on turned off.
pub(crate) const OURS_ALONE: Contestant = contestant(
    "leasehold Mutex, no local hand-off",
    "rust",
    "leasehold-off",
);
pub(crate) const FAIR_ALONE: Contestant =
    contestant("leasehold FairMutex, no local hand-off", "rust", "fair-off");
pub(crate) const ENGINE: Contestant = Contestant {
    bare: true,
    ..contestant("bare engine", "rust", "engine")
};

const ALL: [Contestant; 14] = [
    OURS,
    ONE_THREAD,
    FAIR,
    contestant("leasehold, Redisson's lock", "rust", "shared"),
    ENGINE,
    Contestant {
        bare: true,
        ..contestant("driver, SET NX PX + DEL (unsafe)", "rust", "unsafe")
    },
    Contestant {
        bare: true,
        ..contestant("driver, SET NX PX + script", "rust", "driver")
    },
    contestant("Redisson lock (Java)", "java", "lock"),
    contestant("Redisson fair lock (Java)", "java", "fair"),
    contestant("rslock (Rust)", "rust", "rslock"),
    contestant("rlock (Rust)", "rust", "rlock"),
    contestant("redsync (Go)", "go", "redsync"),
    contestant("redlock (Node.js)", "node", "redlock"),
    contestant("redis-py (Python)", "python", "redis-py"),
];

impl Contestant {
    /// Those that were built here; says which were not.
    pub(crate) fn all() -> Vec<Self> {
        let (there, missing): (Vec<_>, Vec<_>) = ALL.into_iter().partition(Self::is_built);
        for contestant in missing {
            println!(
                "left out: {} is not built; run peers/build",
                contestant.name
            );
        }
        there
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
        if self.one_thread {
            command.env("TOKIO_WORKER_THREADS", "1");
        }
        command
    }

    /// Starts it, connected.
    pub(crate) fn start(&self, port: u16) -> Peer {
        let mut child = self
            .command(port)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the peer");
        let orders = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut peer = Peer {
            child,
            orders,
            answers,
        };
        assert_eq!(peer.line(), "ready", "{}", self.name);
        peer
    }
}

/// Debian's own has redis-py.
const PYTHON: &str = "/usr/bin/python3";

fn with_program(interpreter: &str, program: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(peers().join(program));
    command
}

fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Built beside this program.
fn rust() -> PathBuf {
    std::env::current_exe()
        .expect("this program")
        .with_file_name("peer")
}

/// A process that locks.
pub(crate) struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the peer lives");
    }

    /// What it answers, up to `done`.
    pub(crate) fn answer(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line == "done" => return lines,
                line => lines.push(line),
            }
        }
    }

    pub(crate) fn ask(&mut self, order: &str) -> Vec<String> {
        self.tell(order);
        self.answer()
    }

    /// The numbers of the only line that it answers.
    pub(crate) fn numbers(&mut self, order: &str) -> Vec<f64> {
        let lines = self.ask(order);
        let words = lines.iter().flat_map(|line| line.split(' '));
        words.map(|word| word.parse().expect("a number")).collect()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).expect("a pipe");
        assert!(read > 0, "the peer has ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
