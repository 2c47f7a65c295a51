//! The slot queue under schedules that a machine would hardly ever choose.
//!
//! Built with `cfg(shuttle)`, the crate's mutex lets a random scheduler switch
//! tasks. Around the queue stands a small model of `OwnedLease` and
//! `LeaseState`: a lock that hands itself off when it is dropped, a server
//! that one lease at a time holds, and a nemesis that revokes leases. The
//! scheduler reports a task that waits forever as a deadlock.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::backend::RequestError;
use crate::lease::wait::slots::{Place, SlotQueue, Step};
use crate::sync::Mutex;
use crate::time::BootInstant;

/// The terms are whether a caller accepts a lock that was handed off.
type ModelQueue = SlotQueue<bool, ModelLock>;

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
    failed: AtomicU64,
    /// The queue of the waiting task that runs.
    registry: Mutex<Option<Arc<ModelQueue>>>,
    /// Whether outages end waits, and waiting tasks end before their time.
    has_failures: bool,
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
            queue.set_here(false);
        }
    }
}

impl World {
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

    /// Revokes the lock from the holder.
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
        let fits = |accepts: &bool| *accepts;
        let offered = match next.generation % 2 {
            0 => queue.grant(next, fits),
            _ => queue.park(next, fits),
        };
        match offered {
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

/// Ends the waits at a lock whose task ends.
struct EndOnDrop(Arc<World>, Arc<ModelQueue>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let Self(world, queue) = self;
        let mut registry = world.registry.lock();
        let is_current = |current: &Arc<ModelQueue>| Arc::ptr_eq(current, queue);
        if registry.as_ref().is_some_and(is_current) {
            *registry = None;
        }
        drop(registry);
        drop(queue.close());
    }
}

/// The waiting task.
async fn serve(ending: EndOnDrop) {
    let EndOnDrop(world, queue) = &ending;
    loop {
        match queue.next_step() {
            Step::Prepare(lock) => {
                yield_now().await;
                drop(queue.grant(lock, |accepts| *accepts));
            }
            Step::Seek(slot) => loop {
                yield_now().await;
                take_back(queue);
                if queue.test_first(|terms| *terms == slot.terms) != Some(true) {
                    break;
                }
                if world.has_failures && thread_rng().gen_range(0..8) == 0 {
                    let error = RequestError::Unknown("an outage".into());
                    queue.fail_overdue(BootInstant::from_nanos(0), Duration::ZERO, &error);
                } else if let Some(lock) = world.try_acquire() {
                    yield_now().await;
                    deliver(queue, lock, slot.terms);
                    break;
                }
            },
            Step::StandBy => match take_back(queue) {
                true => queue.changed().await,
                false => yield_now().await,
            },
            Step::End => {
                let mut registry = world.registry.lock();
                if queue.close_if_idle() {
                    *registry = None;
                    return;
                }
            }
        }
    }
}

/// Takes back what is not claimed, sometimes. Returns whether nothing is to be
/// watched. The patience of the waiting task is short.
fn take_back(queue: &ModelQueue) -> bool {
    let now = match thread_rng().gen_range(0..3) {
        0 => BootInstant::from_nanos(u64::MAX - 1),
        _ => BootInstant::from_nanos(0),
    };
    let (unclaimed, due) = queue.take_back(now);
    unclaimed.is_empty() && due == BootInstant::NEVER
}

fn deliver(queue: &Arc<ModelQueue>, lock: ModelLock, terms: bool) {
    let lease = lock.lease.clone();
    if terms {
        queue.set_here(true);
        *lease.queue.lock() = Some(queue.clone());
        if lease.ended.load(Ordering::SeqCst) {
            lease.notify_released();
        }
    }
    if let Err(mut unneeded) = queue.grant(lock, |other| *other == terms) {
        unneeded.wanted = false;
    }
}

/// Adds a slot, and starts the waiting task with the first one. The caller may
/// have found the queue before the task ended.
fn line_up(
    world: &Arc<World>,
    joined: Option<Arc<ModelQueue>>,
    terms: bool,
) -> Place<bool, ModelLock> {
    if let Some(place) = joined.and_then(|queue| queue.enqueue(terms).ok()) {
        return place;
    }
    let mut registry = world.registry.lock();
    let current = registry.as_ref();
    if let Some(place) = current.and_then(|queue| queue.enqueue(terms).ok()) {
        return place;
    }
    let queue = Arc::<ModelQueue>::default();
    *registry = Some(queue.clone());
    let place = queue.enqueue(terms).unwrap();
    drop(registry);
    // The keeper may end at any poll of the task.
    let polls = match world.has_failures {
        true => thread_rng().gen_range(1..30),
        false => u32::MAX,
    };
    // Also before the first one.
    let task = serve(EndOnDrop(world.clone(), queue));
    drop(spawn(cancel_after(polls, task)));
    place
}

/// Returns `None` if the wait fails.
async fn wait(world: &Arc<World>, picky: bool) -> Option<ModelLock> {
    loop {
        let joined = world.registry.lock().clone();
        if thread_rng().gen_range(0..2) == 0 {
            yield_now().await;
        }
        let place = line_up(world, joined, !picky);
        match poll_fn(|context| claim(&place, context)).await {
            Ok(Some(lock)) => return Some(lock),
            // The task has ended.
            Ok(None) => {}
            Err(_) if world.has_failures => return None,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Claims a lock; `None` if it was lost, and the waiting task has ended.
fn claim(
    place: &Place<bool, ModelLock>,
    context: &Context<'_>,
) -> Poll<Result<Option<ModelLock>, RequestError>> {
    loop {
        let lock = match ready!(place.poll(context)) {
            Ok(lock) => lock,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if lock.lease.is_valid(lock.generation) {
            return Poll::Ready(Ok(Some(lock)));
        }
        if !place.wait_again() {
            return Poll::Ready(Ok(None));
        }
    }
}

async fn hold(world: Arc<World>, picky: bool) {
    for _ in 0..2 {
        match wait(&world, picky).await {
            Some(lock) => {
                world.enter(&lock);
                yield_now().await;
            }
            None => drop(world.failed.fetch_add(1, Ordering::SeqCst)),
        }
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

fn scenario(callers: u64, has_failures: bool) {
    let world = Arc::new(World {
        has_failures,
        ..World::default()
    });
    let mut tasks = Vec::new();
    for number in 0..callers {
        let work = hold(world.clone(), number == 2);
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
    // Another one may wait, is polled a few times, and then only kept.
    let kept = Arc::new(Mutex::new(None));
    let (theirs, theirs_too) = (kept.clone(), world.clone());
    let (comes, polls) = (thread_rng().gen_range(0..2), thread_rng().gen_range(0..3));
    tasks.push(spawn(async move {
        if comes == 0 {
            return;
        }
        let place = line_up(&theirs_too, None, true);
        for _ in 0..polls {
            let polled = poll_fn(|context| Poll::Ready(place.poll(context))).await;
            if let Poll::Ready(lock) = polled {
                return drop(lock);
            }
            yield_now().await;
        }
        *theirs.lock() = Some(place);
    }));
    block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
        // Granted or not, it is only kept.
        let place = kept.lock().take();
        drop(place);
        // The task ends, and then releases what is left.
        while world.registry.lock().is_some() || world.server.lock().is_some() {
            yield_now().await;
        }
    });
    let ended = world.entered.load(Ordering::SeqCst) + world.failed.load(Ordering::SeqCst);
    // The second caller is cancelled.
    let uncancelled = callers - u64::from(callers > 1);
    assert!(ended >= 2 * uncancelled, "a task starved");
}

fn schedules() -> usize {
    usize::try_from(testkit::scaled(1_000)).unwrap()
}

#[test]
fn exclusive_under_random_schedules() {
    shuttle::check_random(|| scenario(4, false), schedules());
}

#[test]
fn exclusive_under_unfair_schedules() {
    shuttle::check_pct(|| scenario(4, false), schedules(), 4);
}

#[test]
fn failed_waits_leave_no_lock_behind() {
    shuttle::check_random(|| scenario(4, true), schedules());
}

/// A lock that is lost before the only caller claims it may find the task gone.
#[test]
fn lone_caller_is_served_after_a_loss() {
    shuttle::check_random(|| scenario(1, false), schedules());
}
