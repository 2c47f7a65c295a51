//! Clients of a fleet that moves to another server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, MultiLock, Replicas};
use testkit::{Connection, SeededRng};
use tokio::task::JoinSet;

use crate::support::contract::{Guard, HeldGuard, any_lock};
use crate::support::{AMPLE, with_long_timeouts};

/// Claims a resource, unless a token as large was seen before. Returns the
/// value of the counter.
///
/// Keeps the longest wait, and for how long a resource was not claimed although
/// a client waited for it.
const CLAIM: &str = "local seen = tonumber(redis.call('HGET', KEYS[1], 'token') or 0)
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local claimed = tonumber(redis.call('HGET', KEYS[1], 'claimed') or 0)
    redis.call('HSET', KEYS[1], 'claimed', now)
    local waited = tonumber(ARGV[2])
    for key, value in pairs({waited = waited, idle = math.min(waited, now - claimed)}) do
        local longest = tonumber(redis.call('GET', key) or 0)
        redis.call('SET', key, math.max(longest, value))
    end
    if tonumber(ARGV[1]) <= seen then return -1 end
    redis.call('HSET', KEYS[1], 'token', ARGV[1])
    return tonumber(redis.call('HGET', KEYS[1], 'value') or 0)";

/// Writes the counter, unless a later holder has claimed the resource. Counts
/// the writes.
const WRITE: &str = "if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return -1 end
    redis.call('HSET', KEYS[1], 'value', ARGV[2])
    redis.call('INCR', 'writes')
    return redis.call('HINCRBY', KEYS[1], 'writes', 1)";

/// Which servers the clients of one process know.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Old,
    Both,
    New,
}

/// What the clients of one process do.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) step: Step,
    /// The URLs of the servers.
    pub(crate) old: String,
    pub(crate) new: String,
    /// The port of the store.
    pub(crate) store: u16,
    /// Whether all replicas acknowledge each lock.
    pub(crate) acks: bool,
    pub(crate) clients: u64,
    pub(crate) locks: u64,
    pub(crate) lease: Duration,
    /// How long a client holds a lock.
    pub(crate) hold: Duration,
    /// The longest pause between two holds.
    pub(crate) pause: Duration,
}

impl Host {
    /// Returns the command that makes a worker this host.
    pub(crate) fn command(&self) -> String {
        let step = self.step as u8;
        let (old, new, store) = (&self.old, &self.new, self.store);
        let times = [self.lease, self.hold, self.pause];
        let [lease, hold, pause] = times.map(|time| time.as_millis());
        let (acks, clients, locks) = (u8::from(self.acks), self.clients, self.locks);
        format!("move {step} {old} {new} {store} {acks} {clients} {locks} {lease} {hold} {pause}")
    }

    pub(super) fn parse(words: &[&str]) -> Self {
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let time = |at| Duration::from_millis(number(at));
        Self {
            step: match number(0) {
                0 => Step::Old,
                1 => Step::Both,
                _ => Step::New,
            },
            old: words[1].to_owned(),
            new: words[2].to_owned(),
            store: u16::try_from(number(3)).expect("a port"),
            acks: number(4) == 1,
            clients: number(5),
            locks: number(6),
            lease: time(7),
            hold: time(8),
            pause: time(9),
        }
    }

    /// Starts the clients, which run until `stop` is set.
    pub(super) fn start(&self, stop: &Arc<AtomicBool>) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        for number in 0..self.clients {
            let (host, stop) = (self.clone(), stop.clone());
            let seed = u64::from(std::process::id()) * 1000 + number;
            clients.spawn(async move { host.serve(&stop, SeededRng::new(seed)).await });
        }
        clients
    }

    async fn serve(&self, stop: &AtomicBool, mut rng: SeededRng) {
        let connect = async |url: &str| loop {
            let mut connect = with_long_timeouts(Client::connect(url)).lease(self.lease);
            if self.acks {
                connect = connect.replicas(Replicas::All, self.lease / 4);
            }
            // A server may be restarting.
            if let Ok(client) = connect.request_timeout(self.lease / 2).await {
                return client;
            }
        };
        let mut clients = Vec::new();
        if matches!(self.step, Step::Old | Step::Both) {
            clients.push(connect(&self.old).await);
        }
        if matches!(self.step, Step::Both | Step::New) {
            clients.push(connect(&self.new).await);
        }
        let mut store = Connection::open(self.store).expect("the store is up");
        while !stop.load(Ordering::Relaxed) {
            let pause = self.pause.mul_f64(rng.below(1000) as f64 / 1000.0);
            tokio::time::sleep(pause).await;
            let number = rng.below(self.locks);
            let start = Instant::now();
            let part = |client: &Client| any_lock(client, &format!("m{number}"), number);
            let held = match clients.as_slice() {
                [old, new] => {
                    let both = MultiLock::moving(part(old), part(new)).timeout(AMPLE);
                    self.write(both.await, number, start, &mut store).await
                }
                [one] => {
                    let held = part(one).timeout(AMPLE).await;
                    self.write::<Guard>(held, number, start, &mut store).await
                }
                _ => unreachable!("one server or two"),
            };
            match held {
                Err(Error::Timeout { .. }) => {
                    store.ask(&["INCR", "deadlocks"]).expect("the store is up");
                }
                // A server restarts.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Ok(()) => {}
            }
        }
    }

    /// Increments the counter of a lock that was granted.
    async fn write<G: HeldGuard>(
        &self,
        held: Result<G, Error>,
        number: u64,
        start: Instant,
        store: &mut Connection,
    ) -> Result<(), Error> {
        let held = held?;
        let waited = start.elapsed().as_millis().to_string();
        let token = held.leases()[0].token().to_string();
        let resource = format!("resource:{number}");
        let mut ask = |script: &str, args: [&str; 2]| {
            let eval = ["EVAL", script, "1", &resource, args[0], args[1]];
            store.ask(&eval).expect("the store is up").int()
        };
        let mut reply = ask(CLAIM, [&token, &waited]);
        if reply >= 0 {
            tokio::time::sleep(self.hold).await;
            reply = ask(WRITE, [&token, &(reply + 1).to_string()]);
        }
        // Refused although the lease was valid all the time: another client
        // held the lock too, or the token is not above the one before.
        if reply < 0 && held.leases().iter().all(|lease| lease.check().is_ok()) {
            store.ask(&["INCR", "overlaps"]).expect("the store is up");
        }
        held.release().await
    }
}
