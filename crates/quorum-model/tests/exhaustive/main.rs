//! Every order of events, for three nodes and two clients that try twice; the deep tier checks larger models.

mod model;

use std::time::Instant;

use model::{Quorum, Restart, Scheme};
use stateright::{Checker, HasDiscoveries, Model};

/// Three nodes, and two clients that try twice together.
const SMALL: Quorum = Quorum {
    scheme: Scheme::Propose,
    restart: Restart::Quarantine,
    nodes: 3,
    clients: 2,
    attempts: 2,
    tokens: 3,
    losses: 0,
    fills: false,
};

/// Tries everything; the names of the properties that were found wrong.
fn faults(quorum: Quorum) -> Vec<&'static str> {
    let start = Instant::now();
    let checker = quorum.checker().threads(2).spawn_bfs().join();
    let mut found: Vec<_> = checker.discoveries().into_keys().collect();
    found.sort_unstable();
    println!(
        "{quorum:?}: {} states, {:.1?}, {found:?}",
        checker.unique_state_count(),
        start.elapsed()
    );
    assert!(found.contains(&"two succeed"), "nothing happens");
    found.retain(|name| *name != "two succeed");
    found
}

/// Stops at the first fault; what leads to it.
fn first_fault(quorum: Quorum) -> Option<(&'static str, usize)> {
    let checker = quorum.checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let found = checker.discoveries();
    let wrong = found.into_iter().filter(|(name, _)| *name != "two succeed");
    let shortest = wrong.map(|(name, path)| (name, path.into_actions()));
    let (name, events) = shortest.min_by_key(|(_, events)| events.len())?;
    println!("{quorum:?}\n  {name}:");
    for event in &events {
        println!("    {event:?}");
    }
    Some((name, events.len()))
}

#[test]
fn a_proposed_token_is_unique_and_rises_and_nobody_holds_beside_another() {
    assert_eq!(faults(SMALL), [""; 0]);
}

#[test]
fn a_node_that_forgot_harms_nobody_after_its_quarantine() {
    let quorum = Quorum { losses: 1, ..SMALL };
    assert_eq!(faults(quorum), [""; 0]);
}

#[test]
fn counting_at_each_node_and_taking_the_largest_is_found_wrong() {
    let quorum = Quorum {
        scheme: Scheme::CountAndMax,
        attempts: 3,
        ..SMALL
    };
    let (name, _) = first_fault(quorum).expect("it is wrong");
    assert!(name.contains("token"), "{name}");
}

#[test]
fn a_node_that_forgot_and_votes_at_once_is_found_wrong() {
    let quorum = Quorum {
        restart: Restart::AtOnce,
        losses: 1,
        ..SMALL
    };
    assert!(first_fault(quorum).is_some(), "it is wrong");
}

/// Minutes, and up to 16 GB.
#[test]
#[ignore = "deep: larger models"]
fn larger_ones() {
    let thrice = Quorum {
        attempts: 3,
        ..SMALL
    };
    for quorum in [
        thrice,
        Quorum {
            fills: true,
            ..thrice
        },
        Quorum {
            losses: 1,
            fills: true,
            ..SMALL
        },
        Quorum {
            losses: 2,
            fills: true,
            ..SMALL
        },
        Quorum { nodes: 5, ..SMALL },
    ] {
        assert_eq!(faults(quorum), [""; 0]);
    }
}
