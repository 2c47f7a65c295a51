//! Both sides write the same state for the same operation: keys, types, fields,
//! times and messages.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::time::Duration;

use leasehold::redisson::Redisson as Ours;
use testkit::{Connection, Flavor, Redisson as Java, RedissonConfig, Reply, Server, ServerExt};
use tokio::runtime::Handle;

use crate::support::redisson::{
    acquire_reentrant, client, force_unlock, server, with_all_versions,
};
use crate::support::{eventually, name, run, url_at};

/// The lease of both sides: far longer than the test, and shorter than a turn
/// in the queue of a fair lock.
const LEASE: Duration = Duration::from_secs(200);

/// How far the clocks of server and clients may differ, in milliseconds. Each
/// rounds its own.
const ROUNDING: i64 = 20;

/// The state on the server after a step, and the messages since the step
/// before, with uniform owner and lock names.
#[derive(Clone, Debug, PartialEq)]
struct Trace {
    keys: BTreeMap<String, Entry>,
    messages: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
struct Entry {
    kind: String,
    value: Vec<String>,
    /// The durations of the expiry and of the times in the value, from the step
    /// that wrote them: minimum and maximum, in milliseconds.
    times: Vec<(i64, i64)>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        let overlap = |(one, two): (&(i64, i64), &(i64, i64))| {
            one.0 <= two.1 + ROUNDING && two.0 <= one.1 + ROUNDING
        };
        (&self.kind, &self.value) == (&other.kind, &other.value)
            && self.times.len() == other.times.len()
            && self.times.iter().zip(&other.times).all(overlap)
    }
}

/// Traces the keys and channels of a server that belong to its name.
struct Witness<'a> {
    server: &'a Server,
    /// The prefix of this witness's names.
    name: String,
    received: Connection,
    /// The server time at which it began. Everything that it traces was written
    /// since then.
    start: i64,
    /// Whether it compares durations. Both sides differ on purpose in some.
    timed: bool,
}

impl<'a> Witness<'a> {
    fn new(server: &'a Server) -> Self {
        let mut received = server.connect();
        assert!(received.ask(&["PSUBSCRIBE", "*"]).is_ok());
        Self {
            server,
            // The last character tells `test:1` from `test:11`.
            name: format!("{}.", name()),
            received,
            start: now(server),
            timed: true,
        }
    }

    fn trace(&mut self) -> Trace {
        // Messages published before this one arrive before it.
        let end = format!("end-of-step:{}", self.name);
        assert!(self.server.ask(&["PUBLISH", &end, ""]).int() > 0);
        let mut messages = Vec::new();
        loop {
            let message = self.received.receive().unwrap();
            let [_, _, channel, text] = message.list() else {
                panic!("{message:?}");
            };
            if channel.text() == end {
                break;
            }
            if self.concerns(channel.text()) {
                messages.push((
                    self.anonymized(channel.text()),
                    self.anonymized(text.text()),
                ));
            }
        }
        let names = self.server.ask(&["KEYS", "*"]);
        let names = names.list().iter().map(Reply::text);
        let keys = names
            // A note for a client that repeats a request. Java deletes its own
            // at once; the Rust one expires.
            .filter(|name| !name.starts_with("redisson_unlock_latch"))
            .filter(|name| self.concerns(name))
            .map(|name| (self.anonymized(name), self.entry(name)))
            .collect();
        Trace { keys, messages }
    }

    fn concerns(&self, text: &str) -> bool {
        text.contains(&self.name) || !text.contains("test:")
    }

    /// Returns `text` with the name replaced by `job`, and each `UUID:NUMBER`
    /// by `OWNER`.
    fn anonymized(&self, text: &str) -> String {
        let text = text.replace(&self.name, "job");
        let is_uuid = |part: &str| {
            let groups: Vec<_> = part.split('-').map(str::len).collect();
            groups == [8, 4, 4, 4, 12]
        };
        let mut parts = text.split(':');
        let mut named = Vec::new();
        while let Some(part) = parts.next() {
            match is_uuid(part) {
                true => {
                    named.push("OWNER");
                    parts.next();
                }
                false => named.push(part),
            }
        }
        named.join(":")
    }

    fn entry(&self, name: &str) -> Entry {
        // Each was written as a duration from a step, which was after the start
        // and before now.
        let since = |end: i64| (end - now(self.server), end - self.start);
        let mut times = Vec::new();
        match self.server.ask(&["PEXPIRETIME", name]).int() {
            -1 => times.push((-1, -1)),
            end => times.push(since(end)),
        }
        let kind = self.server.ask(&["TYPE", name]).text().to_owned();
        let value = match kind.as_str() {
            "string" => vec![self.server.ask(&["GET", name]).text().to_owned()],
            "hash" => texts(&self.server.ask(&["HGETALL", name])),
            "list" => texts(&self.server.ask(&["LRANGE", name, "0", "-1"])),
            "zset" => {
                // Members may be any bytes, so compare their length.
                let script = "local found = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') \
                              for i = 1, #found, 2 do found[i] = #found[i] end return found";
                let found = self.server.ask(&["EVAL", script, "1", name]);
                let pairs = found.list().chunks(2);
                times.extend(pairs.clone().map(|pair| since(pair[1].int())));
                pairs
                    .map(|pair| pair[0].int().min(36).to_string())
                    .collect()
            }
            other => panic!("{other}"),
        };
        let value = value.iter().map(|text| self.anonymized(text)).collect();
        Entry {
            kind,
            value,
            times: if self.timed { times } else { Vec::new() },
        }
    }
}

fn texts(answer: &Reply) -> Vec<String> {
    let texts = answer.list().iter().map(|item| item.text().to_owned());
    texts.collect()
}

/// Returns the server's clock in milliseconds.
fn now(server: &Server) -> i64 {
    match server.ask(&["TIME"]).list() {
        [seconds, micros] => seconds.int() * 1000 + micros.int() / 1000,
        other => panic!("{other:?}"),
    }
}

/// Compares the traces of both sides after each step.
fn compare(what: &str, steps: &[&str], ours: &[Trace], java: &[Trace]) {
    assert_eq!((ours.len(), java.len()), (steps.len(), steps.len()));
    for (step, (ours, java)) in steps.iter().zip(ours.iter().zip(java)) {
        assert_eq!(ours, java, "{what}, {step}: Rust left, Java right");
    }
}

#[test]
fn both_sides_write_identical_state() {
    with_all_versions(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(version, &RedissonConfig::single(server.port(), LEASE));
        run(async {
            let ours = client(&url_at(server.port())).await.redisson();
            let ours = ours.watchdog(LEASE);
            locks_are_identical(&server, &java, &ours).await;
            counters_are_identical(&server, &java, &ours).await;
            queues_are_identical(&server, &java, &ours);
        });
    });
}

async fn locks_are_identical(server: &Server, java: &Java, ours: &Ours) {
    const STEPS: [&str; 6] = [
        "locked",
        "entered again",
        "left once",
        "unlocked",
        "locked",
        "forced",
    ];
    for kind in ["lock", "fenced", "fair", "read", "write"] {
        let java = java_locks(server, java, kind);
        let ours = rust_locks(server, ours, kind).await;
        compare(kind, &STEPS, &without_token(ours), &without_token(java));
    }
}

fn java_locks(server: &Server, java: &Java, kind: &str) -> Vec<Trace> {
    let mut witness = Witness::new(server);
    // Java's writer adds the lease of each entry to the one before.
    witness.timed = kind != "write";
    ["lease", "lease", "unlock", "unlock", "lease", "force"]
        .map(|method| {
            let answer = java.ask(
                "a",
                &format!(
                    "lock {kind}/{method} {} {}",
                    witness.name,
                    LEASE.as_millis()
                ),
            );
            assert!(!answer.starts_with("error"), "{kind} {method}: {answer}");
            witness.trace()
        })
        .to_vec()
}

async fn rust_locks(server: &Server, ours: &Ours, kind: &str) -> Vec<Trace> {
    let mut witness = Witness::new(server);
    witness.timed = kind != "write";
    let name = witness.name.clone();
    let mut traces = Vec::new();
    let counts = || {
        let fields = texts(&server.ask(&["HVALS", &name]));
        fields
            .into_iter()
            .find(|value| value.parse::<u32>().is_ok())
    };
    let first = acquire_reentrant(ours, kind, &name).await;
    traces.push(witness.trace());
    // Each entry in Java takes a token, while Rust entries share one.
    let second = first.reacquire().await;
    eventually("the lock is entered twice", || {
        counts().as_deref() == Some("2")
    })
    .await;
    traces.push(witness.trace());
    drop(second);
    eventually("the lock is left once", || counts().as_deref() == Some("1")).await;
    traces.push(witness.trace());
    first.release_held().await;
    traces.push(witness.trace());
    let last = acquire_reentrant(ours, kind, &name).await;
    traces.push(witness.trace());
    assert!(force_unlock(ours, kind, &name).await);
    traces.push(witness.trace());
    drop(last);
    traces
}

/// Removes the token, which counts entries in Java and holds in Rust.
fn without_token(traces: Vec<Trace>) -> Vec<Trace> {
    let strip = |mut trace: Trace| {
        if let Some(token) = trace.keys.get_mut("redisson_lock_token:{job}") {
            token.value.clear();
        }
        trace
    };
    traces.into_iter().map(strip).collect()
}

/// Both queues at the same time, since a waiter that times out takes a while.
fn queues_are_identical(server: &Server, java: &Java, ours: &Ours) {
    const STEPS: [&str; 3] = ["two wait", "the first holds it", "one in between timed out"];
    let runtime = &Handle::current();
    std::thread::scope(|scope| {
        let by_java = scope.spawn(|| runtime.block_on(run_queue(server, java, None)));
        let by_rust = scope.spawn(|| runtime.block_on(run_queue(server, java, Some(ours))));
        let by_java = by_java.join().expect("the Java queue succeeds");
        let by_rust = by_rust.join().expect("the Rust queue succeeds");
        compare("fair", &STEPS, &by_rust, &by_java);
    });
}

/// One client holds the lock and two wait; the first of them acquires it; a
/// waiter between two others times out. The holder and the waiters that change
/// are Rust's if `ours` is set, and all others Java's.
async fn run_queue(server: &Server, java: &Java, ours: Option<&Ours>) -> Vec<Trace> {
    /// How long a waiter waits before it times out. The test must observe two
    /// others meanwhile.
    const LIMIT: Duration = Duration::from_secs(5);
    let mut witness = Witness::new(server);
    let name = witness.name.clone();
    let queue = format!("redisson_lock_queue:{{{name}}}");
    let wait = |count: i64| {
        let queue = &queue;
        async move {
            let waits = || server.ask(&["LLEN", queue]).int();
            eventually("the waiters are queued", || waits() == count).await;
        }
    };
    let thread = |thread: &str| format!("{thread}:{name}");
    let lease = format!("lock fair/lease {name} {}", LEASE.as_millis());
    assert_eq!(java.ask(&thread("holder"), &lease), "ok");
    let mut first = None;
    match ours {
        Some(ours) => {
            let waiting = ours.fair_lock(&name).lock().fixed_lease(LEASE);
            first = Some(tokio::spawn(waiting.into_future()));
        }
        None => java.tell(&thread("first"), &lease),
    }
    wait(1).await;
    java.tell(&thread("second"), &lease);
    wait(2).await;
    let mut traces = vec![witness.trace()];

    let unlock = format!("lock fair/unlock {name}");
    assert_eq!(java.ask(&thread("holder"), &unlock), "ok");
    let guard = match first {
        Some(first) => Some(first.await.unwrap().unwrap()),
        None => {
            assert_eq!(java.response(&thread("first")).text, "ok");
            None
        }
    };
    traces.push(witness.trace());

    let mut between = None;
    match ours {
        Some(ours) => {
            let waiting = ours.fair_lock(&name).lock().timeout(LIMIT);
            between = Some(tokio::spawn(waiting.into_future()));
        }
        None => {
            let command = format!("lock fair/wait {name} {}", LIMIT.as_millis());
            java.tell(&thread("between"), &command);
        }
    }
    wait(2).await;
    java.tell(&thread("last"), &lease);
    wait(3).await;
    match between {
        Some(between) => assert!(between.await.unwrap().is_err()),
        None => assert_eq!(java.response(&thread("between")).text, "false"),
    }
    wait(2).await;
    traces.push(witness.trace());
    drop(guard);
    traces
}

async fn counters_are_identical(server: &Server, java: &Java, ours: &Ours) {
    const STEPS: [&str; 10] = [
        "semaphore set",
        "acquired",
        "released",
        "added",
        "permits set",
        "acquired",
        "released",
        "latch set",
        "counted",
        "opened",
    ];
    let by_java = java_counts(server, java);
    let by_rust = rust_counts(server, ours).await;
    compare("counts", &STEPS, &by_rust, &by_java);
}

fn java_counts(server: &Server, java: &Java) -> Vec<Trace> {
    let mut witness = Witness::new(server);
    let mut traces = Vec::new();
    let mut id = String::new();
    for command in [
        "semaphore set NAMEs 3",
        "semaphore acquire NAMEs 2",
        "semaphore release NAMEs 2",
        "semaphore release NAMEs 4",
        "permits set NAMEp 3",
        "permits acquire NAMEp LEASE",
        "permits release NAMEp ID",
        "latch set NAMEl 2",
        "latch down NAMEl",
        "latch down NAMEl",
    ] {
        let command = command.replace("NAME", &witness.name).replace("ID", &id);
        let command = command.replace("LEASE", &LEASE.as_millis().to_string());
        let answer = java.ask("a", &command);
        assert!(!answer.starts_with("error"), "{command}: {answer}");
        id = answer;
        traces.push(witness.trace());
    }
    traces
}

async fn rust_counts(server: &Server, ours: &Ours) -> Vec<Trace> {
    let mut witness = Witness::new(server);
    let mut traces = Vec::new();
    let prefix = witness.name.clone();
    let name = |last: &str| format!("{prefix}{last}");
    let semaphore = ours.semaphore(&name("s"));
    assert!(semaphore.try_set_permits(3).await.unwrap());
    traces.push(witness.trace());
    let permits = semaphore.acquire(2).await.unwrap();
    traces.push(witness.trace());
    permits.release().await.unwrap();
    traces.push(witness.trace());
    semaphore.add_permits(4).await.unwrap();
    traces.push(witness.trace());
    let semaphore = ours.permit_expirable_semaphore(&name("p"));
    assert!(semaphore.try_set_permits(3).await.unwrap());
    traces.push(witness.trace());
    let guard = semaphore.acquire(1).await.unwrap();
    traces.push(witness.trace());
    guard.release().await.unwrap();
    traces.push(witness.trace());
    let latch = ours.count_down_latch(&name("l"));
    assert!(latch.try_set_count(2).await.unwrap());
    traces.push(witness.trace());
    assert_eq!(latch.count_down().await.unwrap(), 1);
    traces.push(witness.trace());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    traces.push(witness.trace());
    traces
}
