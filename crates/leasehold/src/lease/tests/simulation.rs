//! The lease layer in a simulated world. Processes acquire, hold, cancel and
//! lose one lock under delays, lost messages, broken connections and crashes,
//! each drawn from a seed.
//!
//! `LEASEHOLD_SEED=n cargo test -p leasehold simulation` repeats one seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::scripted::kind;
use crate::backend::simulated::{LATE, World};
use crate::error::Error;
use crate::lease::{Engine, Guard, Keeper, Lease, Limits};
use crate::observe::Observers;
use crate::options::AcquireOptions;

const LEASE: Duration = Duration::from_secs(3);

/// Faults end after this, so every operation can complete.
const FAULTS: Duration = Duration::from_secs(20);

/// No process takes longer: the faults, every lease, and requests in flight.
const LIMIT: Duration = Duration::from_secs(120);

const PROCESSES: usize = 3;
const TASKS: u64 = 2;
const ROUNDS: u64 = 4;

/// Every holder of the lock so far.
#[derive(Default)]
struct Holders {
    leases: Mutex<Vec<Lease>>,
    last_token: AtomicU64,
    acquisitions: AtomicU64,
}

impl Holders {
    /// Records a holder, and asserts that no other lease is valid and that the
    /// token is the largest so far.
    fn enter(&self, guard: &Guard, seed: u64) {
        if guard.check().is_err() {
            return;
        }
        let mut leases = self.leases.lock();
        leases.retain(|lease| lease.check().is_ok());
        assert!(leases.is_empty(), "seed {seed}: two holders");
        leases.push(guard.lease().clone());
        let token = guard.token().as_u64();
        let before = self.last_token.swap(token, Ordering::SeqCst);
        assert!(before < token, "seed {seed}: {token} after {before}");
        self.acquisitions.fetch_add(1, Ordering::SeqCst);
    }
}

/// Starts a process: an engine, a keeper, and tasks that want the lock.
/// Aborting the set is a `kill -9`.
fn process(world: &Arc<World>, holders: &Arc<Holders>, seed: u64) -> JoinSet<()> {
    let mut process = JoinSet::new();
    let backend = world.connect();
    let keeper = Keeper::default();
    let request = Duration::from_secs(1);
    let work = keeper
        .clone()
        .work(backend.clone(), request, Observers::default());
    let outage = Duration::from_secs(10);
    let limits = Limits { request, outage };
    let engine = Arc::new(Engine::new(backend, keeper, limits, Observers::default()));
    for _ in 0..TASKS {
        let (world, holders, engine) = (world.clone(), holders.clone(), engine.clone());
        process.spawn(async move {
            for _ in 0..ROUNDS {
                use_lock(&world, &holders, &engine, seed).await;
            }
        });
    }
    // The keeper ends some time after the last task.
    process.spawn(work);
    process
}

/// Acquires the lock or gives up, holds or loses it, and releases it.
async fn use_lock(world: &World, holders: &Holders, engine: &Arc<Engine>, seed: u64) {
    let millis = |limit| Duration::from_millis(world.below(limit));
    let mut options = AcquireOptions::new(LEASE);
    options.local_handoff = world.below(2) == 0;
    if world.below(3) == 0 {
        options.timeout = Some(millis(5000));
    }
    let kind = kind();
    let acquiring = engine.acquire(&kind, &options);
    let acquired = match world.below(4) {
        // Cancelled at a random instant.
        0 => timeout(millis(3000), acquiring).await.ok(),
        _ => Some(acquiring.await),
    };
    let guard = match acquired {
        Some(Ok(lease)) => Guard::new(lease),
        Some(Err(Error::ShutDown)) => panic!("seed {seed}: not shut down"),
        _ => return sleep(millis(200)).await,
    };
    holders.enter(&guard, seed);
    let long = world.below(5) == 0;
    let _ = timeout(millis(if long { 8000 } else { 100 }), guard.lost()).await;
    match world.below(2) {
        0 => drop(guard),
        _ => drop(guard.release().await),
    }
}

/// Runs one seed and returns the number of acquisitions.
fn simulate(seed: u64) -> u64 {
    // Drawn once per process, and not from the first seed.
    let _ = crate::owner::Owner::process();
    crate::rng::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        crate::time::begin();
        let world = World::new(seed);
        let holders = Arc::new(Holders::default());
        let start = Instant::now();
        let mut processes: Vec<_> = (0..PROCESSES)
            .map(|_| process(&world, &holders, seed))
            .collect();
        if world.below(2) == 0 {
            sleep(Duration::from_millis(world.below(8000))).await;
            processes[0].abort_all();
        }
        tokio::time::sleep_until(start + FAULTS).await;
        world.calm_down();
        for mut process in processes {
            let ending = async {
                while let Some(ended) = process.join_next().await {
                    if let Err(error) = ended
                        && error.is_panic()
                    {
                        std::panic::resume_unwind(error.into_panic());
                    }
                }
            };
            let ended = timeout(LIMIT, ending).await;
            assert!(ended.is_ok(), "seed {seed}: a task waits forever");
        }
        sleep(LATE + LEASE).await;
        assert!(world.is_empty(), "seed {seed}: a lock is left");
        holders.acquisitions.load(Ordering::SeqCst)
    })
}

#[test]
fn seed_determines_the_schedule() {
    for seed in 0..50 {
        assert_eq!(simulate(seed), simulate(seed), "seed {seed}");
    }
}

#[test]
fn schedules_keep_exclusion_and_liveness() {
    if let Ok(seed) = std::env::var("LEASEHOLD_SEED") {
        let seed = seed.parse().expect("LEASEHOLD_SEED is a number");
        println!("seed {seed}: {} acquisitions", simulate(seed));
        return;
    }
    let start = std::time::Instant::now();
    let (next, count) = (AtomicU64::new(0), testkit::scaled(1_000));
    let acquisitions = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    acquisitions.fetch_add(simulate(seed), Ordering::Relaxed);
                }
            });
        }
    });
    let (acquisitions, took) = (acquisitions.into_inner(), start.elapsed());
    println!("{count} seeds, {acquisitions} acquisitions in {took:?}");
    assert!(acquisitions > count * 5, "too few: {acquisitions}");
}
