//! Jobs that run once per period: their last run, and `leasehold once`.

use std::time::{Duration, SystemTime};

use leasehold::{Client, Once, Run, Tick};

use crate::args::{OnceCommand, ServerArgs};
use crate::output::{CliError, hint, message, print, printable};
use crate::settings::Settings;
use crate::{duration, exit, json};

pub(crate) async fn once(server: &ServerArgs, command: &OnceCommand) -> Result<u8, CliError> {
    let client = Settings::load(server)?.connect(None).await?;
    let OnceCommand::Reset(args) = command;
    let job = job(&client, &args.name);
    let forgotten = job.reset().await?;
    if args.output.json {
        print(&json::line(&forgotten))?;
    }
    let name = &args.name;
    match forgotten {
        Some(run) => {
            let period = duration::exact(run.period);
            let text = describe(&run);
            message(format!(
                "`{name}` may run again once per {period}; forgot {text}"
            ));
            // A job's record keeps the run of another period.
            if let Some(other) = job.last().await?
                && let Some(next) = other.next.filter(|next| *next > SystemTime::now())
            {
                let period = duration::exact(other.period);
                let next = duration::date_time(next);
                let text = describe(&other);
                message(format!(
                    "once per {period}, `{name}` may not run before {next}: it was run by {text}"
                ));
                hint(format!(
                    "`leasehold once reset {name}` forgets that run too"
                ));
            }
            Ok(exit::OK)
        }
        None => {
            message(format!("no run of `{name}` is recorded"));
            Ok(exit::NO)
        }
    }
}

/// Reads the last run of a job. A lock that is no job has none.
pub(crate) async fn last_run(client: &Client, name: &str) -> Result<Option<Run>, leasehold::Error> {
    job(client, name).last().await
}

fn job(client: &Client, name: &str) -> Once {
    // Only a start uses the tick.
    client.once(name, Tick::now(Duration::from_secs(86_400)))
}

/// Returns the lines of `show` for the last run.
pub(crate) fn lines(run: &Run) -> String {
    let period = duration::exact(run.period);
    let mut text = format!("last run  {}\n", describe(run));
    if let Some(next) = run.next {
        let next = duration::date_time(next);
        text += &format!("next run  {next} or later, once per {period}\n");
    }
    text
}

/// Returns the error for a period that has run. `own_end` is when the period
/// ends for this process, whose `--once-per` may differ from the run's.
pub(crate) fn already_ran(name: &str, run: &Run, own_end: Option<SystemTime>) -> CliError {
    let mut text = format!("this period of `{name}` was run by {}", describe(run));
    if let Some(next) = run.next.max(own_end) {
        text += &format!("; the next begins at {}", duration::date_time(next));
    }
    let error = CliError::new(exit::BUSY, text);
    match run.report.as_deref() {
        Some("exit status 0" | "completed") => error,
        _ => error.with_hint(reset_hint(name)),
    }
}

pub(crate) fn reset_hint(name: &str) -> String {
    format!("`leasehold once reset {name}` lets it run again in this period")
}

/// Returns when a tick ends.
pub(crate) fn end(tick: Tick, period: Duration) -> Option<SystemTime> {
    let period_millis = u64::try_from(period.as_millis()).ok()?;
    let end_millis = tick.number().checked_add(1)?.checked_mul(period_millis)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(end_millis))
}

/// Describes a run: its process, when it started, and how it ended.
fn describe(run: &Run) -> String {
    let mut text = match (&run.process.host, run.process.pid) {
        (Some(host), Some(pid)) => format!("process {pid} on {}", printable(host)),
        _ => "an unknown process".to_owned(),
    };
    if let Some(since) = run.process.since {
        text += &format!(" at {}", duration::date_time(since));
    }
    match &run.report {
        Some(report) => text + ": " + &printable(report),
        None => text + ", which has not reported its end",
    }
}
