//! A simulated server and network, driven by a seed and tokio's clock. It runs
//! the layers above through many schedules in little time.
//!
//! It supports a mutex's commands. Requests of one connection are executed in
//! order. Until [`World::calm_down`] is called, requests and replies may be
//! delayed, refused or lost, and connections may break with requests in flight.
//! Nothing is executed twice, because connections never repeat a command.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::Mutex;
use testkit::SeededRng;
use tokio::sync::oneshot;

use crate::backend::{
    Backend, Batch, BoxFuture, Capabilities, Channel, Connection, Listener, PubSubEvent, Purpose,
    Reply, RequestError, ServerError, ServerFacts, Slot, Subscription, Unsubscribe,
};
use crate::options::ReplicaAck;
use crate::time::BootInstant;

/// The maximum delay of a request in flight on a broken connection. It is
/// shorter than the delay that the lease layer assumes.
pub(crate) const LATE: Duration = Duration::from_secs(14);

/// The server and its network.
pub(crate) struct World {
    server: Mutex<SimulatedServer>,
    rng: Mutex<SeededRng>,
    calm: AtomicBool,
    connections: AtomicU64,
}

/// The server's state.
#[derive(Default)]
struct SimulatedServer {
    keys: HashMap<Vec<u8>, (Vec<u8>, BootInstant)>,
    counter: i64,
    listeners: HashMap<Channel, Vec<SimulatedListener>>,
}

/// A listener and its id.
type SimulatedListener = (u64, Arc<dyn Listener>);

impl World {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            server: Mutex::default(),
            rng: Mutex::new(SeededRng::new(seed)),
            calm: AtomicBool::new(false),
            connections: AtomicU64::new(1),
        })
    }

    /// Stops all faults.
    pub(crate) fn calm_down(&self) {
        self.calm.store(true, Ordering::SeqCst);
    }

    /// Returns whether no lock is held.
    pub(crate) fn is_empty(&self) -> bool {
        let now = BootInstant::now();
        let server = self.server.lock();
        server.keys.values().all(|(_, ends)| *ends <= now)
    }

    /// Returns a backend for one process.
    pub(crate) fn connect(self: &Arc<Self>) -> Arc<Simulated> {
        let open = || Mutex::new(Arc::new(SimulatedConnection::new(self)));
        Arc::new(Simulated {
            world: self.clone(),
            requests: open(),
            keeper: open(),
        })
    }

    /// Returns a random number below `limit`.
    pub(crate) fn below(&self, limit: u64) -> u64 {
        self.rng.lock().below(limit)
    }

    /// Returns true in about `of_thousand` of 1000 calls, and never after
    /// [`World::calm_down`].
    fn happens(&self, of_thousand: u64) -> bool {
        !self.calm.load(Ordering::SeqCst) && self.below(1000) < of_thousand
    }

    /// Returns a random network delay: mostly short, sometimes longer than any
    /// request timeout.
    fn delay(&self) -> Duration {
        if self.happens(20) {
            return Duration::from_millis(self.below(4000));
        }
        Duration::from_micros(200 + self.below(3000))
    }

    fn execute(self: &Arc<Self>, batch: &Batch) -> Vec<Reply> {
        if self.happens(10) {
            let refused = Reply::Refused(ServerError::new("LOADING", "not yet"));
            return vec![refused; batch.len()];
        }
        let command = |index| {
            let words: Vec<_> = batch.args(index).collect();
            self.execute_one(batch.script_name(index), &words)
        };
        (0..batch.len()).map(command).collect()
    }

    fn execute_one(self: &Arc<Self>, script: Option<&str>, words: &[&[u8]]) -> Reply {
        let mut server = self.server.lock();
        let now = BootInstant::now();
        server.keys.retain(|_, (_, ends)| *ends > now);
        match words {
            [b"SET", key, mark, b"NX", b"GET", b"PX", lease] => match server.keys.get(*key) {
                Some((value, _)) => Reply::Bytes(value.clone()),
                None => {
                    let held = (mark.to_vec(), now + millis(lease));
                    server.keys.insert(key.to_vec(), held);
                    Reply::Nil
                }
            },
            [b"INCR", _] => {
                server.counter += 1;
                Reply::Int(server.counter)
            }
            [b"PTTL", key] => Reply::Int(match server.keys.get(*key) {
                Some((_, ends)) => i64::try_from(ends.since(now).as_millis()).unwrap_or(i64::MAX),
                None => -2,
            }),
            [b"DELEX", key, b"IFEQ", mark] => {
                let is_owner = server.keys.get(*key).is_some_and(|(at, _)| at == mark);
                if is_owner {
                    server.keys.remove(*key);
                }
                Reply::Int(i64::from(is_owner))
            }
            [b"SPUBLISH", channel, text] => {
                let channel = Channel::Sharded(channel.to_vec());
                let listeners = server.listeners.get(&channel).cloned().unwrap_or_default();
                drop(server);
                Reply::Int(self.publish(&listeners, text))
            }
            [b"EVALSHA", _, b"1", key, mark, lease] if script == Some("single_key/renew") => {
                match server.keys.get_mut(*key) {
                    Some((value, ends)) if value == mark => {
                        *ends = (*ends).max(now + millis(lease));
                        Reply::Int(1)
                    }
                    _ => Reply::Int(0),
                }
            }
            [b"EVALSHA", _, b"2", key, _, mark, count, own]
                if script == Some("single_key/reserve_tokens") =>
            {
                let last = server.counter.max(number(own));
                match server.keys.get(*key).is_some_and(|(at, _)| at == mark) {
                    true => {
                        server.counter = last + number(count);
                        Reply::List(vec![Reply::Int(last + 1), Reply::Int(number(count))])
                    }
                    false => Reply::Int(0),
                }
            }
            other => panic!("BUG: unknown command: {other:?}"),
        }
    }

    fn publish(self: &Arc<Self>, listeners: &[SimulatedListener], text: &[u8]) -> i64 {
        for (_, listener) in listeners {
            if self.happens(50) {
                continue;
            }
            let (listener, text, after) = (listener.clone(), text.to_vec(), self.delay());
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                listener.on_event(PubSubEvent::Message {
                    text: &text,
                    connection: 0,
                });
            });
        }
        i64::try_from(listeners.len()).unwrap_or(i64::MAX)
    }
}

fn number(digits: &[u8]) -> i64 {
    let text = std::str::from_utf8(digits).unwrap_or_default();
    text.parse().expect("BUG: a number")
}

fn millis(digits: &[u8]) -> Duration {
    Duration::from_millis(number(digits).unsigned_abs())
}

/// The connections of one process.
pub(crate) struct Simulated {
    world: Arc<World>,
    requests: Mutex<Arc<SimulatedConnection>>,
    keeper: Mutex<Arc<SimulatedConnection>>,
}

impl Backend for Simulated {
    fn connection(
        &self,
        purpose: Purpose,
        slot: Slot,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        let connection = self.open_connection(purpose, slot);
        Box::pin(async move { connection.ok_or(RequestError::ShutDown) })
    }

    fn open_connection(&self, purpose: Purpose, _slot: Slot) -> Option<Arc<dyn Connection>> {
        let connection = match purpose {
            Purpose::Requests => &self.requests,
            Purpose::Keeper => &self.keeper,
        };
        let mut connection = connection.lock();
        if connection.is_broken() {
            *connection = Arc::new(SimulatedConnection::new(&self.world));
        }
        Some(connection.clone())
    }

    fn acknowledged(
        &self,
        purpose: Purpose,
        slot: Slot,
        _wanted: ReplicaAck,
        _timeout: Duration,
    ) -> BoxFuture<'_, Result<Arc<dyn Connection>, RequestError>> {
        self.connection(purpose, slot)
    }

    fn node(&self, _slot: Slot) -> usize {
        0
    }

    fn subscribe(
        &self,
        channel: Channel,
        _slot: Slot,
        listener: Arc<dyn Listener>,
    ) -> BoxFuture<'_, Result<Subscription, RequestError>> {
        Box::pin(async move {
            tokio::time::sleep(self.world.delay()).await;
            let id = self.world.connections.fetch_add(1, Ordering::SeqCst);
            let world = self.world.clone();
            let mut server = world.server.lock();
            let listeners = server.listeners.entry(channel.clone());
            listeners.or_default().push((id, listener));
            drop(server);
            Ok(Subscription::new(Box::new(SimulatedSubscription {
                world,
                channel,
                id,
            })))
        })
    }
}

struct SimulatedSubscription {
    world: Arc<World>,
    channel: Channel,
    id: u64,
}

impl Unsubscribe for SimulatedSubscription {}

impl Drop for SimulatedSubscription {
    fn drop(&mut self) {
        let mut server = self.world.server.lock();
        let listeners = server.listeners.get_mut(&self.channel);
        let removed = listeners.and_then(|listeners| {
            let at = listeners.iter().position(|(id, _)| *id == self.id)?;
            Some(listeners.swap_remove(at))
        });
        // Dropping the listener may end other subscriptions, which need the
        // lock.
        drop(server);
        drop(removed);
    }
}

/// A connection to the simulated server.
struct SimulatedConnection {
    world: Arc<World>,
    id: u64,
    broken: AtomicBool,
    /// When the last request is executed.
    last_execution: Mutex<BootInstant>,
}

impl SimulatedConnection {
    fn new(world: &Arc<World>) -> Self {
        Self {
            world: world.clone(),
            id: world.connections.fetch_add(1, Ordering::SeqCst),
            broken: AtomicBool::new(false),
            last_execution: Mutex::new(BootInstant::now()),
        }
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Returns when a request that is sent now is executed: after all earlier
    /// ones.
    fn execution(&self, breaks: bool) -> BootInstant {
        let delay = match breaks {
            true => Duration::from_millis(self.world.below(LATE.as_millis() as u64)),
            false => self.world.delay(),
        };
        let mut last = self.last_execution.lock();
        *last = (*last).max(BootInstant::now() + delay);
        *last
    }
}

impl Connection for SimulatedConnection {
    fn facts(&self) -> Arc<ServerFacts> {
        Arc::new(ServerFacts {
            server_time: 0,
            read_at: BootInstant::now(),
            version: "simulated 1".to_owned(),
            run_id: None,
            capabilities: Capabilities {
                delex: true,
                ..Capabilities::default()
            },
        })
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn is_silent_for(&self, _time: Duration) -> bool {
        true
    }

    fn retire_if_silent(&self, _time: Duration) {}

    fn ask(
        &self,
        batch: Batch,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Vec<Reply>, RequestError>> {
        let world = self.world.clone();
        if self.is_broken() {
            return Box::pin(async {
                Err(RequestError::Unreachable("the connection is broken".into()))
            });
        }
        let breaks = world.happens(15);
        let (at, lost) = (self.execution(breaks), world.happens(10));
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep_until(at.as_timer()).await;
            if lost {
                return;
            }
            let replies = world.execute(&batch);
            if !world.happens(20) {
                tokio::time::sleep(world.delay()).await;
                let _ = sender.send(replies);
            } else {
                // The reply is lost, but the connection stays open.
                tokio::time::sleep(LATE).await;
            }
        });
        self.broken.fetch_or(breaks || lost, Ordering::SeqCst);
        Box::pin(async move {
            if breaks {
                return Err(RequestError::Unknown("the connection broke".into()));
            }
            match tokio::time::timeout(timeout, receiver).await {
                Ok(Ok(replies)) => Ok(replies),
                _ => Err(RequestError::Unknown("no reply".into())),
            }
        })
    }
}
