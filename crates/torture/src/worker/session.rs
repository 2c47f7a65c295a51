//! The state that the tasks of a worker share, and the loop of each task.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use testkit::{Connection, SeededRng};

use super::job::{Job, lock_name};
use super::locks::{Held, Locks, Request};
use crate::fenced_store;
use crate::history::{Event, EventKind, Failure, Log, now};
use crate::plan::{Kind, PERMITS};

/// What the tasks of a worker share.
pub(super) struct Session {
    pub(super) job: Job,
    pub(super) locks: Locks,
    log: Log,
    next_hold: AtomicU64,
    pub(super) stop: Arc<AtomicBool>,
    /// Idle connections to the store.
    stores: Mutex<Vec<Connection>>,
}

impl Session {
    /// Connects. Holds are numbered from `first_hold`.
    pub(super) async fn connect(job: Job, stop: Arc<AtomicBool>, first_hold: u64) -> Arc<Self> {
        Arc::new(Self {
            log: Log::open(&job.history).expect("a file for the history"),
            next_hold: AtomicU64::new(first_hold),
            stop,
            stores: Mutex::default(),
            locks: Locks::connect(&job).await,
            job,
        })
    }

    /// Returns the number of a new hold.
    pub(super) fn next_hold(&self) -> u64 {
        self.next_hold.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn rng(&self, task: u64) -> SeededRng {
        let seed = self.job.plan.seed.wrapping_mul(1_000_003);
        SeededRng::new(seed.wrapping_add(self.job.number as u64 * 1009 + task))
    }

    /// Acquires and releases locks until the session is stopped.
    pub(super) async fn acquire_loop(self: Arc<Self>, task: u64) {
        let mut rng = self.rng(task);
        while !self.stop.load(Ordering::SeqCst) {
            // Boxed: an adopted lock can be handed over again.
            if Box::pin(self.adopt(&mut rng)).await {
                continue;
            }
            let (lock, request) = self.choose(&mut rng);
            let hold = self.next_hold();
            let unpolled = self.job.plan.unpolled_every;
            if unpolled > 0 && rng.below(unpolled) == 0 {
                self.acquire_unpolled(lock, hold, &mut rng).await;
                continue;
            }
            let (weight, waits) = (request.weight, request.timeout.is_some());
            self.record(lock, hold, EventKind::Requested { weight, waits });
            let kind = self.job.plan.kind(lock);
            let name = lock_name(lock);
            let acquire = self.locks.acquire(kind, &name, request);
            // Some requests are cancelled early.
            let limit = match rng.below(30) {
                0 => Duration::from_micros(rng.below(3000)),
                _ => Duration::from_secs(60),
            };
            let failure = match tokio::time::timeout(limit, acquire).await {
                Ok(Ok(held)) => {
                    self.hold(lock, hold, held, &mut rng).await;
                    continue;
                }
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Cancelled,
            };
            self.record(lock, hold, EventKind::Failed(failure));
            if failure != Failure::Cancelled {
                tokio::time::sleep(Duration::from_millis(rng.below(20))).await;
            }
        }
    }

    /// Waits for a lock without polling for longer than other waiters may wait,
    /// and then polls again or cancels.
    async fn acquire_unpolled(&self, lock: u32, hold: u64, rng: &mut SeededRng) {
        let plan = &self.job.plan;
        // The limit on waiting does not apply to this waiter.
        let (weight, waits) = (1, false);
        self.record(lock, hold, EventKind::Requested { weight, waits });
        let timeout = Some(plan.max_wait() * 4);
        let name = lock_name(lock);
        let request = Request { weight, timeout };
        let mut acquire = Box::pin(self.locks.acquire(plan.kind(lock), &name, request));
        let first = Duration::from_millis(rng.below(20));
        let mut outcome = tokio::time::timeout(first, &mut acquire).await;
        if outcome.is_err() {
            tokio::time::sleep(plan.max_wait() * 2).await;
            let second = Duration::from_millis(rng.below(2) * 50);
            outcome = tokio::time::timeout(second, &mut acquire).await;
        }
        drop(acquire);
        match outcome {
            Ok(Ok(held)) => self.hold(lock, hold, held, rng).await,
            Ok(Err(failure)) => self.record(lock, hold, EventKind::Failed(failure)),
            Err(_) => self.record(lock, hold, EventKind::Failed(Failure::Cancelled)),
        }
    }

    /// Chooses a lock, a weight and a timeout. Most timeouts are short, or all
    /// tasks would soon wait for the same lock.
    fn choose(&self, rng: &mut SeededRng) -> (u32, Request) {
        let locks = u64::from(self.job.plan.locks);
        let lock = match rng.below(8) {
            // Eight locks are contended more than the others.
            0 => rng.below(locks.min(8)),
            _ => rng.below(locks),
        };
        let lock = u32::try_from(lock).unwrap_or_default();
        let kind = self.job.plan.kind(lock);
        let weight = match (kind, rng.below(4)) {
            (Kind::Semaphore, 0) => PERMITS - 1,
            (Kind::ReadWrite | Kind::RedissonReadWrite, 0) => kind.capacity(),
            _ => 1,
        };
        // Replica acknowledgement takes longer.
        let short = if self.job.plan.replica_acks { 150 } else { 20 };
        let timeout = match rng.below(10) {
            _ if self.job.plan.always_wait => Some(self.job.plan.max_wait_ms * 2),
            0..3 => None,
            3..9 => Some(short),
            _ => Some(self.job.plan.max_wait_ms * 2),
        };
        let timeout = timeout.map(Duration::from_millis);
        (lock, Request { weight, timeout })
    }

    pub(super) async fn hold(&self, lock: u32, hold: u64, held: Held, rng: &mut SeededRng) {
        let token = held.token();
        let (at, deadline) = (now(), held.deadline());
        self.record_at(lock, hold, at, EventKind::Acquired { token, deadline });
        let mut end = HoldEnd::new(self, lock, hold);
        let exclusive = self.job.plan.kind(lock).capacity() == 1;
        let writes = token > 0 && exclusive && rng.below(4) == 0;
        let read = if writes {
            self.with_store(|store| fenced_store::read(store, lock, token))
        } else {
            None
        };
        // Most holds are short; some last longer than a lease.
        let (steps, pause) = match rng.below(self.job.plan.long_hold_every.max(1)) {
            0 => (rng.below(20), self.job.plan.lease_ms / 8),
            _ => (1, rng.below(2)),
        };
        for _ in 0..steps {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let deadline = held.deadline();
            if !held.is_valid() {
                self.record(lock, hold, EventKind::Lost);
                break;
            }
            self.record(lock, hold, EventKind::Valid { deadline });
        }
        if let Some(read) = read {
            // Writes even if the lock is lost: the token must prevent harm.
            let writer = fenced_store::writer(self.job.number, hold);
            let accepted =
                self.with_store(|store| fenced_store::write(store, lock, token, &writer, read));
            self.record(lock, hold, EventKind::Wrote { token, accepted });
        }
        end.record();
        if self.hands_over(lock, rng) {
            return self.hand_over(lock, hold, held, rng).await;
        }
        if held.release(rng.below(4) == 0).await {
            self.record(lock, hold, EventKind::Released);
        }
    }

    /// Calls `work` with a connection to the store that no other task uses. The
    /// number of connections is that of the threads.
    pub(super) fn with_store<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> T {
        let idle = self.stores.lock().expect("no panic").pop();
        let open = || Connection::open(self.job.store).expect("the store is up");
        let mut store = idle.unwrap_or_else(open);
        let result = work(&mut store);
        self.stores.lock().expect("no panic").push(store);
        result
    }

    pub(super) fn record(&self, lock: u32, hold: u64, kind: EventKind) {
        self.record_at(lock, hold, now(), kind);
    }

    fn record_at(&self, lock: u32, hold: u64, at: u64, kind: EventKind) {
        self.log.record(&Event {
            lock,
            hold,
            at,
            kind,
        });
    }
}

/// Records the end of a hold before the lock is released, even if the runtime
/// shuts down first.
struct HoldEnd<'a> {
    session: &'a Session,
    lock: u32,
    hold: u64,
    recorded: bool,
}

impl<'a> HoldEnd<'a> {
    fn new(session: &'a Session, lock: u32, hold: u64) -> Self {
        Self {
            session,
            lock,
            hold,
            recorded: false,
        }
    }

    fn record(&mut self) {
        if !std::mem::replace(&mut self.recorded, true) {
            self.session
                .record(self.lock, self.hold, EventKind::Releasing);
        }
    }
}

impl Drop for HoldEnd<'_> {
    fn drop(&mut self) {
        self.record();
    }
}
