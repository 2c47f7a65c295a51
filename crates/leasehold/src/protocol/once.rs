//! The record of a job that runs once per tick: its last tick, its runner and
//! how the run ended. The server's clock decides, as read by the scripts.

use std::time::{Duration, UNIX_EPOCH};

use super::call::{Call, first};
use super::keys::LockKeys;
use super::record;
use super::script::{digits, script};
use crate::backend::{Command, Reply, RequestError};
use crate::info::Run;
use crate::owner::Token;

script!(CLAIM, "once/claim.lua");
script!(FINISH, "once/finish.lua");
script!(FORGET, "once/forget.lua");

/// The calls of one job, besides those of its lock.
#[derive(Debug)]
pub(crate) struct OnceCalls {
    job: String,
}

impl OnceCalls {
    pub(crate) fn new(keys: &LockKeys) -> Self {
        Self {
            job: keys.related("once"),
        }
    }

    /// Claims a tick for the run with this token, for `life`.
    pub(crate) fn claim(
        &self,
        tick: u64,
        period: Duration,
        token: Token,
        note: &str,
        life: Duration,
    ) -> Call<Claim> {
        let process = record::write_process_now(note);
        let args = [
            &digits(tick)[..],
            &millis(period),
            &digits(token.as_u64()),
            process.as_bytes(),
            &millis(life),
        ];
        Call::script(&CLAIM, &[self.job.as_bytes()], &args, read_claim)
    }

    /// Records how the run with this token ended. Returns false if another run
    /// is recorded.
    pub(crate) fn finish(&self, token: Token, report: &str, life: Duration) -> Call<bool> {
        let token = digits(token.as_u64());
        let args = [&token[..], report.as_bytes(), &millis(life)];
        Call::script(&FINISH, &[self.job.as_bytes()], &args, read_done)
    }

    /// Removes the record of the run with this token, and records the run
    /// before for `life`. Returns false if another run is recorded.
    pub(crate) fn forget(&self, token: Token, life: Duration) -> Call<bool> {
        let token = digits(token.as_u64());
        let args = [&token[..], &millis(life)];
        Call::script(&FORGET, &[self.job.as_bytes()], &args, read_done)
    }

    /// Reads the last run and its token.
    pub(crate) fn last(&self) -> Call<Option<(Run, Token)>> {
        let fields = ["tick", "period", "token", "runner", "report"];
        let command = Command::new("HMGET").arg(&self.job);
        let command = fields.into_iter().fold(command, Command::arg);
        Call::new(vec![command], |replies| {
            let reply = first("a job", replies)?;
            match reply.list() {
                Some([Reply::Nil, ..]) => Ok(None),
                Some(fields) => match read_run(fields) {
                    Some(run) => Ok(Some(run)),
                    None => Err(RequestError::malformed("a job", &[reply])),
                },
                None => Err(RequestError::malformed("a job", &[reply])),
            }
        })
    }
}

/// The outcome of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Claimed,
    /// A run of this tick or of a later one is recorded.
    AlreadyRan,
    /// The tick starts this long after the server's clock, more than a period.
    TooEarly(Duration),
}

fn read_run(fields: &[Reply]) -> Option<(Run, Token)> {
    let [tick, period, token, runner, report] = fields else {
        return None;
    };
    let tick: u64 = tick.text()?.parse().ok()?;
    let period_millis: u64 = period.text()?.parse().ok()?;
    let next_millis = tick.checked_add(1)?.checked_mul(period_millis)?;
    let token = token.text()?.parse().ok()?;
    let runner = record::read_process(runner.text()?)?;
    let run = Run {
        tick,
        period: Duration::from_millis(period_millis),
        host: Some(runner.host),
        pid: Some(runner.pid),
        since: runner.since,
        next: UNIX_EPOCH.checked_add(Duration::from_millis(next_millis)),
        note: record::non_empty(&runner.note),
        report: report.text().map(str::to_owned),
    };
    Some((run, Token::new(token)))
}

fn read_claim(replies: Vec<Reply>) -> Result<Claim, RequestError> {
    match first("a claim", replies)?.int() {
        Some(1) => Ok(Claim::Claimed),
        Some(0) => Ok(Claim::AlreadyRan),
        Some(ahead) if ahead < 0 => {
            let ahead = Duration::from_millis(ahead.unsigned_abs());
            Ok(Claim::TooEarly(ahead))
        }
        _ => Err(RequestError::malformed("a claim", &[])),
    }
}

fn read_done(replies: Vec<Reply>) -> Result<bool, RequestError> {
    match first("a job", replies)?.int() {
        Some(done @ (0 | 1)) => Ok(done == 1),
        _ => Err(RequestError::malformed("a job", &[])),
    }
}

fn millis(life: Duration) -> Vec<u8> {
    digits(u64::try_from(life.as_millis()).unwrap_or(u64::MAX))
}
