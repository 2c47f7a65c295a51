//! The small subcommands: `wait`, `semaphore`, `quorum`, `latch`.

use leasehold::{LatchState, SetOutcome};

use crate::args::{LatchCommand, QuorumCommand, SemaphoreCommand, ServerArgs, WaitArgs};
use crate::exit;
use crate::identity::host_and_pid;
use crate::output::{CliError, message};
use crate::settings::Settings;

pub(crate) async fn wait(server: &ServerArgs, args: &WaitArgs) -> Result<u8, CliError> {
    let client = Settings::load(server)?.connect(None).await?;
    client.until_free(&args.name, args.wait).await?;
    Ok(exit::OK)
}

pub(crate) async fn semaphore(
    server: &ServerArgs,
    command: &SemaphoreCommand,
) -> Result<u8, CliError> {
    let client = Settings::load(server)?.connect(None).await?;
    match command {
        SemaphoreCommand::Set { name, permits } => {
            let semaphore = client.semaphore(name, *permits);
            semaphore.set_permits(*permits).await?;
        }
    }
    Ok(exit::OK)
}

pub(crate) async fn quorum(server: &ServerArgs, command: &QuorumCommand) -> Result<u8, CliError> {
    match command {
        QuorumCommand::Init { urls } => {
            let quorum = Settings::load(server)?.quorum(urls, None);
            quorum.bootstrap().await?;
        }
    }
    Ok(exit::OK)
}

pub(crate) async fn latch(server: &ServerArgs, command: &LatchCommand) -> Result<u8, CliError> {
    let client = Settings::load(server)?.connect(None).await?;
    match command {
        LatchCommand::Set { name, count, life } => {
            match client.latch(name).set(*count, *life).await? {
                SetOutcome::AlreadyExists => {
                    message(format!("latch `{name}` already exists and is unchanged"));
                    Ok(exit::NO)
                }
                _ => Ok(exit::OK),
            }
        }
        LatchCommand::CountDown { name, by } => {
            let caller = by.clone().unwrap_or_else(host_and_pid);
            let state = client.latch(name).count_down(&caller).await?;
            Ok(report_absence(name, state))
        }
        LatchCommand::Wait(WaitArgs { name, wait }) => {
            let state = client.latch(name).until_open(*wait).await?;
            Ok(report_absence(name, state))
        }
        LatchCommand::Delete { name } => match client.latch(name).delete().await? {
            true => Ok(exit::OK),
            false => Ok(report_absence(name, LatchState::Absent)),
        },
    }
}

/// Reports a latch that does not exist, and returns the exit code.
fn report_absence(name: &str, state: LatchState) -> u8 {
    match state {
        LatchState::Absent => {
            message(format!("latch `{name}` does not exist"));
            exit::NO
        }
        _ => exit::OK,
    }
}
