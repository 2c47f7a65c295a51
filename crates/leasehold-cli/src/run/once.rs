//! `leasehold run --once-per`: runs a command once per period, on one of many
//! hosts.
//!
//! A command that was executed has used up its period, however it ended. One
//! that was never executed has not, so the next start runs the period.

use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use leasehold::{Error, OnceGuard, OnceOutcome, Tick};
use tokio::time::timeout;

use super::session::{Plan, Session};
use crate::args::RunArgs;
use crate::output::{CliError, hint, message};
use crate::{duration, exit, jobs};

/// What became of the current period.
pub(super) enum Period {
    /// A signal ended the start, or the command has ended.
    Exit(u8),
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
        ControlFlow::Continue(outcome) => outcome?,
        ControlFlow::Break(code) => {
            // The claim may be on its way. Dropping it here could use up the
            // period although nothing runs.
            let limit = session.servers.release_timeout();
            if let Ok(Ok(OnceOutcome::Ran(guard))) = timeout(limit, started).await {
                give_back(session, guard).await;
            }
            return Ok(Period::Exit(code));
        }
    };
    match outcome {
        OnceOutcome::Ran(guard) => execute(session, guard, plan).await.map(Period::Exit),
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
            session.release(lease.name(), guard.finish(&report)).await;
            Ok(ended.code)
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
        Err(_) => format!("no reply within {}", duration::format(limit)),
    };
    message(format!(
        "this period of `{name}` may count as run: {failure}"
    ));
    hint(jobs::reset_hint(name));
}
