//! Programs wrapped in a lock by the command `leasehold`: the worker starts it, and the program it wraps is this one again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use testkit::Connection;

use super::{Worker, name};
use crate::coupons;
use crate::history::{Event, Failure, Log, What, now};
use crate::plan::Kind;

/// What the command says when the lock is busy.
const BUSY: i32 = 75;

/// Where the numbers of a worker's wrapped programs begin: its own holdings have smaller ones.
const FIRST: u64 = 1 << 40;

impl Worker {
    /// Wraps one program after the other.
    pub(super) fn run_commands(&self) {
        let mut rng = self.rng(u64::MAX / 2);
        let mut holding = FIRST;
        while !self.over.load(Ordering::SeqCst) {
            let lock = loop {
                let lock = u32::try_from(rng.below(u64::from(self.job.plan.locks)));
                let lock = lock.unwrap_or_default();
                if self.job.plan.kind(lock) == Kind::Mutex {
                    break lock;
                }
            };
            holding += 1;
            let (weight, patient) = (1, true);
            self.note(lock, holding, What::Want { weight, patient });
            let millis = match rng.below(20) {
                0 => self.job.plan.lease_ms * 2,
                _ => rng.below(30),
            };
            let code = self.wrap(lock, holding, millis);
            match code {
                Some(0) => self.note(lock, holding, What::Gave),
                Some(BUSY) => self.note(lock, holding, What::Failed(Failure::Timeout)),
                _ => self.note(lock, holding, What::End),
            }
        }
    }

    fn wrap(&self, lock: u32, holding: u64, millis: u64) -> Option<i32> {
        let this = std::env::current_exe().expect("this program");
        let status = Command::new(this.with_file_name("leasehold"))
            .args(["run", "--url", &self.job.urls, "--wait", "1s"])
            .args(["--lease", &format!("{}ms", self.job.plan.lease_ms)])
            .args(["--grace", "100ms", &name(lock), "--"])
            .arg(&this)
            .args(["child", &self.job.history.to_string_lossy()])
            .args([self.job.store, self.job.number as u16].map(|number| number.to_string()))
            .args([u64::from(lock), holding, millis].map(|number| number.to_string()))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.ok()?.code()
    }
}

/// The program that is wrapped: it has the lock for as long as it lives.
pub(crate) fn child(words: &[String]) -> Option<()> {
    let [history, numbers @ ..] = words else {
        return None;
    };
    let numbers: Result<Vec<u64>, _> = numbers.iter().map(|word| word.parse()).collect();
    let &[store, number, lock, holding, millis] = numbers.ok()?.as_slice() else {
        return None;
    };
    let token: u64 = std::env::var("LEASEHOLD_TOKEN").ok()?.parse().ok()?;
    let log = Log::open(Path::new(history)).ok()?;
    let lock = u32::try_from(lock).ok()?;
    let note = |what| {
        let at = now();
        log.note(&Event {
            lock,
            holding,
            at,
            what,
        });
    };
    let deadline = now();
    note(What::Got { token, deadline });
    let mut store = Connection::open(u16::try_from(store).ok()?).ok()?;
    let read = coupons::read(&mut store, lock, token)?;
    let start = now();
    while now() < start + millis * 1_000_000 {
        std::thread::sleep(Duration::from_millis(1));
        let deadline = now();
        note(What::Valid { deadline });
    }
    let seller = coupons::seller(usize::try_from(number).ok()?, holding);
    let accepted = coupons::sell(&mut store, lock, token, &seller, read);
    note(What::Sold { token, accepted });
    note(What::End);
    Some(())
}
