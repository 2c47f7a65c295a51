//! Other libraries that lock with `SET NX PX` on the same key exclude ours, and ours excludes them.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{AMPLE, channels, client, eventually, exists, key, name, run, server};

/// How soon a release that is not announced is found, by polling.
const POLLED: Duration = Duration::from_millis(1200);

/// A process that holds and releases a lock of another library, a word at a time; see `interop`.
struct Foreign {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Foreign {
    fn start(mut program: Command, port: u16, key: &str) -> Self {
        let mut child = program
            .args([&port.to_string(), key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, answers }
    }

    /// Whether it could do as it was told.
    fn ask(&mut self, word: &str) -> bool {
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{word}").expect("it lives");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it lives");
        line.trim().parse().expect("true or false")
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn interop(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../interop")
        .join(path)
}

/// Skips where `found` is not there, unless it must be.
fn there<T>(peer: &str, found: Option<T>) -> Option<T> {
    if found.is_none() {
        testkit::skip(peer);
    }
    found
}

/// Both exclude each other on one key, and each leaves what is the other's alone; the other's release is found within
/// `limit`.
fn exclude_each_other(program: Command, limit: Duration) {
    run(async {
        let server = server();
        let name = name();
        let mut foreign = Foreign::start(program, server.port(), &key(&name));
        let mutex = client(&server).await.mutex(&name);

        let guard = mutex.lock().await.unwrap();
        assert!(!foreign.ask("acquire"));
        assert!(guard.check().is_ok() && exists(&server, &name));
        let _ = guard.release().await.unwrap();
        assert!(foreign.ask("acquire"));
        assert!(mutex.try_lock().await.unwrap().is_none());
        let holder = mutex.holder().await.unwrap().expect("held by the other");
        assert_eq!((holder.pid, holder.host), (None, None));
        assert!(holder.lease_remaining.is_some());

        // It does not publish: its release is found by looking.
        let again = mutex.clone();
        let waiting =
            tokio::spawn(async move { again.lock().await.map(|guard| (Instant::now(), guard)) });
        eventually("a waiter", || !channels(&server).is_empty()).await;
        let released = Instant::now();
        assert!(foreign.ask("release"));
        let (got, guard) = waiting.await.unwrap().unwrap();
        let waited = got - released;
        assert!(waited < limit, "{waited:?}");

        // What it lost to us it cannot release.
        let _ = guard.release().await.unwrap();
        assert!(foreign.ask("acquire"));
        server.tell(&["DEL", &key(&name)]);
        let guard = mutex.try_lock().await.unwrap().expect("it is free");
        assert!(!foreign.ask("release"));
        assert!(exists(&server, &name));
        let _ = guard.release().await.unwrap();
    });
}

#[test]
fn redis_py_and_this_library_exclude_each_other() {
    beside_redis_py(AMPLE);
}

#[test]
fn redsync_and_this_library_exclude_each_other() {
    beside_redsync(AMPLE);
}

#[test]
fn redlock_and_this_library_exclude_each_other() {
    beside_redlock(AMPLE);
}

#[test]
#[ignore = "deep: measures a latency"]
fn foreign_release_is_found_by_the_next_poll() {
    beside_redis_py(POLLED);
    beside_redsync(POLLED);
    beside_redlock(POLLED);
}

fn beside_redis_py(limit: Duration) {
    let has_redis = |python: &&str| {
        let found = Command::new(python)
            .args(["-c", "import redis"])
            .stderr(Stdio::null())
            .status();
        found.is_ok_and(|status| status.success())
    };
    let python = ["python3", "/usr/bin/python3"].into_iter().find(has_redis);
    if let Some(python) = there("redis-py", python) {
        let mut program = Command::new(python);
        program.arg(interop("redis-py/lock.py"));
        exclude_each_other(program, limit);
    }
}

fn beside_redsync(limit: Duration) {
    let built = interop("redsync/target/redsync");
    if let Some(built) = there("redsync", built.exists().then_some(built)) {
        exclude_each_other(Command::new(built), limit);
    }
}

fn beside_redlock(limit: Duration) {
    let installed = interop("redlock/node_modules/redlock").exists();
    if there("redlock", installed.then_some(())).is_some() {
        let mut program = Command::new("node");
        program.arg(interop("redlock/lock.js"));
        exclude_each_other(program, limit);
    }
}
