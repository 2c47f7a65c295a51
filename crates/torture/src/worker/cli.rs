//! Programs that run under `leasehold run`. The worker starts the CLI, which
//! runs this program again as the wrapped program.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use testkit::Connection;

use super::job::lock_name;
use super::session::Session;
use crate::fenced_store;
use crate::history::{Event, EventKind, Failure, Log, now};
use crate::plan::Kind;

/// The exit status of the CLI for a busy lock.
const BUSY: i32 = 75;

/// The first hold number of wrapped programs, above those of the tasks.
const FIRST_HOLD: u64 = 1 << 40;

/// Runs one wrapped program after another.
pub(super) fn run(session: &Session) {
    let plan = &session.job.plan;
    let mut rng = session.rng(u64::MAX / 2);
    let mut hold = FIRST_HOLD;
    while !session.stop.load(Ordering::SeqCst) {
        let lock = loop {
            let lock = u32::try_from(rng.below(u64::from(plan.locks)));
            let lock = lock.unwrap_or_default();
            if plan.kind(lock) == Kind::Mutex {
                break lock;
            }
        };
        hold += 1;
        let (weight, waits) = (1, true);
        session.record(lock, hold, EventKind::Requested { weight, waits });
        let millis = match rng.below(20) {
            0 => plan.lease_ms * 2,
            _ => rng.below(30),
        };
        let kind = match run_wrapped(session, lock, hold, millis) {
            Some(0) => EventKind::Released,
            Some(BUSY) => EventKind::Failed(Failure::Timeout),
            _ => EventKind::Releasing,
        };
        session.record(lock, hold, kind);
    }
}

fn run_wrapped(session: &Session, lock: u32, hold: u64, millis: u64) -> Option<i32> {
    let job = &session.job;
    let this = std::env::current_exe().expect("the path of this program");
    let status = Command::new(this.with_file_name("leasehold"))
        .args(["run", "--url", &job.urls, "--wait", "1s"])
        .args(["--lease", &format!("{}ms", job.plan.lease_ms)])
        .args(["--grace", "100ms", &lock_name(lock), "--"])
        .arg(&this)
        .args(["wrapped", &job.history.to_string_lossy()])
        .args([job.store, job.number as u16].map(|number| number.to_string()))
        .args([u64::from(lock), hold, millis].map(|number| number.to_string()))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.ok()?.code()
}

/// Runs as the wrapped program, which holds the lock while it runs.
pub(crate) fn wrapped(words: &[String]) -> Option<()> {
    let [history, numbers @ ..] = words else {
        return None;
    };
    let numbers: Result<Vec<u64>, _> = numbers.iter().map(|word| word.parse()).collect();
    let &[store, number, lock, hold, millis] = numbers.ok()?.as_slice() else {
        return None;
    };
    let token: u64 = std::env::var("LEASEHOLD_TOKEN").ok()?.parse().ok()?;
    let log = Log::open(Path::new(history)).ok()?;
    let lock = u32::try_from(lock).ok()?;
    let record = |kind| {
        let at = now();
        log.record(&Event {
            lock,
            hold,
            at,
            kind,
        });
    };
    let deadline = now();
    record(EventKind::Acquired { token, deadline });
    let mut store = Connection::open(u16::try_from(store).ok()?).ok()?;
    let read = fenced_store::read(&mut store, lock, token)?;
    let start = now();
    while now() < start + millis * 1_000_000 {
        std::thread::sleep(Duration::from_millis(1));
        let deadline = now();
        record(EventKind::Valid { deadline });
    }
    let writer = fenced_store::writer(usize::try_from(number).ok()?, hold);
    let accepted = fenced_store::write(&mut store, lock, token, &writer, read);
    record(EventKind::Wrote { token, accepted });
    record(EventKind::Releasing);
    Some(())
}
