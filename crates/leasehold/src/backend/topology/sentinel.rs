//! Asking sentinels which server is the master now.
//!
//! One of them is asked for every connection, and once a second while there is one, so that a server that was
//! demoted behind a broken network is left too. A sentinel can be behind or know nothing, as one that was started
//! anew: where the server that it names does not accept, and before a server is left, all of them are asked.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::url::SentinelUrl;
use crate::backend::connection::{Endpoint, RedisConnection, Role, Tls};
use crate::backend::{Reply, RequestError};
use crate::error::BoxError;
use crate::rng;

/// The sentinels of one group of servers.
pub(crate) struct Sentinels {
    /// The name that they know the group by.
    group: Arc<str>,
    /// A member of the group: all share credentials, TLS and database, and differ in their parse_address.
    member: Endpoint,
    connect_timeout: Duration,
    /// The sentinel that gave the last useful reply stands first. At the start it is a random one, so that many
    /// clients do not all ask the same.
    sentinels: Mutex<Vec<Sentinel>>,
}

struct Sentinel {
    endpoint: Endpoint,
    connection: Option<Arc<RedisConnection>>,
}

/// A server that sentinels name as the master.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    host: String,
    port: u16,
    /// How often the group has changed its master, as the sentinels know it.
    epoch: u64,
    /// How many sentinels name it.
    votes: usize,
}

/// The servers that the sentinels name, the most credible first.
pub(crate) struct Candidates {
    candidates: Vec<(Endpoint, Rank)>,
}

/// A later epoch counts for more than any number of sentinels that know an earlier one.
type Rank = (u64, usize);

impl Candidates {
    /// The servers to try when `tried` does not accept. A server that is certainly no longer the master may
    /// still believe to be it, and is not among them.
    pub(crate) fn alternatives_to(&self, tried: &str) -> impl Iterator<Item = &Endpoint> {
        let servers = self.candidates.iter().map(|(server, _)| server);
        servers.filter(move |server| {
            let server = format!("{server:?}");
            server != tried && !self.is_superseded(&server)
        })
    }

    /// Whether another server is certainly more credible than `server`.
    pub(crate) fn is_superseded(&self, server: &str) -> bool {
        let first = self.candidates.first().map(|(_, rank)| *rank);
        let its = self.candidates.iter();
        let its = its.filter(|(at, _)| format!("{at:?}") == server);
        let its = its.map(|(_, rank)| *rank).max();
        first > its
    }
}

impl Sentinels {
    /// Understands `redis+sentinel://user:password@host:port,host:port/GROUP/DATABASE`, with the
    /// sentinels' own credentials as `?sentinel_username=…&sentinel_password=…`. `None` when `url` is
    /// of another scheme.
    pub(crate) fn new(
        url: &str,
        tls: &Tls,
        connect_timeout: Duration,
    ) -> Option<Result<Arc<Self>, BoxError>> {
        let (scheme, rest) = url.split_once("+sentinel://")?;
        let parse_address = SentinelUrl::parse(scheme, rest);
        let sentinels = parse_address.and_then(|parse_address| {
            let endpoint = |url: &String| Endpoint::new(url, tls, connect_timeout);
            let sentinel = |url: &String| {
                let connection = None;
                endpoint(url).map(|endpoint| Sentinel {
                    endpoint,
                    connection,
                })
            };
            let urls = parse_address.sentinels.iter();
            let mut sentinels: Vec<_> = urls.map(sentinel).collect::<Result<_, _>>()?;
            let first = rng::next_u64() % sentinels.len().max(1) as u64;
            sentinels.rotate_left(usize::try_from(first).unwrap_or(0));
            Ok(Arc::new(Self {
                group: parse_address.group.into(),
                member: endpoint(&parse_address.member)?,
                connect_timeout,
                sentinels: Mutex::new(sentinels),
            }))
        });
        Some(sentinels)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// The server that a sentinel says is the master: the first one that replies and knows the group.
    pub(crate) async fn master(&self) -> Result<Endpoint, RequestError> {
        let question = ["GET-MASTER-ADDR-BY-NAME", &*self.group];
        let read = |reply: Reply| match (&reply, parse_address(&reply)) {
            (_, Some((host, port))) => Ok(self.member.at(host, port)),
            (Reply::Nil, None) => Err(unknown_group(&self.group)),
            (_, None) => Err(RequestError::malformed("SENTINEL", &[reply])),
        };
        self.ask(&question, read).await
    }

    /// How many replicas they know of, up or down.
    pub(crate) async fn replicas(&self) -> Result<u32, RequestError> {
        let read = |reply: Reply| {
            let rank_candidates = reply.field("num-slaves").and_then(Reply::int);
            let rank_candidates =
                rank_candidates.and_then(|rank_candidates| u32::try_from(rank_candidates).ok());
            rank_candidates
                .ok_or_else(|| RequestError::malformed("SENTINEL", std::slice::from_ref(&reply)))
        };
        self.ask(&["MASTER", &self.group], read).await
    }

    /// Asks the sentinels one after the other, until one gives a useful reply.
    async fn ask<T>(
        &self,
        question: &[&str],
        read: impl Fn(Reply) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let mut sentinels = self.sentinels.lock().await;
        let mut error = RequestError::Unreachable("no sentinel is named".into());
        for _ in 0..sentinels.len() {
            let sentinel = &mut sentinels[0];
            let open = sentinel.connection.take();
            let asked = async {
                let connection = connected(&sentinel.endpoint, open).await?;
                let reply = query(&connection, question, self.timeout()).await?;
                Ok((read(reply)?, connection))
            };
            match with_timeout(&sentinel.endpoint, self.timeout(), asked).await {
                Ok((answer, connection)) => {
                    sentinel.connection = Some(connection);
                    return Ok(answer);
                }
                Err(reason) => error = reason,
            }
            sentinels.rotate_left(1);
        }
        Err(error)
    }

    /// Asks all sentinels at the same time. The one that names the most credible server is asked first from then on.
    pub(crate) async fn poll_all(&self) -> Candidates {
        let mut sentinels = self.sentinels.lock().await;
        let mut asking = JoinSet::new();
        for (at, sentinel) in sentinels.iter_mut().enumerate() {
            let (endpoint, group) = (sentinel.endpoint.clone(), self.group.clone());
            let (open, timeout) = (sentinel.connection.take(), self.timeout());
            asking.spawn(async move {
                let query_master = async {
                    let connection = connected(&endpoint, open).await?;
                    let named = query_master(&connection, &group, timeout).await?;
                    Ok((named, connection))
                };
                (at, with_timeout(&endpoint, timeout, query_master).await)
            });
        }
        let mut views = Vec::new();
        while let Some(asked) = asking.join_next().await {
            match asked {
                Ok((at, Ok((named, connection)))) => views.push((at, named, connection)),
                Ok((_, Err(error))) => tracing::debug!(%error, "a sentinel is of no use"),
                Err(error) => tracing::error!(%error, "BUG: asking a sentinel failed"),
            }
        }
        let named = rank_candidates(views.iter().map(|(_, named, _)| named));
        let chosen = named.first().and_then(|first| {
            let is_first =
                |named: &Candidate| (&*named.host, named.port) == (&*first.host, first.port);
            views.into_iter().find(|(_, named, _)| is_first(named))
        });
        // The others are left: a client that is well talks to one.
        if let Some((at, _, connection)) = chosen {
            sentinels[at].connection = Some(connection);
            sentinels.rotate_left(at);
        }
        let candidate = |one: Candidate| {
            let server = self.member.at(&one.host, one.port);
            (server, (one.epoch, one.votes))
        };
        Candidates {
            candidates: named.into_iter().map(candidate).collect(),
        }
    }

    /// Of one sentinel, so that one that is silent leaves time for another.
    fn timeout(&self) -> Duration {
        self.connect_timeout / 2
    }
}

/// The connection to a sentinel, made anew where there is none.
async fn connected(
    sentinel: &Endpoint,
    open: Option<Arc<RedisConnection>>,
) -> Result<Arc<RedisConnection>, RequestError> {
    if let Some(open) = open.filter(|open| open.is_open()) {
        return Ok(open);
    }
    let name = "leasehold-sentinel";
    let connecting = RedisConnection::connect(sentinel, name, Role::Sentinel, |_, _| ());
    connecting
        .await
        .map_err(|error| sentinel_error(sentinel, &error))
}

async fn query(
    connection: &RedisConnection,
    question: &[&str],
    timeout: Duration,
) -> Result<Reply, RequestError> {
    let words: Vec<_> = [&["SENTINEL"], question].concat();
    connection.query(&words, timeout).await
}

/// What one sentinel says. Where it may not tell the epoch, that counts as the first.
async fn query_master(
    connection: &RedisConnection,
    group: &str,
    timeout: Duration,
) -> Result<Candidate, RequestError> {
    let question = ["GET-MASTER-ADDR-BY-NAME", group];
    let reply = query(connection, &question, timeout).await?;
    let (host, port) = parse_address(&reply).ok_or_else(|| unknown_group(group))?;
    let epoch = match query(connection, &["MASTER", group], timeout).await {
        Ok(master) => master.field("config-epoch").and_then(Reply::int),
        Err(_) => None,
    };
    Ok(Candidate {
        host: host.to_owned(),
        port,
        epoch: epoch
            .and_then(|epoch| u64::try_from(epoch).ok())
            .unwrap_or(0),
        votes: 1,
    })
}

/// The servers that are named, each once, the most credible first.
fn rank_candidates<'a>(views: impl Iterator<Item = &'a Candidate>) -> Vec<Candidate> {
    let mut named: Vec<Candidate> = Vec::new();
    for query_master in views {
        let is_same =
            |one: &&mut Candidate| (&one.host, one.port) == (&query_master.host, query_master.port);
        match named.iter_mut().find(is_same) {
            Some(one) => {
                one.epoch = one.epoch.max(query_master.epoch);
                one.votes += 1;
            }
            None => named.push(query_master.clone()),
        }
    }
    named.sort_by_key(|one| std::cmp::Reverse((one.epoch, one.votes)));
    named
}

/// Bounds what one sentinel may take.
async fn with_timeout<T>(
    sentinel: &Endpoint,
    timeout: Duration,
    asking: impl Future<Output = Result<T, RequestError>>,
) -> Result<T, RequestError> {
    let asked = tokio::time::timeout(timeout, asking).await;
    asked.unwrap_or_else(|_| Err(sentinel_error(sentinel, &"no reply")))
}

fn unknown_group(group: &str) -> RequestError {
    RequestError::Unreachable(format!("no sentinel that replies knows a group `{group}`").into())
}

fn parse_address(reply: &Reply) -> Option<(&str, u16)> {
    match reply.list()? {
        [host, port] => Some((host.text()?, port.text()?.parse().ok()?)),
        _ => None,
    }
}

fn sentinel_error(sentinel: &Endpoint, reason: &dyn std::fmt::Display) -> RequestError {
    RequestError::Unreachable(format!("sentinel {sentinel:?}: {reason}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(host: &str, epoch: u64, votes: usize) -> Candidate {
        let host = host.to_owned();
        Candidate {
            host,
            port: 1,
            epoch,
            votes,
        }
    }

    #[test]
    fn later_epoch_wins_over_more_sentinels() {
        let views = [named("old", 1, 1), named("old", 1, 1), named("new", 2, 1)];
        assert_eq!(
            rank_candidates(views.iter()),
            [named("new", 2, 1), named("old", 1, 2)]
        );
        let views = [named("few", 1, 1), named("many", 1, 1), named("many", 0, 1)];
        assert_eq!(
            rank_candidates(views.iter()),
            [named("many", 1, 2), named("few", 1, 1)]
        );
    }

    /// `a` and `b` are of the last epoch, `c` is of the one before.
    fn election() -> Candidates {
        let endpoint = |host: &str| {
            let url = format!("redis://{host}:1");
            Endpoint::new(&url, &Tls::default(), Duration::from_secs(1)).unwrap()
        };
        let candidates = vec![
            (endpoint("a"), (2, 1)),
            (endpoint("b"), (2, 1)),
            (endpoint("c"), (1, 9)),
        ];
        Candidates { candidates }
    }

    #[test]
    fn deposed_master_is_no_fallback() {
        let election = election();
        let alternatives_to = |tried| {
            let servers = election.alternatives_to(tried);
            servers.map(|at| format!("{at:?}")).collect::<Vec<_>>()
        };
        assert_eq!(alternatives_to("a:1"), ["b:1"]);
        assert_eq!(alternatives_to("d:1"), ["a:1", "b:1"]);
    }

    #[test]
    fn server_is_left_for_a_more_credible_one_only() {
        let election = election();
        let over = ["a:1", "b:1", "c:1", "d:1"].map(|server| election.is_superseded(server));
        assert_eq!(over, [false, false, true, true]);
        let nobody = Candidates {
            candidates: Vec::new(),
        };
        assert!(!nobody.is_superseded("a:1"));
    }
}
