//! `leasehold doctor`: checks a server's settings, and tries what the library
//! needs of it.

use std::time::{Duration, Instant};

use leasehold::{Acquire, Client, Error, Messages, ServerInfo, Shared};
use serde::Serialize;

use crate::args::{OutputArgs, ServerArgs};
use crate::identity::host_and_pid;
use crate::output::{CliError, print, printable, use_colors};
use crate::settings::{DEFAULT_LEASE, Settings};
use crate::{duration, exit, json};

/// The maximum difference of clocks in seconds. Above it, shown ages mislead.
const MAX_CLOCK_DIFFERENCE: f64 = 1.0;

/// The maximum round trip. Above it, every lock is slow.
const MAX_ROUND_TRIP: Duration = Duration::from_millis(20);

/// The maximum wait for the lock of a check that waits. A machine that stalls
/// for two seconds is a warning; only a defect reaches this.
const WAIT_TIMEOUT: Duration = Duration::from_secs(15);

/// The time that such a check holds the lock, so that another task waits.
const HOLD: Duration = Duration::from_millis(300);

/// The maximum delay of a pushed wake-up. A longer one was a poll, which
/// follows 700 ms after the release: a waiter polls once a second, from before
/// [`HOLD`].
const MAX_WAKE_UP: Duration = Duration::from_millis(500);

/// Expiries are replicated as absolute times, and a holder's margin covers only
/// this much skew.
const REPLICA_CLOCKS: &str = "with --replicas all, keep the clocks of master and replicas within a hundredth of the lease and 2 ms: a promoted replica whose clock is ahead ends leases early";

/// The width of the column of checks.
const CHECK_WIDTH: usize = 13;

/// The width of wrapped advice.
const ADVICE_WIDTH: usize = 78;

/// The result of one check.
#[derive(Serialize, Debug)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    message: String,
    /// The consequence, and what to do about it.
    advice: Option<String>,
}

#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    /// A limitation that needs no change.
    Note,
    Warning,
    Bad,
}

impl Finding {
    fn good(check: &'static str, message: impl Into<String>) -> Self {
        Self::new(check, Verdict::Good, message)
    }

    fn new(check: &'static str, verdict: Verdict, message: impl Into<String>) -> Self {
        Self {
            check,
            verdict,
            message: message.into(),
            advice: None,
        }
    }

    fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

pub(crate) async fn doctor(server: &ServerArgs, args: &OutputArgs) -> Result<u8, CliError> {
    let client = Settings::load(server)?.connect(None).await?;
    let servers = client.server_info().await?;
    let mut findings = Vec::new();
    for (index, server) in servers.iter().enumerate() {
        if servers.len() > 1 {
            let message = format!("node {} of {}", index + 1, servers.len());
            findings.push(Finding::new("cluster", Verdict::Note, message));
        }
        findings.extend([
            version(server),
            eviction(server),
            persistence(server),
            replicas(server),
            clock(server),
            round_trip(server),
        ]);
        findings.extend(replica_clocks(server));
    }
    findings.push(permissions(&client).await);
    findings.push(pubsub(&client, &servers).await);
    findings.push(inspection(&client).await);
    findings.extend(servers.first().map(guarantee));
    print(&match args.json {
        true => json::line(&findings),
        false => as_text(&findings, use_colors(&std::io::stdout())),
    })?;
    let is_bad = |finding: &Finding| finding.verdict == Verdict::Bad;
    Ok(match findings.iter().any(is_bad) {
        true => exit::NO,
        false => exit::OK,
    })
}

fn version(server: &ServerInfo) -> Finding {
    const CHECK: &str = "server";
    match server.native_release {
        true => Finding::good(CHECK, &server.version),
        false => Finding::new(CHECK, Verdict::Note, &server.version).advice(
            "releases run a script; Redis 8.4 and Valkey 9.0 have a cheaper native command",
        ),
    }
}

fn eviction(server: &ServerInfo) -> Finding {
    const CHECK: &str = "eviction";
    match (server.eviction_policy.as_deref(), server.max_memory) {
        (Some("noeviction"), _) => Finding::good(CHECK, "keys are never evicted"),
        (Some(policy), Some(0)) => {
            let message = format!("{policy}, but maxmemory is not set");
            Finding::new(CHECK, Verdict::Warning, message).advice(
                "with maxmemory, held locks can be evicted: set maxmemory-policy noeviction",
            )
        }
        (Some(policy), _) => Finding::new(CHECK, Verdict::Bad, policy).advice(
            "held locks can be evicted: set maxmemory-policy noeviction, or use a separate server for locks",
        ),
        (None, _) => Finding::new(CHECK, Verdict::Warning, "not visible to this user")
            .advice("allow INFO, or make sure that maxmemory-policy is noeviction"),
    }
}

fn persistence(server: &ServerInfo) -> Finding {
    const CHECK: &str = "persistence";
    let append_only = server.append_only.as_deref();
    let (message, advice) = match (append_only, server.snapshots.as_deref()) {
        (Some("always"), _) => {
            return Finding::good(CHECK, "writes are on disk before the reply");
        }
        (Some("everysec" | "yes"), _) => (
            "writes are on disk within a second",
            "a crash can lose locks of the last second; their holders notice at the next renewal, and tokens still increase",
        ),
        (Some("no"), Some("")) => (
            "none",
            "a restart loses all locks; their holders notice at the next renewal: restart only after the longest lease, or set appendonly yes",
        ),
        (Some("no"), _) => (
            "snapshots only",
            "a crash loses locks since the last snapshot; their holders notice at the next renewal: set appendonly yes",
        ),
        _ => ("not visible to this user", "allow CONFIG GET and INFO"),
    };
    Finding::new(CHECK, Verdict::Note, message).advice(advice)
}

fn replicas(server: &ServerInfo) -> Finding {
    const CHECK: &str = "replicas";
    match (server.replicas, server.min_replicas) {
        (None, _) => {
            Finding::new(CHECK, Verdict::Note, "not visible to this user").advice("allow INFO")
        }
        (Some(0), Some(1..)) => Finding::new(CHECK, Verdict::Bad, "none connected")
            .advice("the server rejects writes until min-replicas-to-write replicas are connected"),
        (Some(0), _) => Finding::new(CHECK, Verdict::Note, "none connected")
            .advice("losing the server loses its locks; no failover can grant a held lock twice"),
        (Some(count), Some(1..)) => {
            Finding::good(CHECK, format!("{count} connected, required for writes"))
                .advice(REPLICA_CLOCKS)
        }
        (Some(count), _) => {
            let message = format!("{count} connected, not required for writes");
            Finding::new(CHECK, Verdict::Warning, message).advice(format!(
                "an isolated master continues to grant locks: set min-replicas-to-write 1, and use --replicas all for locks that must survive a failover; {REPLICA_CLOCKS}"
            ))
        }
    }
}

fn clock(server: &ServerInfo) -> Finding {
    const CHECK: &str = "clock";
    let Some(ahead) = server.clock_ahead else {
        return Finding::new(CHECK, Verdict::Warning, "unknown");
    };
    let direction = if ahead < 0.0 { "behind" } else { "ahead of" };
    let difference = ahead.abs();
    let message = match difference < 0.001 {
        true => "server and local clock agree within 1 ms".to_owned(),
        false => format!("server clock is {difference:.3} s {direction} the local clock"),
    };
    match difference > MAX_CLOCK_DIFFERENCE {
        false => Finding::good(CHECK, message),
        true => Finding::new(CHECK, Verdict::Warning, message).advice(
            "locks depend on the server clock only, but shown ages are wrong: synchronize both clocks",
        ),
    }
}

/// Replica acknowledgement needs clocks that agree, within the margin of the
/// shortest lease.
fn replica_clocks(server: &ServerInfo) -> Option<Finding> {
    const CHECK: &str = "replica clocks";
    let difference = server.replica_clock_difference?;
    let shortest = Duration::from_secs_f64((difference - 0.002).max(0.0) * 100.0);
    let message = format!("at most {difference:.3} s apart");
    Some(match shortest > DEFAULT_LEASE {
        false => Finding::good(CHECK, message),
        true => Finding::new(CHECK, Verdict::Warning, message).advice(format!(
            "with --replicas all, leases below {} can end early after a failover: synchronize the clocks",
            duration::format(shortest)
        )),
    })
}

fn round_trip(server: &ServerInfo) -> Finding {
    const CHECK: &str = "round trip";
    let message = millis(server.round_trip);
    match server.round_trip > MAX_ROUND_TRIP {
        false => Finding::good(CHECK, message),
        true => Finding::new(CHECK, Verdict::Warning, message)
            .advice("every acquire takes at least one: move the server closer to its clients"),
    }
}

/// Acquires and releases a lock of each kind, without and with a waiter. A lock
/// with a queue is a string until a second client needs it, so the queue's
/// commands are only tried with a waiter.
async fn permissions(client: &Client) -> Finding {
    const CHECK: &str = "permissions";
    let tried = async {
        let mutex = client.mutex(&probe("mutex")).lock().await?;
        mutex.release().await?;
        let fair = client.fair_mutex(&probe("fair")).lock().await?;
        fair.extend(Duration::from_secs(60)).await?;
        fair.release().await?;
        let semaphore = client.semaphore(&probe("semaphore"), 1);
        semaphore.acquire().await?.release().await?;
        let reader = client.rw_lock(&probe("rw")).read().await?;
        reader.release().await?;
        let fair = client.fair_mutex(&probe("fair"));
        let semaphore = client.semaphore(&probe("semaphore"), 1);
        let rw = client.rw_lock(&probe("rw"));
        let passed = tokio::join!(
            pass_on(fair.lock().into(), fair.lock().into()),
            pass_on(semaphore.acquire(), semaphore.acquire()),
            pass_on(rw.write().into(), rw.read()),
        );
        passed.0.and(passed.1).and(passed.2)
    };
    match tried.await {
        Ok(()) => Finding::good(
            CHECK,
            "all kinds of locks can be acquired, waited for, renewed and released",
        ),
        // Before version 7.2, the server does not name the command of a script.
        Err(error) => Finding::new(CHECK, Verdict::Bad, error.to_string()).advice(
            "locks with a queue need +hget +hmget +hexists +hset +hdel +zadd +zpopmin +zrem \
             +zrange +zrangebyscore +zrank +zscore +zcard +zcount inside scripts; all ACL rules: \
             https://github.com/leasehold/leasehold/blob/main/docs/servers.md#permissions",
        ),
    }
}

/// Acquires a lock, and lets another task wait for it.
async fn pass_on(first: Acquire<Shared>, second: Acquire<Shared>) -> Result<(), Error> {
    let guard = first.local_handoff(false).await?;
    let waiter = second.local_handoff(false).timeout(WAIT_TIMEOUT);
    let holder = async {
        tokio::time::sleep(HOLD).await;
        guard.extend(Duration::from_secs(60)).await?;
        guard.release().await
    };
    let (acquired, released) = tokio::join!(waiter.into_future(), holder);
    acquired?.release().await?;
    released
}

/// Reports how messages reach waiters, and checks that a release wakes one.
async fn pubsub(client: &Client, servers: &[ServerInfo]) -> Finding {
    const CHECK: &str = "pub/sub";
    let delay = match wake_up_delay(client).await {
        Ok(delay) => delay,
        Err(error) => return Finding::new(CHECK, Verdict::Bad, error.to_string()),
    };
    let mode = |messages| servers.iter().any(|server| server.messages == messages);
    if mode(Messages::Polled) {
        return Finding::new(CHECK, Verdict::Warning, "none: waiters poll").advice(
            "waiters find a release within a second, and holders learn of a revocation at the next renewal: allow +spublish +ssubscribe +sunsubscribe and &leasehold:*, or use a server that has these commands",
        );
    }
    let waited = duration::format(delay);
    match (mode(Messages::Classic), delay < MAX_WAKE_UP) {
        (false, true) => {
            let message = format!("a waiter was woken within {}", millis(delay));
            Finding::good(CHECK, message)
        }
        (true, true) => {
            let message = format!("classic: a waiter was woken within {}", millis(delay));
            Finding::new(CHECK, Verdict::Note, message).advice(
                "as fast as sharded pub/sub, which the server lacks, or the user may not use; a waiter whose user may use another kind than the holder's polls once a second",
            )
        }
        (_, false) => {
            let message = format!("a waiter acquired after {waited}");
            Finding::new(CHECK, Verdict::Warning, message)
                .advice("messages are late or lost; waiters fall back to polling once a second")
        }
    }
}

/// Returns the time from a release to the acquire of a waiter.
async fn wake_up_delay(client: &Client) -> Result<Duration, Error> {
    let mutex = client.mutex(&probe("pubsub"));
    // A local hand-off would bypass the server.
    let guard = mutex.lock().local_handoff(false).await?;
    let waiter = mutex.lock().local_handoff(false).timeout(WAIT_TIMEOUT);
    let holder = async {
        tokio::time::sleep(HOLD).await;
        let released_at = Instant::now();
        guard.release().await.map(|()| released_at)
    };
    let (acquired, released_at) = tokio::join!(waiter.into_future(), holder);
    let delay = released_at?.elapsed();
    acquired?.release().await?;
    Ok(delay)
}

/// Checks what `ls`, `show` and `top` need in addition.
async fn inspection(client: &Client) -> Finding {
    const CHECK: &str = "inspection";
    let name = probe("inspect");
    let tried = async {
        let guard = client.mutex(&name).lock().await?;
        let lock = client.inspect(&name).await;
        let page = client.scan(&name).next().await;
        guard.release().await?;
        page?;
        Ok::<_, Error>(lock?.and_then(|lock| lock.holders.first()?.process.connected))
    };
    match tried.await {
        Ok(Some(_)) => Finding::good(CHECK, "ls, show, queue and top can read all locks"),
        Ok(None) => Finding::new(CHECK, Verdict::Note, "connected holders are not visible")
            .advice(
                "ls, show and top need +pubsub|shardnumsub for this, or +pubsub|numsub if pub/sub is classic",
            ),
        Err(error) => Finding::new(CHECK, Verdict::Note, error.to_string())
            .advice("ls, show and top need +scan +getrange +pubsub|shardnumsub; locking does not"),
    }
}

/// Returns the guarantee that holds with these settings.
fn guarantee(server: &ServerInfo) -> Finding {
    const CHECK: &str = "guarantee";
    let policy = server.eviction_policy.as_deref();
    let evicts = policy.is_some_and(|policy| policy != "noeviction");
    if evicts && server.max_memory != Some(0) {
        return Finding::new(CHECK, Verdict::Bad, "none: held locks can be evicted")
            .advice("the fencing token still orders the holders");
    }
    match server.replicas {
        None => Finding::new(
            CHECK,
            Verdict::Note,
            "mutual exclusion while this server keeps its data and stays the master",
        ),
        Some(0) => Finding::good(CHECK, "mutual exclusion while this server keeps its data"),
        Some(_) => Finding::new(
            CHECK,
            Verdict::Note,
            "mutual exclusion until a failover; with --replicas all, also after it",
        ),
    }
    .advice("a paused process can act after it lost its lock: let the resource reject older tokens")
}

/// Returns a lock name that no other process uses.
fn probe(check: &str) -> String {
    format!("leasehold-doctor:{}:{check}", host_and_pid())
}

fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}

fn as_text(findings: &[Finding], colors: bool) -> String {
    let mut text = String::new();
    for finding in findings {
        let (label, color) = match finding.verdict {
            Verdict::Good => ("ok  ", "\x1b[32m"),
            Verdict::Note => ("note", "\x1b[36m"),
            Verdict::Warning => ("warn", "\x1b[33m"),
            Verdict::Bad => ("BAD ", "\x1b[1;31m"),
        };
        let (color, dim, reset) = match colors {
            true => (color, "\x1b[2m", "\x1b[0m"),
            false => ("", "", ""),
        };
        // The message may contain text from the server.
        let message = printable(&finding.message);
        let check = finding.check;
        text += &format!("{color}{label}{reset}  {check:<CHECK_WIDTH$}{message}\n");
        let indent = " ".repeat(label.len() + 2 + CHECK_WIDTH);
        for line in wrap(finding.advice.as_deref().unwrap_or_default(), ADVICE_WIDTH) {
            text += &format!("{indent}{dim}{line}{reset}\n");
        }
    }
    text
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
