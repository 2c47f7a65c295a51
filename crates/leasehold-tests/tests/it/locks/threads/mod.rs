//! Threads that wait for requests: on any runtime, in callbacks, during a
//! shutdown, and what it costs.

mod requests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Loss, Lost, MultiLock, SetOutcome};
use testkit::{Server, ServerExt};

use crate::support::{
    AMPLE, LEASE, SHORT, connect_at, exists, has_subscriber, key, name, owners, percentile, run,
    scaled, server, url_at,
};

fn client(server: &Server) -> Client {
    connect_at(server.port()).wait().unwrap()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < AMPLE, "not within {AMPLE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Increments a counter under a lock from many threads. `turn` runs its
/// argument under the lock.
fn count_exactly(threads: u64, turns: u64, turn: impl Fn(&dyn Fn()) + Sync) {
    let counter = AtomicU64::new(0);
    let is_held = AtomicBool::new(false);
    let increment = || {
        assert!(!is_held.swap(true, Ordering::SeqCst), "two holders");
        let before = counter.load(Ordering::Relaxed);
        std::thread::yield_now();
        counter.store(before + 1, Ordering::Relaxed);
        is_held.store(false, Ordering::SeqCst);
    };
    let count_down = || {
        for _ in 0..turns {
            turn(&increment);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(count_down);
        }
    });
    assert_eq!(counter.into_inner(), threads * turns);
}

#[test]
fn thousand_threads_count_exactly() {
    let server = server();
    let client = client(&server);
    let mutex = client.mutex(&name());
    let fair = client.fair_mutex(&name());
    count_exactly(1000, 5, |work| {
        let guard = mutex.lock().wait().unwrap();
        work();
        guard.release().wait().unwrap();
    });
    // A dropped guard is released in the background.
    count_exactly(1000, 1, |work| {
        fair.lock().run_blocking(|_| work()).unwrap();
    });
    count_exactly(100, 5, |work| {
        let guard = mutex.lock().local_handoff(false).wait().unwrap();
        work();
        drop(guard);
    });
    client.shutdown(AMPLE).wait().unwrap();
}

/// Uses a lock that a thread holds, and waits for its release.
fn use_lock(client: &Client) {
    let name = name();
    let mutex = client.mutex(&name);
    let guard = mutex.lock().wait().unwrap();
    let limit = Duration::from_millis(50);
    let waiting = mutex.lock().timeout(limit).wait();
    assert!(matches!(waiting, Err(Error::Timeout { .. })));
    let releasing = std::thread::spawn(move || {
        std::thread::sleep(limit);
        guard.release().wait()
    });
    let next = client.fair_mutex(&format!("{name}:other")).lock();
    let both = MultiLock::new([mutex.lock(), next]).wait().unwrap();
    releasing.join().unwrap().unwrap();
    both.extend(LEASE).wait().unwrap();
    both.release().wait().unwrap();
    assert!(mutex.holder().wait().unwrap().is_none());
}

/// Connects, uses locks and drops the client.
fn use_client(server: &Server) {
    let client = client(server);
    use_lock(&client);
    client.shutdown(AMPLE).wait().unwrap();
}

#[test]
fn requests_complete_on_threads_of_any_runtime() {
    let server = Arc::new(server());
    // No runtime.
    use_client(&server);
    let multi = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let current = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for runtime in [multi, current] {
        // The thread that calls `block_on`.
        runtime.block_on(async { use_client(&server) });
        // A worker thread, in a task whose budget is used up.
        let of_worker = server.clone();
        let worker = runtime.spawn(async move {
            while tokio::task::coop::has_budget_remaining() {
                tokio::task::consume_budget().await;
            }
            use_client(&of_worker);
        });
        runtime.block_on(worker).unwrap();
        // A thread for blocking work.
        let of_blocking = server.clone();
        let blocking = runtime.spawn_blocking(move || use_client(&of_blocking));
        runtime.block_on(blocking).unwrap();
        // A local task.
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async { use_client(&server) });
    }
}

#[test]
fn shutdown_ends_waiting_threads() {
    let server = server();
    let holder = client(&server);
    let waiter = client(&server);
    let mutex = name();
    let fair = name();
    let latch = name();
    let _held = holder.mutex(&mutex).lock().wait().unwrap();
    let _held_fairly = holder.fair_mutex(&fair).lock().wait().unwrap();
    let created = holder.latch(&latch).set(1, AMPLE).wait().unwrap();
    assert_eq!(created, SetOutcome::Created);
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| waiter.mutex(&mutex).lock().wait().map(drop)))
            .chain([scope.spawn(|| waiter.fair_mutex(&fair).lock().wait().map(drop))])
            .chain([scope.spawn(|| waiter.latch(&latch).until_open(None).wait().map(drop))])
            .collect();
        wait_until("the threads wait", || {
            has_subscriber(&server, &mutex) && owners(&server, "queue", &fair).len() == 1
        });
        waiter.shutdown(AMPLE).wait().unwrap();
        for waiting in waiting {
            let ended = waiting.join().unwrap();
            assert!(matches!(ended, Err(Error::ShutDown)), "{ended:?}");
        }
    });
    let refused = waiter.mutex(&mutex).try_lock().wait();
    assert!(matches!(refused, Err(Error::ShutDown)));
}

/// Waits when it is dropped.
struct WaitOnDrop {
    client: Client,
    lost: Lost,
    outcome: mpsc::Sender<(Result<(), Error>, bool)>,
}

impl Drop for WaitOnDrop {
    fn drop(&mut self) {
        let acquired = self.client.mutex("refused").try_lock().wait();
        let waited = self.lost.wait_timeout(AMPLE);
        let _ = self.outcome.send((acquired.map(drop), waited));
    }
}

#[test]
fn wait_on_the_clients_thread_is_refused() {
    let server = server();
    let client = client(&server);
    let guard = client.mutex(&name()).lock().wait().unwrap();
    let other = client.mutex(&name()).lock().wait().unwrap();
    let (outcome, outcomes) = mpsc::channel();
    let call = WaitOnDrop {
        client: client.clone(),
        lost: other.lost(),
        outcome,
    };
    guard.on_lost(move |_| drop(call));
    // The callback is not needed any more. The client's thread drops it.
    guard.release().wait().unwrap();
    let (acquired, waited) = outcomes.recv_timeout(AMPLE).unwrap();
    assert!(
        matches!(acquired, Err(Error::Invalid { what: "thread", .. })),
        "{acquired:?}"
    );
    assert!(!waited);
    other.check().unwrap();
}

#[test]
fn lost_lease_calls_back_once() {
    let server = server();
    let name = name();
    let client = client(&server);
    let mutex = client.mutex(&name);
    let guard = mutex.lock().fixed_lease(SHORT).wait().unwrap();
    let (lost, losses) = mpsc::channel();
    let again = mutex.clone();
    let first = lost.clone();
    // A callback that panics affects no other.
    guard.on_lost(|_| std::panic::resume_unwind(Box::new("in a callback")));
    guard.on_lost(move |loss| {
        // A callback can block, and use the same client.
        let next = again.lock().wait().unwrap();
        next.release().wait().unwrap();
        first.send(loss).unwrap();
    });
    assert_eq!(losses.recv_timeout(AMPLE).unwrap(), Loss::Expired);
    // It is lost already.
    let late = lost.clone();
    guard.on_lost(move |loss| late.send(loss).unwrap());
    assert_eq!(losses.recv_timeout(AMPLE).unwrap(), Loss::Expired);
    // A released lock is not lost.
    let released = mutex.lock().wait().unwrap();
    released.on_lost(move |loss| lost.send(loss).unwrap());
    released.release().wait().unwrap();
    client.shutdown(AMPLE).wait().unwrap();
    drop((client, mutex, guard));
    assert!(losses.recv().is_err(), "called without a loss");
}

#[test]
fn blocked_callbacks_do_not_stop_renewals() {
    let server = server();
    let lease = Duration::from_secs(2);
    let client = Client::connect(&url_at(server.port())).lease(lease);
    let client = client.wait().unwrap();
    let kept = client.mutex(&name()).lock().lease(LEASE).wait().unwrap();
    let (unblock, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(std::sync::Mutex::new(blocked));
    let started = Arc::new(AtomicU64::new(0));
    let lost: Vec<_> = (0..100)
        .map(|_| {
            let lost = client.mutex(&name()).lock().fixed_lease(SHORT).wait();
            let blocked = blocked.clone();
            let started = started.clone();
            let lost = lost.unwrap();
            lost.on_lost(move |_| {
                started.fetch_add(1, Ordering::SeqCst);
                let _ = blocked.lock().unwrap().recv();
            });
            lost
        })
        .collect();
    wait_until("callbacks block", || started.load(Ordering::SeqCst) >= 64);
    let before = Instant::now() + kept.remaining();
    wait_until("the other lease is renewed", || {
        kept.lease().deadline() > before
    });
    drop(unblock);
    wait_until("all callbacks run", || {
        started.load(Ordering::SeqCst) == 100
    });
    drop(lost);
}

#[test]
fn last_client_can_be_dropped_in_a_callback() {
    let server = server();
    let name = name();
    let client = client(&server);
    let guard = client.mutex(&name).lock().wait().unwrap();
    let (lost, losses) = mpsc::channel();
    let guard = Arc::new(std::sync::Mutex::new(Some(guard)));
    let last = guard.clone();
    let callback = move |loss| {
        drop((last.lock().unwrap().take(), client));
        lost.send(loss).unwrap();
    };
    guard.lock().unwrap().as_ref().unwrap().on_lost(callback);
    server.tell(&["DEL", &key(&name)]);
    assert_eq!(losses.recv_timeout(AMPLE).unwrap(), Loss::Revoked);
}

#[test]
fn waiting_thread_sees_loss_and_release() {
    let server = server();
    let client = client(&server);
    let guard = client.mutex(&name()).lock().fixed_lease(SHORT).wait();
    let mut lost = guard.unwrap().lost();
    assert!(lost.wait_timeout(AMPLE), "the guard was dropped");
    assert_eq!(lost.wait(), None);

    let start = Instant::now();
    let guard = client.mutex(&name()).lock().fixed_lease(SHORT).wait();
    let guard = guard.unwrap();
    let mut lost = guard.lost();
    let early = lost.wait_timeout(Duration::from_millis(1));
    assert!(!early || start.elapsed() > SHORT / 2, "lost too early");
    assert!(lost.wait_timeout(Duration::MAX));
    assert!(lost.wait_timeout(Duration::ZERO) && guard.check().is_err());
    assert_eq!(lost.wait(), Some(Loss::Expired));

    let locks = [client.mutex(&name()).lock(), client.mutex(&name()).lock()];
    let both = MultiLock::new(locks).wait().unwrap();
    let mut lost = both.lost();
    assert!(!lost.wait_timeout(Duration::ZERO));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lost.wait());
        both.release().wait().unwrap();
        assert_eq!(waiting.join().unwrap(), None);
    });
}

#[test]
fn run_blocking_reports_loss_after_the_work() {
    let server = server();
    let client = client(&server);
    let name = name();
    let lock = client.mutex(&name).lock().fixed_lease(SHORT);
    let lost = lock.run_blocking(|lease| {
        while lease.check().is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(matches!(
        lost,
        Err(Error::Lost {
            loss: Loss::Expired,
            ..
        })
    ));
    let held = client
        .mutex(&name)
        .lock()
        .run_blocking(|lease| (lease.token(), exists(&server, &name)));
    assert!(held.unwrap().1);
    assert!(!exists(&server, &name));
}

/// Returns the latency of each of `count` uncontended pairs of a task.
async fn task_pairs(client: Client, name: String, count: u64) -> Vec<Duration> {
    let mut pairs = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        let guard = client.mutex(&name).lock().await.unwrap();
        guard.release().await.unwrap();
        pairs.push(start.elapsed());
    }
    pairs
}

/// Returns the latency of each of `count` uncontended pairs of a thread.
fn thread_pairs(client: &Client, name: &str, count: u64) -> Vec<Duration> {
    let mut pairs = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        let guard = client.mutex(name).lock().wait().unwrap();
        guard.release().wait().unwrap();
        pairs.push(start.elapsed());
    }
    pairs
}

/// The most that a pair of a thread may take, relative to one of a task.
const MAX_RATIO: f64 = 1.3;

#[test]
#[ignore = "deep: measures a latency"]
fn pair_of_a_thread_is_nearly_as_fast() {
    let server = server();
    let threads = client(&server);
    let mut of_tasks = Vec::new();
    let mut of_threads = Vec::new();
    run(async {
        let tasks = connect_at(server.port()).await.unwrap();
        let name = name();
        for _ in 0..scaled(50) {
            let pairs = tokio::spawn(task_pairs(tasks.clone(), name.clone(), 100));
            of_tasks.extend(pairs.await.unwrap());
            of_threads.extend(std::thread::scope(|scope| {
                let pairs = scope.spawn(|| thread_pairs(&threads, &name, 100));
                pairs.join().unwrap()
            }));
        }
    });
    of_tasks.sort();
    of_threads.sort();
    let task = percentile(&of_tasks, 500);
    let thread = percentile(&of_threads, 500);
    let ratio = thread.as_secs_f64() / task.as_secs_f64();
    println!("p50 of a task {task:?}, of a thread {thread:?}, ratio {ratio:.2}");
    assert!(ratio <= MAX_RATIO, "{ratio:.2}");
}
