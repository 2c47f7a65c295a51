//! `leasehold run`: acquires a lock, runs a command, and releases the lock when
//! all processes of the command have exited.
//!
//! # Invariants
//!
//! 1. The command runs only while the lock is held: it starts after the
//!    acquire, and the lock is released after its last process has exited.
//! 2. If the lease cannot be renewed, the command is stopped early enough that
//!    SIGKILL takes effect before the lease ends.
//! 3. The command does not outlive this process: the system kills it when its
//!    parent exits.

mod process_group;
mod progress;
mod servers;
mod shim;
mod sleep;
mod supervisor;
mod terminal;

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use leasehold::{Error, Guard, Shared};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use crate::args::{RunArgs, ServerArgs};
use crate::identity::host_and_pid;
use crate::output::{CliError, message};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::{duration, exit};
use process_group::ProcessGroup;
use servers::Servers;
pub(crate) use shim::exec_command;
use supervisor::{OnLost, Supervisor};

/// The default lease of the library.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The default time between SIGTERM and SIGKILL.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// The time for background work of the client after the release.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(100);

/// The signals that are only forwarded to the command.
const FORWARDED: [Signal; 3] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH];

/// Runs a command under a lock, and returns the exit code.
pub(crate) async fn run(server: &ServerArgs, args: RunArgs, steal: bool) -> Result<u8, CliError> {
    let on_lost = OnLost::parse(&args.on_lost)?;
    let settings = Settings::load(server)?;
    let lease = args.lease.or(settings.lease).unwrap_or(DEFAULT_LEASE);
    let grace = grace(&args, lease)?;
    terminal::block_stops();
    let mut signals = Signals::new()?;
    signals.catch(&FORWARDED)?;
    let servers = tokio::select! {
        biased;
        signal = signals.termination() => return Ok(exit::by_signal(signal as i32)),
        servers = Servers::connect(&settings, &args) => servers?,
    };
    let guard = match acquire(&servers, &args, &mut signals, steal).await {
        Ok(ControlFlow::Continue(guard)) => guard,
        // The shutdown leaves the queue, and releases an unwanted grant.
        Ok(ControlFlow::Break(code)) => {
            servers.shutdown(servers.release_timeout()).await;
            return Ok(code);
        }
        Err(error) => {
            servers.shutdown(servers.release_timeout()).await;
            return Err(error);
        }
    };
    // A granted queue entry starts with a short lease. Without a renewal it
    // would leave no time for the grace.
    if guard.remaining() < lease / 2
        && let Err(error) = guard.extend(lease).await
    {
        release(&servers, guard).await;
        return Err(error.into());
    }
    let started = Instant::now();
    // Ctrl-Z may suspend a wait, but not a holder, which could not renew.
    let caught = signals.catch(&[Signal::SIGTSTP]);
    let environment = environment(&guard, &args);
    let mut group = match caught.and_then(|()| ProcessGroup::start(&args.command, &environment)) {
        Ok(group) => group,
        Err(error) => {
            release(&servers, guard).await;
            return Err(error);
        }
    };
    let limit = args
        .at_most
        .and_then(|at_most| started.checked_add(at_most));
    let mut supervisor = Supervisor::new(&guard, on_lost, grace, limit);
    supervisor.wait_for_exit(&mut group, &mut signals).await;
    let code = supervisor.code(&group);
    release(&servers, guard).await;
    Ok(code)
}

/// Acquires the lock, or returns the code to exit with.
async fn acquire(
    servers: &Servers,
    args: &RunArgs,
    signals: &mut Signals,
    steal: bool,
) -> Result<ControlFlow<u8, Guard<Shared>>, CliError> {
    if steal {
        servers.revoke(&args.name).await?;
    }
    let acquire = servers.acquire(args)?;
    let outcome = tokio::select! {
        biased;
        signal = signals.termination() => Err(signal),
        acquired = acquire.into_future() => Ok(acquired),
        () = progress::show(servers, args) => unreachable!("BUG: the status ended"),
    };
    progress::clear();
    match outcome {
        Ok(Ok(guard)) => Ok(ControlFlow::Continue(guard)),
        Ok(Err(error @ Error::Timeout { .. })) => Ok(ControlFlow::Break(busy(&error, args))),
        Ok(Err(error)) => Err(error.into()),
        Err(signal) => Ok(ControlFlow::Break(exit::by_signal(signal as i32))),
    }
}

/// Reports a held lock, and returns the exit code. With `--skip-ok` it is
/// silent by default, because cron mails all output.
fn busy(error: &Error, args: &RunArgs) -> u8 {
    if !args.skip_ok || args.verbose {
        message(CliError::busy(error, !args.nonblock));
    }
    match args.skip_ok {
        true => exit::OK,
        false => args.conflict_exit_code.unwrap_or(exit::BUSY),
    }
}

fn grace(args: &RunArgs, lease: Duration) -> Result<Duration, CliError> {
    let max = lease / 2;
    match args.grace {
        Some(grace) if grace > max => Err(CliError::usage(format!(
            "invalid --grace: {} is above the maximum of {}, half of the lease",
            duration::format(grace),
            duration::format(max)
        ))
        .with_hint("use a longer --lease; after a crash the lock stays held that long")),
        Some(grace) => Ok(grace),
        None => Ok(DEFAULT_GRACE.min(lease / 3)),
    }
}

fn environment(guard: &Guard<Shared>, args: &RunArgs) -> [(&'static str, String); 5] {
    let deadline = SystemTime::now() + guard.remaining();
    let since_epoch = deadline.duration_since(SystemTime::UNIX_EPOCH);
    let deadline_millis = since_epoch.unwrap_or_default().as_millis();
    let mode = match args.shared || args.permits.is_some() {
        true => "shared",
        false => "exclusive",
    };
    [
        ("LEASEHOLD_NAME", guard.name().to_owned()),
        ("LEASEHOLD_TOKEN", guard.token().to_string()),
        ("LEASEHOLD_MODE", mode.to_owned()),
        ("LEASEHOLD_OWNER", host_and_pid()),
        ("LEASEHOLD_DEADLINE", deadline_millis.to_string()),
    ]
}

async fn release(servers: &Servers, guard: Guard<Shared>) {
    let name = guard.name().to_owned();
    let timeout = servers.release_timeout();
    let failure = match tokio::time::timeout(timeout, guard.release()).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no reply within {}", duration::format(timeout))),
    };
    if let Some(failure) = failure {
        message(format!(
            "cannot release `{name}`: {failure}; it is free when its lease ends"
        ));
    }
    servers.shutdown(SHUTDOWN_TIMEOUT).await;
}
