//! A real Redisson in a Java process, told what to do a line at a time; see `interop/redisson`.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The limit of an answer. Only a defect reaches it, also where many Java processes start at once.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a fleet of Redisson clients is configured.
#[derive(Clone, Debug)]
pub struct RedissonConfig {
    /// The addresses as Redisson wants them, with a comma between those of a cluster.
    pub addresses: String,
    /// Whether they are those of a cluster.
    pub cluster: bool,
    /// `lockWatchdogTimeout`.
    pub watchdog: Duration,
    /// `fairLockWaitTimeout`.
    pub fair_wait: Duration,
    /// What its name mapper puts before every name.
    pub prefix: String,
}

impl RedissonConfig {
    /// Of one server, with this watchdog.
    #[must_use]
    pub fn single(port: u16, watchdog: Duration) -> Self {
        Self {
            addresses: format!("redis://127.0.0.1:{port}"),
            cluster: false,
            watchdog,
            fair_wait: Duration::from_secs(300),
            prefix: String::new(),
        }
    }

    /// The same in a cluster with these nodes, as in `127.0.0.1:7000,127.0.0.1:7001`.
    #[must_use]
    pub fn cluster(hosts: &str, watchdog: Duration) -> Self {
        let addresses = hosts.split(',').map(|host| format!("redis://{host}"));
        Self {
            addresses: addresses.collect::<Vec<_>>().join(","),
            cluster: true,
            ..Self::single(0, watchdog)
        }
    }
}

/// What a thread answered, and when that was heard.
#[derive(Clone, Debug)]
pub struct Response {
    /// The answer.
    pub text: String,
    /// When it was heard.
    pub at: Instant,
}

/// A Java process with one client of Redisson.
#[derive(Debug)]
pub struct Redisson {
    child: Child,
    orders: Mutex<ChildStdin>,
    answers: Arc<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    by_thread: Mutex<HashMap<String, VecDeque<Response>>>,
    changed: Condvar,
}

impl Redisson {
    /// The versions that were built here, newest first, as in `4` and `3`; none where there is no Java.
    ///
    /// # Panics
    ///
    /// When there are none although there must be.
    #[must_use]
    pub fn versions() -> Vec<&'static str> {
        let built = |line: &&str| folder(line).join("lib").is_dir();
        let versions: Vec<_> = ["4", "3"].into_iter().filter(built).collect();
        if versions.len() < 2 {
            crate::skip("redisson");
        }
        versions
    }

    /// Starts one of this version, connected.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn start(version: &str, fleet: &RedissonConfig) -> Self {
        let folder = folder(version);
        let path = format!("{0}/classes:{0}/lib/*", folder.display());
        let millis = |time: Duration| time.as_millis().to_string();
        let or_dash = |text: &str| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text.to_owned()
            }
        };
        let mut child = Command::new("java")
            // Small and quick to start: there are two cores.
            .args([
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Xmx256m",
                "-cp",
            ])
            .args([&path, "leasehold.Harness"])
            .args([
                if fleet.cluster { "cluster" } else { "single" },
                &fleet.addresses,
            ])
            .args([
                millis(fleet.watchdog),
                millis(fleet.fair_wait),
                or_dash(&fleet.prefix),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("java");
        let orders = Mutex::new(child.stdin.take().expect("piped"));
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let answers = Arc::<Answers>::default();
        let redisson = Self {
            child,
            orders,
            answers: answers.clone(),
        };
        std::thread::spawn(move || answers.collect(output));
        assert_eq!(redisson.answer("main").text, "ready");
        redisson
    }

    /// Gives an order to a thread, which answers when it is done.
    ///
    /// # Panics
    ///
    /// When the process has ended.
    pub fn tell(&self, thread: &str, order: &str) {
        let mut orders = self.orders.lock().expect("no panic");
        writeln!(orders, "{thread} {order}").expect("Java lives");
    }

    /// Waits for the next answer of a thread.
    ///
    /// # Panics
    ///
    /// When there is none for two minutes.
    #[must_use]
    pub fn answer(&self, thread: &str) -> Response {
        self.answer_within(thread, PATIENCE)
            .unwrap_or_else(|| panic!("no answer of {thread}"))
    }

    /// The next answer of a thread, if there is one within `limit`.
    ///
    /// # Panics
    ///
    /// Never, unless another thread did.
    #[must_use]
    pub fn answer_within(&self, thread: &str, limit: Duration) -> Option<Response> {
        let answers = self.answers.by_thread.lock().expect("no panic");
        let none = |answers: &mut HashMap<String, VecDeque<Response>>| {
            answers.get(thread).is_none_or(VecDeque::is_empty)
        };
        let waited = self
            .answers
            .changed
            .wait_timeout_while(answers, limit, none);
        let (mut answers, _) = waited.expect("no panic");
        answers.get_mut(thread)?.pop_front()
    }

    /// Gives an order and waits for its answer.
    ///
    /// # Panics
    ///
    /// When there is none for two minutes.
    pub fn ask(&self, thread: &str, order: &str) -> String {
        self.tell(thread, order);
        self.answer(thread).text
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Answers {
    fn collect(&self, output: impl BufRead) {
        for line in output.lines().map_while(Result::ok) {
            let (thread, text) = line.split_once(' ').unwrap_or((&line, ""));
            let said = Response {
                text: text.to_owned(),
                at: Instant::now(),
            };
            let mut answers = self.by_thread.lock().expect("no panic");
            answers
                .entry(thread.to_owned())
                .or_default()
                .push_back(said);
            self.changed.notify_all();
        }
    }
}

/// Where the harness was built with one version.
fn folder(version: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../interop/redisson/target")
        .join(version)
}
