//! `release --force`: revokes one lock, or after a question all that match a
//! pattern.

use std::io::{IsTerminal, Write, stderr, stdin};

use leasehold::{Client, Error, Holder, LockInfo, LockKind};
use serde::Serialize;

use crate::args::{ReleaseArgs, ServerArgs};
use crate::inspect::{COLUMNS, lock_row};
use crate::output::{CliError, hint, message, print, revoked, use_colors};
use crate::settings::Settings;
use crate::table::Table;
use crate::{exit, json};

pub(crate) async fn release(server: &ServerArgs, args: &ReleaseArgs) -> Result<u8, CliError> {
    let settings = Settings::load(server)?;
    if args.pattern && !args.yes && !can_ask() {
        let text = "--pattern asks before it revokes locks, and there is no terminal";
        let advice = "list the locks with `leasehold ls`, and repeat the command with --yes";
        return Err(CliError::usage(text).with_hint(advice));
    }
    let client = settings.connect(None).await?;
    match args.pattern {
        true => {
            let locks = matching(&client, &args.name, settings.has_empty_prefix()).await?;
            release_all(&client, args, locks).await
        }
        false => release_one(&client, args).await,
    }
}

async fn release_one(client: &Client, args: &ReleaseArgs) -> Result<u8, CliError> {
    let holders = client.force_release(&args.name).await?;
    if args.output.json {
        print(&json::line(&holders))?;
    } else if holders.is_empty() {
        message(format!("`{}` is not held", args.name));
    }
    if holders.is_empty() {
        return Ok(exit::NO);
    }
    report(&args.name, &holders);
    Ok(exit::OK)
}

/// Returns the held locks whose names match `pattern`, by name.
async fn matching(
    client: &Client,
    pattern: &str,
    skip_foreign: bool,
) -> Result<Vec<LockInfo>, CliError> {
    let mut locks = Vec::new();
    let mut scan = client.scan(pattern);
    while let Some(page) = scan.next().await? {
        let held = page.into_iter().filter(|lock| {
            let is_lock = !matches!(lock.kind, LockKind::Latch { .. });
            let is_ours = !skip_foreign || lock.kind != LockKind::Foreign;
            is_lock && is_ours && lock.holder_count > 0
        });
        locks.extend(held);
    }
    locks.sort_by(|one, other| one.name.cmp(&other.name));
    // A scan can return a lock twice.
    locks.dedup_by(|one, other| one.name == other.name);
    Ok(locks)
}

/// Adds the holders that a scan omits, which lists one of each lock.
async fn with_all_holders(client: &Client, scanned: Vec<LockInfo>) -> Vec<LockInfo> {
    let mut locks = Vec::new();
    for lock in scanned {
        if lock.holder_count == lock.holders.len() as u64 {
            locks.push(lock);
            continue;
        }
        match client.inspect(&lock.name).await {
            Ok(now) => locks.extend(now.filter(|now| now.holder_count > 0)),
            // One lock must not keep the others from being released.
            Err(_) => locks.push(lock),
        }
    }
    locks
}

/// A lock that was released, as JSON.
#[derive(Serialize)]
struct Released<'a> {
    name: &'a str,
    holders: &'a [Holder],
}

async fn release_all(
    client: &Client,
    args: &ReleaseArgs,
    mut locks: Vec<LockInfo>,
) -> Result<u8, CliError> {
    if !args.yes {
        locks = with_all_holders(client, locks).await;
    }
    if locks.is_empty() {
        message(format!("no lock that matches `{}` is held", args.name));
        return Ok(exit::NO);
    }
    if !args.yes && !is_confirmed(&locks) {
        message("nothing was released");
        return Ok(exit::NO);
    }
    let mut code = exit::OK;
    for lock in locks {
        match revoke(client, &lock, args.yes).await {
            Ok(None) => {
                message(format!("`{}` has changed hands and stays held", lock.name));
                if code == exit::OK {
                    code = exit::NO;
                }
            }
            Ok(Some(holders)) => {
                if args.output.json {
                    let name = &lock.name;
                    let holders = &holders;
                    print(&json::line(&Released { name, holders }))?;
                }
                report(&lock.name, &holders);
            }
            // One lock must not keep the others from being released.
            Err(error) => code = CliError::from(error).report(),
        }
    }
    Ok(code)
}

/// Revokes a lock. Returns `None` if a process has acquired it since the
/// question.
async fn revoke(
    client: &Client,
    lock: &LockInfo,
    unasked: bool,
) -> Result<Option<Vec<Holder>>, Error> {
    match unasked || !has_changed_hands(client, lock).await? {
        true => client.force_release(&lock.name).await.map(Some),
        false => Ok(None),
    }
}

/// Returns whether a question would reach a person.
fn can_ask() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Shows the locks, and asks whether to revoke them.
fn is_confirmed(locks: &[LockInfo]) -> bool {
    let table = Table::new(&COLUMNS, use_colors(&stderr()));
    let rows = locks.iter().map(lock_row).collect();
    let count = locks.len();
    let what = if count == 1 { "lock" } else { "locks" };
    let mut out = stderr();
    let _ = writeln!(out, "{}", table.into_text(rows).trim_end());
    let _ = write!(
        out,
        "Their holders may still be working. Revoke {count} {what}? [y/N] "
    );
    let mut answer = String::new();
    // An end of input is no consent.
    stdin().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// Returns whether other processes hold the lock than were shown.
async fn has_changed_hands(client: &Client, shown: &LockInfo) -> Result<bool, Error> {
    let Some(now) = client.inspect(&shown.name).await? else {
        return Ok(false);
    };
    let holders = |lock: &LockInfo| {
        let holders = lock.holders.iter();
        let mut holders: Vec<_> = holders
            .map(|holder| {
                let process = &holder.process;
                let redisson = process.redisson.clone();
                (process.host.clone(), process.pid, process.since, redisson)
            })
            .collect();
        holders.sort();
        holders
    };
    let shown = holders(shown);
    // Holders that have left are no reason to keep the others.
    Ok(holders(&now).iter().any(|holder| !shown.contains(holder)))
}

fn report(name: &str, holders: &[Holder]) {
    for holder in holders {
        message(revoked(name, holder));
        if holder.process.redisson.is_some() || holder.process.pid.is_none() {
            hint("the holder uses another library and may not notice the loss");
        }
    }
}
