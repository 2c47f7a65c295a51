//! Bugs of what is composed of several acquires or requests: `MultiLock`,
//! reentrant handles, elections, and jobs per tick.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use leasehold::observe::Event;
use leasehold::{Error, MultiLock, OnceOutcome, Tick};
use testkit::{Fault, Proxy, ServerExt};
use tokio::time::timeout;

use crate::support::{
    AMPLE, LEASE, client, client_at, connect_at, eventually, fault_at, has_subscriber, is_busy,
    lua, name, run, server,
};

const HOUR: Duration = Duration::from_secs(3600);

/// A candidate that was elected and then not polled led without knowing it, for
/// as long as its future was kept.
#[test]
fn unpolled_candidate_blocks_nobody() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let (ours, theirs) = (client_at(proxy.port()).await, client(&server).await);
        let name = name();
        let held = fault_at(&server, &proxy, lua!("election/announce"), Fault::Hold);
        let mut unpolled = pin!(ours.election(&name).campaign());
        while !held.load(Ordering::SeqCst) {
            let polled = timeout(LEASE / 1000, &mut unpolled).await;
            assert!(polled.is_err(), "the term is not announced yet");
        }
        proxy.release_held();
        let campaign = theirs.election(&name).campaign();
        let elected = timeout(AMPLE, campaign).await;
        elected
            .expect("nobody leads")
            .unwrap()
            .release()
            .await
            .unwrap();
        unpolled.await.unwrap().release().await.unwrap();
    });
}

/// The lock was released before the end of the run was recorded. Another host
/// could find neither a runner nor a report, or run the next tick meanwhile.
#[test]
fn end_of_a_run_is_recorded_before_the_release() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let (ours, theirs) = (client_at(proxy.port()).await, client(&server).await);
        let name = name();
        let held = fault_at(&server, &proxy, lua!("once/finish"), Fault::Hold);
        let now = SystemTime::now();
        let job = ours.once(&name, Tick::at(now - HOUR, HOUR));
        let running = tokio::spawn(async move { job.run(|_| async {}).await });
        eventually("the run has ended", || held.load(Ordering::SeqCst)).await;
        let next = theirs.once(&name, Tick::at(now, HOUR));
        let started = next.start().await.unwrap();
        assert!(matches!(started, OnceOutcome::Busy), "{started:?}");
        proxy.release_held();
        let ran = running.await.unwrap().unwrap();
        assert!(matches!(ran, OnceOutcome::Ran(())), "{ran:?}");
    });
}

/// The claim of a run may have been executed. The client could not repeat it,
/// and said that nothing was.
#[test]
fn lost_claim_stays_unknown() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let sha = server.ask(&["SCRIPT", "LOAD", lua!("once/claim")]);
        let sha = sha.text().as_bytes().to_vec();
        let ours = connect_at(proxy.port()).lease(LEASE / 4).await.unwrap();
        let claimed = AtomicBool::new(false);
        proxy.inject(move |request| match request.get(1) == Some(&sha) {
            _ if claimed.load(Ordering::SeqCst) => Fault::CutRequest,
            true => {
                claimed.store(true, Ordering::SeqCst);
                Fault::CutReply
            }
            false => Fault::None,
        });
        let error = ours.once(&name(), Tick::now(HOUR)).start().await;
        let error = error.unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
    });
}

/// A run whose report arrived late was reported as stuck, although its work had
/// ended.
#[test]
fn run_is_not_stuck_while_it_is_reported() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let stuck = Arc::new(AtomicBool::new(false));
        let seen = stuck.clone();
        let ours = connect_at(proxy.port()).observe(move |event| {
            seen.fetch_or(matches!(event, Event::Stuck { .. }), Ordering::SeqCst);
        });
        let ours = ours.await.unwrap();
        fault_at(&server, &proxy, lua!("once/finish"), Fault::DropReply);
        let job = ours.once(&name(), Tick::now(HOUR));
        // The first report times out after LEASE / 2.
        let job = job.progress_within(LEASE / 4);
        let ran = job.run(|_| async {}).await.unwrap();
        assert!(matches!(ran, OnceOutcome::Ran(())), "{ran:?}");
        assert!(!stuck.load(Ordering::SeqCst));
    });
}

/// The timeout began before the future was polled.
#[test]
fn multi_lock_timeout_counts_from_the_first_poll() {
    run(async {
        let server = server();
        let (ours, theirs) = (client(&server).await, client(&server).await);
        let name = name();
        let held = theirs.mutex(&name).lock().await.unwrap();
        let limit = LEASE / 2;
        let asked = MultiLock::new([ours.mutex(&name).lock()]).timeout(limit);
        let asked = asked.into_future();
        tokio::time::sleep(limit * 5 / 4).await;
        let (acquired, released) = tokio::join!(asked, async {
            eventually("it waits", || has_subscriber(&server, &name)).await;
            held.release().await
        });
        released.unwrap();
        acquired.unwrap().release().await.unwrap();
    });
}

/// The options of a later part were checked once the earlier ones were
/// acquired.
#[test]
fn invalid_part_of_a_multi_lock_fails_at_once() {
    run(async {
        let server = server();
        let (ours, theirs) = (client(&server).await, client(&server).await);
        let (one, two) = (name() + "-1", name() + "-2");
        let _held = theirs.mutex(&one).lock().await.unwrap();
        let wrong = ours.mutex(&two).lock().lease(Duration::from_millis(1));
        let parts = [ours.mutex(&one).lock(), wrong];
        let failed = timeout(AMPLE, MultiLock::new(parts)).await;
        let error = failed.expect("it waits").unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    });
}

/// A task that entered the lock that another task of its handle had acquired
/// was reported as cancelled, and a metric counted it.
#[test]
fn entering_task_is_not_reported_as_refused() {
    run(async {
        let server = server();
        let refused = Arc::new(AtomicU32::new(0));
        let count = refused.clone();
        let ours = connect_at(server.port()).observe(move |event| {
            if matches!(event, Event::Refused { .. }) {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let (ours, theirs) = (ours.await.unwrap(), client(&server).await);
        let name = name();
        let held = theirs.mutex(&name).lock().await.unwrap();
        let handle = ours.mutex(&name).reentrant();
        let waiting = [(); 4].map(|()| tokio::spawn(handle.lock().into_future()));
        eventually("they wait", || has_subscriber(&server, &name)).await;
        held.release().await.unwrap();
        let mut guards = Vec::new();
        for waiting in waiting {
            guards.push(waiting.await.unwrap().unwrap());
        }
        assert_eq!(handle.guards(), 4);
        assert_eq!(refused.load(Ordering::SeqCst), 0);
    });
}

/// A local hand-off leaves the lease's state to the next holder. The handle
/// that had it does not count that holder's guards.
#[test]
fn handle_that_handed_its_lock_off_has_no_guards() {
    run(async {
        let server = server();
        let counts = Arc::new([const { AtomicU32::new(0) }; 2]);
        let counted = counts.clone();
        let ours = connect_at(server.port()).observe(move |event| {
            let [waiting, handed_off] = &*counted;
            match event {
                Event::WaitStarted { .. } => waiting.fetch_add(1, Ordering::SeqCst),
                Event::HandedOff { .. } => handed_off.fetch_add(1, Ordering::SeqCst),
                _ => 0,
            };
        });
        let (ours, theirs) = (ours.await.unwrap(), client(&server).await);
        let [waiting, handed_off] = &*counts;
        // A stall can outlast the window of a hand-off.
        for _ in 0..50 {
            let name = name();
            let held = theirs.mutex(&name).lock().await.unwrap();
            let before = waiting.load(Ordering::SeqCst);
            let wait = |number| waiting.load(Ordering::SeqCst) == before + number;
            let first = ours.mutex(&name).reentrant();
            let second = ours.mutex(&name).reentrant();
            let earlier = tokio::spawn(first.lock().into_future());
            eventually("one waits", || wait(1)).await;
            let later = tokio::spawn(second.lock().into_future());
            eventually("both wait", || wait(2)).await;
            held.release().await.unwrap();
            earlier.await.unwrap().unwrap().release().await.unwrap();
            let _guard = later.await.unwrap().unwrap();
            assert_eq!((first.guards(), second.guards()), (0, 1));
            if handed_off.load(Ordering::SeqCst) > 0 {
                return;
            }
        }
        panic!("no lock was handed off");
    });
}

/// While a thread counted the guards, the release of the last one became one in
/// the background: it returned before the lock was free.
#[test]
fn counted_guard_is_released_at_once() {
    const ROUNDS: usize = 3000;
    run(async {
        let server = server();
        let (ours, theirs) = (client(&server).await, client(&server).await);
        let name = name();
        let handle = ours.mutex(&name).reentrant();
        let is_done = Arc::new(AtomicBool::new(false));
        let counting = std::thread::spawn({
            let (handle, is_done) = (handle.clone(), is_done.clone());
            move || {
                while !is_done.load(Ordering::SeqCst) {
                    assert!(handle.guards() <= 1);
                }
            }
        });
        let mut busy = 0;
        for _ in 0..ROUNDS {
            handle.lock().await.unwrap().release().await.unwrap();
            busy += u32::from(is_busy(theirs.mutex(&name).try_lock()).await);
        }
        is_done.store(true, Ordering::SeqCst);
        counting.join().unwrap();
        assert_eq!(busy, 0);
    });
}
