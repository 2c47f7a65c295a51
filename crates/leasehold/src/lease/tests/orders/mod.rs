//! The slot queue under every order of what can happen to it, up to a depth.
//!
//! Callers, the waiting task, a holder, the server and the clock make one step
//! at a time, on the real queue. A ledger says what each caller must see. From
//! every state that is found, the rest runs to its end: a task that is woken is
//! polled, and one caller may be kept unpolled.

mod ledger;
mod order;
mod task;

use std::collections::{HashSet, VecDeque};

use tokio::runtime::Runtime;

use self::ledger::{CALLERS, Seat};
use self::order::{Event, Order};

fn paused_clock() -> Runtime {
    let mut clock = tokio::runtime::Builder::new_current_thread();
    clock.enable_time().start_paused(true).build().unwrap()
}

/// Tries every order of `depth` events after `start`, and returns the number of
/// different states.
fn explore(wishes: [bool; CALLERS], start: &[Event], depth: usize) -> usize {
    let clock = paused_clock();
    let _entered = clock.enter();
    crate::time::begin();
    let mut seen = HashSet::new();
    let mut found = VecDeque::from([start.to_vec()]);
    while let Some(events) = found.pop_front() {
        let mut order = Order::new(&clock, wishes, &events);
        if !seen.insert(order.fingerprint()) {
            continue;
        }
        if events.len() < start.len() + depth {
            found.extend(order.next().into_iter().map(|event| {
                let mut longer = events.clone();
                longer.push(event);
                longer
            }));
        }
        order.run_out(None);
        order.assert_served(None);
        order.assert_nothing_left();
        // Every caller is the unpolled one in a third of the states.
        let kept = seen.len() % CALLERS;
        let mut order = Order::new(&clock, wishes, &events);
        if matches!(
            order.seat(kept),
            Seat::Waiting | Seat::Granted(_) | Seat::Dormant
        ) {
            order.run_out(Some(kept));
            order.assert_served(Some(kept));
            order.happen(Event::Leave(kept));
            order.run_out(None);
            order.assert_nothing_left();
        }
    }
    seen.len()
}

/// One caller after the other wants the same, or not.
const WISHES: [[bool; CALLERS]; 3] = [
    [true, true, true],
    [true, false, true],
    [false, false, false],
];

/// Two callers wait, and the first has not claimed the grant in time.
const UNCLAIMED: [Event; 8] = [
    Event::Arrive(0),
    Event::Arrive(1),
    Event::Work,
    Event::Acquired,
    Event::Work,
    Event::Work,
    Event::Work,
    Event::Elapse,
];

#[test]
fn every_order_serves_each_caller_once() {
    for wishes in WISHES {
        let states = explore(wishes, &[], 8);
        assert!(states > 4_000, "only {states} states");
    }
}

#[test]
fn every_order_after_a_take_back_is_fifo() {
    for wishes in WISHES {
        let states = explore(wishes, &UNCLAIMED, 4);
        assert!(states > 1_000, "only {states} states");
    }
}

#[test]
#[ignore = "deep: longer orders"]
fn longer_orders_serve_each_caller_once() {
    for wishes in WISHES {
        explore(wishes, &[], 15);
        explore(wishes, &UNCLAIMED, 10);
    }
}

/// The claim did not wake the task, which waited without end.
#[test]
fn task_ends_if_a_claim_precedes_its_wait() {
    let clock = paused_clock();
    let _entered = clock.enter();
    crate::time::begin();
    let mut events = vec![Event::Arrive(0), Event::Work, Event::Acquired];
    // Grants the lock, is woken by that, and is about to stand by again.
    events.extend([Event::Work; 4]);
    events.push(Event::Poll(0));
    let mut order = Order::new(&clock, [false; CALLERS], &events);
    order.run_out(None);
    order.assert_nothing_left();
}

/// A caller that found the lock lost overtook an earlier caller, which was
/// polled again.
#[test]
fn caller_that_waits_again_keeps_its_place() {
    let clock = paused_clock();
    let _entered = clock.enter();
    crate::time::begin();
    let mut order = Order::new(&clock, [true; CALLERS], &UNCLAIMED);
    // The lock is taken back, prepared, and granted to the second caller.
    order.happen(Event::Work);
    order.happen(Event::Work);
    assert!(matches!(order.seat(1), Seat::Granted(_)));
    for event in [Event::Revoke, Event::Poll(0), Event::Poll(1)] {
        order.happen(event);
    }
    order.run_out(None);
    order.assert_served(None);
}
