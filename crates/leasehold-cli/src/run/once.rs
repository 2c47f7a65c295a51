//! `leasehold run --once-per`: runs a command once per period, on one of many
//! hosts.

use std::ops::ControlFlow;
use std::time::Duration;

use leasehold::{OnceGuard, OnceOutcome, Run};

use super::session::{Plan, Session};
use crate::args::RunArgs;
use crate::duration;
use crate::output::CliError;

/// What became of the current period.
pub(super) enum Period {
    /// A signal ended the start, or the command has ended.
    Exit(u8),
    /// Another process runs this period, or has run it; described by the text.
    Skip(String),
}

/// Runs the command unless the current period was run.
pub(super) async fn run_once(
    session: &mut Session,
    args: &RunArgs,
    period: Duration,
    plan: &Plan<'_>,
) -> Result<Period, CliError> {
    let started = session.servers.once(args, period)?.start();
    let outcome = match session.wait(&args.name, args.verbose, started).await {
        ControlFlow::Continue(outcome) => outcome?,
        ControlFlow::Break(code) => return Ok(Period::Exit(code)),
    };
    match outcome {
        OnceOutcome::Ran(guard) => execute(session, guard, plan).await.map(Period::Exit),
        OnceOutcome::AlreadyRan(run) => Ok(Period::Skip(describe(&args.name, &run))),
        _ => Ok(Period::Skip(format!(
            "`{}` is held: its last run has not ended",
            args.name
        ))),
    }
}

async fn execute(session: &mut Session, guard: OnceGuard, plan: &Plan<'_>) -> Result<u8, CliError> {
    let name = guard.name().to_owned();
    let ended = session.execute((*guard).clone().into(), plan).await;
    let report = match &ended {
        Ok(ended) => format!("exit status {}", ended.code),
        Err(_) => "not started".to_owned(),
    };
    session.release(&name, guard.finish(&report)).await;
    ended.map(|ended| ended.code)
}

fn describe(name: &str, run: &Run) -> String {
    let mut text = format!("this period of `{name}` was run");
    if let (Some(host), Some(pid)) = (&run.host, run.pid) {
        text += &format!(" by process {pid} on {host}");
    }
    if let Some(since) = run.since {
        text += &format!(" at {}", duration::time_of_day(since));
    }
    match &run.report {
        Some(report) => text + ": " + report,
        None => text + ", which has not reported its end",
    }
}
