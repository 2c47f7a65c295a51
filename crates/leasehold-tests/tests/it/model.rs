//! The queue's scripts against a plain model of the queue: random sequences of steps on a real server,
//! compared answer by answer and message by message, by the server's own clock.

mod queue;
mod step;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use testkit::{Connection, Flavor, Reply, Server};

use crate::support::{lua, scaled};
use queue::{Form, Model};
use step::Step;

const STATE: &str = lua!("queue/state");
const SHARED: &str = lua!("queue/steps");
const STEPS: [(&str, &str); 6] = [
    ("enter", lua!("queue/enter")),
    ("renew", lua!("queue/renew")),
    ("release", lua!("queue/release")),
    ("shrink", lua!("queue/shrink")),
    ("capacity", lua!("queue/capacity")),
    ("look", lua!("queue/look")),
];

/// The steps of a lock that is one plain string.
const PLAIN: [(&str, &str); 2] = [("extend", lua!("lean/renew")), ("drop", lua!("queue/drop"))];

/// Small ways to break the scripts: what to replace, by what, and what that does.
const BROKEN: [(&str, &str, &str); 13] = [
    (
        "call('ZPOPMIN', queue) or call('ZRANGE', queue, '0', '0')",
        "call('ZPOPMAX', queue) or call('ZRANGE', queue, -1, -1)",
        "the last in the queue is served first",
    ),
    (
        "elseif used + weight > capacity then",
        "elseif used > capacity then",
        "a waiter is granted more than there is room for",
    ),
    (
        "used, sole, changed = used - weight, nil, true",
        "sole, changed = nil, true",
        "a release does not return the weight",
    ),
    (
        "call('ZRANGEBYSCORE', heartbeats, '-inf', digits(now))",
        "{}",
        "dead waiters keep their place",
    ),
    (
        "if not newest[1] and used + weight <= capacity then",
        "if used + weight <= capacity then",
        "newcomers pass the queue",
    ),
    (
        "call('ZADD', holders, 'XX', 'GT', digits(now + length), owner)",
        "call('ZADD', holders, 'XX', digits(now + length), owner)",
        "a renewal may shorten a lease",
    ),
    (
        "not plain and call('HEXISTS', entries, owner) == 1",
        "false",
        "an enter that is repeated counts twice",
    ),
    (
        "  promote()\n  if beside_others then",
        "  if beside_others then",
        "a release promotes no waiter",
    ),
    (
        "ticket = ticket > 0 and ticket or",
        "ticket =",
        "a waiter does not get its lost place again",
    ),
    (
        "    call('ZADD', holders, digits(before.ends), before.owner)\n",
        "",
        "a second holder makes the first forgotten",
    ),
    (
        "due, last, changed = min(due, ends), max(last, ends), changed or ends < due",
        "last, changed = max(last, ends), changed",
        "the end of a heartbeat is not awaited",
    ),
    (
        "due = min(due, tonumber(call('ZRANGE', heartbeats, '0', '0', 'WITHSCORES')[2] or NEVER))",
        "due = NEVER",
        "nothing is due after the first settling",
    ),
    (
        "    if token == '0' then",
        "    if false then",
        "a holder that had the plain string has no token",
    ),
];

/// The scripts on a server, and somebody who hears what they publish.
struct Rig {
    digests: Vec<(&'static str, String)>,
    commands: RefCell<Connection>,
    messages: RefCell<Connection>,
    _server: Server,
}

impl Rig {
    /// Loads the scripts after `change` was made to their text.
    fn new(change: impl Fn(&str) -> String) -> Self {
        let server = Server::start(&Flavor::one());
        let queue = STEPS.map(|(name, text)| (name, format!("{STATE}{SHARED}{text}")));
        let plain = PLAIN.map(|(name, text)| (name, text.to_owned()));
        let digests = queue
            .iter()
            .chain(&plain)
            .map(|(name, text)| {
                let text = change(text);
                let digest = server.ask(&["SCRIPT", "LOAD", &text]).text().to_owned();
                (*name, digest)
            })
            .collect();
        let mut messages = server.connect();
        let subscribed = messages.ask(&["SSUBSCRIBE", "c"]).unwrap();
        assert_eq!(subscribed.list()[0].text(), "ssubscribe");
        Self {
            digests,
            commands: RefCell::new(server.connect()),
            messages: RefCell::new(messages),
            _server: server,
        }
    }

    /// Runs one script on the queue `name`.
    fn call(&self, script: &str, name: &str, args: &[String]) -> Reply {
        let keys = keys(name);
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        self.call_with(script, &keys, args)
    }

    fn call_with(&self, script: &str, keys: &[&str], args: &[String]) -> Reply {
        let digest = &self.digests.iter().find(|(at, _)| *at == script).unwrap().1;
        let count = keys.len().to_string();
        let words: Vec<&str> = ["EVALSHA", digest, &count]
            .into_iter()
            .chain(keys.iter().copied())
            .chain(args.iter().map(String::as_str))
            .collect();
        self.ask(&words)
    }

    fn ask(&self, words: &[&str]) -> Reply {
        self.commands.borrow_mut().ask(words).unwrap()
    }

    /// The server's clock.
    fn now(&self) -> i64 {
        let time = self.ask(&["TIME"]);
        let part = |at: usize| time.list()[at].text().parse::<i64>().unwrap();
        part(0) * 1_000_000 + part(1)
    }

    /// All that was published so far.
    fn messages(&self) -> Vec<String> {
        self.ask(&["SPUBLISH", "c", "end"]);
        let mut messages = self.messages.borrow_mut();
        let next = || messages.receive().unwrap().list()[2].text().to_owned();
        std::iter::repeat_with(next)
            .take_while(|message| message != "end")
            .collect()
    }

    /// Fails when a key would stay for ever.
    fn all_expires(&self, name: &str) -> Result<(), TestCaseError> {
        for key in &keys(name)[..5] {
            let left = self.ask(&["PTTL", key]).int();
            prop_assert_ne!(left, -1, "{} does not expire", key);
        }
        Ok(())
    }
}

fn keys(name: &str) -> [String; 6] {
    [
        "lock",
        "holders",
        "queue",
        "heartbeats",
        "entries",
        "counter",
    ]
    .map(|what| format!("{name}:{what}"))
}

/// Takes a step of a lock that is one plain string, as `protocol/lean.rs` does.
fn plain(rig: &Rig, name: &str, model: &mut Model, step: &Step) -> Result<(), TestCaseError> {
    let [lock, .., counter] = keys(name);
    let mark = model.mark(step);
    match step {
        Step::Take { lease, .. } => {
            let millis = ((lease + 999) / 1000).to_string();
            let taken = rig.ask(&["SET", &lock, &mark, "NX", "GET", "PX", &millis]);
            rig.ask(&["INCR", &counter]);
            model.count();
            let is_taken = matches!(taken, Reply::Nil);
            prop_assert!(
                !is_taken || model.may_be_free(rig.now()),
                "passed: {:?}",
                step
            );
            let end = rig.ask(&["PEXPIRETIME", &lock]).int();
            // The server expires a string up to a millisecond after the scripts count it as over.
            let is_over = end * 1000 <= rig.now();
            prop_assert!(
                is_taken || is_over || model.form != Form::Free,
                "left behind: {:?}",
                taken
            );
            if is_taken {
                // Its lease may be over by now.
                let end = if end < 0 { 0 } else { end * 1000 };
                model.set_alone(step, end);
            }
        }
        Step::Extend { owner, length } => {
            let millis = ((length + 999) / 1000).to_string();
            let renewed = rig.call_with("extend", &[&lock], &[mark, millis]).int() == 1;
            let end = rig.ask(&["PEXPIRETIME", &lock]).int();
            if let Some(is_alone) = model.is_alone(*owner, rig.now()) {
                prop_assert_eq!(renewed, is_alone, "{:?}", step);
            }
            if renewed && end > 0 {
                model.extend(end * 1000);
            }
        }
        Step::Drop { owner } => {
            let dropped = rig.call_with("drop", &[&lock], &[mark]).int() > 0;
            if let Some(is_alone) = model.is_alone(*owner, rig.now()) {
                prop_assert_eq!(dropped, is_alone, "{:?}", step);
            }
            if dropped {
                model.set_free();
            }
        }
        _ => unreachable!("a script of the queue"),
    }
    Ok(())
}

/// The keys of a queue expire at the earliest so long after a step. The model knows nothing of that, so a sequence in which
/// the machine stalls is compared only up to the stall.
const EXPIRY_MICROS: i64 = 1_000_000;

/// Lets a model and the server take the same steps.
fn agree(rig: &Rig, steps: &[Step]) -> Result<(), TestCaseError> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
    let mut model = Model::default();
    let mut grants = Vec::new();
    let mut begin = None;
    let mut stalled = false;
    let answers = steps.iter().try_for_each(|step| {
        if let Step::Sleep { micros } = step {
            std::thread::sleep(Duration::from_micros(*micros));
            return Ok(());
        }
        if let Step::Take { .. } | Step::Extend { .. } | Step::Drop { .. } = step {
            if stalled {
                return Ok(());
            }
            return plain(rig, &name, &mut model, step);
        }
        let (script, args) = model.call(step);
        let answer = rig.call(script, &name, &args);
        let now = now(&answer)?;
        stalled |= now - *begin.get_or_insert(now) >= EXPIRY_MICROS;
        if stalled {
            return Ok(());
        }
        let (expected, pushed) = model.take(step, now);
        grants.extend(pushed);
        prop_assert_eq!(&shown(&answer), &expected, "{:?}", step);
        Ok(())
    });
    let messages = rig.messages();
    answers?;
    if !stalled {
        prop_assert_eq!(messages, grants);
    }
    rig.all_expires(&name)
}

/// The server's clock when it answered: the third part of every answer, or the last of a shorter one.
fn now(answer: &Reply) -> Result<i64, TestCaseError> {
    match answer {
        Reply::List(parts) => Ok(parts[2.min(parts.len() - 1)].int()),
        other => Err(TestCaseError::fail(format!("{other:?}"))),
    }
}

/// An answer as text: the model's form.
fn shown(answer: &Reply) -> String {
    let part = |part: &Reply| match part {
        Reply::Int(number) => number.to_string(),
        other => other.text().to_owned(),
    };
    answer.list().iter().map(part).collect::<Vec<_>>().join("|")
}

fn disagreement(rig: &Rig, sequences: u64) -> Option<String> {
    let mut runner = TestRunner::new(Config {
        cases: u32::try_from(sequences).unwrap(),
        max_shrink_iters: 300,
        failure_persistence: None,
        ..Config::default()
    });
    let steps = prop::collection::vec(step::step(), 1..24);
    let outcome = runner.run(&steps, |steps| agree(rig, &steps));
    outcome.err().map(|error| error.to_string())
}

#[test]
fn the_scripts_agree_with_the_model() {
    let rig = Rig::new(str::to_owned);
    if let Some(why) = disagreement(&rig, scaled(1_000)) {
        panic!("{why}");
    }
}

#[test]
fn broken_scripts_are_all_caught() {
    for (from, to, what) in BROKEN {
        let found = std::cell::Cell::new(false);
        let rig = Rig::new(|text| {
            found.set(found.get() || text.contains(from));
            text.replace(from, to)
        });
        assert!(found.get(), "nothing to break: {from}");
        let caught = disagreement(&rig, 5_000).is_some();
        assert!(caught, "not caught: {what}");
    }
}
