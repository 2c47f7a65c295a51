//! Features in pairs with events: what an option promises also holds when
//! something happens to its holder.
//!
//! | part | contents |
//! |---|---|
//! | `feature` | one function per feature: how it acquires a lock |
//! | `event` | one function per event: what happens to the holder, and whether its lock survives |
//! | `promises` | the checks that all pairs share |
//! | `scene` | the server, the holder's client behind a proxy, the contender |
//!
//! Each pair checks, with a second client that contends all the while:
//!
//! 1. No two guards are valid at the same time. After a revocation or a step of
//!    the server's clock, the next holder has a larger token instead.
//! 2. A loss is announced: no later than another client holds the lock, or
//!    after a revocation soon.
//! 3. No lock is left without a holder. Leases last an hour, so a lock that
//!    becomes free was released; leases that end are brief.
//! 4. A shutdown returns in time, and what it reports is true: after `Ok` the
//!    client could crash.
//! 5. No thread of a client panics, and the server keeps no key.
//!
//! A new feature or event is a function, an entry in `FEATURES` or `EVENTS`,
//! and a row or a column here. `every_pair_runs_or_has_a_reason` finds what is
//! missing.

mod event;
mod feature;
pub(crate) mod fork;
mod promises;
mod scene;

use std::time::Instant;

use event::{EVENTS, Event};
use feature::{FEATURES, Feature};
use promises::Pair;
use scene::{Company, LONG, Needs, Scene, Terms};

use crate::support::{AMPLE, run};

/// Generates a module per feature with a test per event, and the table of all
/// pairs. A pair that makes no sense states why: `event("reason")`.
macro_rules! pairs {
    ($($feature:ident { $($event:ident $(($why:literal))?,)* })*) => {
        $(mod $feature { $(pairs!(@test $feature $event $($why)?);)* })*

        /// Each pair, and why it does not run.
        const PAIRS: &[(&str, &str, Option<&str>)] = &[$($(
            (stringify!($feature), stringify!($event), pairs!(@why $($why)?)),
        )*)*];
    };
    (@test $feature:ident $event:ident) => {
        #[test]
        fn $event() {
            super::play(stringify!($feature), stringify!($event));
        }
    };
    (@test $feature:ident $event:ident $why:literal) => {};
    (@why) => { None };
    (@why $why:literal) => { Some($why) };
}

pairs! {
    at_most {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    at_least {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    extend {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    fixed_lease {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    replicas {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    // An acquire that is not polled blocks other clones of its handle until it
    // is dropped. Other clients, which these pairs check, wait for one lease.
    reentrant {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    crowded {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    // A task that is handed the lock and not polled keeps it for one lease.
    local_handoff {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    hand_over {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    run {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    threads {
        revoke, shutdown,
        dropped("a thread's call is no future"),
        unpolled("a thread's call is no future"),
        cut, silent, restart, lost_reply, clock_step, fork,
    }
    stuck {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    stuck_replicas {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    downgrade {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    moving_from {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
    moving_to {
        revoke, shutdown, dropped, unpolled, cut, silent, restart, lost_reply, clock_step, fork,
    }
}

/// Lets `event` happen to a holder that uses `feature`.
fn play(feature: &str, event: &str) {
    let feature = Feature::named(feature);
    let event = Event::named(event);
    run(async {
        let scene = Scene::start(event.needs, feature.company).await;
        let port = scene.port;
        let pair = Pair::new(feature, scene).await;
        (event.play)(&pair).await;
        pair.conclude(port).await;
    });
}

/// The pairs of `local_handoff` would test a plain mutex if the second waiter
/// acquired the lock from the server.
#[test]
fn local_handoff_keeps_the_owner() {
    run(async {
        let scene = Scene::start(Needs::Nothing, Company::None).await;
        let pair = Pair::new(Feature::named("local_handoff"), scene).await;
        let holder = pair.holder(Terms::with_lease(LONG)).await;
        let end = Instant::now() + AMPLE;
        // A hand-off that takes too long ends at the server.
        while !pair.hold(&holder).await.1.handed_off {
            assert!(Instant::now() < end, "never handed off");
        }
    });
}

#[test]
fn every_pair_runs_or_has_a_reason() {
    for feature in &FEATURES {
        for event in &EVENTS {
            let wanted = (feature.name, event.name);
            let rows = PAIRS.iter();
            let rows = rows.filter(|(feature, event, _)| (*feature, *event) == wanted);
            assert_eq!(rows.count(), 1, "{wanted:?}");
        }
    }
    assert_eq!(PAIRS.len(), FEATURES.len() * EVENTS.len());
    let reasons = PAIRS.iter().filter_map(|(_, _, reason)| *reason);
    assert!(reasons.clone().all(|reason| !reason.is_empty()));
    assert!(PAIRS.len() - reasons.count() >= 80, "too few pairs run");
}
