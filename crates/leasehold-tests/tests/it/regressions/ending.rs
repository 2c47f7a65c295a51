//! Bugs of how a lease ends: a revocation, a release or a shutdown beside
//! another feature.

use std::future::{IntoFuture, Ready};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::observe::Event;
use leasehold::{Acquire, Client, Error, Loss, MultiLock};
use testkit::{Fault, Proxy, Server, ServerExt};

use crate::support::callers::on_thread;
use crate::support::inspection::allow_inspection;
use crate::support::{
    AMPLE, LEASE, SHORT, client, command_calls, connect_at, eventually, exists, heartbeat, key,
    name, only_counters_left, owners, poll_at_most, run, server, url_at,
};

/// A lease that `at_most` limits was not renewed, and so its holder never
/// noticed that it was revoked.
#[test]
fn revocation_reaches_holder_with_at_most() {
    type Limit = fn(Acquire) -> Acquire;
    const LIMITS: [Limit; 4] = [
        |lock| lock.at_most(AMPLE),
        |lock| lock.at_most(AMPLE / 2),
        |lock| lock.fixed_lease(AMPLE).at_most(AMPLE),
        |lock| lock.fixed_lease(AMPLE * 2).at_most(AMPLE),
    ];
    run(async {
        let server = server();
        allow_inspection(&server);
        let ours = connect_at(server.port()).lease(AMPLE);
        let ours = ours.await.unwrap();
        let theirs = client(&server).await;
        for limit in LIMITS {
            let name = name();
            for lock in [ours.mutex(&name).lock(), ours.fair_mutex(&name).lock()] {
                let guard = limit(lock).await.unwrap();
                // Nor by an extension, which `at_most` makes impossible.
                guard.extend(AMPLE).await.unwrap();
                assert_eq!(theirs.force_release(&name).await.unwrap().len(), 1);
                assert_eq!(guard.lost().await, Some(Loss::Revoked));
            }
        }
    });
}

/// The same without a message: the lock is found to be gone by a renewal.
#[test]
fn lost_data_is_noticed_with_at_most() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let guard = client.mutex(&name).lock().at_most(LEASE).await.unwrap();
        server.tell(&["DEL", &key(&name)]);
        assert_eq!(guard.lost().await, Some(Loss::Revoked));
    });
}

/// Near the end of `at_most`, the time that was left was reported beside the
/// full lease: every hold that reached its limit looked like late renewals.
#[test]
fn renewals_near_at_most_report_what_they_request() {
    run(async {
        let server = server();
        let renewals = Arc::<Mutex<Vec<_>>>::default();
        let seen = renewals.clone();
        let observer = move |event: &Event<'_>| {
            if let Event::Renewed { margin, lease, .. } = event {
                seen.lock().unwrap().push((*margin, *lease));
            }
        };
        let client = connect_at(server.port()).observe(observer).await.unwrap();
        // A stalled machine may renew nothing before the limit.
        while renewals.lock().unwrap().is_empty() {
            let lock = client.mutex(&name()).lock().at_most(SHORT);
            let guard = lock.await.unwrap();
            guard.lost().await;
        }
        for (margin, lease) in &*renewals.lock().unwrap() {
            assert!(margin < lease && *lease < SHORT, "{margin:?} of {lease:?}");
        }
    });
}

/// A client whose requests that begin with `command` are held by its proxy.
struct Held {
    server: Server,
    proxy: Proxy,
    name: String,
    is_held: Arc<AtomicBool>,
}

impl Held {
    fn new() -> Self {
        let server = server();
        Self {
            proxy: Proxy::start(server.port()),
            name: name(),
            is_held: Arc::default(),
            server,
        }
    }

    /// Holds the first request that names the lock and one of `commands`.
    fn hold(&self, commands: &'static [&'static str]) {
        let (key, is_held) = (key(&self.name), self.is_held.clone());
        self.proxy.inject(move |request| {
            let is_it = commands
                .iter()
                .any(|command| command.as_bytes() == request[0])
                && request.iter().any(|word| word == key.as_bytes());
            match is_it && !is_held.swap(true, Ordering::SeqCst) {
                true => Fault::Hold,
                false => Fault::None,
            }
        });
    }

    async fn held(&self) {
        eventually("the request is held", || {
            self.is_held.load(Ordering::SeqCst)
        })
        .await;
    }

    /// Asserts that a shutdown does not claim to have released a lock that the
    /// held request can still acquire, and releases it with the request.
    async fn shut_down(&self, client: &Client) {
        let outcome = client.shutdown(SHORT).await;
        assert!(matches!(outcome, Err(Error::Unreleased)), "{outcome:?}");
        self.proxy.heal();
        self.proxy.release_held();
        client.shutdown(AMPLE).await.unwrap();
        assert!(!exists(&self.server, &self.name), "orphaned");
    }
}

/// A shutdown reported that every lock was released while an acquire was in
/// flight, which the server executed after the process had exited.
#[test]
fn shutdown_waits_for_an_acquire_in_flight() {
    run(async {
        type Lock = fn(&Client, &str) -> tokio::task::JoinHandle<Result<(), Error>>;
        const LOCKS: [Lock; 4] = [
            |client, name| {
                let lock = client.mutex(name).lock().into_future();
                tokio::spawn(async { lock.await.map(drop) })
            },
            |client, name| {
                let lock = client.mutex(name).try_lock().into_future();
                tokio::spawn(async { lock.await.map(drop) })
            },
            |client, name| {
                let lock = client.fair_mutex(name).lock().into_future();
                tokio::spawn(async { lock.await.map(drop) })
            },
            |client, name| {
                let lock = client.mutex(name).reentrant();
                tokio::spawn(async move { lock.lock().await.map(drop) })
            },
        ];
        for lock in LOCKS {
            let held = Held::new();
            let client = connect_at(held.proxy.port()).await.unwrap();
            held.hold(&["SET", "EVALSHA"]);
            let acquiring = lock(&client, &held.name);
            held.held().await;
            held.shut_down(&client).await;
            let _ = acquiring.await.unwrap();
        }
    });
}

/// The same with an acquire of a thread.
#[test]
fn shutdown_waits_for_the_acquire_of_a_thread() {
    run(async {
        let held = Held::new();
        let builder = Client::connect(&url_at(held.proxy.port()));
        let builder = builder.request_timeout(LEASE / 2).connect_timeout(LEASE);
        let client = on_thread(move || builder.wait()).await.unwrap();
        held.hold(&["SET"]);
        let lock = client.mutex(&held.name).lock();
        let acquiring = tokio::task::spawn_blocking(move || lock.wait().map(drop));
        held.held().await;
        let shut_down = |limit| {
            let client = client.clone();
            on_thread(move || client.shutdown(limit).wait())
        };
        let outcome = shut_down(SHORT).await;
        assert!(matches!(outcome, Err(Error::Unreleased)), "{outcome:?}");
        held.proxy.heal();
        held.proxy.release_held();
        shut_down(AMPLE).await.unwrap();
        assert!(!exists(&held.server, &held.name), "orphaned");
        let _ = acquiring.await.unwrap();
    });
}

/// The same with an acquire whose task is not polled any more.
#[test]
fn shutdown_waits_for_an_unpolled_acquire() {
    run(async {
        let held = Held::new();
        let client = connect_at(held.proxy.port()).await.unwrap();
        let before = command_calls(&held.server, "set");
        held.hold(&["SET"]);
        let mut unpolled = client.mutex(&held.name).lock().into_future();
        assert!(poll_at_most(&mut unpolled, 2).await.is_none());
        held.held().await;
        let outcome = client.shutdown(SHORT).await;
        assert!(matches!(outcome, Err(Error::Unreleased)), "{outcome:?}");
        held.proxy.heal();
        held.proxy.release_held();
        // The keeper may cancel the acquire at once, so the lock itself may
        // not be seen.
        eventually("the server executes it", || {
            command_calls(&held.server, "set") > before
        })
        .await;
        drop(unpolled);
        client.shutdown(AMPLE).await.unwrap();
        assert!(!exists(&held.server, &held.name), "orphaned");
    });
}

/// A shutdown reported that every lock was released while a release was in
/// flight.
#[test]
fn shutdown_waits_for_a_release_in_flight() {
    run(async {
        let held = Held::new();
        let client = connect_at(held.proxy.port()).await.unwrap();
        let guard = client.mutex(&held.name).lock().await.unwrap();
        held.hold(&["DELEX", "DELIFEQ", "EVALSHA", "EVAL"]);
        let releasing = tokio::spawn(guard.release());
        held.held().await;
        held.shut_down(&client).await;
        releasing.await.unwrap().unwrap();
    });
}

/// A shutdown left the queue entry of a task that was not polled, and the
/// server could grant it the lock.
#[test]
fn shutdown_cancels_an_unpolled_waiter() {
    run(async {
        let server = server();
        let ours = client(&server).await;
        let theirs = client(&server).await;
        let name = name();
        let held = theirs.fair_mutex(&name).lock().await.unwrap();
        let mut unpolled = ours.fair_mutex(&name).lock().into_future();
        // Until its first heartbeat. If the enqueue had no reply yet, the
        // shutdown would rightly wait for the task.
        let (start, mut first) = (Instant::now(), None);
        loop {
            let polled = tokio::time::timeout(SHORT / 100, &mut unpolled).await;
            assert!(polled.is_err(), "the lock is held");
            match (&first, heartbeat(&server, &name)) {
                (Some((owner, first)), Some((same, end))) if same == *owner => {
                    if end > *first {
                        break;
                    }
                }
                (_, found) => first = found,
            }
            assert!(start.elapsed() < AMPLE, "no heartbeat");
        }
        let queued = || !owners(&server, "queue", &name).is_empty();
        ours.shutdown(AMPLE).await.unwrap();
        assert!(!queued(), "still queued");
        held.release().await.unwrap();
        let error = unpolled.await.unwrap_err();
        assert!(matches!(error, Error::ShutDown), "{error:?}");
        assert!(!exists(&server, &name), "orphaned");
    });
}

/// If the closure that creates the work panicked, the lock was released only in
/// the background, after the panic had resumed.
#[test]
fn panic_of_a_closure_resumes_after_release() {
    fn panicking() -> Ready<()> {
        resume_unwind(Box::new("on purpose"))
    }
    run(async {
        let server = server();
        let client = client(&server).await;
        // Often enough that a release in the background loses the race.
        for _ in 0..20 {
            let name = name();
            let lock = client.mutex(&name).lock();
            let alone = tokio::spawn(lock.run(|_| panicking()));
            assert!(alone.await.unwrap_err().is_panic());
            assert!(!exists(&server, &name));

            let lock = client.mutex(&name).lock();
            let all = tokio::spawn(MultiLock::new([lock]).run(|_| panicking()));
            assert!(all.await.unwrap_err().is_panic());
            assert!(!exists(&server, &name));
        }
    });
}

/// The keeper gave up five seconds after the last handle was dropped, and the
/// locks that it could not release by then stayed until their leases ended.
#[test]
fn lock_dropped_with_client_in_an_outage_is_released() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = connect_at(proxy.port()).lease(AMPLE * 10).await.unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        proxy.refuse(true);
        proxy.sever();
        drop((guard, client));
        tokio::time::sleep(Duration::from_secs(8)).await;
        proxy.heal();
        let released = || only_counters_left(&server);
        eventually("only counters are left", released).await;
    });
}
