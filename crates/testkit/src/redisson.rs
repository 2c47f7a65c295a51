//! A real Redisson in a Java process, driven line by line; see
//! `interop/redisson`.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::peers::skip;

/// The timeout of a response. Long enough for many Java processes that start at
/// the same time.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The configuration of Redisson clients.
#[derive(Clone, Debug)]
pub struct RedissonConfig {
    /// The addresses in Redisson's format, separated by commas.
    pub addresses: String,
    /// Whether the addresses are those of a cluster.
    pub cluster: bool,
    /// `lockWatchdogTimeout`.
    pub watchdog: Duration,
    /// `fairLockWaitTimeout`.
    pub fair_wait: Duration,
    /// The prefix that the name mapper adds to every name.
    pub prefix: String,
}

impl RedissonConfig {
    /// Returns the configuration for one server.
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

    /// Returns the configuration for a cluster with these nodes, such as
    /// `127.0.0.1:7000,127.0.0.1:7001`.
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

/// A response of a Java thread.
#[derive(Clone, Debug)]
pub struct Response {
    /// The text of the response.
    pub text: String,
    /// When it was received.
    pub at: Instant,
}

/// A Java process with one Redisson client.
#[derive(Debug)]
pub struct Redisson {
    child: Child,
    input: Mutex<ChildStdin>,
    responses: Arc<Responses>,
}

#[derive(Debug, Default)]
struct Responses {
    by_thread: Mutex<HashMap<String, VecDeque<Response>>>,
    changed: Condvar,
}

impl Redisson {
    /// Returns the versions that are built, newest first: `4` and `3`, or none
    /// without Java.
    ///
    /// # Panics
    ///
    /// If one is missing although `LEASEHOLD_PEERS` requires Redisson.
    #[must_use]
    pub fn versions() -> Vec<&'static str> {
        let is_built = |version: &&str| folder(version).join("lib").is_dir();
        let versions: Vec<_> = ["4", "3"].into_iter().filter(is_built).collect();
        if versions.len() < 2 {
            skip("redisson");
        }
        versions
    }

    /// Starts a client of this version, and waits until it is connected.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn start(version: &str, config: &RedissonConfig) -> Self {
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
            // A small heap and a fast start, for machines with two cores.
            .args([
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Xmx256m",
                "-cp",
            ])
            .args([&path, "leasehold.Harness"])
            .args([
                if config.cluster { "cluster" } else { "single" },
                &config.addresses,
            ])
            .args([
                millis(config.watchdog),
                millis(config.fair_wait),
                or_dash(&config.prefix),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("java");
        let input = Mutex::new(child.stdin.take().expect("piped"));
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let responses = Arc::<Responses>::default();
        let redisson = Self {
            child,
            input,
            responses: responses.clone(),
        };
        std::thread::spawn(move || responses.collect(output));
        assert_eq!(redisson.response("main").text, "ready");
        redisson
    }

    /// Sends a command to a thread, without waiting for its response.
    ///
    /// # Panics
    ///
    /// If the process has exited.
    pub fn tell(&self, thread: &str, command: &str) {
        let mut input = self.input.lock().expect("no panic");
        writeln!(input, "{thread} {command}").expect("Java is running");
    }

    /// Waits for the next response of a thread.
    ///
    /// # Panics
    ///
    /// If there is none within two minutes.
    #[must_use]
    pub fn response(&self, thread: &str) -> Response {
        self.response_within(thread, TIMEOUT)
            .unwrap_or_else(|| panic!("no response of {thread} within {TIMEOUT:?}"))
    }

    /// Returns the next response of a thread, or `None` after `limit`.
    ///
    /// # Panics
    ///
    /// If another thread has panicked.
    #[must_use]
    pub fn response_within(&self, thread: &str, limit: Duration) -> Option<Response> {
        let responses = self.responses.by_thread.lock().expect("no panic");
        let none = |responses: &mut HashMap<String, VecDeque<Response>>| {
            responses.get(thread).is_none_or(VecDeque::is_empty)
        };
        let waited = self
            .responses
            .changed
            .wait_timeout_while(responses, limit, none);
        let (mut responses, _) = waited.expect("no panic");
        responses.get_mut(thread)?.pop_front()
    }

    /// Sends a command to a thread and waits for its response.
    ///
    /// # Panics
    ///
    /// If there is none within two minutes.
    pub fn ask(&self, thread: &str, command: &str) -> String {
        self.tell(thread, command);
        self.response(thread).text
    }

    /// Kills the process.
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

impl Responses {
    fn collect(&self, output: impl BufRead) {
        for line in output.lines().map_while(Result::ok) {
            let (thread, text) = line.split_once(' ').unwrap_or((&line, ""));
            let response = Response {
                text: text.to_owned(),
                at: Instant::now(),
            };
            let mut responses = self.by_thread.lock().expect("no panic");
            responses
                .entry(thread.to_owned())
                .or_default()
                .push_back(response);
            self.changed.notify_all();
        }
    }
}

/// Returns the build folder of the harness for one version.
fn folder(version: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../interop/redisson/target")
        .join(version)
}
