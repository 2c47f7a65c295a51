//! Runs the library's local queue under a random scheduler, with its mutex
//! replaced by one at which the scheduler can switch tasks.
//!
//! A small model of the lease layer surrounds it: a lock that is handed off
//! when it is dropped, a server that grants one lease at a time, and a task
//! that revokes leases. The scheduler detects a task that waits forever,
//! because no other task can run.

#![allow(clippy::unwrap_used)]

// The included file imports its mutex from `parking_lot`. Here that name refers
// to this crate, which defines `Mutex` below.
extern crate self as parking_lot;

#[allow(dead_code, unreachable_pub, missing_docs, clippy::duplicate_mod)]
#[path = "../../leasehold/src/lease/gate.rs"]
mod gate;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use gate::{Desk, Gate, Turn};
use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A mutex without poisoning, at which the scheduler can switch tasks.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Same as in `parking_lot`.
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// Same as in `parking_lot`.
    pub fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

type LockGate = Gate<Paper, Lock>;

/// The state of the leader, the one task that may send requests to the server.
struct Paper;

/// How often a lock is handed off before it is released.
const ROUND: u64 = 3;

/// A lease on the server, shared by the tasks that hand it off.
struct Lease {
    ended: AtomicBool,
    tenure: AtomicU64,
    passage: Mutex<Option<Arc<LockGate>>>,
}

#[derive(Default)]
struct World {
    server: Mutex<Option<Arc<Lease>>>,
    /// The last holder that entered.
    inside: Mutex<Option<(Arc<Lease>, u64)>>,
    entered: AtomicU64,
}

struct Lock {
    lease: Arc<Lease>,
    tenure: u64,
    world: Arc<World>,
    /// Whether the lock may be handed off.
    wanted: bool,
}

impl Lease {
    fn is_valid(&self, tenure: u64) -> bool {
        !self.ended.load(Ordering::SeqCst) && self.tenure.load(Ordering::SeqCst) == tenure
    }

    /// Ends the lease. Returns false if it had already ended.
    fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::SeqCst)
    }

    fn is_gone(&self) {
        let gate = self.passage.lock().take();
        if let Some(gate) = gate {
            gate.lock_is_gone(|_| ());
        }
    }
}

impl World {
    /// Retries until the server grants the lock.
    async fn acquire(self: &Arc<Self>) -> Lock {
        loop {
            if let Some(lock) = self.try_acquire() {
                return lock;
            }
            yield_now().await;
        }
    }

    fn try_acquire(self: &Arc<Self>) -> Option<Lock> {
        let mut server = self.server.lock();
        if server.is_some() {
            return None;
        }
        let lease = Arc::new(Lease {
            ended: AtomicBool::new(false),
            tenure: AtomicU64::new(0),
            passage: Mutex::new(None),
        });
        *server = Some(lease.clone());
        Some(Lock {
            lease,
            tenure: 0,
            world: self.clone(),
            wanted: true,
        })
    }

    fn free(&self, lease: &Arc<Lease>) {
        let mut server = self.server.lock();
        if server.as_ref().is_some_and(|held| Arc::ptr_eq(held, lease)) {
            *server = None;
        }
    }

    /// Revokes the current lease, if any.
    fn take_away(&self) {
        let Some(lease) = self.server.lock().clone() else {
            return;
        };
        if lease.end() {
            lease.is_gone();
            self.free(&lease);
        }
    }

    /// Asserts that no other valid holder is inside.
    fn enter(&self, lock: &Lock) {
        let mut inside = self.inside.lock();
        if let Some((lease, tenure)) = &*inside {
            let still = lease.is_valid(*tenure) && lock.lease.is_valid(lock.tenure);
            assert!(!still, "two holders");
        }
        *inside = Some((lock.lease.clone(), lock.tenure));
        self.entered.fetch_add(1, Ordering::SeqCst);
    }
}

impl Lock {
    fn hand_on(&mut self) -> bool {
        if self.lease.ended.load(Ordering::SeqCst) || self.tenure >= ROUND {
            return false;
        }
        let gate = self.lease.passage.lock().clone();
        let Some(gate) = gate else {
            return false;
        };
        let next = Self {
            lease: self.lease.clone(),
            tenure: self.lease.tenure.fetch_add(1, Ordering::SeqCst) + 1,
            world: self.world.clone(),
            wanted: true,
        };
        match gate.hand_on(next) {
            Ok(()) => true,
            Err(mut not_needed) => {
                // Dropping it ends the lease, as the caller does anyway.
                not_needed.wanted = false;
                false
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.wanted && self.hand_on() {
            return;
        }
        if self.lease.end() {
            self.world.free(&self.lease);
            self.lease.is_gone();
        }
    }
}

fn took(desk: Desk<Paper, Lock>, lock: &Lock, gate: &Arc<LockGate>) {
    desk.has_the_lock();
    *lock.lease.passage.lock() = Some(gate.clone());
    if lock.lease.ended.load(Ordering::SeqCst) {
        lock.lease.is_gone();
    }
}

async fn wait(world: &Arc<World>, gate: &Arc<LockGate>, picky: bool) -> Lock {
    let mut standing = gate.enter();
    loop {
        match standing.called().await {
            Turn::Desk(desk) => {
                let lock = world.acquire().await;
                took(desk, &lock, gate);
                return lock;
            }
            Turn::Lock(mut lock) => {
                // Models a request for more tokens.
                yield_now().await;
                if !picky && lock.lease.is_valid(lock.tenure) {
                    return lock;
                }
                lock.wanted = false;
                standing = gate.enter_again();
                drop(lock);
            }
        }
    }
}

async fn hold(world: Arc<World>, gate: Arc<LockGate>, picky: bool) {
    for _ in 0..2 {
        let lock = wait(&world, &gate, picky).await;
        world.enter(&lock);
        yield_now().await;
    }
}

/// Polls `work` at most `steps` times, and then drops it.
async fn at_most(steps: u32, work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    let mut remaining = steps;
    poll_fn(|context| {
        remaining = remaining.saturating_sub(1);
        match remaining {
            0 => Poll::Ready(()),
            _ => work.as_mut().poll(context),
        }
    })
    .await;
}

fn story() {
    let world = Arc::new(World::default());
    let gate = Arc::new(Gate::new(Paper));
    let mut tasks = Vec::new();
    for number in 0..4 {
        let work = hold(world.clone(), gate.clone(), number == 2);
        // One task is cancelled at any point, even while it is woken.
        let steps = if number == 1 {
            thread_rng().gen_range(1..12)
        } else {
            u32::MAX
        };
        tasks.push(spawn(at_most(steps, work)));
    }
    let nemesis = world.clone();
    tasks.push(spawn(async move {
        for _ in 0..thread_rng().gen_range(0..3) {
            yield_now().await;
            nemesis.take_away();
        }
    }));
    block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert!(
        world.entered.load(Ordering::SeqCst) >= 6,
        "a waiter was not served"
    );
    assert!(
        world.server.lock().is_none(),
        "the server still holds a lock"
    );
    let free = gate.enter();
    assert!(
        matches!(free, gate::Standing::Called(Turn::Desk(_))),
        "the queue still has a leader"
    );
}

fn schedules() -> usize {
    usize::try_from(testkit::scaled(1_000)).unwrap()
}

#[test]
fn exclusive_under_random_schedules() {
    shuttle::check_random(story, schedules());
}

#[test]
fn exclusive_under_unfair_schedules() {
    shuttle::check_pct(story, schedules(), 4);
}
