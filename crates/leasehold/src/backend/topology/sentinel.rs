//! Finding a group's master through the sentinels.
//!
//! A client queries one sentinel before every connection, and once a second
//! while connected. It thereby also leaves a master that was demoted behind a
//! network partition. A single sentinel can be outdated, or empty after a
//! restart. The client therefore queries all of them when the named server does
//! not accept, and before it leaves a server.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::url::SentinelUrl;
use crate::backend::connection::{ConnectOptions, Endpoint, RedisConnection, Role};
use crate::backend::staggered::first_success;
use crate::backend::{Reply, RequestError};
use crate::error::BoxError;
use crate::rng;

/// The sentinels of one group of servers.
pub(crate) struct Sentinels {
    /// The group's name, as configured in the sentinels.
    group: Arc<str>,
    /// A member of the group. All members share credentials, TLS settings and
    /// database; only the address differs.
    member: Endpoint,
    connect_timeout: Duration,
    /// Starts with the sentinel that last gave a useful reply. The initial one
    /// is random, so that clients spread over the sentinels.
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
    /// The highest `config-epoch` reported for it, which every failover
    /// increments.
    epoch: u64,
    /// How many sentinels name it.
    votes: usize,
}

/// The servers that the sentinels name as the master, best first.
pub(crate) struct Candidates {
    servers: Vec<(Endpoint, Rank)>,
}

/// Epoch, then votes: a later epoch outranks any number of sentinels that know
/// an earlier one.
type Rank = (u64, usize);

impl Candidates {
    /// Returns the servers to try when `tried` does not accept. Excludes
    /// superseded ones, which may still consider themselves master.
    pub(crate) fn alternatives_to(&self, tried: &str) -> impl Iterator<Item = &Endpoint> {
        let servers = self.servers.iter().map(|(server, _)| server);
        servers.filter(move |server| {
            let server = format!("{server:?}");
            server != tried && !self.is_superseded(&server)
        })
    }

    /// Returns whether another server has a higher rank than `server`.
    pub(crate) fn is_superseded(&self, server: &str) -> bool {
        let best = self.servers.first().map(|(_, rank)| *rank);
        let same = self.servers.iter();
        let same = same.filter(|(other, _)| format!("{other:?}") == server);
        best > same.map(|(_, rank)| *rank).max()
    }
}

impl Sentinels {
    /// Parses
    /// `redis+sentinel://user:password@host:port,host:port/GROUP/DATABASE`. The
    /// sentinels' own credentials are
    /// `?sentinel_username=…&sentinel_password=…`, which take precedence over
    /// a provider. Returns `None` for another scheme.
    pub(crate) fn new(url: &str, options: &ConnectOptions) -> Option<Result<Arc<Self>, BoxError>> {
        let (scheme, rest) = url.split_once("+sentinel://")?;
        let sentinels = SentinelUrl::parse(scheme, rest).and_then(|url| {
            // The same limit as for a query, so that the error names what was
            // slow.
            let own = ConnectOptions {
                timeout: options.timeout / 2,
                ..options.clone()
            };
            let sentinel = |url: &String| {
                Endpoint::with_own_login(url, &own).map(|endpoint| Sentinel {
                    endpoint,
                    connection: None,
                })
            };
            let urls = url.sentinels.iter();
            let mut sentinels: Vec<_> = urls.map(sentinel).collect::<Result<_, _>>()?;
            rng::rotate(&mut sentinels);
            Ok(Arc::new(Self {
                group: url.group.into(),
                member: Endpoint::new(&url.member, options)?,
                connect_timeout: options.timeout,
                sentinels: Mutex::new(sentinels),
            }))
        });
        Some(sentinels)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Returns the master, according to the first sentinel that replies and
    /// knows the group.
    pub(crate) async fn master(&self) -> Result<Endpoint, RequestError> {
        let command = ["GET-MASTER-ADDR-BY-NAME", &*self.group];
        let parse = |reply: Reply| match (&reply, parse_address(&reply)) {
            (_, Some((host, port))) => Ok(self.member.at(host, port)),
            (Reply::Nil, None) => Err(unknown_group(&self.group)),
            (_, None) => Err(RequestError::malformed("SENTINEL", &[reply])),
        };
        self.query_first(&command, parse).await
    }

    /// Returns the number of replicas that a sentinel knows, up or down.
    pub(crate) async fn replicas(&self) -> Result<u32, RequestError> {
        let parse = |reply: Reply| {
            let count = reply.field("num-slaves").and_then(Reply::int);
            let count = count.and_then(|count| u32::try_from(count).ok());
            count.ok_or_else(|| RequestError::malformed("SENTINEL", std::slice::from_ref(&reply)))
        };
        self.query_first(&["MASTER", &self.group], parse).await
    }

    /// Queries the sentinels, staggered, until one gives a useful reply.
    async fn query_first<T>(
        &self,
        command: &[&str],
        parse: impl Fn(Reply) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let mut sentinels = self.sentinels.lock().await;
        let queries = sentinels.iter_mut().enumerate().map(|(index, sentinel)| {
            let parse = &parse;
            async move {
                // Taken, so that a sentinel that fails or is too slow loses its
                // connection.
                let open = sentinel.connection.take();
                let querying = async {
                    let connection = connect(&sentinel.endpoint, open).await?;
                    let reply = query(&connection, command, self.timeout()).await?;
                    Ok((index, parse(reply)?, connection))
                };
                with_timeout(&sentinel.endpoint, self.timeout(), querying).await
            }
        });
        match first_success(queries.collect(), self.connect_timeout).await {
            Ok((index, value, connection)) => {
                sentinels[index].connection = Some(connection);
                // The next query starts with this one, which is up.
                sentinels.rotate_left(index);
                Ok(value)
            }
            Err(mut errors) => {
                let no_sentinel = || RequestError::Unreachable("the URL names no sentinel".into());
                Err(errors.pop().unwrap_or_else(no_sentinel))
            }
        }
    }

    /// Queries all sentinels concurrently. Afterwards the first sentinel is one
    /// that names the best candidate.
    pub(crate) async fn poll_all(&self) -> Candidates {
        let mut sentinels = self.sentinels.lock().await;
        let mut queries = JoinSet::new();
        for (index, sentinel) in sentinels.iter_mut().enumerate() {
            let (endpoint, group) = (sentinel.endpoint.clone(), self.group.clone());
            let (open, timeout) = (sentinel.connection.take(), self.timeout());
            queries.spawn(async move {
                let querying = async {
                    let connection = connect(&endpoint, open).await?;
                    let candidate = query_master(&connection, &group, timeout).await?;
                    Ok((candidate, connection))
                };
                (index, with_timeout(&endpoint, timeout, querying).await)
            });
        }
        let mut views = Vec::new();
        while let Some(outcome) = queries.join_next().await {
            match outcome {
                Ok((index, Ok((candidate, connection)))) => {
                    views.push((index, candidate, connection));
                }
                Ok((_, Err(error))) => tracing::debug!(%error, "no useful reply from a sentinel"),
                Err(error) => tracing::error!(%error, "BUG: querying a sentinel failed"),
            }
        }
        let candidates = rank_candidates(views.iter().map(|(_, candidate, _)| candidate));
        let chosen = candidates.first().and_then(|best| {
            let is_best =
                |other: &Candidate| (&*other.host, other.port) == (&*best.host, best.port);
            views.into_iter().find(|(_, other, _)| is_best(other))
        });
        // The other connections are closed: one sentinel is enough in normal
        // operation.
        if let Some((index, _, connection)) = chosen {
            sentinels[index].connection = Some(connection);
            sentinels.rotate_left(index);
        }
        let server = |candidate: Candidate| {
            let server = self.member.at(&candidate.host, candidate.port);
            (server, (candidate.epoch, candidate.votes))
        };
        Candidates {
            servers: candidates.into_iter().map(server).collect(),
        }
    }

    /// Returns the timeout for one sentinel. All of them have started after the
    /// other half of the connect timeout.
    fn timeout(&self) -> Duration {
        self.connect_timeout / 2
    }
}

/// Returns the `open` connection if it still is, or a new one.
async fn connect(
    sentinel: &Endpoint,
    open: Option<Arc<RedisConnection>>,
) -> Result<Arc<RedisConnection>, RequestError> {
    if let Some(open) = open.filter(|open| open.is_open()) {
        return Ok(open);
    }
    let name = "leasehold-sentinel";
    // Sentinels are queried on the keeper's runtime only.
    let keeper = Handle::current();
    let connecting = RedisConnection::connect(sentinel, name, Role::Sentinel, &keeper, |_, _| ());
    connecting
        .await
        .map_err(|error| sentinel_error(sentinel, &error))
}

async fn query(
    connection: &RedisConnection,
    command: &[&str],
    timeout: Duration,
) -> Result<Reply, RequestError> {
    let words: Vec<_> = [&["SENTINEL"], command].concat();
    connection.query(&words, timeout).await
}

/// Queries one sentinel for the master and the epoch. If an ACL hides the
/// epoch, it counts as zero.
async fn query_master(
    connection: &RedisConnection,
    group: &str,
    timeout: Duration,
) -> Result<Candidate, RequestError> {
    let command = ["GET-MASTER-ADDR-BY-NAME", group];
    let reply = query(connection, &command, timeout).await?;
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

/// Merges the views of the sentinels, best candidate first.
fn rank_candidates<'a>(views: impl Iterator<Item = &'a Candidate>) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = Vec::new();
    for view in views {
        let is_same = |other: &&mut Candidate| (&other.host, other.port) == (&view.host, view.port);
        match candidates.iter_mut().find(is_same) {
            Some(candidate) => {
                candidate.epoch = candidate.epoch.max(view.epoch);
                candidate.votes += 1;
            }
            None => candidates.push(view.clone()),
        }
    }
    candidates.sort_by_key(|candidate| std::cmp::Reverse((candidate.epoch, candidate.votes)));
    candidates
}

/// Bounds the time that one sentinel may take.
async fn with_timeout<T>(
    sentinel: &Endpoint,
    timeout: Duration,
    querying: impl Future<Output = Result<T, RequestError>>,
) -> Result<T, RequestError> {
    let outcome = tokio::time::timeout(timeout, querying).await;
    outcome.unwrap_or_else(|_| {
        let reason = format!("no reply within {timeout:?}");
        Err(sentinel_error(sentinel, &reason))
    })
}

fn unknown_group(group: &str) -> RequestError {
    RequestError::Unreachable(format!("the sentinels do not know the group `{group}`").into())
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

    fn candidate(host: &str, epoch: u64, votes: usize) -> Candidate {
        Candidate {
            host: host.to_owned(),
            port: 1,
            epoch,
            votes,
        }
    }

    #[test]
    fn later_epoch_outranks_more_votes() {
        let views = [
            candidate("old", 1, 1),
            candidate("old", 1, 1),
            candidate("new", 2, 1),
        ];
        assert_eq!(
            rank_candidates(views.iter()),
            [candidate("new", 2, 1), candidate("old", 1, 2)]
        );
        let views = [
            candidate("few", 1, 1),
            candidate("many", 1, 1),
            candidate("many", 0, 1),
        ];
        assert_eq!(
            rank_candidates(views.iter()),
            [candidate("many", 1, 2), candidate("few", 1, 1)]
        );
    }

    /// `a` and `b` have the last epoch, `c` has an earlier one.
    fn candidates() -> Candidates {
        let endpoint = |host: &str| {
            let url = format!("redis://{host}:1");
            Endpoint::new(&url, &ConnectOptions::default()).unwrap()
        };
        let servers = vec![
            (endpoint("a"), (2, 1)),
            (endpoint("b"), (2, 1)),
            (endpoint("c"), (1, 9)),
        ];
        Candidates { servers }
    }

    #[test]
    fn demoted_master_is_no_alternative() {
        let candidates = candidates();
        let alternatives = |tried| {
            let servers = candidates.alternatives_to(tried);
            servers
                .map(|server| format!("{server:?}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(alternatives("a:1"), ["b:1"]);
        assert_eq!(alternatives("d:1"), ["a:1", "b:1"]);
    }

    #[test]
    fn server_is_superseded_by_higher_rank_only() {
        let candidates = candidates();
        let superseded =
            ["a:1", "b:1", "c:1", "d:1"].map(|server| candidates.is_superseded(server));
        assert_eq!(superseded, [false, false, true, true]);
        let none = Candidates {
            servers: Vec::new(),
        };
        assert!(!none.is_superseded("a:1"));
    }
}
