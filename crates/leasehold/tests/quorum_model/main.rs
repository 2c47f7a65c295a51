//! A model of the quorum protocol, small enough to check every order of events.
//!
//! The protocol itself is in `lua/quorum` and `src/protocol/tally.rs`. The
//! model covers which client sends which token to which node, what a node
//! remembers, and what may happen before the reply arrives. Messages are
//! delayed, reordered and lost. Clients choose their tokens arbitrarily, as
//! from unsynchronized clocks. Nodes restart without their data. We leave out
//! time except for what leases guarantee: a node forgets a holder only after
//! that holder has stopped relying on it.
//!
//! The gate checks three nodes and two clients with two attempts in total, the
//! deep tier larger models. Two schemes are wrong on purpose, to show that the
//! check detects them.

mod model;

use std::time::Instant;

use model::{Quorum, Restart, Scheme};
use stateright::{Checker, HasDiscoveries, Model};

/// Three nodes, and two clients with two attempts in total.
const SMALL: Quorum = Quorum {
    scheme: Scheme::Propose,
    restart: Restart::Quarantine,
    nodes: 3,
    clients: 2,
    attempts: 2,
    tokens: 3,
    losses: 0,
    repairs: false,
};

/// Explores all states, and returns the names of the violated properties.
fn violations(quorum: Quorum) -> Vec<&'static str> {
    let start = Instant::now();
    let checker = quorum.checker().threads(2).spawn_bfs().join();
    let mut found: Vec<_> = checker.discoveries().into_keys().collect();
    found.sort_unstable();
    println!(
        "{quorum:?}: {} states, {:.1?}, {found:?}",
        checker.unique_state_count(),
        start.elapsed()
    );
    assert!(
        found.contains(&"two succeed"),
        "no state has two acquisitions"
    );
    found.retain(|name| *name != "two succeed");
    found
}

/// Explores until the first violation. Returns its property and the number of
/// events that lead to it.
fn first_violation(quorum: Quorum) -> Option<(&'static str, usize)> {
    let checker = quorum.checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let found = checker.discoveries();
    let violated = found.into_iter().filter(|(name, _)| *name != "two succeed");
    let shortest = violated.map(|(name, path)| (name, path.into_actions()));
    let (name, events) = shortest.min_by_key(|(_, events)| events.len())?;
    println!("{quorum:?}\n  {name}:");
    for event in &events {
        println!("    {event:?}");
    }
    Some((name, events.len()))
}

#[test]
fn proposed_tokens_are_exclusive_and_increase() {
    assert_eq!(violations(SMALL), [""; 0]);
}

#[test]
fn quarantined_node_rejoins_safely() {
    let quorum = Quorum { losses: 1, ..SMALL };
    assert_eq!(violations(quorum), [""; 0]);
}

#[test]
fn maximum_of_node_counters_is_unsafe() {
    let quorum = Quorum {
        scheme: Scheme::CountAndMax,
        attempts: 3,
        ..SMALL
    };
    let (name, _) = first_violation(quorum).expect("a violation");
    assert!(name.contains("token"), "{name}");
}

#[test]
fn immediate_vote_after_restart_is_unsafe() {
    let quorum = Quorum {
        restart: Restart::Immediate,
        losses: 1,
        ..SMALL
    };
    assert!(first_violation(quorum).is_some(), "a violation is expected");
}

/// Takes minutes, and up to 16 GB of memory.
#[test]
#[ignore = "deep: larger models"]
fn larger_models_are_safe() {
    let thrice = Quorum {
        attempts: 3,
        ..SMALL
    };
    for quorum in [
        thrice,
        Quorum {
            repairs: true,
            ..thrice
        },
        Quorum {
            losses: 1,
            repairs: true,
            ..SMALL
        },
        Quorum {
            losses: 2,
            repairs: true,
            ..SMALL
        },
        Quorum { nodes: 5, ..SMALL },
    ] {
        assert_eq!(violations(quorum), [""; 0]);
    }
}
