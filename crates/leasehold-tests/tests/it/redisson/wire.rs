//! What both sides write for the same operation is the same: keys, types, fields, times and messages.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::time::Duration;

use leasehold::redisson::Redisson as Ours;
use testkit::{Answer, Connection, Flavor, Redisson as Java, Server};

use super::{LONG, client, enter, fleet, force, server, with_every_version};
use crate::support::{eventually, run, url_at};

/// The lease of both sides.
const LEASE: Duration = Duration::from_secs(20);

/// How far times may be apart that were set one after the other.
const SLACK: i64 = 2000;

/// What stands on the server after a step, and what was published since the one before. Owners are all called
/// the same, and moments are told from now.
#[derive(Clone, Debug, PartialEq)]
struct Trace {
    keys: BTreeMap<String, Entry>,
    messages: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
struct Entry {
    kind: String,
    value: Vec<String>,
    /// Milliseconds until it expires, and until the moments that it holds.
    times: Vec<i64>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        let close = |(one, two): (&i64, &i64)| (one - two).abs() < SLACK;
        (&self.kind, &self.value) == (&other.kind, &other.value)
            && self.times.len() == other.times.len()
            && self.times.iter().zip(&other.times).all(close)
    }
}

/// Takes traces of a server.
struct Witness<'a> {
    server: &'a Server,
    heard: Connection,
    /// Whether it is told how long things last: not where both sides differ on purpose.
    timed: bool,
}

impl<'a> Witness<'a> {
    fn new(server: &'a Server) -> Self {
        server.tell(&["FLUSHALL"]);
        let mut heard = server.connect();
        assert!(heard.ask(&["PSUBSCRIBE", "*"]).is_ok());
        Self {
            server,
            heard,
            timed: true,
        }
    }

    fn trace(&mut self) -> Trace {
        // What is published before this is heard before it.
        let end = ["PUBLISH", "end-of-step", ""];
        assert!(self.server.ask(&end).int() > 0);
        let mut messages = Vec::new();
        loop {
            let message = self.heard.receive().unwrap();
            let [_, _, channel, text] = message.list() else {
                panic!("{message:?}");
            };
            if channel.text() == "end-of-step" {
                break;
            }
            messages.push((anonymous(channel.text()), anonymous(text.text())));
        }
        let names = self.server.ask(&["KEYS", "*"]);
        let names = names.list().iter().map(|name| name.text().to_owned());
        let keys = names
            // A note for those who ask again: Java deletes its own at once, ours ends by itself.
            .filter(|name| !name.starts_with("redisson_unlock_latch"))
            .map(|name| (anonymous(&name), self.entry(&name)))
            .collect();
        Trace { keys, messages }
    }

    fn entry(&self, name: &str) -> Entry {
        let now: i64 = match self.server.ask(&["TIME"]).list() {
            [seconds, micros] => seconds.int() * 1000 + micros.int() / 1000,
            other => panic!("{other:?}"),
        };
        let mut times = vec![self.server.ask(&["PTTL", name]).int()];
        let kind = self.server.ask(&["TYPE", name]).text().to_owned();
        let value = match kind.as_str() {
            "string" => vec![self.server.ask(&["GET", name]).text().to_owned()],
            "hash" => texts(&self.server.ask(&["HGETALL", name])),
            "list" => texts(&self.server.ask(&["LRANGE", name, "0", "-1"])),
            "zset" => {
                // Members may be any bytes: their length must do.
                let script = "local found = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') \
                              for i = 1, #found, 2 do found[i] = #found[i] end return found";
                let found = self.server.ask(&["EVAL", script, "1", name]);
                let pairs = found.list().chunks(2);
                times.extend(pairs.clone().map(|pair| pair[1].int() - now));
                pairs
                    .map(|pair| pair[0].int().min(36).to_string())
                    .collect()
            }
            other => panic!("{other}"),
        };
        let value = value.iter().map(|text| anonymous(text)).collect();
        Entry {
            kind,
            value,
            times: if self.timed { times } else { Vec::new() },
        }
    }
}

fn texts(answer: &Answer) -> Vec<String> {
    let texts = answer.list().iter().map(|item| item.text().to_owned());
    texts.collect()
}

/// `text` with every `UUID:NUMBER` in it called `OWNER`.
fn anonymous(text: &str) -> String {
    let is_uuid = |part: &str| {
        let groups: Vec<_> = part.split('-').map(str::len).collect();
        groups == [8, 4, 4, 4, 12]
    };
    let parts: Vec<_> = text.split(':').collect();
    let mut named = Vec::new();
    let mut at = 0;
    while at < parts.len() {
        if is_uuid(parts[at]) {
            named.push("OWNER");
            at += 2;
        } else {
            named.push(parts[at]);
            at += 1;
        }
    }
    named.join(":")
}

/// Compares what both sides left after each step.
fn compare(what: &str, steps: &[&str], ours: &[Trace], java: &[Trace]) {
    assert_eq!((ours.len(), java.len()), (steps.len(), steps.len()));
    for (step, (ours, java)) in steps.iter().zip(ours.iter().zip(java)) {
        assert_eq!(ours, java, "{what}, {step}: ours left, Java's right");
    }
}

const STEPS: [&str; 6] = [
    "locked",
    "entered again",
    "left once",
    "unlocked",
    "locked",
    "forced",
];

fn java_locks(server: &Server, java: &Java, kind: &str) -> Vec<Trace> {
    let mut witness = Witness::new(server);
    // Java's writer adds the lease of each entry to the one before.
    witness.timed = kind != "write";
    ["lease", "lease", "unlock", "unlock", "lease", "force"]
        .map(|method| {
            let answer = java.ask(
                "a",
                &format!("lock {kind}/{method} job {}", LEASE.as_millis()),
            );
            assert!(!answer.starts_with("error"), "{kind} {method}: {answer}");
            witness.trace()
        })
        .to_vec()
}

async fn we_lock(server: &Server, ours: &Ours, kind: &str) -> Vec<Trace> {
    let mut witness = Witness::new(server);
    witness.timed = kind != "write";
    let mut traces = Vec::new();
    let counts = || {
        let fields = texts(&server.ask(&["HVALS", "job"]));
        fields
            .into_iter()
            .find(|value| value.parse::<u32>().is_ok())
    };
    let first = enter(ours, kind, "job").await;
    traces.push(witness.trace());
    // Each of Java's entries is counted as a token; ours share one.
    let second = first.again().await;
    eventually(LONG, "entered", || counts().as_deref() == Some("2")).await;
    traces.push(witness.trace());
    drop(second);
    eventually(LONG, "left", || counts().as_deref() == Some("1")).await;
    traces.push(witness.trace());
    first.give_back().await;
    traces.push(witness.trace());
    let last = enter(ours, kind, "job").await;
    traces.push(witness.trace());
    assert!(force(ours, kind, "job").await);
    traces.push(witness.trace());
    drop(last);
    traces
}

/// The token counts entries in Java and holdings with us: one less after the second entry.
fn without_token(traces: Vec<Trace>) -> Vec<Trace> {
    let strip = |mut trace: Trace| {
        if let Some(token) = trace.keys.get_mut("redisson_lock_token:{job}") {
            token.value.clear();
        }
        trace
    };
    traces.into_iter().map(strip).collect()
}

#[test]
fn locks_are_written_alike() {
    with_every_version(|version| {
        let server = server(&Flavor::one());
        let mut fleet = fleet(&server);
        fleet.watchdog = LEASE;
        let java = Java::start(version, &fleet);
        run(async {
            let ours = client(&url_at(server.port()))
                .await
                .redisson()
                .watchdog(LEASE);
            for kind in ["lock", "fenced", "fair", "read", "write"] {
                let java = java_locks(&server, &java, kind);
                let ours = we_lock(&server, &ours, kind).await;
                compare(kind, &STEPS, &without_token(ours), &without_token(java));
            }
        });
    });
}

#[test]
fn a_line_is_written_alike() {
    const STEPS: [&str; 3] = ["two wait", "the first has it", "one between gave up"];
    with_every_version(|version| {
        let server = server(&Flavor::one());
        let by_java = run(a_line(&server, version, false));
        let by_us = run(a_line(&server, version, true));
        compare("fair", &STEPS, &by_us, &by_java);
    });
}

/// One holds and two wait; the first of them has it; one between two others gives up. Those two are ours, if so, and
/// all others Java's.
async fn a_line(server: &Server, version: &str, ours: bool) -> Vec<Trace> {
    let java = Java::start(version, &fleet(server));
    let fair = || async {
        let redisson = client(&url_at(server.port())).await.redisson();
        redisson.fair_lock("job")
    };
    let wait = |count: i64| async move {
        let waits = || server.ask(&["LLEN", "redisson_lock_queue:{job}"]).int();
        eventually(LONG, "so many wait", || waits() == count).await;
    };
    let lease = "lock fair/lease job 20000";
    let mut witness = Witness::new(server);
    assert_eq!(java.ask("holder", lease), "ok");
    let mut first = None;
    match ours {
        true => first = Some(tokio::spawn(fair().await.lock().lease(LEASE).into_future())),
        false => java.tell("first", lease),
    }
    wait(1).await;
    java.tell("second", lease);
    wait(2).await;
    let mut traces = vec![witness.trace()];

    assert_eq!(java.ask("holder", "lock fair/unlock job"), "ok");
    let guard = match first {
        Some(first) => Some(first.await.unwrap().unwrap()),
        None => {
            assert_eq!(java.answer("first").text, "ok");
            None
        }
    };
    traces.push(witness.trace());

    let limit = Duration::from_millis(600);
    let mut between = None;
    match ours {
        true => between = Some(tokio::spawn(fair().await.lock().wait(limit).into_future())),
        false => java.tell("between", "lock fair/wait job 600"),
    }
    wait(2).await;
    java.tell("last", lease);
    wait(3).await;
    match between {
        Some(between) => assert!(between.await.unwrap().is_err()),
        None => assert_eq!(java.answer("between").text, "false"),
    }
    wait(2).await;
    traces.push(witness.trace());
    drop(guard);
    traces
}

#[test]
fn semaphores_and_latches_are_written_alike() {
    with_every_version(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(version, &fleet(&server));
        run(async {
            let ours = client(&url_at(server.port()))
                .await
                .redisson()
                .watchdog(LEASE);
            let by_java = java_counts(&server, &java);
            let by_us = we_count(&server, &ours).await;
            let steps = [
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
            compare("counts", &steps, &by_us, &by_java);
        });
    });
}

fn java_counts(server: &Server, java: &Java) -> Vec<Trace> {
    let mut witness = Witness::new(server);
    let mut traces = Vec::new();
    let mut id = String::new();
    for order in [
        "semaphore set s 3",
        "semaphore acquire s 2",
        "semaphore release s 2",
        "semaphore release s 4",
        "permits set p 3",
        "permits acquire p 20000",
        "permits release p",
        "latch set l 2",
        "latch down l",
        "latch down l",
    ] {
        let order = order.replace("release p", &format!("release p {id}"));
        let answer = java.ask("a", &order);
        assert!(!answer.starts_with("error"), "{order}: {answer}");
        id = answer;
        traces.push(witness.trace());
    }
    traces
}

async fn we_count(server: &Server, ours: &Ours) -> Vec<Trace> {
    let mut witness = Witness::new(server);
    let mut traces = Vec::new();
    let semaphore = ours.semaphore("s");
    assert!(semaphore.try_set_permits(3).await.unwrap());
    traces.push(witness.trace());
    let permits = semaphore.acquire(2).await.unwrap();
    traces.push(witness.trace());
    permits.release().await.unwrap();
    traces.push(witness.trace());
    semaphore.add_permits(4).await.unwrap();
    traces.push(witness.trace());
    let semaphore = ours.permit_expirable_semaphore("p");
    assert!(semaphore.try_set_permits(3).await.unwrap());
    traces.push(witness.trace());
    let guard = semaphore.acquire(1).await.unwrap();
    traces.push(witness.trace());
    let _ = guard.release().await.unwrap();
    traces.push(witness.trace());
    let latch = ours.count_down_latch("l");
    assert!(latch.try_set_count(2).await.unwrap());
    traces.push(witness.trace());
    assert_eq!(latch.count_down().await.unwrap(), 1);
    traces.push(witness.trace());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    traces.push(witness.trace());
    traces
}
