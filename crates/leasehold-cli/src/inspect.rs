//! `ls`, `show` and `queue`: who holds what, who waits, who is still there.

use std::io::{BufWriter, IsTerminal, Write, stdout};

use leasehold::{Holder, LockInfo, LockKind, Waiter};

use crate::args::{LsArgs, NameArgs, ServerArgs};
use crate::output::{CliError, colours, is_read, print, printable, say};
use crate::settings::Settings;
use crate::table::{Cell, Row, Table};
use crate::{duration, exit, json};

const LOCKS: [&str; 8] = [
    "NAME", "KIND", "HOLDER", "FOR", "LEASE", "THERE", "WAIT", "NOTE",
];

/// Lists locks as they are found: a page at a time, whatever their number.
pub(crate) async fn ls(server: &ServerArgs, args: &LsArgs) -> Result<u8, CliError> {
    let settings = Settings::read(server)?;
    let client = settings.connect(None).await?;
    let everything = settings.has_no_prefix();
    let mut out = BufWriter::new(stdout());
    let mut table = Table::new(&LOCKS, colours(&stdout()));
    let mut scan = client.scan(&args.pattern);
    while let Some(page) = scan.next().await? {
        let shown = page.iter().filter(|seen| {
            let is_lock = !everything || seen.kind != LockKind::Foreign;
            let waited_for = seen.waiter_count.is_some_and(|waiting| waiting > 0);
            is_lock && (waited_for || !args.waited_for)
        });
        let written = match args.data.json {
            true => shown
                .map(json::line)
                .try_for_each(|line| out.write_all(line.as_bytes())),
            false => table.write(shown.map(row).collect(), &mut out),
        };
        if !is_read(written.and_then(|()| out.flush()))? {
            return Ok(exit::OK);
        }
    }
    if table.is_empty() && stdout().is_terminal() {
        say("no locks are held");
    }
    Ok(exit::OK)
}

/// One lock in full.
pub(crate) async fn show(server: &ServerArgs, args: &NameArgs) -> Result<u8, CliError> {
    let Some(seen) = find(server, args).await? else {
        return free(args);
    };
    print(&match args.data.json {
        true => json::line(&seen),
        false => in_full(&seen, colours(&stdout())),
    })?;
    Ok(exit::OK)
}

/// Those who wait for one lock.
pub(crate) async fn queue(server: &ServerArgs, args: &NameArgs) -> Result<u8, CliError> {
    let Some(seen) = find(server, args).await? else {
        return free(args);
    };
    if args.data.json {
        print(&json::line(&seen.waiters))?;
        return Ok(exit::OK);
    }
    match (seen.waiters.is_empty(), seen.waiter_count) {
        (true, Some(0)) => say(format!("nobody waits for `{}`", args.name)),
        (true, None) => say(format!("who waits for `{}` cannot be seen", args.name)),
        (true, Some(count)) => say(format!(
            "{count} wait for `{}`, in no order: a {} has no line",
            args.name, seen.kind
        )),
        (false, _) => print(&waiters(&seen, colours(&stdout())))?,
    }
    Ok(exit::OK)
}

async fn find(server: &ServerArgs, args: &NameArgs) -> Result<Option<LockInfo>, CliError> {
    let client = Settings::read(server)?.connect(None).await?;
    Ok(client.inspect(&args.name).await?)
}

fn free(args: &NameArgs) -> Result<u8, CliError> {
    match args.data.json {
        true => print("null\n")?,
        false => say(format!("nobody holds `{}`", args.name)),
    }
    Ok(exit::NO)
}

/// One line of a list.
pub(crate) fn row(seen: &LockInfo) -> Row {
    let holder = seen.holders.first();
    let more = match seen.holder_count {
        2.. => format!(" +{}", seen.holder_count - 1),
        _ => String::new(),
    };
    let who = holder.map_or_else(String::new, |holder| {
        who(&holder.host, holder.pid, &holder.redisson) + &more
    });
    let waiting = seen.waiter_count;
    vec![
        Cell::bold(printable(&seen.name)),
        Cell::plain(seen.kind),
        Cell::plain(who),
        Cell::right(age(holder.and_then(|holder| holder.since))),
        Cell::right(left(holder)),
        holder.map_or_else(|| there(None), state),
        match waiting {
            None => Cell::right("?").dim(),
            Some(0) => Cell::right("0").dim(),
            Some(count) => Cell::right(count),
        },
        Cell::plain(
            holder
                .and_then(|at| at.note.as_deref())
                .map_or_else(String::new, printable),
        ),
    ]
}

fn in_full(seen: &LockInfo, colours: bool) -> String {
    let mut text = format!("{}  {}", printable(&seen.name), seen.kind);
    match seen.kind {
        LockKind::Latch { .. } => text.push('\n'),
        _ => text += &format!(", held by {}\n", seen.holder_count),
    }
    let holders = seen.holders.iter().map(|holder| {
        vec![
            Cell::bold(who(&holder.host, holder.pid, &holder.redisson)),
            Cell::right(age(holder.since)),
            Cell::right(left(Some(holder))),
            state(holder),
            Cell::plain(holder.note.as_deref().map_or_else(String::new, printable)),
        ]
    });
    let columns = ["HOLDER", "FOR", "LEASE", "THERE", "NOTE"];
    text += &Table::new(&columns, colours).text(holders.collect());
    match (seen.waiters.len(), seen.waiter_count) {
        (0, None) => text += "who waits cannot be seen\n",
        (0, Some(0)) => text += "nobody waits\n",
        (0, Some(1)) => text += "one process waits\n",
        (0, Some(count)) => text += &format!("{count} processes wait\n"),
        _ => {
            text.push('\n');
            text += &waiters(seen, colours);
        }
    }
    text
}

fn waiters(seen: &LockInfo, colours: bool) -> String {
    let columns = ["", "WAITER", "FOR", "THERE", "NOTE"];
    let mut text = Table::new(&columns, colours).text(waiter_rows(&seen.waiters));
    let shown = seen.waiters.len() as u64;
    if let Some(waiting) = seen.waiter_count.filter(|waiting| *waiting > shown) {
        text += &format!("and {} more\n", waiting - shown);
    }
    text
}

pub(crate) fn waiter_rows(waiters: &[Waiter]) -> Vec<Row> {
    let row = |(at, waiter): (usize, &Waiter)| {
        vec![
            Cell::right(at + 1).dim(),
            Cell::bold(who(&waiter.host, waiter.pid, &waiter.redisson)),
            Cell::right(age(waiter.since)),
            there(waiter.connected),
            Cell::plain(waiter.note.as_deref().map_or_else(String::new, printable)),
        ]
    };
    waiters.iter().enumerate().map(row).collect()
}

/// One who holds or waits, in a word.
pub(crate) fn who(host: &Option<String>, pid: Option<u32>, redisson: &Option<String>) -> String {
    match (host, pid, redisson) {
        (Some(host), Some(pid), _) => format!("{}:{pid}", printable(host)),
        (_, _, Some(owner)) => owner.clone(),
        _ => "another library".to_owned(),
    }
}

fn age(since: Option<std::time::SystemTime>) -> String {
    since.map_or_else(
        || "?".to_owned(),
        |since| duration::show(duration::ago(since)),
    )
}

fn left(holder: Option<&Holder>) -> String {
    match holder.map(|holder| holder.lease_remaining) {
        None => String::new(),
        Some(None) => "none".to_owned(),
        Some(Some(left)) => duration::show(left),
    }
}

/// Whether a holder is connected, or released the lock, which is kept.
fn state(holder: &Holder) -> Cell {
    match holder.released {
        true => Cell::plain("kept"),
        false => there(holder.connected),
    }
}

fn there(alive: Option<bool>) -> Cell {
    match alive {
        Some(true) => Cell::plain("yes").green(),
        Some(false) => Cell::plain("GONE").red(),
        None => Cell::plain("?").dim(),
    }
}
