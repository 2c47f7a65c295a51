//! The queue's scripts against a plain model: random sequences of steps on a
//! real server, compared reply by reply and message by message, by the server's
//! clock.

mod hand_over;
mod mutants;
mod queue;
mod step;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use testkit::{Connection, Flavor, Reply, Server, ServerExt};

use crate::support::{lua, scaled};
use queue::{Form, Model};
use step::Step;

const PRELUDE: &str = lua!("queue/prelude");
const STEPS: [(&str, &str); 8] = [
    ("enter", lua!("queue/enqueue")),
    ("renew", lua!("queue/renew")),
    ("release", lua!("queue/release")),
    ("shrink", lua!("queue/downgrade")),
    ("hand-over", lua!("queue/hand_over")),
    ("adopt", lua!("queue/adopt")),
    ("capacity", lua!("queue/capacity")),
    ("stats", lua!("queue/stats")),
];

/// The steps of a lock that is one plain string.
const PLAIN: [(&str, &str); 2] = [
    ("extend", lua!("single_key/renew")),
    ("drop", lua!("queue/compare_and_delete")),
];

/// The scripts on a server, and a subscriber to what they publish.
struct Rig {
    digests: Vec<(&'static str, String)>,
    commands: RefCell<Connection>,
    messages: RefCell<Connection>,
    _server: Server,
}

impl Rig {
    /// Loads the scripts after `change` edited their text.
    fn new(change: impl Fn(&str) -> String) -> Self {
        let server = Flavor::one().start();
        let queue = STEPS.map(|(name, text)| (name, format!("{PRELUDE}{text}")));
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

    /// Returns the server's clock.
    fn now(&self) -> i64 {
        let time = self.ask(&["TIME"]);
        let part = |at: usize| time.list()[at].text().parse::<i64>().unwrap();
        part(0) * 1_000_000 + part(1)
    }

    /// Returns all messages so far.
    fn messages(&self) -> Vec<String> {
        self.ask(&["SPUBLISH", "c", "end"]);
        let mut messages = self.messages.borrow_mut();
        let next = || messages.receive().unwrap().list()[2].text().to_owned();
        std::iter::repeat_with(next)
            .take_while(|message| message != "end")
            .collect()
    }

    /// Fails if a key has no expiry.
    fn check_expiry(&self, name: &str) -> Result<(), TestCaseError> {
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

/// Takes a step of a lock that is one plain string, as the library does.
fn plain(rig: &Rig, name: &str, model: &mut Model, step: &Step) -> Result<(), TestCaseError> {
    let [lock, .., counter] = keys(name);
    let lock_value = model.lock_value(step);
    match step {
        Step::Acquire { lease, .. } => {
            let millis = ((lease + 999) / 1000).to_string();
            let taken = rig.ask(&["SET", &lock, &lock_value, "NX", "GET", "PX", &millis]);
            rig.ask(&["INCR", &counter]);
            model.count();
            let is_taken = matches!(taken, Reply::Nil);
            prop_assert!(
                !is_taken || model.may_be_free(rig.now()),
                "passed: {:?}",
                step
            );
            let end = rig.ask(&["PEXPIRETIME", &lock]).int();
            // The server expires a string up to a millisecond later than the
            // scripts do.
            let is_over = end * 1000 <= rig.now();
            prop_assert!(
                is_taken || is_over || model.form != Form::Free,
                "not expired: {:?}",
                taken
            );
            if is_taken {
                // Its lease may have expired by now.
                let end = if end < 0 { 0 } else { end * 1000 };
                model.set_alone(step, end);
            }
        }
        Step::Extend { owner, length } => {
            let millis = ((length + 999) / 1000).to_string();
            let renewed = rig
                .call_with("extend", &[&lock], &[lock_value, millis])
                .int()
                == 1;
            let end = rig.ask(&["PEXPIRETIME", &lock]).int();
            if let Some(is_alone) = model.is_alone(*owner, rig.now()) {
                prop_assert_eq!(renewed, is_alone, "{:?}", step);
            }
            if renewed && end > 0 {
                model.extend(end * 1000);
            }
        }
        Step::Drop { owner } => {
            let dropped = rig.call_with("drop", &[&lock], &[lock_value]).int() > 0;
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

/// The earliest expiry of a queue's keys after a step. The model does not cover
/// it, so a sequence is compared only up to a stall.
const EXPIRY_MICROS: i64 = 1_000_000;

/// Takes the same steps in the model and on the server.
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
        if let Step::Acquire { .. } | Step::Extend { .. } | Step::Drop { .. } = step {
            if stalled {
                return Ok(());
            }
            return plain(rig, &name, &mut model, step);
        }
        if model.is_impossible(step) {
            return Ok(());
        }
        let (script, args) = model.call(step);
        let answer = rig.call(script, &name, &args);
        let now = now(&answer)?;
        stalled |= now - *begin.get_or_insert(now) >= EXPIRY_MICROS;
        if stalled {
            return Ok(());
        }
        let (expected, pushed) = model.apply(step, now);
        grants.extend(pushed);
        prop_assert_eq!(&to_text(&answer), &expected, "{:?}", step);
        Ok(())
    });
    let messages = rig.messages();
    answers?;
    if !stalled {
        prop_assert_eq!(messages, grants);
    }
    rig.check_expiry(&name)
}

/// Returns the server's clock at a reply: its third part, or the last of a
/// shorter one.
fn now(answer: &Reply) -> Result<i64, TestCaseError> {
    match answer {
        Reply::List(parts) => Ok(parts[2.min(parts.len() - 1)].int()),
        other => Err(TestCaseError::fail(format!("{other:?}"))),
    }
}

/// Returns a reply as text, in the form of the model.
fn to_text(answer: &Reply) -> String {
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
fn scripts_agree_with_model() {
    let rig = Rig::new(str::to_owned);
    if let Some(why) = disagreement(&rig, scaled(1_000)) {
        panic!("{why}");
    }
}
