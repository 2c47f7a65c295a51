//! The lease layer in a simulated world: processes that take, hold, abandon and lose one lock through schedules of delays,
//! losses, broken connections and crashes, each drawn from a seed.
//!
//! `LEASEHOLD_SEED=n cargo test -p leasehold simulation` runs one of them again.

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
use crate::options::AcquireOptions;

const LEASE: Duration = Duration::from_secs(3);

/// When the world calms down, so that everything that was begun can end.
const STORM: Duration = Duration::from_secs(20);

/// No wait can be longer: a storm, then everybody's lease, and what is still on its way.
const PATIENCE: Duration = Duration::from_secs(120);

const PROCESSES: usize = 3;
const TASKS: u64 = 2;
const ROUNDS: u64 = 4;

/// Everybody who ever held the lock, for the question whether somebody still does.
#[derive(Default)]
struct Register {
    holders: Mutex<Vec<Lease>>,
    last_token: AtomicU64,
    acquisitions: AtomicU64,
}

impl Register {
    /// Somebody holds it: nobody else may, and the token must be the largest so far.
    fn enter(&self, guard: &Guard, seed: u64) {
        if guard.check().is_err() {
            return;
        }
        let mut holders = self.holders.lock();
        holders.retain(|lease| lease.check().is_ok());
        assert!(holders.is_empty(), "seed {seed}: two hold it");
        holders.push(guard.lease().clone());
        let token = guard.token().as_u64();
        let before = self.last_token.swap(token, Ordering::SeqCst);
        assert!(before < token, "seed {seed}: {token} after {before}");
        self.acquisitions.fetch_add(1, Ordering::SeqCst);
    }
}

/// One process: an engine, its keeper, and tasks that want the lock. Aborting the set is its end by `kill -9`.
fn process(world: &Arc<World>, register: &Arc<Register>, seed: u64) -> JoinSet<()> {
    let mut process = JoinSet::new();
    let backend = world.connect();
    let keeper = Keeper::default();
    let request = Duration::from_secs(1);
    let work = keeper.clone().work(backend.clone(), request);
    let outage = Duration::from_secs(10);
    let limits = Limits { request, outage };
    let engine = Arc::new(Engine::new(backend, keeper, limits));
    for _ in 0..TASKS {
        let (world, register, engine) = (world.clone(), register.clone(), engine.clone());
        process.spawn(async move {
            for _ in 0..ROUNDS {
                want(&world, &register, &engine, seed).await;
            }
        });
    }
    // The keeper ends some time after the last task has.
    process.spawn(work);
    process
}

/// Takes the lock or not, holds it or loses it, and lets go of it in one way or another.
async fn want(world: &World, register: &Register, engine: &Arc<Engine>, seed: u64) {
    let millis = |limit| Duration::from_millis(world.below(limit));
    let mut options = AcquireOptions::new(LEASE);
    options.local_handoff = world.below(2) == 0;
    if world.below(3) == 0 {
        options.timeout = Some(millis(5000));
    }
    let kind = kind();
    let taking = engine.acquire(&kind, &options);
    let taken = match world.below(4) {
        // Dropped at any moment.
        0 => timeout(millis(3000), taking).await.ok(),
        _ => Some(taking.await),
    };
    let guard = match taken {
        Some(Ok(lease)) => Guard::new(lease),
        Some(Err(Error::ShutDown)) => panic!("seed {seed}: closed by nobody"),
        _ => return sleep(millis(200)).await,
    };
    register.enter(&guard, seed);
    let long = world.below(5) == 0;
    let _ = timeout(millis(if long { 8000 } else { 100 }), guard.lost()).await;
    match world.below(2) {
        0 => drop(guard),
        _ => drop(guard.release().await),
    }
}

/// Runs one seed; how often the lock was had.
fn simulate(seed: u64) -> u64 {
    // Drawn once in a process, and not from the first seed.
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
        let register = Arc::new(Register::default());
        let start = Instant::now();
        let mut processes: Vec<_> = (0..PROCESSES)
            .map(|_| process(&world, &register, seed))
            .collect();
        if world.below(2) == 0 {
            sleep(Duration::from_millis(world.below(8000))).await;
            processes[0].abort_all();
        }
        tokio::time::sleep_until(start + STORM).await;
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
            let ended = timeout(PATIENCE, ending).await;
            assert!(ended.is_ok(), "seed {seed}: somebody waits for ever");
        }
        sleep(LATE + LEASE).await;
        assert!(world.is_empty(), "seed {seed}: something is left behind");
        register.acquisitions.load(Ordering::SeqCst)
    })
}

#[test]
fn a_seed_is_always_the_same_schedule() {
    for seed in 0..50 {
        assert_eq!(simulate(seed), simulate(seed), "seed {seed}");
    }
}

#[test]
fn no_schedule_lets_two_hold_or_one_wait_for_ever() {
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
