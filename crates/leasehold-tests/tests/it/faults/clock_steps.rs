//! Steps of the server's clock: a lock may be granted twice, but the resource
//! rejects the stale writer.

use std::time::Duration;

use leasehold::{Error, Guard, Loss, OnceOutcome, Tick, Token};
use testkit::{Flavor, Server, ServerExt, Setup};

use crate::support::contract::{KINDS, any_lock, any_try_lock};
use crate::support::deployment::{Deployment, FiveServers};
use crate::support::{
    AMPLE, client, eventually, is_busy, name, run, scaled, wait_for_renewal, with_least_privilege,
};

const HOUR: i64 = 3600;

/// Returns the server of the distribution. Other servers bring their own C
/// library, which the clock shim does not fit.
fn flavor() -> Flavor {
    Flavor::all().into_iter().next().expect("a server")
}

/// A protected resource, which rejects tokens below the largest it has seen.
#[derive(Default)]
struct Resource {
    largest: Option<Token>,
    written: Vec<&'static str>,
}

impl Resource {
    fn write(&mut self, token: Token, what: &'static str) -> bool {
        let fresh = self.largest.is_none_or(|largest| token >= largest);
        if fresh {
            self.largest = Some(token);
            self.written.push(what);
        }
        fresh
    }
}

async fn assert_lost<M>(guard: &Guard<M>) {
    let loss = tokio::time::timeout(AMPLE, guard.lost()).await;
    assert!(
        matches!(loss, Ok(Some(Loss::Revoked | Loss::Expired))),
        "{loss:?}"
    );
}

#[test]
fn forward_step_grants_twice_but_tokens_fence() {
    run(async {
        let server = with_least_privilege(Setup::default().movable_clock(), &flavor());
        let one = client(&server).await;
        let other = client(&server).await;
        for round in 1..=scaled(1) {
            let mut held = Vec::new();
            for kind in 0..KINDS {
                let name = name();
                let mut resource = Resource::default();
                let stale = any_lock(&one, &name, kind).await.unwrap();
                assert!(is_busy(any_try_lock(&other, &name, kind)).await);
                assert!(resource.write(stale.token(), "first"));
                held.push((kind, name, resource, stale));
            }
            server.set_clock(HOUR * i64::try_from(round).unwrap());
            let mut stale_holders = Vec::new();
            for (kind, name, mut resource, stale) in held {
                let fresh = any_lock(&other, &name, kind).await.unwrap();
                assert!(resource.write(fresh.token(), "second"));
                // The stale holder trusts its lease until the next renewal, so
                // only the token rejects it.
                assert!(!resource.write(stale.token(), "stale"), "round {round}");
                assert_eq!(resource.written, ["first", "second"]);
                fresh.release().await.unwrap();
                stale_holders.push(stale);
            }
            for stale in &stale_holders {
                assert_lost(stale).await;
            }
        }
    });
}

#[test]
fn backward_step_delays_waiters_only() {
    run(async {
        let server = with_least_privilege(Setup::default().movable_clock(), &flavor());
        let one = client(&server).await;
        let other = client(&server).await;
        let mut held = Vec::new();
        for kind in 0..KINDS {
            let name = name();
            let first = any_lock(&one, &name, kind).await.unwrap();
            held.push((kind, name, first));
        }
        server.set_clock(-HOUR);
        let leases: Vec<_> = held.iter().map(|(_, _, first)| first.lease()).collect();
        wait_for_renewal(&leases.iter().collect::<Vec<_>>()).await;
        for (kind, name, first) in held {
            let token = first.token();
            assert!(is_busy(any_try_lock(&other, &name, kind)).await);
            first.release().await.unwrap();
            let next = any_lock(&other, &name, kind).timeout(AMPLE).await.unwrap();
            assert!(next.token() > token, "the token did not increase");
        }
    });
}

/// The client compared ticks with the server's clock as it was at the
/// connection.
#[test]
fn job_follows_the_clock_that_the_server_has_now() {
    run(async {
        let server = with_least_privilege(Setup::default().movable_clock(), &flavor());
        server.set_clock(-HOUR);
        let client = client(&server).await;
        let name = name();
        let run_tick = async || {
            let tick = Tick::now(Duration::from_secs(60));
            client.once(&name, tick).run(|_| async {}).await
        };
        let early = run_tick().await;
        assert!(matches!(early, Err(Error::Invalid { .. })), "{early:?}");
        server.set_clock(0);
        let corrected = run_tick().await;
        assert!(
            matches!(corrected, Ok(OnceOutcome::Ran(()))),
            "{corrected:?}"
        );
    });
}

#[test]
fn quorum_tolerates_minority_of_stepped_clocks() {
    run(async {
        let five = FiveServers::with(&Setup::default().movable_clock(), &flavor());
        let one = five.client().await;
        let other = five.client().await;
        let step = |count: usize, seconds| {
            // All at the same moment. A renewal in between would find a
            // majority and repair the other nodes.
            let chosen: &[Server] = &five.servers[..count];
            chosen.iter().for_each(Server::pause);
            chosen.iter().for_each(|server| server.set_clock(seconds));
            chosen.iter().for_each(Server::resume);
        };
        for minority in [1, 2] {
            let mutex = name();
            let held = one.mutex(&mutex).lock().await.unwrap();
            step(minority, HOUR);
            wait_for_renewal(&[&held.lease()]).await;
            assert!(is_busy(other.mutex(&mutex).try_lock()).await);
            held.release().await.unwrap();
            step(5, 0);
        }
        let mutex = name();
        let mut resource = Resource::default();
        let stale = one.mutex(&mutex).lock().await.unwrap();
        assert!(resource.write(stale.token(), "first"));
        // On all nodes. A late vote would be granted by the new clock, and
        // count.
        eventually("all nodes have the lock", || {
            five.count_with_key(&mutex) == 5
        })
        .await;
        step(3, HOUR);
        // New connections read the new clocks; the old ones still propose by
        // the old.
        let fresh = five.client().await;
        match fresh.mutex(&mutex).lock().timeout(AMPLE).await {
            Ok(second) => {
                assert!(resource.write(second.token(), "second"));
                assert!(!resource.write(stale.token(), "stale"));
                assert_lost(&stale).await;
            }
            // Clocks that are an hour apart may leave no majority, and so no
            // grant.
            Err(error) => assert!(matches!(error, Error::NoQuorum(_)), "{error:?}"),
        }
    });
}
