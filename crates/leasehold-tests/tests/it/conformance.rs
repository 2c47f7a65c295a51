//! The contract of a lock, once; each kind enrols with one line.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use leasehold::kinds::{Lock, Reentrant};
use leasehold::{
    Client, Error, FairMutex, Guard, Lease, Loss, Mutex, Quorum, Release, RwLock, Semaphore,
};

use testkit::machine::{ran_between, ran_since};

use crate::contract::{Closes, Exclusive, Holding, Pair};
use crate::deployment::Deployment;
use crate::support::{LEASE, client, eventually, exists, name, on_every_server};

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
            fn request(&self) -> Lock {
                $type::$lock(self).into()
            }
            async fn acquire(&self, lock: Lock) -> Result<Guard, Error> {
                lock.await
            }
            async fn try_lock(&self) -> Result<Option<Guard>, Error> {
                Ok($type::$try_lock(self).await?.map(Into::into))
            }
            async fn run<W>(
                &self,
                lock: Lock,
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
            contract!($type, alone_on_every_server:
                a_wait_is_kept_to
                a_fixed_lease_ends
                at_most_ends_a_renewed_lease
            );
            contract!($type, on_every_server:
                excludes_others_until_released
                try_lock_answers_none_while_held
                a_timeout_says_who_holds_it
                a_lease_is_renewed_over_ten_lengths
                a_fixed_lease_can_be_extended
                releasing_what_was_lost_says_so_and_harms_nobody
                dropping_releases
                run_gives_back_on_every_way_out
                at_least_keeps_others_out_after_a_release
                shutdown_releases_all
                tokens_rise
            );
        }
    };
}

macro_rules! contract {
    ($type:ident, $where:ident: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                crate::support::$where(|server| async move {
                    super::$case::<_, super::$type>(&server).await;
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

/// Long enough that its margin (22 ms) is above what a small machine's scheduler does to a thread.
const LONG: Duration = Duration::from_secs(2);

/// How late a busy machine may run a task that was told in time.
const SCHEDULING: Duration = Duration::from_millis(100);

/// All of it for one kind, all at once, except what measures time.
pub(crate) async fn untimed<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    tokio::join!(
        excludes_others_until_released::<D, K>(site),
        try_lock_answers_none_while_held::<D, K>(site),
        a_timeout_says_who_holds_it::<D, K>(site),
        a_lease_is_renewed_over_ten_lengths::<D, K>(site),
        a_fixed_lease_can_be_extended::<D, K>(site),
        releasing_what_was_lost_says_so_and_harms_nobody::<D, K>(site),
        dropping_releases::<D, K>(site),
        run_gives_back_on_every_way_out::<D, K>(site),
        at_least_keeps_others_out_after_a_release::<D, K>(site),
        shutdown_releases_all::<D, K>(site),
        tokens_rise::<D, K>(site),
    );
}

/// The rest of it.
pub(crate) async fn timed<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    a_wait_is_kept_to::<D, K>(site).await;
    tokio::join!(
        a_fixed_lease_ends::<D, K>(site),
        at_most_ends_a_renewed_lease::<D, K>(site),
    );
}

async fn pair<D: Deployment, K: Exclusive<D::Client>>(site: &D) -> (K, K, String) {
    let name = name();
    let (one, other) = (site.client().await, site.client().await);
    (K::named(&one, &name), K::named(&other, &name), name)
}

async fn excludes_others_until_released<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, theirs, _) = pair::<D, K>(site).await;
    let guard = ours.lock().await.unwrap();
    let waiter =
        tokio::spawn(async move { theirs.lock().await.map(|guard| (Instant::now(), guard)) });
    tokio::time::sleep(LEASE * 2).await;
    assert!(!waiter.is_finished(), "two holders");
    let released = Instant::now();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let (got, _guard) = waiter.await.unwrap().unwrap();
    assert!(
        ran_between(released, got) < Duration::from_millis(600),
        "waited {:?}",
        got - released
    );
}

async fn try_lock_answers_none_while_held<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, theirs, _) = pair::<D, K>(site).await;
    let guard = ours.try_lock().await.unwrap().expect("free");
    assert!(theirs.try_lock().await.unwrap().is_none());
    let _ = guard.release().await.unwrap();
    assert!(theirs.try_lock().await.unwrap().is_some());
}

async fn a_wait_is_kept_to<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, theirs, _) = pair::<D, K>(site).await;
    let _guard = ours.lock().await.unwrap();
    for wait in [0, 1, 100, 400].map(Duration::from_millis) {
        let start = Instant::now();
        let error = theirs.lock().wait(wait).await.unwrap_err();
        let late = ran_since(start).saturating_sub(wait);
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        assert!(late < SCHEDULING, "{wait:?} took {late:?} more");
        assert!(start.elapsed() >= wait);
    }
}

async fn a_timeout_says_who_holds_it<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, theirs, name) = pair::<D, K>(site).await;
    let _guard = ours.lock().note("the night's import").await.unwrap();
    let error = theirs.lock().wait(LEASE / 2).await.unwrap_err();
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
        holder.lease_left.is_some_and(|left| left <= LEASE),
        "{holder:?}"
    );
    assert!(holder.since.unwrap().elapsed().unwrap() < Duration::from_secs(5));
    assert!(
        text.contains(&name) && text.contains("the night's import"),
        "{text}"
    );
}

async fn a_fixed_lease_ends<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, theirs, _) = pair::<D, K>(site).await;
    let guard = ours.lock().lease(LONG).await.unwrap();
    let start = Instant::now();
    assert_eq!(guard.lost().await, Some(Loss::Expired));
    let (took, ran) = (start.elapsed(), ran_since(start));
    assert!(ran <= LONG, "told {:?} after the lease", ran - LONG);
    assert!(took >= LONG / 2, "told too early");
    assert!(guard.check().is_err());
    let _taken = theirs.lock().wait(LEASE).await.unwrap();
}

async fn a_lease_is_renewed_over_ten_lengths<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, theirs, _) = pair::<D, K>(site).await;
    let guard = ours.lock().await.unwrap();
    let start = Instant::now();
    while start.elapsed() < LEASE * 10 {
        guard.check().unwrap();
        assert!(theirs.try_lock().await.unwrap().is_none());
        tokio::time::sleep(LEASE / 5).await;
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

async fn a_fixed_lease_can_be_extended<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, theirs, _) = pair::<D, K>(site).await;
    let guard = ours.lock().lease(LEASE).await.unwrap();
    guard.extend(LEASE * 4).await.unwrap();
    tokio::time::sleep(LEASE * 2).await;
    guard.check().unwrap();
    assert!(theirs.try_lock().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

async fn releasing_what_was_lost_says_so_and_harms_nobody<
    D: Deployment,
    K: Exclusive<D::Client>,
>(
    site: &D,
) {
    let (ours, theirs, name) = pair::<D, K>(site).await;
    let lost = ours.lock().lease(LEASE).await.unwrap();
    let other = theirs.lock().await.unwrap();
    assert_eq!(
        lost.release().await.unwrap(),
        Release::WasLost {
            loss: Loss::Expired
        }
    );
    other.check().unwrap();
    assert!(site.exists(&name));
    assert_eq!(other.release().await.unwrap(), Release::Released);
}

async fn dropping_releases<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, _, name) = pair::<D, K>(site).await;
    let guard = ours.lock().await.unwrap();
    // Outside of any runtime, as a destructor may run anywhere.
    std::thread::spawn(move || drop(guard)).join().unwrap();
    eventually(Duration::from_secs(1), "released", || !site.exists(&name)).await;
}

async fn run_gives_back_on_every_way_out<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, theirs, name) = pair::<D, K>(site).await;
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

    let forever = ours.lock().run(|_| std::future::pending::<()>());
    assert!(tokio::time::timeout(LEASE, forever).await.is_err());
    let _taken = theirs.lock().wait(Duration::from_secs(1)).await.unwrap();
}

async fn at_least_keeps_others_out_after_a_release<D: Deployment, K: Exclusive<D::Client>>(
    site: &D,
) {
    let (ours, theirs, name) = pair::<D, K>(site).await;
    let kept = Duration::from_millis(900);
    let guard = ours.lock().at_least(kept).await.unwrap();
    let start = Instant::now();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert!(theirs.try_lock().await.unwrap().is_none(), "free at once");
    let _other = theirs.lock().await.unwrap();
    let took = start.elapsed();
    assert!(
        took >= kept - Duration::from_millis(5),
        "free after {took:?}"
    );
    assert!(
        took < kept + Duration::from_millis(1500),
        "free after {took:?}"
    );
    assert!(site.exists(&name));
}

async fn at_most_ends_a_renewed_lease<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, theirs, _) = pair::<D, K>(site).await;
    let limit = LEASE * 5 / 2;
    let guard = ours.lock().at_most(limit).await.unwrap();
    let start = Instant::now();
    assert_eq!(guard.lost().await, Some(Loss::AtMost));
    let took = start.elapsed();
    assert!(
        ran_since(start) <= limit + SCHEDULING && took > limit - LEASE / 2,
        "ended after {took:?}"
    );
    let _taken = theirs.lock().wait(LEASE).await.unwrap();
}

async fn shutdown_releases_all<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let client = site.client().await;
    let names: Vec<_> = (0..50).map(|_| name()).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(K::named(&client, name).lock().await.unwrap());
    }
    let waiter = K::named(&site.client().await, &names[0]);
    assert!(
        client.shutdown(Duration::from_secs(5)).await,
        "not all in time"
    );
    for name in &names {
        assert!(!site.exists(name), "{name} is still held");
    }
    for guard in guards {
        assert_eq!(
            guard.release().await.unwrap(),
            Release::WasLost {
                loss: Loss::Shutdown
            }
        );
    }
    let refused = K::named(&client, &names[0]).lock().await;
    assert!(matches!(refused, Err(Error::Closed)));
    let _free = waiter.try_lock().await.unwrap().expect("free");
}

async fn tokens_rise<D: Deployment, K: Exclusive<D::Client>>(site: &D) {
    let (ours, theirs, _) = pair::<D, K>(site).await;
    let mut last = 0;
    for turn in 0..100 {
        let side = if turn % 3 == 0 { &ours } else { &theirs };
        let guard = side.lock().await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        let _ = guard.release().await.unwrap();
    }
}

#[test]
fn a_reentrant_handle_is_entered_a_thousand_times_and_left_again() {
    on_every_server(|server| async move {
        let name = name();
        let handle = client(&server).await.mutex(&name).reentrant();
        let outsider = client(&server).await.mutex(&name);
        let mut guards = Vec::new();
        for _ in 0..1000 {
            guards.push(handle.clone().lock().await.unwrap());
        }
        let before = server.info("total_commands_processed");
        assert!(
            guards
                .iter()
                .all(|guard| guard.token() == guards[0].token())
        );
        let last = guards.remove(500);
        for guard in guards {
            assert_eq!(guard.release().await.unwrap(), Release::StillHeld);
        }
        assert!(
            server.info("total_commands_processed") - before < 10.0,
            "asked the server"
        );
        assert!(outsider.try_lock().await.unwrap().is_none());
        assert_eq!(last.release().await.unwrap(), Release::Released);
        assert!(outsider.try_lock().await.unwrap().is_some());
    });
}

#[test]
fn a_lost_reentrant_holding_is_not_entered_again() {
    on_every_server(|server| async move {
        let name = name();
        let handle = client(&server).await.mutex(&name).reentrant();
        let first = handle.lock().lease(LEASE / 2).await.unwrap();
        assert!(first.lost().await.is_some());
        let second = handle.lock().wait(LEASE).await.unwrap();
        assert!(second.token() > first.token());
        assert!(matches!(
            first.release().await.unwrap(),
            Release::WasLost { .. }
        ));
        second.check().unwrap();
    });
}

#[test]
fn the_holder_is_shown_with_host_pid_since_and_note() {
    on_every_server(|server| async move {
        let name = name();
        let mutex = client(&server).await.mutex(&name);
        assert_eq!(mutex.holder().await.unwrap(), None);
        let _guard = mutex.lock().note("a b  c").await.unwrap();
        let holder = mutex.holder().await.unwrap().expect("held");
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.note.as_deref(), Some("a b  c"));
        assert!(holder.host.is_some());
        assert!(holder.lease_left.unwrap() <= LEASE);
        assert!(holder.since.unwrap().elapsed().unwrap() < Duration::from_secs(5));
    });
}

#[test]
fn names_are_taken_as_they_are_or_refused() {
    on_every_server(|server| async move {
        let client = client(&server).await;
        for name in [
            "{",
            "}",
            "{}x",
            "a{b}c",
            "мьютекс",
            "a b\r\n\0*?[",
            &"x".repeat(512),
        ] {
            let guard = client.mutex(name).lock().await.unwrap();
            assert!(exists(&server, name), "{name:?}");
            let _ = guard.release().await.unwrap();
            assert!(!exists(&server, name), "{name:?}");
        }
        for name in ["", &"x".repeat(513)] {
            let refused = client.mutex(name).try_lock().await;
            assert!(matches!(refused, Err(Error::Invalid { what: "name", .. })));
        }
    });
}

#[test]
fn a_key_of_another_type_is_its_own_error() {
    on_every_server(|server| async move {
        let client = client(&server).await;
        for (kind, make) in [
            ("list", ["RPUSH", "x"].as_slice()),
            ("set", &["SADD", "x"]),
            ("hash", &["HSET", "f", "x"]),
            ("zset", &["ZADD", "1", "x"]),
            ("stream", &["XADD", "*", "f", "x"]),
        ] {
            let name = format!("typed:{kind}");
            let key = crate::support::key(&name);
            let args: Vec<_> = [make[0], key.as_str()]
                .into_iter()
                .chain(make[1..].iter().copied())
                .collect();
            server.tell(&args);
            let error = client.mutex(&name).lock().await.unwrap_err();
            assert!(
                matches!(error, Error::WrongType { .. }),
                "{kind}: {error:?}"
            );
            assert_eq!(server.ask(&["TYPE", &key]).text(), kind);
        }
    });
}
