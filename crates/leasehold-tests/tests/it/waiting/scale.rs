//! Very many waiters: the keeper's thread serves them and renews on time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard};
use testkit::Server;
use tokio::task::JoinSet;

use crate::support::{
    AMPLE, LEASE, channels, client, eventually, name, only_counters_left, run, server,
};

const COUNT: u64 = 10_000;

/// The leases that the client under load holds and renews.
const RENEWED: usize = 100;

/// The keeper's thread, and the process's memory.
struct Usage {
    cpu: Duration,
    resident_mib: u64,
}

impl Usage {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|line| line.split_whitespace().next());
        Self {
            cpu: keeper_threads().iter().map(|id| cpu_of(id)).sum(),
            resident_mib: kib.unwrap().parse::<u64>().unwrap() / 1024,
        }
    }

    /// Prints what was used since `self`.
    fn print(&self, what: &str, since: Instant) {
        let now = Self::now();
        println!(
            "{what}: {:.2?}, keepers' CPU {:.2?}, memory {} MiB (before {} MiB)",
            since.elapsed(),
            now.cpu.saturating_sub(self.cpu),
            now.resident_mib,
            self.resident_mib,
        );
    }
}

/// Returns the ids of the keepers' threads of this process.
fn keeper_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let ids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let is_keeper = |id: &String| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm"));
        name.is_ok_and(|name| name.trim() == "leasehold")
    };
    ids.filter(is_keeper).collect()
}

/// Returns the CPU time of one thread.
fn cpu_of(id: &str) -> Duration {
    let schedstat = std::fs::read_to_string(format!("/proc/self/task/{id}/schedstat"));
    let nanos = schedstat.unwrap_or_default();
    let nanos = nanos.split(' ').next().unwrap_or_default();
    Duration::from_nanos(nanos.parse().unwrap_or_default())
}

/// Holds locks of `client`, and watches their leases until dropped.
struct Renewed {
    done: Arc<AtomicBool>,
    watching: std::thread::JoinHandle<Duration>,
}

impl Renewed {
    async fn hold(client: &Client) -> Self {
        let mut guards: Vec<Guard> = Vec::new();
        for _ in 0..RENEWED {
            guards.push(client.mutex(&name()).lock().await.unwrap());
        }
        let done = Arc::new(AtomicBool::new(false));
        let is_done = done.clone();
        // On a thread: the runtime is busy too.
        let watching = std::thread::spawn(move || {
            let mut least = Duration::MAX;
            while !is_done.load(Ordering::SeqCst) {
                for guard in &guards {
                    guard.check().expect("renewed in time");
                    least = least.min(guard.remaining());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            drop(guards);
            least
        });
        Self { done, watching }
    }

    /// Releases the locks, and prints by how much renewals were late.
    async fn finish(self) {
        self.done.store(true, Ordering::SeqCst);
        let watching = tokio::task::spawn_blocking(|| self.watching.join());
        let least = watching.await.unwrap().unwrap();
        println!("least time left of a renewed lease: {least:.2?} of {LEASE:?}");
        assert!(least > LEASE / 3, "renewed late: {least:?}");
    }
}

/// Checks that a client with no waiter left has nothing else left either.
async fn nothing_left(server: &Server, ours: Client, theirs: Client) {
    eventually("no subscription is left", || {
        let channels = channels(server);
        channels.iter().all(|channel| !channel.contains("lock:"))
    })
    .await;
    eventually("only counters are left", || only_counters_left(server)).await;
    // A waiting task would keep the keeper alive.
    drop((ours, theirs));
    eventually("the keepers have ended", || keeper_threads().is_empty()).await;
}

async fn until(what: &str, count: &AtomicU64, value: u64) {
    eventually(what, || count.load(Ordering::SeqCst) >= value).await;
}

/// Waits until every task has ended.
async fn served(mut waiting: JoinSet<()>) {
    while let Some(served) = tokio::time::timeout(AMPLE, waiting.join_next())
        .await
        .expect("a waiter hangs")
    {
        served.unwrap();
    }
}

#[test]
#[ignore = "deep: 10,000 tasks wait for one lock"]
fn many_waiters_of_one_lock_are_all_served() {
    run(async {
        for is_fair in [false, true] {
            let server = server();
            let (ours, theirs) = (client(&server).await, client(&server).await);
            let renewed = Renewed::hold(&ours).await;
            let name = name();
            let lock = |client: &Client| match is_fair {
                true => client.fair_mutex(&name).lock(),
                false => client.mutex(&name).lock(),
            };
            let held = lock(&theirs).await.unwrap();
            let last_token = Arc::new(AtomicU64::new(held.token().as_u64()));
            let inside = Arc::new(AtomicBool::new(false));
            let before = Usage::now();
            let start = Instant::now();
            let (begun, timed_out) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let mut waiting = JoinSet::new();
            for at in 0..COUNT {
                let mut acquire = lock(&ours);
                // Every tenth gives up.
                if at % 10 == 0 {
                    acquire = acquire.timeout(Duration::from_secs(2));
                }
                let (begun, timed_out) = (begun.clone(), timed_out.clone());
                let (last_token, inside) = (last_token.clone(), inside.clone());
                waiting.spawn(async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let guard = match acquire.await {
                        Ok(guard) => guard,
                        Err(Error::Timeout { .. }) if at % 10 == 0 => {
                            timed_out.fetch_add(1, Ordering::SeqCst);
                            return;
                        }
                        Err(error) => panic!("{error:?}"),
                    };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
                    let token = guard.token().as_u64();
                    let last = last_token.swap(token, Ordering::SeqCst);
                    assert!(last < token, "{last} before {token}");
                    guard.check().unwrap();
                    inside.store(false, Ordering::SeqCst);
                    guard.release().await.unwrap();
                });
            }
            until("all wait", &begun, COUNT).await;
            until("some give up", &timed_out, COUNT / 10).await;
            before.print("10,000 wait for one lock", start);
            let idle = Usage::now();
            let start = Instant::now();
            tokio::time::sleep(Duration::from_secs(10)).await;
            idle.print("they wait on", start);
            let (busy, start) = (Usage::now(), Instant::now());
            drop(held);
            served(waiting).await;
            busy.print("all are served", start);
            renewed.finish().await;
            nothing_left(&server, ours, theirs).await;
        }
    });
}

#[test]
#[ignore = "deep: 10,000 contended locks in one process"]
fn many_contended_locks_are_all_served() {
    run(async {
        let server = server();
        let (ours, theirs) = (client(&server).await, client(&server).await);
        let renewed = Renewed::hold(&ours).await;
        let names: Vec<_> = (0..COUNT).map(|_| name()).collect();
        let mut held = Vec::new();
        for names in names.chunks(100) {
            let mut holding = JoinSet::new();
            for name in names {
                let acquire = theirs.mutex(name).lock().fixed_lease(AMPLE * 10);
                holding.spawn(acquire.into_future());
            }
            while let Some(guard) = holding.join_next().await {
                held.push(guard.unwrap().unwrap());
            }
        }
        let before = Usage::now();
        let start = Instant::now();
        let mut waiting = JoinSet::new();
        for (at, name) in names.iter().enumerate() {
            let mut acquire = ours.mutex(name).lock();
            let gives_up = at % 10 == 0;
            if gives_up {
                acquire = acquire.timeout(Duration::from_secs(20));
            }
            waiting.spawn(async move {
                match acquire.await {
                    Ok(guard) => guard.release().await.unwrap(),
                    Err(Error::Timeout { .. }) if gives_up => {}
                    Err(error) => panic!("{error:?}"),
                }
            });
        }
        eventually("all wait", || channels(&server).len() as u64 >= COUNT).await;
        before.print("10,000 locks are waited for", start);
        let (idle, start) = (Usage::now(), Instant::now());
        for _ in 0..COUNT / 10 {
            waiting.join_next().await.unwrap().unwrap();
        }
        idle.print("a tenth gives up", start);
        let (idle, start) = (Usage::now(), Instant::now());
        tokio::time::sleep(Duration::from_secs(10)).await;
        idle.print("the others wait on", start);
        let (busy, start) = (Usage::now(), Instant::now());
        drop(held);
        served(waiting).await;
        busy.print("all are served", start);
        renewed.finish().await;
        nothing_left(&server, ours, theirs).await;
    });
}
