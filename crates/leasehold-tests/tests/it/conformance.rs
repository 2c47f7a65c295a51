//! The contract of a lock, once; each kind enrols with one line.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use leasehold::{
    Acquire, Client, Error, FairMutex, Guard, Lease, Loss, Mutex, Quorum, Reentrant,
    ReleaseOutcome, RwLock, Semaphore, ShutdownOutcome,
};

use crate::contract::{Closes, Exclusive, Holding, Pair};
use crate::deployment::Deployment;
use crate::support::{AMPLE, LEASE, SHORT, eventually, name, until_renewed};

/// Enrols a kind whose contract is kept by acquisitions made with one method and one that does not wait.
macro_rules! exclusive {
    ($kind:ident: $type:ident, $make:expr, $lock:ident, $try_lock:ident) => {
        keeps_to!(Client: $type, $make, $lock, $try_lock);
        enrol!($kind: $type);
    };
}

/// Says how a kind is had from a client, and acquired.
macro_rules! keeps_to {
    ($client:ident: $type:ident, $make:expr, $lock:ident, $try_lock:ident) => {
        impl Exclusive<$client> for $type {
            type Guard = Guard;

            fn named(client: &$client, name: &str) -> Self {
                let make: fn(&$client, &str) -> Self = $make;
                make(client, name)
            }
            fn request(&self) -> Acquire {
                $type::$lock(self).into()
            }
            async fn acquire(&self, lock: Acquire) -> Result<Guard, Error> {
                lock.await
            }
            async fn try_lock(&self) -> Result<Option<Guard>, Error> {
                Ok($type::$try_lock(self).await?.map(Into::into))
            }
            async fn run<W>(
                &self,
                lock: Acquire,
                work: impl FnOnce(Vec<Lease>) -> W + Send,
            ) -> Result<W::Output, Error>
            where
                W: Future + Send,
                W::Output: Send,
            {
                lock.run(|lease| work(vec![lease])).await
            }
        }
    };
}

macro_rules! enrol {
    ($kind:ident: $type:ident) => {
        mod $kind {
            contract!($type:
                a_wait_is_kept_to
                a_fixed_lease_ends
                at_most_ends_a_renewed_lease
                excludes_others_until_released
                try_lock_answers_none_while_held
                a_timeout_says_who_holds_it
                a_lease_is_renewed
                a_renewal_stays_within_at_most
                a_fixed_lease_can_be_extended
                releasing_what_was_lost_says_so_and_harms_nobody
                dropping_releases
                run_gives_back_on_every_way_out
                at_least_keeps_others_out_after_a_release
                shutdown_releases_all
                tokens_rise
            );

            #[test]
            #[ignore = "deep: measures times, over ten leases"]
            fn the_contract_is_kept_in_time() {
                crate::support::on_every_server(|server| async move {
                    super::untimed::<_, super::$type>(&server, super::IN_TIME).await;
                    super::timed::<_, super::$type>(&server, super::IN_TIME).await;
                });
            }
        }
    };
}

macro_rules! contract {
    ($type:ident: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                crate::support::on_every_server(|server| async move {
                    super::$case::<_, super::$type>(&server, super::GATE).await;
                });
            }
        )*
    };
}

exclusive!(mutex: Mutex, |client, name| client.mutex(name), lock, try_lock);
exclusive!(reentrant: Reentrant, |client, name| client.mutex(name).reentrant(), lock, try_lock);
exclusive!(fair_mutex: FairMutex, |client, name| client.fair_mutex(name), lock, try_lock);
exclusive!(semaphore: Semaphore, |client, name| client.semaphore(name, 1), acquire, try_acquire);
exclusive!(rw_lock: RwLock, |client, name| client.rw_lock(name), write, try_write);
enrol!(multi_lock: Pair);
keeps_to!(Quorum: Mutex, |quorum, name| quorum.mutex(name), lock, try_lock);
keeps_to!(Quorum: Reentrant, |quorum, name| quorum.mutex(name).reentrant(), lock, try_lock);

/// How long the leases of the contract are, and how strictly its times are measured.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// The lease of a holder that the keeper renews.
    lease: Duration,
    /// How many renewals of it are waited for.
    renewals: u32,
    /// A fixed lease that is waited out.
    fixed: Duration,
    /// The limit of a lease that is renewed until then.
    at_most: Duration,
    /// How long a waiter is watched that must not get the lock.
    watched: Duration,
    /// By how much everything may be late.
    excused: Duration,
}

/// For a machine that stalls: leases outlast a stall, and only what is certain by the clock is asserted.
pub(crate) const GATE: Pace = Pace {
    lease: LEASE,
    renewals: 2,
    fixed: Duration::from_secs(3),
    at_most: Duration::from_secs(3),
    watched: SHORT,
    excused: AMPLE,
};

/// For a quiet machine. The margin of a lease of 2 s (22 ms) is above what a small machine's scheduler does to a thread.
pub(crate) const IN_TIME: Pace = Pace {
    lease: Duration::from_secs(2),
    renewals: 30,
    fixed: Duration::from_secs(2),
    at_most: Duration::from_secs(5),
    watched: Duration::from_secs(4),
    excused: Duration::ZERO,
};

/// How late a busy machine may run a task that was told in time.
const SCHEDULING: Duration = Duration::from_millis(100);

/// All of it for one kind, all at once, except what measures time most strictly.
pub(crate) async fn untimed<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    tokio::join!(
        excludes_others_until_released::<D, K>(site, pace),
        try_lock_answers_none_while_held::<D, K>(site, pace),
        a_timeout_says_who_holds_it::<D, K>(site, pace),
        a_lease_is_renewed::<D, K>(site, pace),
        a_renewal_stays_within_at_most::<D, K>(site, pace),
        a_fixed_lease_can_be_extended::<D, K>(site, pace),
        releasing_what_was_lost_says_so_and_harms_nobody::<D, K>(site, pace),
        dropping_releases::<D, K>(site, pace),
        run_gives_back_on_every_way_out::<D, K>(site, pace),
        at_least_keeps_others_out_after_a_release::<D, K>(site, pace),
        shutdown_releases_all::<D, K>(site, pace),
        tokens_rise::<D, K>(site, pace),
    );
}

/// The rest of it.
pub(crate) async fn timed<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    a_wait_is_kept_to::<D, K>(site, pace).await;
    tokio::join!(
        a_fixed_lease_ends::<D, K>(site, pace),
        at_most_ends_a_renewed_lease::<D, K>(site, pace),
    );
}

async fn pair<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) -> (K, K, String) {
    let name = name();
    let one = site.with_lease(pace.lease).await;
    let other = site.with_lease(pace.lease).await;
    (K::named(&one, &name), K::named(&other, &name), name)
}

/// How long the holder has the lock still, as the server tells a client that does not wait.
async fn lease_remaining<C: 'static, K: Exclusive<C>>(theirs: &K) -> Duration {
    let error = theirs.lock().timeout(Duration::ZERO).await.unwrap_err();
    let Error::Timeout {
        holder: Some(holder),
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    holder.lease_remaining.expect("a lease")
}

async fn excludes_others_until_released<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let guard = ours.lock().await.unwrap();
    let waiter =
        tokio::spawn(async move { theirs.lock().await.map(|guard| (Instant::now(), guard)) });
    tokio::time::sleep(pace.watched).await;
    assert!(!waiter.is_finished(), "two holders");
    let released = Instant::now();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let (got, _guard) = waiter.await.unwrap().unwrap();
    assert!(got > released, "two holders");
    assert!(
        (got - released) < Duration::from_millis(600) + pace.excused,
        "waited {:?}",
        got - released
    );
}

async fn try_lock_answers_none_while_held<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let guard = ours.try_lock().await.unwrap().expect("free");
    assert!(theirs.try_lock().await.unwrap().is_none());
    let _ = guard.release().await.unwrap();
    assert!(theirs.try_lock().await.unwrap().is_some());
}

async fn a_wait_is_kept_to<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let _guard = ours.lock().await.unwrap();
    for wait in [0, 1, 100, 400].map(Duration::from_millis) {
        let start = Instant::now();
        let error = theirs.lock().timeout(wait).await.unwrap_err();
        let took = start.elapsed();
        // A stall breaks the connection on which the client subscribes: a waiter reports that in place of the timeout.
        let broken = matches!(error, Error::Unavailable(_) | Error::OutcomeUnknown(_));
        let stalled = broken && took > wait + SCHEDULING;
        assert!(
            stalled || matches!(error, Error::Timeout { .. }),
            "{error:?}"
        );
        assert!(
            took < wait + SCHEDULING + pace.excused,
            "{wait:?} took {took:?}"
        );
        assert!(took >= wait, "{wait:?} took {took:?}");
    }
}

async fn a_timeout_says_who_holds_it<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    let (ours, theirs, name) = pair::<D, K>(site, pace).await;
    let _guard = ours.lock().note("the night's import").await.unwrap();
    // Connects, so that the wait is long enough for a reply.
    assert!(theirs.try_lock().await.unwrap().is_none());
    let error = theirs.lock().timeout(pace.lease / 2).await.unwrap_err();
    let text = error.to_string();
    let Error::Timeout {
        holder: Some(holder),
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(holder.pid, Some(std::process::id()));
    assert_eq!(holder.note.as_deref(), Some("the night's import"));
    assert!(
        holder
            .lease_remaining
            .is_some_and(|left| left <= pace.lease),
        "{holder:?}"
    );
    let since = holder.since.unwrap().elapsed().unwrap();
    assert!(since < Duration::from_secs(5) + pace.excused, "{since:?}");
    assert!(
        text.contains(&name) && text.contains("the night's import"),
        "{text}"
    );
}

async fn a_fixed_lease_ends<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let begun = Instant::now();
    let guard = ours.lock().fixed_lease(pace.fixed).await.unwrap();
    let (start, deadline) = (Instant::now(), guard.named().deadline());
    let contender = tokio::spawn(async move {
        let wait = pace.fixed + pace.lease + pace.excused;
        let taken = theirs.lock().timeout(wait).await;
        (Instant::now(), taken)
    });
    assert_eq!(guard.lost().await, Some(Loss::Expired));
    let took = start.elapsed();
    assert!(took <= pace.fixed + pace.excused, "lost after {took:?}");
    assert!(begun.elapsed() >= pace.fixed / 2, "lost too early");
    assert!(guard.check().is_err());
    let (got, taken) = contender.await.unwrap();
    let _taken = taken.unwrap();
    assert!(got > deadline, "two holders");
}

async fn a_lease_is_renewed<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let guard = ours.lock().await.unwrap();
    let first_end = Instant::now() + pace.lease;
    for _ in 0..pace.renewals {
        until_renewed(&[&guard.named()]).await;
        guard.check().unwrap();
        assert!(theirs.try_lock().await.unwrap().is_none());
    }
    let left = lease_remaining(&theirs).await;
    assert!(
        Instant::now() + left > first_end,
        "not renewed on the server"
    );
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

async fn a_fixed_lease_can_be_extended<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let guard = ours.lock().fixed_lease(pace.lease).await.unwrap();
    guard.extend(pace.lease * 4).await.unwrap();
    assert!(guard.named().remaining() > pace.lease * 2);
    // Nodes of a quorum beyond the majority learn of it a little later, and any of them may be the one that replies.
    let start = Instant::now();
    while lease_remaining(&theirs).await <= pace.lease * 2 {
        assert!(start.elapsed() < AMPLE, "not extended on the server");
    }
    tokio::time::sleep(pace.watched).await;
    guard.check().unwrap();
    assert!(theirs.try_lock().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

async fn releasing_what_was_lost_says_so_and_harms_nobody<
    D: Deployment,
    K: Exclusive<D::Client>,
>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, name) = pair::<D, K>(site, pace).await;
    let lost = ours.lock().fixed_lease(pace.fixed).await.unwrap();
    let other = theirs.lock().await.unwrap();
    assert_eq!(
        lost.release().await.unwrap(),
        ReleaseOutcome::AlreadyLost {
            loss: Loss::Expired
        }
    );
    other.check().unwrap();
    assert!(site.exists(&name));
    assert_eq!(other.release().await.unwrap(), ReleaseOutcome::Released);
}

async fn dropping_releases<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    let (ours, _, name) = pair::<D, K>(site, pace).await;
    let guard = ours.lock().await.unwrap();
    // Outside of any runtime, as a destructor may run anywhere.
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let start = Instant::now();
    eventually("released", || !site.exists(&name)).await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1) + pace.excused, "{took:?}");
}

async fn run_gives_back_on_every_way_out<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, name) = pair::<D, K>(site, pace).await;
    let value = ours
        .lock()
        .run(|leases| async move { leases[0].token().as_u64() })
        .await
        .unwrap();
    assert!(value > 0);
    assert!(!site.exists(&name));

    let panicking = ours.clone();
    let work = async move {
        let outcome: Result<(), Error> = panicking
            .lock()
            // Not `panic!`: printing six backtraces keeps every worker from its renewals for a second.
            .run(|_| async { resume_unwind(Box::new("in the work")) })
            .await;
        outcome
    };
    assert!(tokio::spawn(work).await.unwrap_err().is_panic());
    assert!(!site.exists(&name), "held after a panic");

    let (begin, begun) = tokio::sync::oneshot::channel();
    let forever = ours.lock().run(|_| async {
        begin.send(()).expect("the test waits");
        std::future::pending::<()>().await;
    });
    tokio::select! {
        ended = forever => panic!("{ended:?}"),
        begun = begun => begun.unwrap(),
    }
    let wait = Duration::from_secs(1) + pace.excused;
    let _taken = theirs.lock().timeout(wait).await.unwrap();
}

async fn at_least_keeps_others_out_after_a_release<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, name) = pair::<D, K>(site, pace).await;
    let kept = Duration::from_millis(900);
    let early = kept - Duration::from_millis(5);
    let start = Instant::now();
    let guard = ours.lock().at_least(kept).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let taken = theirs.try_lock().await.unwrap();
    // A stall may be longer than `kept`.
    assert!(taken.is_none() || start.elapsed() >= early, "free at once");
    drop(taken);
    let _other = theirs.lock().await.unwrap();
    let took = start.elapsed();
    assert!(took >= early, "free after {took:?}");
    assert!(
        took < kept + Duration::from_millis(1500) + pace.excused,
        "free after {took:?}"
    );
    assert!(site.exists(&name));
}

async fn at_most_ends_a_renewed_lease<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let begun = Instant::now();
    let guard = ours.lock().at_most(pace.at_most).await.unwrap();
    let start = Instant::now();
    assert_eq!(guard.lost().await, Some(Loss::AtMost));
    let took = start.elapsed();
    assert!(
        took <= pace.at_most + SCHEDULING + pace.excused,
        "ended after {took:?}"
    );
    let took = begun.elapsed();
    assert!(took > pace.at_most * 9 / 10, "ended after {took:?}");
    let wait = pace.lease + pace.excused;
    let _taken = theirs.lock().timeout(wait).await.unwrap();
}

async fn a_renewal_stays_within_at_most<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
    pace: Pace,
) {
    let (ours, _, _) = pair::<D, K>(site, pace).await;
    let limit = pace.lease * 5 / 4;
    let guard = ours.lock().at_most(limit).await.unwrap();
    let latest = Instant::now() + limit;
    until_renewed(&[&guard.named()]).await;
    assert!(guard.named().deadline() <= latest, "beyond the limit");
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

async fn shutdown_releases_all<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    let client = site.with_lease(pace.lease).await;
    let names: Vec<_> = (0..50).map(|_| name()).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(K::named(&client, name).lock().await.unwrap());
    }
    let waiter = K::named(&site.with_lease(pace.lease).await, &names[0]);
    let limit = Duration::from_secs(5) + pace.excused;
    assert_eq!(client.shutdown(limit).await, ShutdownOutcome::Released);
    for name in &names {
        assert!(!site.exists(name), "{name} is still held");
    }
    for guard in guards {
        assert_eq!(
            guard.release().await.unwrap(),
            ReleaseOutcome::AlreadyLost {
                loss: Loss::ShutDown
            }
        );
    }
    let refused = K::named(&client, &names[0]).lock().await;
    assert!(matches!(refused, Err(Error::ShutDown)));
    let _free = waiter.try_lock().await.unwrap().expect("free");
}

async fn tokens_rise<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    let (ours, theirs, _) = pair::<D, K>(site, pace).await;
    let mut last = 0;
    for turn in 0..100 {
        let side = if turn % 3 == 0 { &ours } else { &theirs };
        let guard = side.lock().await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        let _ = guard.release().await.unwrap();
    }
}
