//! The queue's scripts against a plain model of the queue: random sequences of steps on a real server,
//! compared answer by answer and message by message, by the server's own clock.

mod queue;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use testkit::{Answer, Connection, Flavor, Server};

use crate::support::scaled;
use queue::{Model, Step};

const LINE: &str = include_str!("../../../leasehold/lua/queue/line.lua");
const STEPS: [(&str, &str); 6] = [
    (
        "enter",
        include_str!("../../../leasehold/lua/queue/enter.lua"),
    ),
    (
        "renew",
        include_str!("../../../leasehold/lua/queue/renew.lua"),
    ),
    (
        "release",
        include_str!("../../../leasehold/lua/queue/release.lua"),
    ),
    (
        "shrink",
        include_str!("../../../leasehold/lua/queue/shrink.lua"),
    ),
    (
        "capacity",
        include_str!("../../../leasehold/lua/queue/capacity.lua"),
    ),
    (
        "look",
        include_str!("../../../leasehold/lua/queue/look.lua"),
    ),
];

/// Ten small ways to break the scripts: what to replace, by what, and what that does.
const BROKEN: [(&str, &str, &str); 10] = [
    (
        "redis.call('ZRANGE', line, 0, 0)[1]",
        "redis.call('ZRANGE', line, -1, -1)[1]",
        "the last in line is served first",
    ),
    (
        "return used + weight <= capacity",
        "return used <= capacity",
        "one more is let in than there is room for",
    ),
    (
        "    used = used - entry(owner)\n",
        "",
        "what a holder had is not given back",
    ),
    (
        "    take_out_ended(alive)\n",
        "",
        "waiters that are dead keep their place",
    ),
    (
        "if shared == '0' or used == 0 then",
        "if used == 0 then",
        "holders beside each other get one token",
    ),
    (
        "elseif not queued and fits(weight)",
        "elseif fits(weight)",
        "newcomers pass those who wait",
    ),
    (
        "'GT', now + length",
        "now + length",
        "a renewal may shorten a lease",
    ),
    (
        "if state[1] and redis.call('HEXISTS', lock, owner) == 1 then",
        "if false then",
        "an enter that is repeated counts twice",
    ),
    (
        "  leave(owner)\n  if queued then",
        "  leave(owner)\n  if false then",
        "a release promotes nobody",
    ),
    (
        "ticket = ticket > 0 and ticket or",
        "ticket =",
        "a place that was lost is not had back",
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
        let digests = STEPS
            .iter()
            .map(|(name, text)| {
                let text = change(&format!("{LINE}{text}"));
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
    fn call(&self, script: &str, name: &str, args: &[String]) -> Answer {
        let digest = &self.digests.iter().find(|(at, _)| *at == script).unwrap().1;
        let keys = keys(name);
        let words: Vec<&str> = ["EVALSHA", digest, "5"]
            .into_iter()
            .chain(keys.iter().map(String::as_str))
            .chain(args.iter().map(String::as_str))
            .collect();
        self.commands.borrow_mut().ask(&words).unwrap()
    }

    /// All that was published so far.
    fn messages(&self) -> Vec<String> {
        self.commands
            .borrow_mut()
            .ask(&["SPUBLISH", "c", "end"])
            .unwrap();
        let mut messages = self.messages.borrow_mut();
        let next = || messages.receive().unwrap().list()[2].text().to_owned();
        std::iter::repeat_with(next)
            .take_while(|message| message != "end")
            .collect()
    }

    /// Fails when a key would stay for ever.
    fn all_expires(&self, name: &str) -> Result<(), TestCaseError> {
        for key in &keys(name)[..4] {
            let left = self.commands.borrow_mut().ask(&["PTTL", key]).unwrap();
            prop_assert_ne!(left.int(), -1, "{} does not expire", key);
        }
        Ok(())
    }
}

fn keys(name: &str) -> [String; 5] {
    ["lock", "holders", "line", "alive", "counter"].map(|what| format!("{name}:{what}"))
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
fn now(answer: &Answer) -> Result<i64, TestCaseError> {
    match answer {
        Answer::List(parts) => Ok(parts[2.min(parts.len() - 1)].int()),
        other => Err(TestCaseError::fail(format!("{other:?}"))),
    }
}

/// An answer as text: the model's form.
fn shown(answer: &Answer) -> String {
    let part = |part: &Answer| match part {
        Answer::Int(number) => number.to_string(),
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
    let steps = prop::collection::vec(queue::step(), 1..24);
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
fn ten_broken_scripts_are_all_caught() {
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
