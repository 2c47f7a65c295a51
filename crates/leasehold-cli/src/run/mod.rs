//! `leasehold run` and `leasehold lead`: acquire a lock, run a command, and
//! release the lock when all processes of the command have exited.
//!
//! # Invariants
//!
//! 1. The command runs only while the lock is held: it starts after the
//!    acquire, and the lock is released after its last process has exited.
//! 2. If the lease cannot be renewed, the command is stopped early enough that
//!    SIGKILL takes effect before the lease ends.
//! 3. The command does not outlive this process: the system kills it when its
//!    parent exits.

mod lead;
mod once;
mod process_group;
mod process_tree;
mod progress;
mod servers;
mod session;
mod shim;
mod sleep;
mod start_report;
mod supervisor;
mod terminal;
mod watchdog;

use std::ops::ControlFlow;

use leasehold::{Error, Guard, Shared};
use nix::sys::signal::Signal;

use crate::args::{RunArgs, ServerArgs};
use crate::exit;
use crate::output::CliError;
pub(crate) use lead::lead;
use once::Period;
use session::{Plan, Session};
pub(crate) use shim::exec_command;
use supervisor::OnLost;

/// Runs a command under a lock, and returns the exit code.
pub(crate) async fn run(server: &ServerArgs, args: RunArgs, steal: bool) -> Result<u8, CliError> {
    let plan = Plan {
        command: &args.work.command,
        mode: match args.shared || args.permits.is_some() {
            true => "shared",
            false => "exclusive",
        },
        on_lost: OnLost::parse(&args.on_lost)?,
        at_most: args.at_most,
    };
    if steal && args.once_per.is_some() {
        return Err(CliError::usage("`steal` cannot be used with --once-per"));
    }
    let mut session = match Session::start(server, &args.work, &args.quorum_urls()).await? {
        ControlFlow::Continue(session) => session,
        ControlFlow::Break(code) => return Ok(code),
    };
    if let Some(period) = args.once_per {
        session.signals.catch(&[Signal::SIGTSTP])?;
        let outcome = once::run_once(&mut session, &args, period, &plan).await;
        match outcome {
            Ok(Period::Ended(_) | Period::Skip(_)) => session.close().await,
            Ok(Period::Interrupted(_)) | Err(_) => session.abandon().await,
        }
        return Ok(match outcome? {
            Period::Ended(code) | Period::Interrupted(code) => code,
            Period::Skip(why) => skip(&why, &args),
        });
    }
    let guard = match acquire(&mut session, &args, steal).await {
        Ok(ControlFlow::Continue(guard)) => guard,
        Ok(ControlFlow::Break(code)) => {
            session.abandon().await;
            return Ok(code);
        }
        Err(error) => {
            session.abandon().await;
            return Err(error);
        }
    };
    let code = hold(&mut session, guard, &plan).await;
    session.close().await;
    code
}

/// Runs the command under an acquired lock, and releases the lock.
async fn hold(
    session: &mut Session,
    guard: Guard<Shared>,
    plan: &Plan<'_>,
) -> Result<u8, CliError> {
    // Ctrl-Z may suspend a wait, but not a holder, which could not renew.
    let ready = match session.signals.catch(&[Signal::SIGTSTP]) {
        Ok(()) => session.extend(&guard).await.map_err(CliError::from),
        Err(error) => Err(error),
    };
    let ended = match ready {
        Ok(()) => session.execute(guard.lease(), plan).await,
        Err(error) => Err(error),
    };
    let name = guard.name().to_owned();
    let ended = session.release(&name, guard.release(), ended).await;
    ended.map(|ended| ended.code)
}

/// Acquires the lock, or returns the code to exit with.
async fn acquire(
    session: &mut Session,
    args: &RunArgs,
    steal: bool,
) -> Result<ControlFlow<u8, Guard<Shared>>, CliError> {
    if steal {
        session.servers.revoke(&args.name).await?;
    }
    let acquire = session.servers.acquire(args)?.into_future();
    match session.wait(&args.name, args.verbose, acquire).await {
        ControlFlow::Continue(Ok(guard)) => Ok(ControlFlow::Continue(guard)),
        ControlFlow::Continue(Err(error @ Error::Timeout { .. })) => {
            let busy = CliError::busy(&error, !args.nonblock);
            Ok(ControlFlow::Break(skip(&busy, args)))
        }
        ControlFlow::Continue(Err(error)) => Err(error.into()),
        ControlFlow::Break(code) => Ok(ControlFlow::Break(code)),
    }
}

/// Reports why the command is not run, and returns the exit code. With
/// `--skip-ok` it is silent by default, because cron mails all output.
fn skip(why: &CliError, args: &RunArgs) -> u8 {
    if !args.skip_ok || args.verbose {
        why.report();
    }
    match args.skip_ok {
        true => exit::OK,
        false => args.conflict_exit_code.unwrap_or(exit::BUSY),
    }
}
