//! The record of a job that runs once per tick: the last tick, the runner and
//! how the run ended. The server's clock decides, as read by the scripts.

use std::time::{Duration, UNIX_EPOCH};

use super::call::{Call, read, read_done};
use super::keys::LockKeys;
use super::record;
use super::script::{digits, millis, script};
use crate::backend::{Batch, Reply};
use crate::info::Run;
use crate::owner::Token;

script!(CLAIM, "once/claim.lua");
script!(FINISH, "once/finish.lua");
script!(FORGET, "once/forget.lua");

/// A job's calls, besides those of the lock.
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
        // Rounded down, as when the number of the tick was computed.
        let period = period.as_millis().to_string();
        let args = [
            &digits(tick)[..],
            period.as_bytes(),
            &digits(token.as_u64()),
            process.as_bytes(),
            &millis(life),
        ];
        let claim = |reply: &Reply| match reply.int()? {
            1 => Some(Claim::Claimed),
            0 => Some(Claim::AlreadyRan),
            ahead @ ..0 => Some(Claim::TooEarly(Duration::from_millis(ahead.unsigned_abs()))),
            _ => None,
        };
        Call::script(
            &CLAIM,
            &[self.job.as_bytes()],
            &args,
            read("a claim", claim),
        )
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

    /// Reads the last run and the token.
    pub(crate) fn last(&self) -> Call<Option<(Run, Token)>> {
        let fields = ["tick", "period", "token", "runner", "report"];
        let command = Batch::new("HMGET").arg(&self.job);
        let command = fields.into_iter().fold(command, Batch::arg);
        let run = |reply: &Reply| match reply.list()? {
            [Reply::Nil, ..] => Some(None),
            fields => read_run(fields).map(Some),
        };
        Call::new(command, read("a job", run))
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
    // Any client can write the record, so its numbers are checked.
    let next_millis = tick.checked_add(1)?.checked_mul(period_millis)?;
    let token = token.text()?.parse().ok()?;
    let runner = record::read_process(runner.text()?)?;
    let run = Run {
        tick,
        period: Duration::from_millis(period_millis),
        next: UNIX_EPOCH.checked_add(Duration::from_millis(next_millis)),
        process: runner,
        report: report.text().map(str::to_owned),
    };
    Some((run, Token::new(token)))
}
