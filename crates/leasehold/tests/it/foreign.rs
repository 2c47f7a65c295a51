//! Other libraries that lock with `SET NX PX` on the same key exclude ours, and ours excludes them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{beside_others, client, key, name, server};

/// A Python that holds and releases redis-py's `Lock`, a word at a time.
const PROGRAM: &str = r#"
import sys, redis
lock = redis.Redis(port=int(sys.argv[1])).lock(sys.argv[2], timeout=30)
for line in sys.stdin:
    if line == "acquire\n":
        print(lock.acquire(blocking=False), flush=True)
    else:
        print(lock.release(), flush=True)
"#;

struct Python {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Python {
    /// `None` where there is no Python with redis-py, unless it is required.
    fn start(port: u16, key: &str) -> Option<Self> {
        let interpreter = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
            let found = Command::new(python)
                .args(["-c", "import redis"])
                .stderr(Stdio::null())
                .status();
            found.is_ok_and(|status| status.success())
        });
        let Some(interpreter) = interpreter else {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI must have python3-redis"
            );
            println!("skipped: no Python with redis-py");
            return None;
        };
        let mut child = Command::new(interpreter)
            .args(["-c", PROGRAM, &port.to_string(), key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Some(Self { child, answers })
    }

    fn ask(&mut self, word: &str) -> String {
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{word}").expect("Python lives");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("Python lives");
        line.trim().to_owned()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn redis_py_and_this_library_exclude_each_other() {
    beside_others(async {
        let server = server();
        let name = name();
        let Some(mut python) = Python::start(server.port(), &key(&name)) else {
            return;
        };
        let mutex = client(&server).await.mutex(&name);

        let guard = mutex.lock().await.unwrap();
        assert_eq!(python.ask("acquire"), "False");
        let _ = guard.release().await.unwrap();
        assert_eq!(python.ask("acquire"), "True");
        assert!(mutex.try_lock().await.unwrap().is_none());
        let holder = mutex.holder().await.unwrap().expect("held by Python");
        assert_eq!((holder.pid, holder.host), (None, None));
        assert!(holder.lease_left.is_some());

        // It does not publish: its release is found by looking.
        let waiting =
            tokio::spawn(async move { mutex.lock().await.map(|guard| (Instant::now(), guard)) });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let released = Instant::now();
        python.ask("release");
        let (got, _guard) = waiting.await.unwrap().unwrap();
        assert!(
            got - released < Duration::from_millis(1200),
            "{:?}",
            got - released
        );
    });
}
