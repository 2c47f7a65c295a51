//! Seeded mutants of the scripts, each with the shortest sequence of steps that
//! shows it.
//!
//! A search by random sequences finds every mutant too, but sometimes late.

use std::cell::Cell;
use std::time::Instant;

use super::step::Step;
use super::{Rig, agree};
use crate::support::AMPLE;

struct Mutant {
    text: &'static str,
    replacement: &'static str,
    effect: &'static str,
    witness: &'static [Step],
}

const MINUTE: i64 = 60_000_000;

/// A lease of the owner with this weight, on a lock of this capacity.
const fn hold(owner: usize, weight: i64, limit: i64) -> Step {
    enqueue(owner, weight, limit, 0)
}

/// A waiter that stays in the queue.
const fn wait(owner: usize, weight: i64) -> Step {
    enqueue(owner, weight, 3, MINUTE)
}

/// A waiter that leaves the queue after `wait` microseconds.
const fn enqueue(owner: usize, weight: i64, limit: i64, wait: i64) -> Step {
    Step::Enqueue {
        owner,
        weight,
        limit,
        lease: MINUTE,
        wait,
        again: false,
    }
}

const fn acquire(owner: usize, weight: i64, limit: i64) -> Step {
    Step::Acquire {
        owner,
        weight,
        limit,
        lease: MINUTE,
    }
}

const fn release(owner: usize) -> Step {
    Step::Release { owner, keep: 0 }
}

const fn hand_over(owner: usize, token: i64) -> Step {
    Step::HandOver {
        owner,
        token,
        within: MINUTE,
    }
}

const fn sleep(micros: u64) -> Step {
    Step::Sleep { micros }
}

const MUTANTS: [Mutant; 18] = [
    Mutant {
        text: "redis.call('ZPOPMIN', queue) or redis.call('ZRANGE', queue, '0', '0')",
        replacement: "redis.call('ZPOPMAX', queue) or redis.call('ZRANGE', queue, -1, -1)",
        effect: "the last waiter is served first",
        witness: &[hold(0, 2, 2), wait(1, 2), wait(2, 2), release(0)],
    },
    Mutant {
        text: "    if state.used + weight > state.capacity then",
        replacement: "    if state.used > state.capacity then",
        effect: "a grant exceeds the capacity",
        witness: &[hold(0, 2, 3), wait(1, 2)],
    },
    Mutant {
        text: "  state.used = state.used - weight\n",
        replacement: "",
        effect: "a release does not return the weight",
        witness: &[hold(0, 2, 2), wait(1, 1), release(0)],
    },
    Mutant {
        text: "call('ZRANGEBYSCORE', heartbeats, '-inf', clock)",
        replacement: "{}",
        effect: "dead waiters keep their entries",
        witness: &[
            hold(0, 1, 3),
            enqueue(1, 3, 3, 1),
            sleep(1000),
            hold(2, 1, 3),
        ],
    },
    Mutant {
        text: "local can_hold = fits and not newest[1]",
        replacement: "local can_hold = fits",
        effect: "new owners bypass the queue",
        witness: &[hold(0, 1, 2), wait(1, 2), hold(2, 1, 2)],
    },
    Mutant {
        text: "call('ZADD', holders, 'XX', 'GT', format('%d', ends), owner)",
        replacement: "call('ZADD', holders, 'XX', format('%d', ends), owner)",
        effect: "a renewal may shorten a lease",
        witness: &[
            hold(0, 1, 2),
            hold(1, 1, 2),
            Step::Renew {
                owner: 1,
                length: 1,
            },
        ],
    },
    Mutant {
        text: "  is_known = call('HGET', entries, owner)\n",
        replacement: "",
        effect: "a repeated enqueue counts twice",
        witness: &[hold(0, 1, 2), hold(1, 1, 2), wait(0, 1)],
    },
    Mutant {
        text: "or state.used ~= state.stored_used",
        replacement: "",
        effect: "the summary keeps an old usage",
        witness: &[hold(0, 1, 3), hold(1, 1, 3), hold(2, 1, 3), wait(3, 1)],
    },
    Mutant {
        text: "  promote(state)\n  call('ZREM', holders, owner)",
        replacement: "  call('ZREM', holders, owner)",
        effect: "a release promotes no waiter",
        witness: &[hold(0, 2, 2), wait(1, 1), release(0)],
    },
    Mutant {
        text: "ticket = ticket > 0 and ticket or",
        replacement: "ticket =",
        effect: "a waiter does not return to its position",
        witness: &[
            hold(0, 2, 2),
            wait(1, 1),
            release(1),
            Step::Enqueue {
                owner: 1,
                weight: 1,
                limit: 2,
                lease: MINUTE,
                wait: MINUTE,
                again: true,
            },
        ],
    },
    Mutant {
        text: "    redis.call('ZADD', holders, string.format('%d', alone.ends), alone.owner)\n",
        replacement: "",
        effect: "a second holder removes the first",
        witness: &[acquire(0, 1, 2), hold(1, 1, 2), Step::Stats],
    },
    Mutant {
        text: "or state.due ~= state.stored_due",
        replacement: "",
        effect: "an expired heartbeat is not evicted",
        witness: &[
            Step::Capacity { limit: 3 },
            hold(0, 1, 3),
            enqueue(1, 3, 3, 1),
            sleep(1000),
            hold(2, 1, 3),
        ],
    },
    Mutant {
        text: "tonumber(call('ZRANGE', heartbeats, '0', '0', 'WITHSCORES')[2] or 2 ^ 53)",
        replacement: "2 ^ 53",
        effect: "nothing is due after the first eviction",
        witness: &[
            hold(0, 2, 2),
            enqueue(1, 1, 2, 20_000),
            enqueue(2, 1, 2, 200_000),
            sleep(20_000),
            hold(3, 1, 2),
            sleep(200_000),
            release(0),
        ],
    },
    Mutant {
        text: "  if token == '0' then",
        replacement: "  if false then",
        effect: "an owner that was alone gets no token",
        witness: &[acquire(0, 1, 2), hold(1, 1, 2), hold(0, 1, 2)],
    },
    Mutant {
        text: "  call('ZREM', holders, owner)\n  call('HDEL', entries, owner)\n  is_done = true",
        replacement: "  is_done = true",
        effect: "a hand-over keeps the holder",
        witness: &[hold(0, 2, 2), hand_over(0, 1), release(0)],
    },
    Mutant {
        text: "  set_end(state, holders, next_owner, now + within)\n",
        replacement: "  set_end(state, holders, next_owner, NEVER)\n",
        effect: "a ticket does not expire",
        witness: &[hold(0, 1, 2), hand_over(0, 1), Step::Stats],
    },
    Mutant {
        text: "  call('HDEL', entries, owner)\n  is_done = true",
        replacement: "  is_done = true",
        effect: "a hand-over leaves the holder's entry",
        witness: &[
            hold(0, 2, 2),
            wait(1, 2),
            release(0),
            hand_over(1, 1),
            wait(1, 2),
        ],
    },
    Mutant {
        text: "    if tonumber(token) <= tonumber(given) then",
        replacement: "    if false then",
        effect: "an adopter gets a smaller token than the giver",
        witness: &[
            hold(0, 1, 2),
            // A token ahead of the clock.
            hand_over(0, 4_000_000_000_000_000),
            Step::Adopt {
                owner: 0,
                lease: MINUTE,
            },
        ],
    },
];

#[test]
fn seeded_script_mutants_are_caught() {
    let original = Rig::new(str::to_owned);
    for mutant in MUTANTS {
        let effect = mutant.effect;
        if let Err(why) = agree(&original, mutant.witness) {
            panic!("{effect}: also without the mutant: {why}");
        }
        let found = Cell::new(false);
        let rig = Rig::new(|text| {
            found.set(found.get() || text.contains(mutant.text));
            text.replace(mutant.text, mutant.replacement)
        });
        assert!(found.get(), "no text to replace: {}", mutant.text);
        // A machine that stalls in the middle of a witness may hide its effect.
        let begin = Instant::now();
        while agree(&rig, mutant.witness).is_ok() {
            assert!(begin.elapsed() < AMPLE, "not caught: {effect}");
        }
    }
}
