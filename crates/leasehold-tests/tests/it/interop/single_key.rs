//! Other libraries that lock with `SET NX PX` exclude this one on the same key,
//! and are excluded by it.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::ServerExt;

use crate::support::{
    AMPLE, channels, client, eventually, exists, is_busy, key, name, run, server,
};

/// How soon polling must find a release that is not published.
const POLLED: Duration = Duration::from_millis(1200);

/// A process that holds and releases a lock of another library, one word at a
/// time; see `interop`.
struct ForeignLock {
    child: Child,
    replies: BufReader<std::process::ChildStdout>,
}

impl ForeignLock {
    fn start(mut program: Command, port: u16, key: &str) -> Self {
        let mut child = program
            .args([&port.to_string(), key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, replies }
    }

    /// Returns whether the operation succeeded.
    fn ask(&mut self, word: &str) -> bool {
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{word}").expect("the program is running");
        let mut line = String::new();
        self.replies
            .read_line(&mut line)
            .expect("the program is running");
        line.trim().parse().expect("true or false")
    }
}

impl Drop for ForeignLock {
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

/// Skips the test if `found` is missing, unless the peer is required.
fn or_skip<T>(peer: &str, found: Option<T>) -> Option<T> {
    if found.is_none() {
        testkit::skip(peer);
    }
    found
}

/// Asserts that both exclude each other on one key, and that neither releases
/// the other's lock. A foreign release must be found within `limit`.
fn exclude_each_other(program: Command, limit: Duration) {
    run(async {
        let server = server();
        let name = name();
        let mut peer = ForeignLock::start(program, server.port(), &key(&name));
        let mutex = client(&server).await.mutex(&name);

        let guard = mutex.lock().await.unwrap();
        assert!(!peer.ask("acquire"));
        assert!(guard.check().is_ok() && exists(&server, &name));
        guard.release().await.unwrap();
        assert!(peer.ask("acquire"));
        assert!(is_busy(mutex.try_lock()).await);
        let holder = mutex
            .holder()
            .await
            .unwrap()
            .expect("the peer holds the lock");
        assert_eq!((holder.process.pid, holder.process.host), (None, None));
        assert!(holder.lease_remaining.is_some());

        // The peer does not publish, so polling finds its release.
        let waiter = mutex.clone();
        let waiting =
            tokio::spawn(async move { waiter.lock().await.map(|guard| (Instant::now(), guard)) });
        eventually("the waiter subscribes", || !channels(&server).is_empty()).await;
        let released = Instant::now();
        assert!(peer.ask("release"));
        let (got, guard) = waiting.await.unwrap().unwrap();
        let waited = got - released;
        assert!(waited < limit, "{waited:?}");

        // The peer cannot release a lock that it lost.
        guard.release().await.unwrap();
        assert!(peer.ask("acquire"));
        server.tell(&["DEL", &key(&name)]);
        let guard = mutex.try_lock().await.expect("the lock is free");
        assert!(!peer.ask("release"));
        assert!(exists(&server, &name));
        guard.release().await.unwrap();
    });
}

#[test]
fn redis_py_and_leasehold_exclude_each_other() {
    test_redis_py(AMPLE);
}

#[test]
fn redsync_and_leasehold_exclude_each_other() {
    test_redsync(AMPLE);
}

#[test]
fn redlock_and_leasehold_exclude_each_other() {
    test_redlock(AMPLE);
}

#[test]
#[ignore = "deep: measures a latency"]
fn foreign_release_is_found_by_next_poll() {
    test_redis_py(POLLED);
    test_redsync(POLLED);
    test_redlock(POLLED);
}

fn test_redis_py(limit: Duration) {
    let has_redis = |python: &&str| {
        let found = Command::new(python)
            .args(["-c", "import redis"])
            .stderr(Stdio::null())
            .status();
        found.is_ok_and(|status| status.success())
    };
    let python = ["python3", "/usr/bin/python3"].into_iter().find(has_redis);
    if let Some(python) = or_skip("redis-py", python) {
        let mut program = Command::new(python);
        program.arg(interop("redis-py/lock.py"));
        exclude_each_other(program, limit);
    }
}

fn test_redsync(limit: Duration) {
    let built = interop("redsync/target/redsync");
    if let Some(built) = or_skip("redsync", built.exists().then_some(built)) {
        exclude_each_other(Command::new(built), limit);
    }
}

fn test_redlock(limit: Duration) {
    let installed = interop("redlock/node_modules/redlock").exists();
    if or_skip("redlock", installed.then_some(())).is_some() {
        let mut program = Command::new("node");
        program.arg(interop("redlock/lock.js"));
        exclude_each_other(program, limit);
    }
}
