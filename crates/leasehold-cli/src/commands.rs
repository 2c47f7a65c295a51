//! The small verbs: `release`, `wait`, `semaphore`, `quorum` and `latch`.

use leasehold::{LatchState, SetOutcome};

use crate::args::{LatchVerb, QuorumVerb, ReleaseArgs, SemaphoreVerb, ServerArgs, WaitArgs};
use crate::output::{CliError, hint, print, revoked, say};
use crate::settings::Settings;
use crate::{exit, json, me};

pub(crate) async fn release(server: &ServerArgs, args: &ReleaseArgs) -> Result<u8, CliError> {
    let client = Settings::read(server)?.connect(None).await?;
    let holders = client.force_release(&args.name).await?;
    if args.data.json {
        print(&json::line(&holders))?;
    } else if holders.is_empty() {
        say(format!("nobody held `{}`", args.name));
    }
    if holders.is_empty() {
        return Ok(exit::NO);
    }
    for holder in &holders {
        say(revoked(&args.name, holder));
        if holder.redisson.is_some() || holder.pid.is_none() {
            hint("it is of another library, and finds out by itself or not at all");
        }
    }
    Ok(exit::OK)
}

pub(crate) async fn wait(server: &ServerArgs, args: &WaitArgs) -> Result<u8, CliError> {
    let client = Settings::read(server)?.connect(None).await?;
    client.wait_until_free(&args.name, args.wait).await?;
    Ok(exit::OK)
}

pub(crate) async fn semaphore(server: &ServerArgs, verb: &SemaphoreVerb) -> Result<u8, CliError> {
    let client = Settings::read(server)?.connect(None).await?;
    match verb {
        SemaphoreVerb::Set { name, permits } => {
            let semaphore = client.semaphore(name, *permits);
            semaphore.set_permits(*permits).await?;
        }
    }
    Ok(exit::OK)
}

pub(crate) async fn quorum(server: &ServerArgs, verb: &QuorumVerb) -> Result<u8, CliError> {
    match verb {
        QuorumVerb::Init { urls } => {
            let builder = Settings::read(server)?.builder_of_all(urls, None);
            builder.bootstrap().await?;
        }
    }
    Ok(exit::OK)
}

pub(crate) async fn latch(server: &ServerArgs, verb: &LatchVerb) -> Result<u8, CliError> {
    let client = Settings::read(server)?.connect(None).await?;
    match verb {
        LatchVerb::Set { name, count, life } => {
            match client.latch(name).set(*count, *life).await? {
                SetOutcome::AlreadyExists => {
                    say(format!("latch `{name}` already exists and is unchanged"));
                    Ok(exit::NO)
                }
                _ => Ok(exit::OK),
            }
        }
        LatchVerb::CountDown { name, by } => {
            let caller = by.clone().unwrap_or_else(me);
            let state = client.latch(name).count_down(&caller).await?;
            Ok(told(name, state))
        }
        LatchVerb::Wait(WaitArgs { name, wait }) => {
            let latch = client.latch(name);
            let state = match wait {
                Some(limit) => latch.wait_timeout(*limit).await?,
                None => latch.wait().await?,
            };
            Ok(told(name, state))
        }
        LatchVerb::Delete { name } => match client.latch(name).delete().await? {
            true => Ok(exit::OK),
            false => Ok(told(name, LatchState::Absent)),
        },
    }
}

fn told(name: &str, state: LatchState) -> u8 {
    match state {
        LatchState::Absent => {
            say(format!("there is no latch `{name}`"));
            exit::NO
        }
        _ => exit::OK,
    }
}
