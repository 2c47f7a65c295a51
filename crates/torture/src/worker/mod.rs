//! A worker: a process of its own that takes locks by the public interface, sells coupons under its tokens, and notes all of it.

mod command;
mod forking;
mod taking;
mod unwell;

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use testkit::{Connection, SeededRng};

pub(crate) use command::child;
pub(crate) use taking::max_lease;
use taking::{Ask, Held, Locks};

use crate::coupons;
use crate::history::{Event, Failure, Log, What, now};
use crate::plan::{Kind, PERMITS, Plan};

/// How long a client's last cancels may take when it has gone.
const AFTERWARDS: Duration = Duration::from_secs(60);

/// What a worker is told when it is started.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) plan: Plan,
    pub(crate) number: usize,
    /// Several, with blanks in between, are a quorum.
    pub(crate) urls: String,
    pub(crate) store: u16,
    pub(crate) history: PathBuf,
}

/// What the tasks of a worker share.
struct Worker {
    job: Job,
    locks: Locks,
    log: Log,
    holdings: AtomicU64,
    over: Arc<AtomicBool>,
    /// Connections to the store that no task uses now.
    stores: Mutex<Vec<Connection>>,
}

/// Works until standard input is closed.
pub(crate) fn work(job: Job) {
    if job.plan.forks > 0 {
        return forking::work(&job);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let over = Arc::<AtomicBool>::default();
    let told = over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        told.store(true, Ordering::SeqCst);
    });
    let log = Log::open(&job.history).expect("a file for the history");
    let grown = runtime.block_on(async {
        let worker = Worker::connect(job, over, 0).await;
        let before = memory();
        worker.clone().work().await;
        worker.locks.shutdown().await;
        memory().saturating_sub(before)
    });
    // What the library began for us ends with the client, but for cancels, which go on until nothing can arrive late any more.
    let limit = Instant::now() + AFTERWARDS;
    while runtime.metrics().num_alive_tasks() > 0 && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    let tasks = runtime.metrics().num_alive_tasks() as u64;
    log.note(&Event {
        lock: 0,
        holding: 0,
        at: now(),
        what: What::Over { tasks, grown },
    });
}

/// When all others have ended: the locks of which one alone cannot have all.
pub(crate) fn not_to_be_had(job: &Job) -> Vec<u32> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let locks = Locks::connect(job).await;
        let mut missing = Vec::new();
        for lock in 0..job.plan.locks {
            let kind = job.plan.kind(lock);
            let ask = Ask {
                weight: kind.capacity(),
                patience: Some(job.plan.stuck()),
            };
            match locks.take(kind, &name(lock), ask).await {
                Ok(held) => drop(held.give_back(false).await),
                Err(_) => missing.push(lock),
            }
        }
        locks.shutdown().await;
        missing
    })
}

impl Worker {
    /// Connects; the holdings are numbered from `first` on.
    async fn connect(job: Job, over: Arc<AtomicBool>, first: u64) -> Arc<Self> {
        Arc::new(Self {
            log: Log::open(&job.history).expect("a file for the history"),
            holdings: AtomicU64::new(first),
            over,
            stores: Mutex::default(),
            locks: Locks::connect(&job).await,
            job,
        })
    }

    async fn work(self: Arc<Self>) {
        let plan = &self.job.plan;
        let mut tasks: Vec<_> = (0..plan.tasks)
            .map(|task| tokio::spawn(self.clone().take_locks(task)))
            .collect();
        if plan.commands {
            let worker = self.clone();
            tasks.push(tokio::task::spawn_blocking(move || {
                worker.run_commands();
            }));
        }
        if plan.runtimes {
            let worker = self.clone();
            tasks.push(tokio::task::spawn_blocking(move || worker.run_runtimes()));
        }
        for task in tasks {
            task.await.expect("no task panics");
        }
    }

    fn rng(&self, task: u64) -> SeededRng {
        let seed = self.job.plan.seed.wrapping_mul(1_000_003);
        SeededRng::new(seed.wrapping_add(self.job.number as u64 * 1009 + task))
    }

    async fn take_locks(self: Arc<Self>, task: u64) {
        let mut rng = self.rng(task);
        while !self.over.load(Ordering::SeqCst) {
            let (lock, ask) = self.choose(&mut rng);
            let holding = self.holdings.fetch_add(1, Ordering::Relaxed);
            let unpolled = self.job.plan.unpolled;
            if unpolled > 0 && rng.below(unpolled) == 0 {
                self.take_without_polls(lock, holding, &mut rng).await;
                continue;
            }
            let (weight, patient) = (ask.weight, ask.patience.is_some());
            self.note(lock, holding, What::Want { weight, patient });
            let kind = self.job.plan.kind(lock);
            let name = name(lock);
            let taking = self.locks.take(kind, &name, ask);
            // Now and then the one who asks goes away.
            let limit = match rng.below(30) {
                0 => Duration::from_micros(rng.below(3000)),
                _ => Duration::from_secs(60),
            };
            let failure = match tokio::time::timeout(limit, taking).await {
                Ok(Ok(held)) => {
                    self.hold(lock, holding, held, &mut rng).await;
                    continue;
                }
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Abandoned,
            };
            self.note(lock, holding, What::Failed(failure));
            if failure != Failure::Abandoned {
                tokio::time::sleep(Duration::from_millis(rng.below(20))).await;
            }
        }
    }

    /// A lock, how much of it, and for how long it is waited for: mostly not long, else all would soon wait for the same.
    fn choose(&self, rng: &mut SeededRng) -> (u32, Ask) {
        let locks = u64::from(self.job.plan.locks);
        let lock = match rng.below(8) {
            // Some are wanted more than others.
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
        // What replicas must acknowledge takes longer.
        let soon = if self.job.plan.replicas { 150 } else { 20 };
        let patience = match rng.below(10) {
            _ if self.job.plan.patient => Some(self.job.plan.stuck_ms * 2),
            0..3 => None,
            3..9 => Some(soon),
            _ => Some(self.job.plan.stuck_ms * 2),
        };
        let patience = patience.map(Duration::from_millis);
        (lock, Ask { weight, patience })
    }

    async fn hold(&self, lock: u32, holding: u64, held: Held, rng: &mut SeededRng) {
        let token = held.token();
        let (at, deadline) = (now(), held.deadline());
        self.note_at(lock, holding, at, What::Got { token, deadline });
        let mut ending = Ending::of(self, lock, holding);
        let alone = self.job.plan.kind(lock).capacity() == 1;
        let sells = token > 0 && alone && rng.below(4) == 0;
        let read = if sells {
            self.at_store(|store| coupons::read(store, lock, token))
        } else {
            None
        };
        // Mostly a moment; sometimes longer than a lease.
        let (steps, pause) = match rng.below(self.job.plan.long_holds.max(1)) {
            0 => (rng.below(20), self.job.plan.lease_ms / 8),
            _ => (1, rng.below(2)),
        };
        for _ in 0..steps {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let deadline = held.deadline();
            if !held.is_valid() {
                self.note(lock, holding, What::Lost);
                break;
            }
            self.note(lock, holding, What::Valid { deadline });
        }
        if let Some(read) = read {
            // Whether the lock is still ours is not asked: that is what the token is for.
            let seller = coupons::seller(self.job.number, holding);
            let accepted = self.at_store(|store| coupons::sell(store, lock, token, &seller, read));
            self.note(lock, holding, What::Sold { token, accepted });
        }
        ending.note();
        if held.give_back(rng.below(4) == 0).await {
            self.note(lock, holding, What::Gave);
        }
    }

    /// Asks the store on a connection that no other task uses meanwhile: there are as many as threads.
    fn at_store<T>(&self, ask: impl FnOnce(&mut Connection) -> T) -> T {
        let idle = self.stores.lock().expect("no panic").pop();
        let open = || Connection::open(self.job.store).expect("the store is up");
        let mut store = idle.unwrap_or_else(open);
        let answer = ask(&mut store);
        self.stores.lock().expect("no panic").push(store);
        answer
    }

    fn note(&self, lock: u32, holding: u64, what: What) {
        self.note_at(lock, holding, now(), what);
    }

    fn note_at(&self, lock: u32, holding: u64, at: u64, what: What) {
        self.log.note(&Event {
            lock,
            holding,
            at,
            what,
        });
    }
}

/// The end of a holding, noted before the lock is given back: also where the runtime ends first.
struct Ending<'a> {
    worker: &'a Worker,
    lock: u32,
    holding: u64,
    is_noted: bool,
}

impl<'a> Ending<'a> {
    fn of(worker: &'a Worker, lock: u32, holding: u64) -> Self {
        Self {
            worker,
            lock,
            holding,
            is_noted: false,
        }
    }

    fn note(&mut self) {
        if !std::mem::replace(&mut self.is_noted, true) {
            self.worker.note(self.lock, self.holding, What::End);
        }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.note();
    }
}

/// What this process has in memory, in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn name(lock: u32) -> String {
    format!("torture:{lock}")
}
