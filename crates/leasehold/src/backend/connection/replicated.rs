//! Connections whose requests wait for replica acknowledgements.
//!
//! `WAIT` covers the writes of one connection and blocks it. So each request
//! needs an exclusive connection. The pool bounds their number, and requests
//! wait for a free one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sync::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::opened::OpenedConnections;
use super::{RedisConnection, Role};
use crate::backend::topology::{Master, run_on};
use crate::backend::{
    Admission, Batch, BoxFuture, Connection, Reply, RequestError, ServerError, ServerErrorKind,
    ServerFacts,
};
use crate::options::{ReplicaAck, Replicas};
use crate::time::BootInstant;

/// The maximum number of connections of a pool.
const MAX_CONNECTIONS: usize = 16;

/// How long the number of replicas is cached.
const REPLICA_COUNT_TTL: Duration = Duration::from_secs(1);

/// The number of fields of a node in `CLUSTER NODES`. Its slots follow.
const FIELDS_BEFORE_SLOTS: usize = 8;

/// The largest number of replicas seen at a node, and when it was last read.
/// All pools of the node share it. It is `None` until one was seen.
pub(super) type ReplicaCount = Arc<Mutex<Option<(BootInstant, u32)>>>;

/// The exclusive connections to one node.
pub(crate) struct ReplicatedPool {
    master: Master,
    keeper: Handle,
    idle: Mutex<Vec<Arc<RedisConnection>>>,
    permits: Arc<Semaphore>,
    /// All connections, idle or in use.
    opened: OpenedConnections,
    replica_count: ReplicaCount,
}

impl ReplicatedPool {
    pub(super) fn new(master: Master, keeper: Handle, replica_count: ReplicaCount) -> Arc<Self> {
        Arc::new(Self {
            master,
            keeper,
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            opened: OpenedConnections::default(),
            replica_count,
        })
    }

    /// Waits up to `timeout` for a free connection. It is exclusive to the
    /// caller until dropped.
    pub(crate) async fn connection(
        self: &Arc<Self>,
        wanted: ReplicaAck,
        timeout: Duration,
    ) -> Result<Arc<dyn Connection>, RequestError> {
        let permit = self.permits.clone().acquire_owned();
        let permit = match tokio::time::timeout(timeout, permit).await {
            Ok(permit) => permit.map_err(|_| RequestError::ShutDown)?,
            Err(_) => {
                let reason = format!(
                    "no connection became free within {timeout:?}: all {MAX_CONNECTIONS} wait for replicas"
                );
                return Err(RequestError::Unreachable(reason.into()));
            }
        };
        let (connection, permit) = match self.take_idle() {
            Some(connection) => (connection, permit),
            None => self.connect(permit).await?,
        };
        let mut exclusive = ReplicatedConnection {
            pool: self.clone(),
            connection,
            replicas: 0,
            timeout: wanted.timeout,
            // The count is in flight: if its caller gives up, the connection
            // may never reply, and must not become idle.
            is_in_flight: AtomicBool::new(true),
            _permit: permit,
        };
        let required = self.required(wanted, &exclusive.connection).await;
        exclusive.is_in_flight = AtomicBool::new(false);
        exclusive.replicas = required?;
        Ok(Arc::new(exclusive))
    }

    /// Returns how many replicas must acknowledge. Fails if there is none:
    /// `WAIT` would wait in vain, and so would every later attempt.
    async fn required(
        &self,
        wanted: ReplicaAck,
        connection: &RedisConnection,
    ) -> Result<u32, RequestError> {
        let no_replicas = || RequestError::NoReplicas(connection.server().to_owned());
        match wanted.replicas {
            // Replicas that were there before are only down. We don't ask
            // again, and don't need the permission to ask.
            Replicas::AtLeast(count) if self.replica_count.lock().is_some() => Ok(count),
            Replicas::AtLeast(count) => match self.count_replicas(connection).await {
                Ok(0) => Err(no_replicas()),
                Err(error) if !connection.is_open() => Err(error),
                Ok(_) | Err(_) => Ok(count),
            },
            Replicas::All => match self.count_replicas(connection).await? {
                0 => Err(no_replicas()),
                count => Ok(count),
            },
        }
    }

    /// Connects in a separate task. If the caller gives up, the connection
    /// becomes idle.
    async fn connect(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Arc<RedisConnection>, OwnedSemaphorePermit), RequestError> {
        let (pool, (sender, connected)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            let connecting = pool
                .master
                .connect(&pool.keeper, "leasehold-replicas", |_, _| ());
            let connected = connecting.await;
            if let Ok(connection) = &connected {
                // Registered even if the caller has given up: a former master
                // must lose every connection.
                pool.opened.add(connection);
            }
            if let Err(Ok((connection, _permit))) =
                sender.send(connected.map(|connection| (connection, permit)))
            {
                // The caller is gone. The permit goes with it, the connection
                // stays for the next one.
                pool.recycle(connection);
            }
        });
        connected.await.unwrap_or(Err(RequestError::ShutDown))
    }

    fn recycle(&self, connection: Arc<RedisConnection>) {
        if connection.is_open() {
            self.idle.lock().push(connection);
        }
    }

    /// Returns whether the pool has no open connection, and no caller wants
    /// one.
    pub(super) fn is_unused(&self) -> bool {
        self.permits.available_permits() == MAX_CONNECTIONS && self.connections().is_empty()
    }

    /// Returns all open connections, idle or in use.
    pub(crate) fn connections(&self) -> Vec<Arc<RedisConnection>> {
        self.opened.all()
    }

    fn take_idle(&self) -> Option<Arc<RedisConnection>> {
        let mut idle = self.idle.lock();
        // Connections that the server closed while they were idle are dropped.
        std::iter::from_fn(|| idle.pop()).find(|connection| connection.is_open())
    }

    /// Returns the number of replicas. Closes the connection if the server has
    /// become a replica itself.
    ///
    /// Replicas that are down count where they are known, because one of them
    /// may be promoted later.
    async fn count_replicas(&self, connection: &RedisConnection) -> Result<u32, RequestError> {
        let cached = *self.replica_count.lock();
        if let Some((when, count)) = cached
            && BootInstant::now().since(when) < REPLICA_COUNT_TTL
        {
            return Ok(count);
        }
        let timeout = self.master.connect_timeout();
        let count = match &self.master {
            Master::Sentinel(sentinels, _) => {
                let sentinels = sentinels.clone();
                Some(run_on(&self.keeper, async move { sentinels.replicas().await }).await?)
            }
            Master::Fixed(_, Role::Member) => {
                let nodes = connection.query(&["CLUSTER", "NODES"], timeout).await;
                let nodes = nodes.map_err(|error| missing("CLUSTER NODES", connection, error));
                parse_cluster_nodes(&nodes?)?
            }
            Master::Fixed(_, _) => {
                let role = connection.query(&["ROLE"], timeout).await;
                let role = role.map_err(|error| missing("ROLE", connection, error))?;
                let known = cached.map_or(0, |(_, count)| count);
                parse_role(&role)?.map(|connected| connected.max(known))
            }
        };
        let Some(count) = count else {
            // Neither command is refused, which would close it.
            connection.close();
            let demoted = ServerError::new("READONLY", "the server has become a replica");
            return Err(RequestError::Refused(demoted));
        };
        // Zero is not remembered: the next caller may find a new replica.
        if count > 0 {
            *self.replica_count.lock() = Some((BootInstant::now(), count));
        }
        Ok(count)
    }
}

/// Returns the error of `command` for the user. A server that does not know the
/// command is the wrong one for replica acknowledgement, which the server's own
/// words do not say.
fn missing(
    command: &'static str,
    connection: &RedisConnection,
    error: RequestError,
) -> RequestError {
    match error {
        RequestError::Refused(refusal) if refusal.kind == ServerErrorKind::Other => {
            RequestError::CannotAcknowledge {
                server: connection.server().to_owned(),
                command,
                refusal,
            }
        }
        error => error,
    }
}

/// Returns the number of connected replicas in a reply to `ROLE`, or `None` if
/// the server is a replica.
fn parse_role(role: &Reply) -> Result<Option<u32>, RequestError> {
    match role.list().and_then(|parts| parts.first()?.text()) {
        Some("slave") => Ok(None),
        _ => Ok(Some(
            u32::try_from(role.replicas()?.len()).unwrap_or(u32::MAX),
        )),
    }
}

/// Returns the number of replicas of the replying node in `CLUSTER NODES`, or
/// `None` if it is a replica. If it has none, a failed master without slots
/// counts as one: this node may have replaced it, and it then comes back as a
/// replica. We cannot tell which master it replaced.
fn parse_cluster_nodes(nodes: &Reply) -> Result<Option<u32>, RequestError> {
    let text = nodes.text().unwrap_or_default();
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let is_own = |line: &&Vec<&str>| line.get(2).is_some_and(|flags| flags.contains("myself"));
    let malformed = || RequestError::malformed("CLUSTER NODES", std::slice::from_ref(nodes));
    let own = lines.iter().find(is_own).ok_or_else(malformed)?;
    if own[2].contains("slave") {
        return Ok(None);
    }
    let replicas = lines.iter().filter(|line| line.get(3) == own.first());
    let is_replaced =
        |line: &Vec<&str>| line.len() == FIELDS_BEFORE_SLOTS && line[2] == "master,fail";
    let count = match replicas.count() {
        0 => usize::from(lines.iter().any(is_replaced)),
        count => count,
    };
    u32::try_from(count).map(Some).map_err(|_| malformed())
}

/// An exclusive connection, which returns to the pool when dropped.
struct ReplicatedConnection {
    pool: Arc<ReplicatedPool>,
    connection: Arc<RedisConnection>,
    replicas: u32,
    timeout: Duration,
    /// Whether a request was sent whose reply has not arrived.
    is_in_flight: AtomicBool,
    _permit: OwnedSemaphorePermit,
}

impl ReplicatedConnection {
    async fn exchange(&self, batch: Batch, timeout: Duration) -> Result<Vec<Reply>, RequestError> {
        let millis = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let wait = Batch::new("WAIT")
            .number(u64::from(self.replicas))
            .number(millis.max(1));
        let batch = batch.and(wait);
        // A connection that is dropped from here until the reply is not reused:
        // `WAIT` may still block it.
        self.is_in_flight.store(true, Ordering::Release);
        // Twice, because `WAIT` is sent again after an unknown script.
        let limit = timeout + 2 * self.timeout;
        let replies = self.connection.exchange(batch, limit).await;
        let mut replies = replies.inspect_err(|_| self.retire_if_silent(limit))?;
        self.is_in_flight.store(false, Ordering::Release);
        match replies.pop() {
            Some(Reply::Int(count)) => {
                let acknowledged = u32::try_from(count).unwrap_or(0);
                let wanted = self.replicas;
                match acknowledged >= wanted {
                    true => Ok(replies),
                    false => Err(RequestError::NotReplicated {
                        acknowledged,
                        wanted,
                    }),
                }
            }
            Some(Reply::Refused(refusal)) if refusal.kind == ServerErrorKind::Temporary => {
                // A master that was demoted refuses the writes too, if there
                // are any.
                Err(replies.into_iter().find_map(refused_for_now).unwrap_or(
                    RequestError::NotReplicated {
                        acknowledged: 0,
                        wanted: self.replicas,
                    },
                ))
            }
            Some(Reply::Refused(refusal)) => {
                let refused = RequestError::Refused(refusal);
                Err(missing("WAIT", &self.connection, refused))
            }
            other => Err(RequestError::malformed(
                "WAIT",
                &other.into_iter().collect::<Vec<_>>(),
            )),
        }
    }
}

fn refused_for_now(reply: Reply) -> Option<RequestError> {
    match reply {
        Reply::Refused(refusal) if refusal.kind == ServerErrorKind::Temporary => {
            Some(RequestError::Refused(refusal))
        }
        _ => None,
    }
}

impl Connection for ReplicatedConnection {
    fn facts(&self) -> Arc<ServerFacts> {
        self.connection.facts()
    }

    fn id(&self) -> u64 {
        self.connection.id()
    }

    fn admission(&self) -> Option<Arc<Admission>> {
        self.connection.admission()
    }

    fn has_ended(&self) -> bool {
        self.connection.has_ended()
    }

    fn is_silent_for(&self, time: Duration) -> bool {
        self.connection.is_silent_for(time)
    }

    fn retire_if_silent(&self, time: Duration) {
        self.connection.retire_if_silent(time);
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
        if !self.connection.is_open() {
            // The idle connections are older, and may be as dead: the next
            // request must not have to find out.
            self.pool.idle.lock().clear();
        } else if *self.is_in_flight.get_mut() {
            // While `WAIT` blocks the connection, no other request can use it.
            self.connection.close();
        } else {
            self.pool.recycle(self.connection.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_are_down_count() {
        let nodes = "aa 10.0.0.1:1@2 myself,master - 0 0 1 connected 0-5\n\
                     bb 10.0.0.1:3@4 slave aa 0 0 1 connected\n\
                     cc 10.0.0.1:5@6 slave,fail aa 0 0 1 disconnected\n\
                     dd 10.0.0.1:7@8 slave ee 0 0 1 connected\n\
                     ee 10.0.0.1:9@10 master - 0 0 1 connected 6-9\n";
        let reply = Reply::Bytes(nodes.as_bytes().to_vec());
        assert_eq!(parse_cluster_nodes(&reply).unwrap(), Some(2));
        assert!(parse_cluster_nodes(&Reply::Nil).is_err());
        let promoted = "aa 10.0.0.1:1@2 myself,master - 0 0 2 connected 0-5\n\
                        bb 10.0.0.1:3@4 master,fail - 0 0 1 disconnected\n";
        let reply = Reply::Bytes(promoted.as_bytes().to_vec());
        assert_eq!(parse_cluster_nodes(&reply).unwrap(), Some(1));
        let replica = Reply::List(Vec::new());
        let master = Reply::Bytes(b"master".to_vec());
        let role = Reply::List(vec![master, Reply::Int(9), Reply::List(vec![replica; 3])]);
        assert_eq!(parse_role(&role).unwrap(), Some(3));
        assert!(parse_role(&Reply::Nil).is_err());
    }

    #[test]
    fn server_that_became_a_replica_has_no_count() {
        let nodes = "aa 10.0.0.1:1@2 myself,slave bb 0 0 2 connected\n\
                     bb 10.0.0.1:3@4 master - 0 0 2 connected 0-5\n";
        let reply = Reply::Bytes(nodes.as_bytes().to_vec());
        assert_eq!(parse_cluster_nodes(&reply).unwrap(), None);
        let [slave, host] = ["slave", "10.0.0.1"].map(|text| Reply::Bytes(text.into()));
        let role = Reply::List(vec![slave, host, Reply::Int(3)]);
        assert_eq!(parse_role(&role).unwrap(), None);
    }
}
