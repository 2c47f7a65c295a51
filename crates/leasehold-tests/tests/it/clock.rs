//! A server's clock that jumps: the lock may be granted twice, and the resource still refuses the stale writer.

use std::time::Duration;

use leasehold::{Error, Guard, Loss, Quorum, Release, Token};
use testkit::{Flavor, Server, Setup};

use crate::contract::{KINDS, any_lock, any_try_lock};
use crate::deployment::{Deployment, Five};
use crate::support::{LEASE, beside_others, client, eventually, name, with_least_privilege};

const HOUR: i64 = 3600;

/// The distribution's own server: others bring their own C library, which the moved clock does not fit.
fn flavor() -> Flavor {
    Flavor::all().into_iter().next().expect("a server")
}

/// What a lock protects: takes a write only under a token not below the largest it has seen.
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

async fn told(guard: &Guard) {
    let loss = tokio::time::timeout(LEASE * 2, guard.lost()).await;
    assert!(
        matches!(loss, Ok(Some(Loss::Taken | Loss::Expired))),
        "{loss:?}"
    );
}

#[test]
fn a_step_forward_grants_twice_and_the_stale_writer_is_refused() {
    beside_others(async {
        let server = with_least_privilege(Setup::default().movable_clock(), &flavor());
        let (one, other) = (client(&server).await, client(&server).await);
        for round in 0..20 {
            let (kind, name) = (round % KINDS, name());
            let mut resource = Resource::default();
            let stale = any_lock(&one, &name, kind).await.unwrap();
            assert!(any_try_lock(&other, &name, kind).await.unwrap().is_none());
            assert!(resource.write(stale.token(), "first"));
            server.set_clock(HOUR * (i64::try_from(round).unwrap() + 1));
            let fresh = any_lock(&other, &name, kind).await.unwrap();
            assert!(resource.write(fresh.token(), "second"));
            // It believes in its lease until its next renewal; that is what tokens are for.
            assert!(!resource.write(stale.token(), "stale"), "round {round}");
            told(&stale).await;
            assert_eq!(resource.written, ["first", "second"]);
            assert_eq!(fresh.release().await.unwrap(), Release::Released);
        }
    });
}

#[test]
fn a_step_back_only_makes_others_wait() {
    beside_others(async {
        let server = with_least_privilege(Setup::default().movable_clock(), &flavor());
        let (one, other) = (client(&server).await, client(&server).await);
        for kind in 0..KINDS {
            let name = name();
            server.set_clock(0);
            let first = any_lock(&one, &name, kind).await.unwrap();
            let token = first.token();
            server.set_clock(-HOUR);
            tokio::time::sleep(LEASE * 2).await;
            first.check().unwrap();
            assert!(any_try_lock(&other, &name, kind).await.unwrap().is_none());
            assert_eq!(first.release().await.unwrap(), Release::Released);
            let next = any_lock(&other, &name, kind).wait(LEASE * 2).await.unwrap();
            assert!(next.token() > token, "tokens must rise");
        }
    });
}

#[test]
fn a_quorum_bears_a_minority_of_wrong_clocks_and_fences_against_a_majority() {
    beside_others(async {
        let five = Five::with(&Setup::default().movable_clock(), &flavor());
        let (one, other): (Quorum, Quorum) = (five.client().await, five.client().await);
        let step = |count: usize, seconds| {
            // All at the same moment: a renewal in between would find a majority, and fill in the others.
            let chosen: &[Server] = &five.servers[..count];
            chosen.iter().for_each(Server::pause);
            chosen.iter().for_each(|server| server.set_clock(seconds));
            chosen.iter().for_each(Server::resume);
        };
        for minority in [1, 2] {
            let mutex = name();
            let held = one.mutex(&mutex).lock().await.unwrap();
            step(minority, HOUR);
            tokio::time::sleep(LEASE * 2).await;
            held.check().unwrap();
            assert!(other.mutex(&mutex).try_lock().await.unwrap().is_none());
            assert_eq!(held.release().await.unwrap(), Release::Released);
            step(5, 0);
        }
        let mutex = name();
        let mut resource = Resource::default();
        let stale = one.mutex(&mutex).lock().await.unwrap();
        assert!(resource.write(stale.token(), "first"));
        // At all of them: a vote that comes late would be granted by the new clock, and counts.
        eventually(LEASE, "at all", || five.having(&mutex) == 5).await;
        step(3, HOUR);
        // New connections see the new clocks; the old ones still propose by the old.
        let fresh = five.client().await;
        let second = fresh
            .mutex(&mutex)
            .lock()
            .wait(Duration::from_secs(5))
            .await;
        match second {
            Ok(second) => {
                assert!(resource.write(second.token(), "second"));
                assert!(!resource.write(stale.token(), "stale"));
                told(&stale).await;
            }
            // Clocks that are an hour apart may leave no majority: nobody is granted anything.
            Err(error) => assert!(matches!(error, Error::NoQuorum(_)), "{error:?}"),
        }
    });
}
