//! `leasehold doctor`: connects as the library would, tries everything, and says what it means for locks.

use std::time::Duration;

use leasehold::{Client, Error, Guard, ServerInfo};
use serde::Serialize;

use crate::args::{DataArgs, ServerArgs};
use crate::output::{CliError, colours, print, printable};
use crate::settings::Settings;
use crate::{duration, exit, json};

/// A clock further off than this will puzzle whoever reads ages of locks.
const CLOCK: f64 = 1.0;

/// A round trip longer than this is far for a lock.
const FAR: Duration = Duration::from_millis(20);

/// How long a probe may take to come back to us.
const PROBE: Duration = Duration::from_secs(2);

/// What was looked at, and what was found.
#[derive(Serialize, Debug)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
    /// What it means, and what to do about it.
    remedy: Option<String>,
}

#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    /// To be known, not to be mended.
    Note,
    Warning,
    Bad,
}

impl Finding {
    fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self::new(what, Verdict::Good, found)
    }

    fn new(what: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        let found = found.into();
        Self {
            what,
            verdict,
            found,
            remedy: None,
        }
    }

    fn but(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

pub(crate) async fn doctor(server: &ServerArgs, args: &DataArgs) -> Result<u8, CliError> {
    let client = Settings::read(server)?.connect(None).await?;
    let servers = client.server_info().await?;
    let mut findings = Vec::new();
    for (at, server) in servers.iter().enumerate() {
        if servers.len() > 1 {
            let found = format!("node {} of {}", at + 1, servers.len());
            findings.push(Finding::new("cluster", Verdict::Note, found));
        }
        findings.extend(of_server(server));
    }
    findings.push(rights(&client).await);
    findings.push(told(&client).await);
    findings.push(looking(&client).await);
    findings.extend(servers.first().map(promises));
    print(&match args.json {
        true => json::line(&findings),
        false => in_words(&findings),
    })?;
    let bad = findings.iter().any(|at| at.verdict == Verdict::Bad);
    Ok(if bad { exit::NO } else { exit::OK })
}

fn of_server(server: &ServerInfo) -> Vec<Finding> {
    vec![
        version(server),
        eviction(server),
        persistence(server),
        replicas(server),
        clock(server),
        distance(server),
    ]
}

fn version(server: &ServerInfo) -> Finding {
    let finding = Finding::good("server", &server.version);
    match server.native_release {
        true => finding,
        false => Finding::new("server", Verdict::Note, &server.version).but(
            "gives locks back by a script; Redis 8.4 and Valkey 9.0 have a command for it, at less cost",
        ),
    }
}

fn eviction(server: &ServerInfo) -> Finding {
    const WHAT: &str = "eviction";
    match (server.eviction_policy.as_deref(), server.max_memory) {
        (Some("noeviction"), _) => Finding::good(WHAT, "keys are never thrown away"),
        (Some(policy), Some(0)) => Finding::new(WHAT, Verdict::Warning, format!("{policy}, but memory has no limit")).but(
            "once a limit is set, locks may be thrown away while they are held: set maxmemory-policy noeviction",
        ),
        (Some(policy), _) => Finding::new(WHAT, Verdict::Bad, policy).but(
            "locks may be thrown away while they are held: set maxmemory-policy noeviction, or use another server for locks",
        ),
        (None, _) => Finding::new(WHAT, Verdict::Warning, "not told to this user")
            .but("allow INFO, or make sure that maxmemory-policy is noeviction"),
    }
}

fn persistence(server: &ServerInfo) -> Finding {
    const WHAT: &str = "persistence";
    let log = server.append_only.as_deref();
    match (log, server.snapshots.as_deref()) {
        (Some("always"), _) => Finding::good(WHAT, "every write is on disk before it is answered"),
        (Some("everysec" | "yes"), _) => Finding::new(WHAT, Verdict::Note, "writes are on disk within a second").but(
            "a crash may forget locks of the last second: their holders learn of it at the next renewal, tokens go on rising",
        ),
        (Some("no"), Some("")) | (None, None) if log.is_some() => Finding::new(WHAT, Verdict::Note, "none").but(
            "a restart forgets all locks: their holders learn of it at the next renewal; restart only after the longest lease, or set appendonly yes",
        ),
        (Some("no"), _) => Finding::new(WHAT, Verdict::Note, "snapshots only").but(
            "a crash forgets locks since the last snapshot: their holders learn of it at the next renewal; set appendonly yes",
        ),
        _ => Finding::new(WHAT, Verdict::Note, "not told to this user").but("allow CONFIG GET and INFO to see it"),
    }
}

fn replicas(server: &ServerInfo) -> Finding {
    const WHAT: &str = "replicas";
    match (server.replicas, server.min_replicas) {
        (None, _) => Finding::new(WHAT, Verdict::Note, "not told to this user")
            .but("allow INFO to see them"),
        (Some(0), Some(1..)) => Finding::new(WHAT, Verdict::Bad, "none is connected")
            .but("the server takes no writes until min-replicas-to-write of them are"),
        (Some(0), _) => Finding::new(WHAT, Verdict::Note, "none is connected")
            .but("when the server is lost, so are its locks; nothing can be held twice by a failover"),
        (Some(count), Some(1..)) => Finding::good(WHAT, format!("{count}, and writes need them")),
        (Some(count), _) => Finding::new(WHAT, Verdict::Warning, count.to_string()).but(
            "a master that is cut off goes on granting locks: set min-replicas-to-write 1; and hold what must outlive a failover with --replicas all",
        ),
    }
}

fn clock(server: &ServerInfo) -> Finding {
    const WHAT: &str = "clock";
    match server.clock_ahead {
        None => Finding::new(WHAT, Verdict::Warning, "not told"),
        Some(ahead) => {
            let direction = if ahead < 0.0 { "behind" } else { "ahead of" };
            let off = ahead.abs();
            let found = match off < 0.001 {
                true => "the server's and ours agree within a millisecond".to_owned(),
                false => format!("the server's is {off:.3} s {direction} ours"),
            };
            match off > CLOCK {
                false => Finding::good(WHAT, found),
                true => Finding::new(WHAT, Verdict::Warning, found).but(
                    "locks are not harmed, only the server's clock counts; but ages that are shown are wrong: synchronise both",
                ),
            }
        }
    }
}

fn distance(server: &ServerInfo) -> Finding {
    const WHAT: &str = "round trip";
    let found = format!("{:.2} ms", server.round_trip.as_secs_f64() * 1000.0);
    match server.round_trip > FAR {
        false => Finding::good(WHAT, found),
        true => Finding::new(WHAT, Verdict::Warning, found)
            .but("every lock costs at least one: put the server nearer to those who lock"),
    }
}

/// Takes and gives back one of each kind, as nobody else does.
async fn rights(client: &Client) -> Finding {
    const WHAT: &str = "rights";
    let name = |kind: &str| format!("leasehold-doctor:{}:{kind}", crate::me());
    let tried = async {
        give_back(client.mutex(&name("mutex")).lock().await?).await?;
        let fair = client.fair_mutex(&name("fair")).lock().await?;
        fair.extend(Duration::from_secs(60)).await?;
        give_back(fair).await?;
        let semaphore = client.semaphore(&name("semaphore"), 1);
        give_back(semaphore.acquire().await?).await?;
        let both = client.rw_lock(&name("rw"));
        give_back(both.read().await?).await
    };
    match tried.await {
        Ok(()) => Finding::good(
            WHAT,
            "locks of all kinds can be taken, renewed and given back",
        ),
        Err(error) => Finding::new(WHAT, Verdict::Bad, text(&error))
            .but("the README has the ACL rule that suffices"),
    }
}

async fn give_back(guard: Guard) -> Result<(), Error> {
    guard.release().await.map(drop)
}

/// One who waits must be told by push when the lock is free.
async fn told(client: &Client) -> Finding {
    const WHAT: &str = "pub/sub";
    let mutex = client.mutex(&format!("leasehold-doctor:{}:told", crate::me()));
    // Not left to each other within this process: it is the server's word that is wanted.
    let tried = async {
        let guard = mutex.lock().local_handoff(false).await?;
        let waiting = mutex.lock().local_handoff(false).timeout(PROBE);
        let releasing = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let freed = std::time::Instant::now();
            guard.release().await.map(|_| freed)
        };
        let (got, freed) = tokio::join!(waiting.into_future(), releasing);
        let after = freed?.elapsed();
        give_back(got?).await?;
        Ok::<_, Error>(after)
    };
    match tried.await {
        Ok(after) if after < Duration::from_millis(200) => Finding::good(
            WHAT,
            format!("one who waited was told within {}", millis(after)),
        ),
        Ok(after) => Finding::new(WHAT, Verdict::Warning, format!("one who waited had it after {}", duration::show(after)))
            .but("messages do not arrive, waiting goes by looking: allow +ssubscribe +spublish and &leasehold:*"),
        Err(error) => Finding::new(WHAT, Verdict::Bad, text(&error))
            .but("allow +ssubscribe +sunsubscribe +spublish and &leasehold:*"),
    }
}

/// What `ls`, `show` and `top` need, and those who only lock do not.
async fn looking(client: &Client) -> Finding {
    const WHAT: &str = "looking";
    let name = format!("leasehold-doctor:{}:seen", crate::me());
    let tried = async {
        let guard = client.mutex(&name).lock().await?;
        let seen = client.inspect(&name).await;
        let page = client.scan(&name).next().await;
        give_back(guard).await?;
        page?;
        Ok::<_, Error>(seen?.and_then(|seen| seen.holders.first()?.connected))
    };
    match tried.await {
        Ok(Some(_)) => Finding::good(WHAT, "ls, show, queue and top see everything"),
        Ok(None) => Finding::new(WHAT, Verdict::Note, "who is there cannot be seen")
            .but("ls, show and top need +pubsub|shardnumsub for it"),
        Err(error) => Finding::new(WHAT, Verdict::Note, text(&error))
            .but("ls, show and top need +scan +getrange +pubsub|shardnumsub; locking does not"),
    }
}

/// Which of the guarantees hold here.
fn promises(server: &ServerInfo) -> Finding {
    const WHAT: &str = "promise";
    let evicts = server
        .eviction_policy
        .as_deref()
        .is_some_and(|policy| policy != "noeviction")
        && server.max_memory != Some(0);
    if evicts {
        return Finding::new(
            WHAT,
            Verdict::Bad,
            "none: a lock may vanish while it is held",
        )
        .but("the fencing token still tells the later from the earlier holder");
    }
    match server.replicas {
        None => Finding::new(WHAT, Verdict::Note, "two holders exclude each other as long as this server keeps its data and stays the master"),
        Some(0) => Finding::good(WHAT, "two holders exclude each other as long as this server keeps its data"),
        Some(_) => Finding::new(WHAT, Verdict::Note, "two holders exclude each other until a failover; with --replicas all, also after it"),
    }
    .but("a paused program can act after its lock is lost: let what it writes to refuse older tokens")
}

fn text(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}

fn in_words(findings: &[Finding]) -> String {
    let mut text = String::new();
    let colours = colours(&std::io::stdout());
    for at in findings {
        let (sign, colour) = match at.verdict {
            Verdict::Good => ("ok  ", "\x1b[32m"),
            Verdict::Note => ("note", "\x1b[36m"),
            Verdict::Warning => ("warn", "\x1b[33m"),
            Verdict::Bad => ("BAD ", "\x1b[1;31m"),
        };
        let (colour, dim, end) = match colours {
            true => (colour, "\x1b[2m", "\x1b[0m"),
            false => ("", "", ""),
        };
        // The server has a hand in it.
        let found = printable(&at.found);
        text += &format!("{colour}{sign}{end}  {:<13}{found}\n", at.what);
        if let Some(remedy) = &at.remedy {
            for line in wrapped(remedy, 78) {
                text += &format!("                   {dim}{line}{end}\n");
            }
        }
    }
    text
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let at = lines.len() - 1;
        if !lines[at].is_empty() && lines[at].len() + word.len() >= width {
            lines.push(word.to_owned());
        } else {
            if !lines[at].is_empty() {
                lines[at].push(' ');
            }
            lines[at].push_str(word);
        }
    }
    lines
}
