//! The record of a job that runs once per tick: its last tick, its runner and
//! how the run ended.

use std::time::Duration;

use super::call::{Call, first};
use super::keys::LockKeys;
use super::record;
use super::script::{digits, script};
use crate::backend::{Command, Reply, RequestError};
use crate::info::Run;
use crate::owner::Token;

script!(CLAIM, "once/claim.lua");
script!(FINISH, "once/finish.lua");

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

    /// Claims a tick for the run with this token. Returns false if a run of
    /// this tick or of a later one is recorded.
    pub(crate) fn claim(
        &self,
        tick: u64,
        token: Token,
        server_micros: u64,
        note: &str,
        life: Duration,
    ) -> Call<bool> {
        let runner = record::write_process(server_micros, note);
        let args = [
            &digits(tick)[..],
            &digits(token.as_u64()),
            runner.as_bytes(),
            &millis(life),
        ];
        Call::script(&CLAIM, &[self.job.as_bytes()], &args, read_done)
    }

    /// Records how the run with this token ended. Returns false if another run
    /// is recorded.
    pub(crate) fn finish(&self, token: Token, report: &str, life: Duration) -> Call<bool> {
        let token = digits(token.as_u64());
        let args = [&token[..], report.as_bytes(), &millis(life)];
        Call::script(&FINISH, &[self.job.as_bytes()], &args, read_done)
    }

    /// Reads the last run.
    pub(crate) fn last(&self) -> Call<Option<Run>> {
        let fields = ["tick", "runner", "report"];
        let command = Command::new("HMGET").arg(&self.job);
        let command = fields.into_iter().fold(command, Command::arg);
        Call::new(vec![command], |replies| {
            let reply = first("a job", replies)?;
            match reply.list() {
                Some([Reply::Nil, ..]) => Ok(None),
                Some([tick, runner, report]) => match read_run(tick, runner, report) {
                    Some(run) => Ok(Some(run)),
                    None => Err(RequestError::malformed("a job", &[reply])),
                },
                _ => Err(RequestError::malformed("a job", &[reply])),
            }
        })
    }
}

fn read_run(tick: &Reply, runner: &Reply, report: &Reply) -> Option<Run> {
    let runner = record::read_process(runner.text()?)?;
    Some(Run {
        tick: tick.text()?.parse().ok()?,
        host: Some(runner.host),
        pid: Some(runner.pid),
        since: runner.since,
        note: record::non_empty(&runner.note),
        report: report.text().map(str::to_owned),
    })
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
