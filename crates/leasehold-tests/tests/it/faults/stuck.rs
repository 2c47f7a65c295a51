//! Holders that are alive but stuck lose their locks, and no other holder does.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::observe::Event;
use leasehold::{Client, Error, Guard, Lease, Loss, Lost, MultiLock};
use testkit::{SeededRng, Server};

use crate::support::log::{log_line, start_log};
use crate::support::{
    AMPLE, LEASE, client, command_calls, connect_at, eventually, exists, has_subscriber, name, run,
    server, worker,
};

/// The lease of a holder that a gate test lets hang. The keeper notices that it
/// is stuck even if the machine stalls for two seconds.
const HUNG: Duration = Duration::from_secs(5);

/// A limit that a holder without reports exceeds before the first renewal.
const SOON: Duration = Duration::from_millis(100);

/// Reports until the lease ends, from a thread of its own.
fn report<M: 'static>(lease: Lease<M>) {
    std::thread::spawn(move || {
        while lease.check().is_ok() {
            lease.progress();
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn stuck_holder_alone_loses_its_lock() {
    start_log();
    let server = server();
    run(async {
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = events.clone();
        let connect = connect_at(server.port()).observe(move |event| {
            if let Event::Stuck { name, caller, .. } = event {
                let found = (name.to_string(), caller.file().to_owned(), caller.line());
                seen.lock().unwrap().push(found);
            }
        });
        let client = connect.await.unwrap();
        let (plain, reporting, hung) = (name(), name(), name());
        let plain = client.mutex(&plain).lock().await.unwrap();
        let lock = client.mutex(&reporting).lock();
        let reporting = lock.progress_within(LEASE / 2).await.unwrap();
        report(reporting.lease());
        let lock = client.mutex(&hung).lock();
        let line = line!() - 1;
        let stuck = lock.lease(HUNG).progress_within(SOON).await.unwrap();

        assert_eq!(stuck.lost().await, Some(Loss::Stuck));
        let released = stuck.release().await.unwrap_err().to_string();
        assert!(released.contains("stuck"), "{released}");
        plain.check().unwrap();
        reporting.check().unwrap();
        let expected = (hung.clone(), file!().to_owned(), line);
        assert_eq!(*events.lock().unwrap(), [expected]);
        let caller = format!("{}:{line}", file!());
        let logged = log_line(&["the holder is stuck", &hung, &caller]);
        assert!(logged.is_some());
        let other = self::client(&server).await;
        let next = other.mutex(&hung).lock().timeout(AMPLE).await.unwrap();
        next.release().await.unwrap();
    });
}

#[test]
fn blocked_runtime_without_progress_loses_its_lock() {
    let server = server();
    let name = name();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = client(&server).await;
        let lock = client.mutex(&name).lock().lease(HUNG);
        let guard = lock.progress_within(SOON).await.unwrap();
        let start = Instant::now();
        while exists(&server, &name) {
            assert!(start.elapsed() < AMPLE, "the lock is never free");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(guard.lost().await, Some(Loss::Stuck));
    });
}

#[test]
fn deadlocked_thread_loses_its_lock() {
    let server = server();
    let client = connect_at(server.port()).wait().unwrap();
    let blocked = Arc::new(Mutex::new(()));
    let held = blocked.lock().unwrap();
    let (sender, losses) = channel();
    let thread = std::thread::spawn({
        let blocked = blocked.clone();
        let lock = client.mutex(&name()).lock().lease(HUNG);
        move || {
            lock.progress_within(SOON).run_blocking(|lease| {
                sender.send(lease.lost()).unwrap();
                drop(blocked.lock());
            })
        }
    });
    let lost = losses.recv_timeout(AMPLE).unwrap();
    assert_eq!(lost.wait(), Some(Loss::Stuck));
    drop(held);
    let outcome = thread.join().unwrap();
    assert!(matches!(
        outcome,
        Err(Error::Lost {
            loss: Loss::Stuck,
            ..
        })
    ));
}

#[test]
fn stuck_work_of_run_is_dropped() {
    let server = server();
    run(async {
        let client = client(&server).await;
        let lock = client.mutex(&name()).lock().lease(HUNG);
        let work = lock.progress_within(SOON);
        let outcome = work.run(|_lease| std::future::pending::<()>()).await;
        assert!(
            matches!(
                outcome,
                Err(Error::Lost {
                    loss: Loss::Stuck,
                    ..
                })
            ),
            "{outcome:?}"
        );
    });
}

#[test]
fn stuck_leader_steps_down() {
    let server = server();
    run(async {
        let client = client(&server).await;
        let name = name();
        let election = client.election(&name).lease(HUNG).progress_within(SOON);
        let leading = tokio::spawn({
            let mut terms = 0;
            async move {
                let lead = election.lead(move |lease| {
                    terms += 1;
                    let term = terms;
                    async move {
                        if term == 1 {
                            std::future::pending::<()>().await;
                        }
                        lease.check()
                    }
                });
                lead.await.unwrap().unwrap();
            }
        });
        eventually("it leads", || exists(&server, &name)).await;
        // Another candidate leads in between.
        let other = self::client(&server).await;
        let guard = other.election(&name).campaign().await.unwrap();
        guard.release().await.unwrap();
        leading.await.unwrap();
    });
}

#[test]
fn waiting_multi_lock_need_not_report() {
    let server = server();
    run(async {
        let client = client(&server).await;
        let mut names = [name(), name()];
        names.sort();
        let other = self::client(&server).await;
        let last = other.mutex(&names[1]).lock().await.unwrap();
        let parts = names.clone().map(|name| {
            let lock = client.mutex(&name).lock().lease(HUNG);
            lock.progress_within(SOON)
        });
        let both = tokio::spawn(async move { MultiLock::new(parts).await });
        eventually("it has the first", || exists(&server, &names[0])).await;
        // Longer than the limit and the lease.
        tokio::time::sleep(HUNG + HUNG / 2).await;
        last.release().await.unwrap();
        let both = both.await.unwrap().unwrap();
        both.progress();
        assert_eq!(both.lost().await, Some(Loss::Stuck));
    });
}

/// The next holder neither inherits the limit nor is reported for.
#[test]
fn handed_off_lock_has_the_next_holders_limit() {
    let server = server();
    run(async {
        let client = client(&server).await;
        let mutex = client.mutex(&name());
        let first = mutex.lock().await.unwrap();
        let lock = mutex.lock().lease(HUNG).progress_within(SOON);
        let limited = tokio::spawn(async move {
            let guard = lock.await.unwrap();
            let lease = guard.lease();
            guard.release().await.unwrap();
            lease.progress();
        });
        eventually("it waits", || has_subscriber(&server, mutex.name())).await;
        let free = tokio::spawn(mutex.lock().lease(HUNG).into_future());
        first.release().await.unwrap();
        let free = free.await.unwrap().unwrap();
        tokio::time::sleep(HUNG * 2).await;
        free.check().expect("it has no limit");
        assert!(!free.lease().is_stuck());
        // On a stalled machine, the first waiter may be the last to be served.
        free.release().await.unwrap();
        limited.await.unwrap();
    });
}

#[test]
fn option_of_a_fixed_lease_is_invalid() {
    let server = server();
    run(async {
        let client = client(&server).await;
        let lock = client.mutex(&name()).lock().progress_within(SOON);
        let outcome = lock.fixed_lease(LEASE).await;
        let Err(Error::Invalid { what, .. }) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(what, "progress_within");
    });
}

/// The lease and the limit of the measurements below.
const BRIEF: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_millis(500);

/// How many holders hang at once.
const HOLDERS: usize = 100;

/// A holder that is to hang.
struct Hang {
    client: Client,
    name: String,
    /// How long it reports before it hangs.
    reports: Duration,
    /// Takes when it last reported.
    hung: Sender<(String, Instant, Lost)>,
    /// Blocked until the end of the test.
    blocked: Arc<Mutex<()>>,
}

impl Hang {
    fn lock(&self) -> leasehold::Acquire {
        let lock = self.client.mutex(&self.name).lock();
        lock.lease(BRIEF).progress_within(LIMIT)
    }

    /// Reports for a while, and then no more.
    async fn report(&self, guard: &Guard) {
        let start = Instant::now();
        while start.elapsed() < self.reports {
            guard.check().expect("a holder that reports keeps the lock");
            guard.progress();
            tokio::time::sleep(LIMIT / 20).await;
        }
        let reported = Instant::now();
        guard.progress();
        let hung = (self.name.clone(), reported, guard.lost());
        self.hung.send(hung).unwrap();
    }
}

/// Lets holders hang, and measures when they lose their locks. Holders of the
/// same client that report, or have no limit, must keep theirs.
fn measure(what: &str, hang: fn(Hang)) {
    let server = server();
    let client = connect_at(server.port()).wait().unwrap();
    let blocked = Arc::new(Mutex::new(()));
    let end = blocked.lock().unwrap();
    let keeping: Vec<_> = (0..HOLDERS)
        .map(|number| {
            let lock = client.mutex(&name()).lock().lease(BRIEF);
            let guard = match number % 2 {
                0 => lock.wait().unwrap(),
                _ => lock.progress_within(LIMIT).wait().unwrap(),
            };
            report(guard.lease());
            guard
        })
        .collect();
    let before = command_calls(&server, "evalsha");
    let start = Instant::now();
    let (sender, hung) = channel();
    let mut rng = SeededRng::new(1);
    for _ in 0..HOLDERS {
        hang(Hang {
            client: client.clone(),
            name: name(),
            reports: Duration::from_millis(rng.below(1000)),
            hung: sender.clone(),
            blocked: blocked.clone(),
        });
    }
    drop(sender);
    let mut lost = losses(&server, &hung);
    let renewals = command_calls(&server, "evalsha") - before;
    let periods = start.elapsed().as_secs_f64() / (BRIEF.as_secs_f64() / 3.0);
    for guard in &keeping {
        guard.check().expect("a holder that reports keeps the lock");
    }
    lost.sort();
    let (first, last) = (lost[0].0, lost[lost.len() - 1].0);
    let freed = lost.iter().map(|(_, freed)| *freed).max().unwrap();
    println!(
        "{what}: {} holders lost their locks {first:?} to {last:?} after their last report, \
         free on the server after at most {freed:?}, limit and lease {:?}; {} kept theirs; \
         {renewals} renewals in {periods:.1} periods",
        lost.len(),
        LIMIT + BRIEF,
        keeping.len(),
    );
    assert!(last <= LIMIT + BRIEF, "{last:?}");
    assert!(first >= LIMIT + BRIEF / 2, "{first:?}");
    assert!(
        freed <= LIMIT + BRIEF + Duration::from_millis(100),
        "{freed:?}"
    );
    drop(end);
}

/// Returns how long each holder was valid after its last report, and how long
/// the server kept the lock.
fn losses(server: &Server, hung: &Receiver<(String, Instant, Lost)>) -> Vec<(Duration, Duration)> {
    let watching: Vec<_> = hung
        .iter()
        .take(HOLDERS)
        .map(|(name, reported, lost)| {
            let watched = std::thread::spawn(move || {
                assert_eq!(lost.wait(), Some(Loss::Stuck));
                reported.elapsed()
            });
            (name, reported, watched)
        })
        .collect();
    let mut left: Vec<_> = watching.iter().map(|(name, at, _)| (name, *at)).collect();
    let mut freed = Vec::new();
    while !left.is_empty() {
        left.retain(|(name, reported)| {
            let is_held = exists(server, name);
            assert!(reported.elapsed() < AMPLE, "`{name}` is never free");
            if !is_held {
                freed.push(((*name).clone(), reported.elapsed()));
            }
            is_held
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    let freed_after = |wanted: &str| {
        let mut freed = freed.iter();
        freed.find(|(name, _)| name == wanted).unwrap().1
    };
    let freed: Vec<_> = watching
        .iter()
        .map(|(name, ..)| freed_after(name))
        .collect();
    let kept = watching
        .into_iter()
        .map(|(_, _, kept)| kept.join().unwrap());
    kept.zip(freed).collect()
}

#[test]
#[ignore = "deep: measures when stuck holders lose their locks"]
fn stuck_tasks_lose_their_locks_in_time() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    measure("tasks", |hang| {
        tokio::spawn(async move {
            let guard = hang.lock().await.unwrap();
            hang.report(&guard).await;
            std::future::pending::<()>().await;
        });
    });
}

#[test]
#[ignore = "deep: measures when stuck holders lose their locks"]
fn blocked_runtimes_lose_their_locks_in_time() {
    measure("blocked runtimes", |hang| {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let guard = hang.lock().await.unwrap();
                hang.report(&guard).await;
                drop(hang.blocked.lock());
                drop(guard);
            });
        });
    });
}

#[test]
#[ignore = "deep: measures when stuck holders lose their locks"]
fn deadlocked_threads_lose_their_locks_in_time() {
    measure("deadlocked threads", |hang| {
        std::thread::spawn(move || {
            let guard = hang.lock().wait().unwrap();
            let start = Instant::now();
            while start.elapsed() < hang.reports {
                guard.progress();
                std::thread::sleep(LIMIT / 20);
            }
            let reported = Instant::now();
            guard.progress();
            let hung = (hang.name.clone(), reported, guard.lost());
            hang.hung.send(hung).unwrap();
            drop(hang.blocked.lock());
        });
    });
}

#[test]
#[ignore = "deep: measures when stopped processes lose their locks"]
fn stopped_processes_lose_their_locks_in_time() {
    const AT_ONCE: usize = 10;
    let server = server();
    let mut rng = SeededRng::new(1);
    let mut kept = Vec::new();
    for _ in 0..HOLDERS / AT_ONCE {
        let mut workers: Vec<_> = (0..AT_ONCE)
            .map(|_| (worker::start(server.port(), BRIEF), name()))
            .collect();
        for (worker, name) in &mut workers {
            let limit = LIMIT.as_millis();
            assert_eq!(worker.ask(&format!("report {name} {limit}")), "reports");
        }
        // Longer than a lease: they are renewed.
        std::thread::sleep(BRIEF * 2);
        let mut stopped = Vec::new();
        for (worker, name) in &workers {
            std::thread::sleep(Duration::from_millis(rng.below(100)));
            assert!(exists(&server, name), "a holder that reports lost its lock");
            // It last reported before this.
            stopped.push((name.clone(), Instant::now()));
            worker.pause();
        }
        while !stopped.is_empty() {
            stopped.retain(|(name, at)| {
                let is_held = exists(&server, name);
                assert!(at.elapsed() < AMPLE, "`{name}` is never free");
                if !is_held {
                    kept.push(at.elapsed());
                }
                is_held
            });
            std::thread::sleep(Duration::from_millis(1));
        }
        for (worker, _) in &workers {
            worker.resume();
        }
    }
    kept.sort();
    let (first, last) = (kept[0], kept[kept.len() - 1]);
    println!(
        "stopped processes: {} locks free after {first:?} to {last:?}",
        kept.len()
    );
    assert!(last <= LIMIT + BRIEF, "{last:?}");
}

#[test]
#[ignore = "deep: measures the cost of a report"]
fn million_reports_cost_nanoseconds() {
    let server = server();
    let client = connect_at(server.port()).wait().unwrap();
    let lock = client.mutex(&name()).lock();
    let guard = lock.progress_within(LIMIT).wait().unwrap();
    let before = command_calls(&server, "evalsha");
    let mut best = Duration::MAX;
    for _ in 0..10 {
        let start = Instant::now();
        for _ in 0..1_000_000 {
            guard.progress();
        }
        best = best.min(start.elapsed() / 1_000_000);
    }
    let lease = guard.lease();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..1_000_000 {
                    lease.progress();
                }
            });
        }
    });
    let shared = start.elapsed() / 1_000_000;
    println!("a report costs {best:?}, and {shared:?} on two threads at once");
    assert_eq!(command_calls(&server, "evalsha"), before, "no request");
    // Without optimization it is a few calls.
    if !cfg!(debug_assertions) {
        assert!(best < Duration::from_nanos(20), "{best:?}");
    }
}
