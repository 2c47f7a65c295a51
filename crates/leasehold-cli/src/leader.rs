//! `leasehold leader`: an election's leader, and its changes.

use std::time::Duration;

use leasehold::{Election, Term};

use crate::args::{LeaderArgs, ServerArgs};
use crate::inspect::process_name;
use crate::output::{CliError, message, print, printable, reader_closed};
use crate::settings::Settings;
use crate::{duration, exit, json};

/// The pause after a request that failed.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Prints the leader, or every change of it with `--follow`.
pub(crate) async fn leader(server: &ServerArgs, args: &LeaderArgs) -> Result<u8, CliError> {
    let client = Settings::load(server)?.connect(None).await?;
    let election = client.election(&args.name);
    if !args.follow {
        let term = election.leader().await?;
        print(&line(term.as_ref(), args.output.json))?;
        return Ok(if term.is_some() { exit::OK } else { exit::NO });
    }
    tokio::select! {
        outcome = follow(&election, args.output.json) => outcome,
        // The next change may be hours away.
        () = reader_closed() => Ok(exit::OK),
    }
}

/// Prints every change of the leader while the output has a reader.
async fn follow(election: &Election, as_json: bool) -> Result<u8, CliError> {
    let mut changes = election.changes();
    let mut is_failing = false;
    loop {
        let term = match changes.next().await {
            Err(error) if error.is_transient() => {
                if !std::mem::replace(&mut is_failing, true) {
                    message(error);
                }
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
            term => term?,
        };
        is_failing = false;
        if !print(&line(term.as_ref(), as_json))? {
            return Ok(exit::OK);
        }
    }
}

fn line(term: Option<&Term>, as_json: bool) -> String {
    match term {
        _ if as_json => json::line(&term),
        Some(term) => describe(term) + "\n",
        None => "no leader\n".to_owned(),
    }
}

fn describe(term: &Term) -> String {
    let mut text = process_name(&term.process);
    if let Some(epoch) = term.epoch {
        text += &format!(" epoch {epoch}");
    }
    if let Some(since) = term.process.since {
        text += &format!(" since {}", duration::date_time(since));
    }
    if let Some(note) = &term.process.note {
        text += &format!(" ({})", printable(note));
    }
    text
}
