//! `ls`, `show` and `queue`: the holders and waiters of locks.

use std::io::{BufWriter, IsTerminal, Write, stdout};
use std::time::SystemTime;

use leasehold::{Client, Error, Holder, LockInfo, LockKind, Process, Run};
use serde::Serialize;

use crate::args::{LsArgs, NameArgs, ServerArgs};
use crate::output::{CliError, message, print, printable, reader_remains, use_colors};
use crate::settings::Settings;
use crate::table::{Cell, Row, Table};
use crate::{duration, exit, jobs, json};

pub(crate) const COLUMNS: [&str; 8] = [
    "NAME",
    "KIND",
    "HOLDER",
    "HELD",
    "LEASE",
    "CONNECTED",
    "WAITERS",
    "NOTE",
];

/// Lists locks page by page, so that memory does not grow with their number.
pub(crate) async fn ls(server: &ServerArgs, args: &LsArgs) -> Result<u8, CliError> {
    let settings = Settings::load(server)?;
    let client = settings.connect(None).await?;
    let skip_foreign = settings.has_empty_prefix();
    let mut out = BufWriter::new(stdout());
    let mut table = Table::new(&COLUMNS, use_colors(&stdout()));
    let mut scan = client.scan(&args.pattern);
    while let Some(page) = scan.next().await? {
        let listed = page.iter().filter(|lock| {
            let is_lock = !skip_foreign || lock.kind != LockKind::Foreign;
            let has_waiters = lock.waiter_count.is_some_and(|count| count > 0);
            is_lock && (has_waiters || !args.waited_for)
        });
        let written = match args.output.json {
            true => listed
                .map(json::line)
                .try_for_each(|line| out.write_all(line.as_bytes())),
            false => table.write(listed.map(lock_row).collect(), &mut out),
        };
        if !reader_remains(written.and_then(|()| out.flush()))? {
            return Ok(exit::OK);
        }
    }
    if table.is_empty() && stdout().is_terminal() {
        message("no locks are held");
    }
    Ok(exit::OK)
}

/// Shows all holders and waiters of one lock, and the last run of a job.
pub(crate) async fn show(server: &ServerArgs, args: &NameArgs) -> Result<u8, CliError> {
    let client = Settings::load(server)?.connect(None).await?;
    let lock = inspect(&client, &args.name).await?;
    let last_run = jobs::last_run(&client, &args.name).await?;
    let Some(lock) = lock else {
        return match &last_run {
            Some(run) => show_job(args, run),
            None => report_free(args),
        };
    };
    print(&match args.output.json {
        true => json::line(&Shown {
            lock: &lock,
            last_run: last_run.as_ref(),
        }),
        false => {
            let runs = last_run.as_ref().map_or_else(String::new, jobs::lines);
            details(&lock, use_colors(&stdout())) + &runs
        }
    })?;
    Ok(exit::OK)
}

/// A lock with the last run of the job of the same name.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    lock: &'a LockInfo,
    last_run: Option<&'a Run>,
}

/// Shows a job between two runs. Its lock is not held.
fn show_job(args: &NameArgs, run: &Run) -> Result<u8, CliError> {
    print(&match args.output.json {
        true => json::line(&serde_json::json!({
            "name": args.name,
            "kind": null,
            "holders": [],
            "holder_count": 0,
            "waiters": [],
            "waiter_count": 0,
            "last_run": run,
        })),
        false => format!("{}  not held\n{}", printable(&args.name), jobs::lines(run)),
    })?;
    Ok(exit::NO)
}

/// Shows the waiters of one lock.
pub(crate) async fn queue(server: &ServerArgs, args: &NameArgs) -> Result<u8, CliError> {
    let Some(lock) = find(server, args).await? else {
        return report_free(args);
    };
    if args.output.json {
        print(&json::line(&lock.waiters))?;
    } else if lock.waiters.is_empty() {
        message(format!("`{}`: {}", args.name, unlisted_waiters(&lock)));
    } else {
        print(&waiter_table(&lock, use_colors(&stdout())))?;
    }
    Ok(exit::OK)
}

async fn find(server: &ServerArgs, args: &NameArgs) -> Result<Option<LockInfo>, CliError> {
    let client = Settings::load(server)?.connect(None).await?;
    inspect(&client, &args.name).await
}

async fn inspect(client: &Client, name: &str) -> Result<Option<LockInfo>, CliError> {
    client.inspect(name).await.map_err(|error| match error {
        Error::WrongType { .. } => CliError::from(error).with_hint(
            "of Redisson's objects, only locks can be shown; `redis-cli type KEY` says what the key is",
        ),
        error => error.into(),
    })
}

fn report_free(args: &NameArgs) -> Result<u8, CliError> {
    if args.output.json {
        print("null\n")?;
    } else {
        message(format!("`{}` is not held", args.name));
    }
    Ok(exit::NO)
}

/// Returns the row of a lock in `ls` and `top`.
pub(crate) fn lock_row(lock: &LockInfo) -> Row {
    let holder = lock.holders.first();
    let others = match lock.holder_count {
        2.. => format!(" +{}", lock.holder_count - 1),
        _ => String::new(),
    };
    let owner = holder.map_or_else(String::new, |holder| {
        process_name(&holder.process) + &others
    });
    vec![
        Cell::bold(printable(&lock.name)),
        Cell::plain(lock.kind),
        Cell::plain(owner),
        Cell::right(age(holder.and_then(|holder| holder.process.since))),
        Cell::right(holder.map_or_else(String::new, lease)),
        holder.map_or_else(|| connected(None), holder_state),
        match lock.waiter_count {
            None => Cell::right("?").dim(),
            Some(0) => Cell::right("0").dim(),
            Some(count) => Cell::right(count),
        },
        note(holder.and_then(|holder| holder.process.note.as_deref())),
    ]
}

fn details(lock: &LockInfo, colors: bool) -> String {
    let mut text = format!("{}  {}", printable(&lock.name), lock.kind);
    match (lock.kind, lock.holder_count) {
        (LockKind::Latch { .. }, _) => text.push('\n'),
        (_, 1) => text += ", 1 holder\n",
        (_, count) => text += &format!(", {count} holders\n"),
    }
    let holders = lock.holders.iter().map(|holder| {
        vec![
            Cell::bold(process_name(&holder.process)),
            Cell::right(age(holder.process.since)),
            since(&holder.process),
            Cell::right(lease(holder)),
            holder_state(holder),
            note(holder.process.note.as_deref()),
        ]
    });
    let columns = ["HOLDER", "HELD", "SINCE", "LEASE", "CONNECTED", "NOTE"];
    text += &Table::new(&columns, colors).into_text(holders.collect());
    for holder in &lock.holders {
        if let Some(parent) = &holder.trace_parent {
            text += &format!(
                "trace of {}: {}\n",
                process_name(&holder.process),
                printable(parent)
            );
        }
    }
    match lock.waiters.is_empty() {
        true => text += &format!("{}\n", unlisted_waiters(lock)),
        false => text += &format!("\n{}", waiter_table(lock, colors)),
    }
    text
}

/// Describes the waiters of a lock that does not list them.
pub(crate) fn unlisted_waiters(lock: &LockInfo) -> String {
    match lock.waiter_count {
        None => "waiters unknown".to_owned(),
        Some(0) => "no waiters".to_owned(),
        Some(1) => "1 waiting process".to_owned(),
        Some(count) => format!("{count} waiting processes, in no order"),
    }
}

fn waiter_table(lock: &LockInfo, colors: bool) -> String {
    let columns = ["", "WAITER", "WAITED", "SINCE", "CONNECTED", "NOTE"];
    let mut rows = waiter_rows(&lock.waiters);
    for (row, waiter) in rows.iter_mut().zip(&lock.waiters) {
        row.insert(3, since(waiter));
    }
    let mut text = Table::new(&columns, colors).into_text(rows);
    let listed = lock.waiters.len() as u64;
    if let Some(count) = lock.waiter_count.filter(|count| *count > listed) {
        text += &format!("and {} more\n", count - listed);
    }
    text
}

pub(crate) fn waiter_rows(waiters: &[Process]) -> Vec<Row> {
    let row = |(index, waiter): (usize, &Process)| {
        vec![
            Cell::right(index + 1).dim(),
            Cell::bold(process_name(waiter)),
            Cell::right(age(waiter.since)),
            connected(waiter.connected),
            note(waiter.note.as_deref()),
        ]
    };
    waiters.iter().enumerate().map(row).collect()
}

/// Returns the short name of a holder, waiter or leader.
pub(crate) fn process_name(process: &Process) -> String {
    match (&process.host, process.pid, &process.redisson) {
        (Some(host), Some(pid), _) => format!("{} pid {pid}", printable(host)),
        (_, _, Some(owner)) => printable(owner),
        _ => "another library".to_owned(),
    }
}

fn age(since: Option<SystemTime>) -> String {
    since.map_or_else(
        || "?".to_owned(),
        |since| duration::format(duration::since(since)),
    )
}

fn since(process: &Process) -> Cell {
    let since = process.since.map(duration::date_time);
    Cell::plain(since.unwrap_or_else(|| "?".to_owned()))
}

/// Formats the remaining lease. `none` is a lock that never expires.
fn lease(holder: &Holder) -> String {
    holder
        .lease_remaining
        .map_or_else(|| "none".to_owned(), duration::format)
}

fn note(note: Option<&str>) -> Cell {
    Cell::plain(note.map_or_else(String::new, printable))
}

fn holder_state(holder: &Holder) -> Cell {
    match held_until(holder) {
        Some(text) => Cell::plain(text),
        None => connected(holder.process.connected),
    }
}

/// Returns until when a lock is held that no process holds: its holder released
/// it before `--at-least` was over, or handed it over.
pub(crate) fn held_until(holder: &Holder) -> Option<String> {
    let word = match (holder.released, holder.handed_over) {
        (true, _) => "held",
        (_, true) => "handed over",
        _ => return None,
    };
    let end = SystemTime::now().checked_add(holder.lease_remaining?)?;
    Some(format!("{word} until {}", duration::date_time(end)))
}

fn connected(connected: Option<bool>) -> Cell {
    match connected {
        Some(true) => Cell::plain("yes").green(),
        Some(false) => Cell::plain("NO").red(),
        None => Cell::plain("?").dim(),
    }
}
