//! The local queue under schedules that a machine would hardly ever choose.
//!
//! Built with `cfg(shuttle)`, the crate's mutex lets a random scheduler switch
//! tasks. Around the queue stands a small model of `OwnedLease` and
//! `LeaseState`: a lock that hands itself off when it is dropped, a server
//! that one lease at a time holds, and a nemesis that revokes leases. The
//! scheduler reports a task that waits forever as a deadlock.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::lease::wait::local_queue::{Enqueued, Leader, LocalQueue, Wake};
use crate::sync::Mutex;

type ModelQueue = LocalQueue<ModelState, ModelLock>;

/// There is one: its owner may ask the server.
struct ModelState;

/// The number of hand-offs before the lock returns to the server.
const MAX_HANDOFFS: u64 = 3;

/// One lease on the server, shared by the holders that hand it off.
struct ModelLease {
    ended: AtomicBool,
    generation: AtomicU64,
    queue: Mutex<Option<Arc<ModelQueue>>>,
}

#[derive(Default)]
struct World {
    server: Mutex<Option<Arc<ModelLease>>>,
    /// The last holder.
    inside: Mutex<Option<(Arc<ModelLease>, u64)>>,
    entered: AtomicU64,
}

struct ModelLock {
    lease: Arc<ModelLease>,
    generation: u64,
    world: Arc<World>,
    /// Whether it can be handed off.
    wanted: bool,
}

impl ModelLease {
    fn is_valid(&self, generation: u64) -> bool {
        !self.ended.load(Ordering::SeqCst) && self.generation.load(Ordering::SeqCst) == generation
    }

    /// Returns `false` if it has already ended.
    fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::SeqCst)
    }

    fn notify_released(&self) {
        let queue = self.queue.lock().take();
        if let Some(queue) = queue {
            queue.elect_leader(|_| ());
        }
    }
}

impl World {
    /// Attempts until the server grants the lock.
    async fn acquire(self: &Arc<Self>) -> ModelLock {
        loop {
            if let Some(lock) = self.try_acquire() {
                return lock;
            }
            yield_now().await;
        }
    }

    fn try_acquire(self: &Arc<Self>) -> Option<ModelLock> {
        let mut server = self.server.lock();
        if server.is_some() {
            return None;
        }
        let lease = Arc::new(ModelLease {
            ended: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            queue: Mutex::new(None),
        });
        *server = Some(lease.clone());
        Some(ModelLock {
            lease,
            generation: 0,
            world: self.clone(),
            wanted: true,
        })
    }

    fn release(&self, lease: &Arc<ModelLease>) {
        let mut server = self.server.lock();
        if server.as_ref().is_some_and(|held| Arc::ptr_eq(held, lease)) {
            *server = None;
        }
    }

    /// Revokes the lock from its holder.
    fn revoke(&self) {
        let Some(lease) = self.server.lock().clone() else {
            return;
        };
        if lease.end() {
            lease.notify_released();
            self.release(&lease);
        }
    }

    /// Asserts that no other holder is inside.
    fn enter(&self, lock: &ModelLock) {
        let mut inside = self.inside.lock();
        if let Some((lease, generation)) = &*inside {
            let both = lease.is_valid(*generation) && lock.lease.is_valid(lock.generation);
            assert!(!both, "two holders");
        }
        *inside = Some((lock.lease.clone(), lock.generation));
        self.entered.fetch_add(1, Ordering::SeqCst);
    }
}

impl ModelLock {
    fn hand_off(&mut self) -> bool {
        if self.lease.ended.load(Ordering::SeqCst) || self.generation >= MAX_HANDOFFS {
            return false;
        }
        let Some(queue) = self.lease.queue.lock().clone() else {
            return false;
        };
        let next = Self {
            lease: self.lease.clone(),
            generation: self.lease.generation.fetch_add(1, Ordering::SeqCst) + 1,
            world: self.world.clone(),
            wanted: true,
        };
        match queue.hand_off(next) {
            Ok(()) => true,
            Err(mut unneeded) => {
                // Its drop ends the lease, which the caller does next anyway.
                unneeded.wanted = false;
                false
            }
        }
    }
}

impl Drop for ModelLock {
    fn drop(&mut self) {
        if self.wanted && self.hand_off() {
            return;
        }
        if self.lease.end() {
            self.world.release(&self.lease);
            self.lease.notify_released();
        }
    }
}

fn on_acquired(leader: Leader<ModelState, ModelLock>, lock: &ModelLock, queue: &Arc<ModelQueue>) {
    leader.park();
    *lock.lease.queue.lock() = Some(queue.clone());
    if lock.lease.ended.load(Ordering::SeqCst) {
        lock.lease.notify_released();
    }
}

async fn wait(world: &Arc<World>, queue: &Arc<ModelQueue>, picky: bool) -> ModelLock {
    let mut enqueued = queue.enqueue();
    loop {
        match enqueued.woken().await {
            Wake::Lead(leader) => {
                let lock = world.acquire().await;
                on_acquired(leader, &lock, queue);
                return lock;
            }
            Wake::Hold(mut lock) => {
                // As a task that reserves tokens does.
                yield_now().await;
                if !picky && lock.lease.is_valid(lock.generation) {
                    return lock;
                }
                lock.wanted = false;
                enqueued = queue.requeue_front();
                drop(lock);
            }
        }
    }
}

async fn hold(world: Arc<World>, queue: Arc<ModelQueue>, picky: bool) {
    for _ in 0..2 {
        let lock = wait(&world, &queue, picky).await;
        world.enter(&lock);
        yield_now().await;
    }
}

/// Drops `work` after `steps` polls.
async fn cancel_after(steps: u32, work: impl Future<Output = ()>) {
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

fn scenario() {
    let world = Arc::new(World::default());
    let queue = Arc::new(LocalQueue::new(ModelState));
    let mut tasks = Vec::new();
    for number in 0..4 {
        let work = hold(world.clone(), queue.clone(), number == 2);
        // One task is cancelled at a random poll, even while it is woken.
        let steps = match number {
            1 => thread_rng().gen_range(1..12),
            _ => u32::MAX,
        };
        tasks.push(spawn(cancel_after(steps, work)));
    }
    let nemesis = world.clone();
    tasks.push(spawn(async move {
        for _ in 0..thread_rng().gen_range(0..3) {
            yield_now().await;
            nemesis.revoke();
        }
    }));
    block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert!(world.entered.load(Ordering::SeqCst) >= 6, "a task starved");
    assert!(world.server.lock().is_none(), "a lock is left");
    let vacant = queue.enqueue();
    let leads = matches!(vacant, Enqueued::Woken(Wake::Lead(_)));
    assert!(leads, "a leader is left");
}

fn schedules() -> usize {
    usize::try_from(testkit::scaled(1_000)).unwrap()
}

#[test]
fn exclusive_under_random_schedules() {
    shuttle::check_random(scenario, schedules());
}

#[test]
fn exclusive_under_unfair_schedules() {
    shuttle::check_pct(scenario, schedules(), 4);
}
