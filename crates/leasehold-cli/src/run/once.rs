//! `leasehold run --once-per`: runs a command once per period, on one of many
//! hosts.
//!
//! A command that was executed has used up its period, however it ended. One
//! that was never executed has not, so the next start runs the period.

use std::fmt::Display;
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use leasehold::{Error, OnceGuard, OnceOutcome, Tick};
use tokio::time::timeout;

use super::session::{Plan, Session, no_reply_within};
use crate::args::RunArgs;
use crate::output::{CliError, hint, message};
use crate::{exit, jobs};

/// What became of the current period.
pub(super) enum Period {
    /// The command has ended.
    Ended(u8),
    /// A signal ended the start.
    Interrupted(u8),
    /// Another process runs this period, or has run it.
    Skip(CliError),
}

/// Runs the command unless the current period was run.
pub(super) async fn run_once(
    session: &mut Session,
    args: &RunArgs,
    period: Duration,
    plan: &Plan<'_>,
) -> Result<Period, CliError> {
    let tick = Tick::now(period);
    let mut started = pin!(session.servers.once(args, tick)?.start());
    let waited = session.wait(&args.name, args.verbose, started.as_mut());
    let outcome = match waited.await {
        ControlFlow::Continue(outcome) => {
            outcome.map_err(|error| not_started(&args.name, error))?
        }
        ControlFlow::Break(code) => {
            // The claim may be on its way. Dropping it here could use up the
            // period although nothing runs.
            let limit = session.servers.release_timeout();
            match timeout(limit, started).await {
                Ok(Ok(OnceOutcome::Ran(guard))) => give_back(session, guard).await,
                Ok(Ok(_)) => {}
                Ok(Err(error @ (Error::OutcomeUnknown(_) | Error::Unavailable(_)))) => {
                    may_count(&args.name, error);
                }
                Ok(Err(error)) => message(error),
                Err(_) => may_count(&args.name, no_reply_within(limit)),
            }
            return Ok(Period::Interrupted(code));
        }
    };
    match outcome {
        OnceOutcome::Ran(guard) => execute(session, guard, plan).await.map(Period::Ended),
        OnceOutcome::AlreadyRan(run) => {
            let own_end = jobs::end(tick, period);
            Ok(Period::Skip(jobs::already_ran(&args.name, &run, own_end)))
        }
        _ => {
            let text = format!("`{}` is held: its last run has not ended", args.name);
            Ok(Period::Skip(CliError::new(exit::BUSY, text)))
        }
    }
}

async fn execute(session: &mut Session, guard: OnceGuard, plan: &Plan<'_>) -> Result<u8, CliError> {
    let lease = guard.lease();
    match session.execute(lease.clone().into(), plan).await {
        Ok(ended) if ended.started => {
            let report = format!("exit status {}", ended.code);
            let finish = guard.finish(&report);
            let ended = session.release(lease.name(), finish, Ok(ended)).await;
            ended.map(|ended| ended.code)
        }
        not_started => {
            give_back(session, guard).await;
            not_started.map(|ended| ended.code)
        }
    }
}

/// Gives the period back, for a command that was never executed.
async fn give_back(session: &Session, guard: OnceGuard) {
    let lease = guard.lease();
    let name = lease.name();
    let limit = session.servers.release_timeout();
    let failure = match timeout(limit, guard.cancel()).await {
        Ok(Ok(()) | Err(Error::Lost { .. })) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => no_reply_within(limit),
    };
    may_count(name, failure);
}

/// Returns the error of a start. If a reply was lost, the period may be used up
/// although nothing ran.
fn not_started(name: &str, error: Error) -> CliError {
    let is_uncertain = matches!(error, Error::OutcomeUnknown(_) | Error::Lost { .. });
    let error = CliError::from(error);
    match is_uncertain {
        true => error.with_hint(format!(
            "this period may count as run: `leasehold show {name}` says whether it does; {}",
            jobs::reset_hint(name)
        )),
        false => error,
    }
}

/// Reports that a period may be used up although nothing ran.
fn may_count(name: &str, why: impl Display) {
    message(format!("this period of `{name}` may count as run: {why}"));
    hint(jobs::reset_hint(name));
}
