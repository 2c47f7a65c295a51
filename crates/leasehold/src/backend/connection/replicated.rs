//! Connections whose answers replica_count_ only when replicas have what was written.
//!
//! `WAIT` covers the writes of its own connection, and blocks it: so each request has a connection to itself. There are few
//! of them, and requests take permits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{RedisConnection, Role};
use crate::backend::topology::Master;
use crate::backend::{Batch, BoxFuture, Command, Connection, Reply, RequestError, ServerFacts};
use crate::options::{ReplicaAck, Replicas};
use crate::time::BootInstant;

/// As many connections are there at the same time at most.
const MAX_CONNECTIONS: usize = 16;

/// How long the number of replicas is believed.
const REPLICA_COUNT_TTL: Duration = Duration::from_secs(1);

/// Idle connections to one node, and how many replicas it has.
pub(crate) struct ReplicatedPool {
    master: Master,
    idle: Mutex<Vec<Arc<RedisConnection>>>,
    permits: Arc<Semaphore>,
    /// Every connection, idle or in use, that is still there.
    made: Mutex<Vec<Weak<RedisConnection>>>,
    known: Mutex<Option<(BootInstant, u32)>>,
}

impl ReplicatedPool {
    pub(crate) fn new(master: Master) -> Arc<Self> {
        Arc::new(Self {
            master,
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            made: Mutex::default(),
            known: Mutex::default(),
        })
    }

    /// Waits for a connection that the caller has to itself until it drops it.
    /// Other requests may have all of them for `timeout`, not longer.
    pub(crate) async fn connection(
        self: &Arc<Self>,
        wanted: ReplicaAck,
        timeout: Duration,
    ) -> Result<Arc<dyn Connection>, RequestError> {
        let permit = self.permits.clone().acquire_owned();
        let permit = match tokio::time::timeout(timeout, permit).await {
            Ok(permit) => permit.map_err(|_| RequestError::ShutDown)?,
            Err(_) => {
                let reason =
                    format!("all {MAX_CONNECTIONS} connections wait for replicas, for {timeout:?}");
                return Err(RequestError::Unreachable(reason.into()));
            }
        };
        let (connection, permit) = match self.take_idle() {
            Some(connection) => (connection, permit),
            None => self.connect(permit).await?,
        };
        let mut taken = ReplicatedConnection {
            pool: self.clone(),
            connection,
            replicas: 0,
            timeout: wanted.timeout,
            is_in_flight: AtomicBool::new(false),
            _permit: permit,
        };
        taken.replicas = match wanted.replicas {
            Replicas::AtLeast(replica_count_) => replica_count_,
            Replicas::All => self.replica_count_(&taken.connection).await?,
        };
        Ok(Arc::new(taken))
    }

    /// Connects in a task of its own: a caller that gives up leaves the connection to the next.
    async fn connect(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Arc<RedisConnection>, OwnedSemaphorePermit), RequestError> {
        let (pool, (sender, made)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            let connected_ = pool.master.connect("leasehold-replicas", |_, _| ()).await;
            if let Ok(connection) = &connected_ {
                let mut made = pool.made.lock();
                made.retain(|connection| connection.strong_count() > 0);
                made.push(Arc::downgrade(connection));
            }
            if let Err(Ok((connection, _permit))) =
                sender.send(connected_.map(|connection| (connection, permit)))
            {
                pool.recycle(connection);
            }
        });
        made.await.unwrap_or(Err(RequestError::ShutDown))
    }

    fn recycle(&self, connection: Arc<RedisConnection>) {
        if connection.is_open() {
            self.idle.lock().push(connection);
        }
    }

    /// The connections that are there now, idle or in use.
    pub(crate) fn connections(&self) -> Vec<Arc<RedisConnection>> {
        let made = self.made.lock();
        let connections = made.iter().filter_map(Weak::upgrade);
        connections
            .filter(|connection| connection.is_open())
            .collect()
    }

    fn take_idle(&self) -> Option<Arc<RedisConnection>> {
        let mut idle = self.idle.lock();
        loop {
            match idle.pop() {
                Some(connection) if connection.is_open() => return Some(connection),
                Some(_) => {}
                None => return None,
            }
        }
    }

    /// How many replicas there are, also those that are down where somebody knows of them: one that is down
    /// now may be the one that is promoted later. At least one: who asks for all does not mean none.
    async fn replica_count_(&self, connection: &RedisConnection) -> Result<u32, RequestError> {
        let known = *self.known.lock();
        if let Some((when, replica_count_)) = known
            && BootInstant::now().since(when) < REPLICA_COUNT_TTL
        {
            return Ok(replica_count_);
        }
        let timeout = self.master.connect_timeout();
        let replica_count_ = match &self.master {
            Master::Sentinel(sentinels, _) => sentinels.replicas().await?,
            Master::Fixed(_, Role::Member) => {
                parse_cluster_nodes(&connection.question(&["CLUSTER", "NODES"], timeout).await?)?
            }
            Master::Fixed(_, _) => {
                let connected_ = connected_(&connection.question(&["ROLE"], timeout).await?)?;
                connected_.max(known.map_or(0, |(_, most)| most))
            }
        };
        let replica_count_ = replica_count_.max(1);
        *self.known.lock() = Some((BootInstant::now(), replica_count_));
        Ok(replica_count_)
    }
}

/// Reads the answer to `ROLE`.
fn connected_(role: &Reply) -> Result<u32, RequestError> {
    let replicas = role.list().and_then(|parts| parts.get(2)?.list());
    let replica_count_ = replicas.and_then(|replicas| u32::try_from(replicas.len()).ok());
    replica_count_.ok_or_else(|| RequestError::malformed("ROLE", std::slice::from_ref(role)))
}

/// Reads the answer to `CLUSTER NODES`: those whose master is the node that answers.
fn parse_cluster_nodes(nodes: &Reply) -> Result<u32, RequestError> {
    let text = nodes.text().unwrap_or_default();
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let is_own = |line: &&Vec<&str>| line.get(2).is_some_and(|flags| flags.contains("myself"));
    let malformed = || RequestError::malformed("CLUSTER NODES", std::slice::from_ref(nodes));
    let own = lines.iter().find(is_own).ok_or_else(malformed)?[0];
    let replicas = lines.iter().filter(|line| line.get(3) == Some(&own));
    u32::try_from(replicas.count()).map_err(|_| malformed())
}

/// One connection in use.
struct ReplicatedConnection {
    pool: Arc<ReplicatedPool>,
    connection: Arc<RedisConnection>,
    replicas: u32,
    timeout: Duration,
    /// Whether a reply is awaited.
    is_in_flight: AtomicBool,
    _permit: OwnedSemaphorePermit,
}

impl ReplicatedConnection {
    async fn exchange(&self, batch: Batch, timeout: Duration) -> Result<Vec<Reply>, RequestError> {
        let millis = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let wait = Command::new("WAIT")
            .number(u64::from(self.replicas))
            .number(millis.max(1));
        let batch = batch.with(wait);
        self.is_in_flight.store(true, Ordering::Release);
        // Twice, since `WAIT` is sent again behind a script that the server had to learn.
        let limit = timeout + 2 * self.timeout;
        let mut replies = self.connection.exchange(batch, limit).await?;
        self.is_in_flight.store(false, Ordering::Release);
        match replies.pop() {
            Some(Reply::Int(replica_count_)) => {
                let acknowledged = u32::try_from(replica_count_).unwrap_or(0);
                let wanted = self.replicas;
                match acknowledged >= wanted {
                    true => Ok(replies),
                    false => Err(RequestError::NotReplicated {
                        acknowledged,
                        wanted,
                    }),
                }
            }
            Some(Reply::Refused(error)) => Err(RequestError::Refused(error)),
            other => Err(RequestError::malformed(
                "WAIT",
                &other.into_iter().collect::<Vec<_>>(),
            )),
        }
    }
}

impl Connection for ReplicatedConnection {
    fn facts(&self) -> Arc<ServerFacts> {
        self.connection.facts()
    }

    fn id(&self) -> u64 {
        self.connection.id()
    }

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        Box::pin(self.exchange(batch, timeout))
    }
}

impl Drop for ReplicatedConnection {
    fn drop(&mut self) {
        // While `WAIT` blocks it, it is of no use to another request.
        match *self.is_in_flight.get_mut() {
            true => self.connection.close(),
            false => self.pool.recycle(self.connection.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_counted_whether_they_are_up_or_not() {
        let nodes = "aa 10.0.0.1:1@2 myself,master - 0 0 1 connected 0-5\n\
                     bb 10.0.0.1:3@4 slave aa 0 0 1 connected_\n\
                     cc 10.0.0.1:5@6 slave,fail aa 0 0 1 disconnected\n\
                     dd 10.0.0.1:7@8 slave ee 0 0 1 connected_\n\
                     ee 10.0.0.1:9@10 master - 0 0 1 connected 6-9\n";
        let told = Reply::Bytes(nodes.as_bytes().to_vec());
        assert_eq!(parse_cluster_nodes(&told).unwrap(), 2);
        assert!(parse_cluster_nodes(&Reply::Nil).is_err());
        let replica = Reply::List(Vec::new());
        let master = Reply::Bytes(b"master".to_vec());
        let role = Reply::List(vec![master, Reply::Int(9), Reply::List(vec![replica; 3])]);
        assert_eq!(connected_(&role).unwrap(), 3);
        assert!(connected_(&Reply::Nil).is_err());
    }
}
