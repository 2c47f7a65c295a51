//! `leasehold lead`: keeps one instance of a command running across hosts.
//!
//! The CLI runs the command for one term after the other, until the command
//! exits by itself or a signal ends both.

use std::ops::ControlFlow;
use std::time::Duration;

use leasehold::{Election, Guard, Shared};
use nix::sys::signal::Signal;

use super::session::{Ended, Plan, Session};
use super::supervisor::OnLost;
use super::terminal::Terminal;
use crate::args::{LeadArgs, ServerArgs};
use crate::output::{CliError, message};

/// The delay of a campaign after a lost term.
const CAMPAIGN_DELAY: Duration = Duration::from_millis(100);

/// Leads an election with a command, and returns the exit code.
pub(crate) async fn lead(server: &ServerArgs, args: LeadArgs) -> Result<u8, CliError> {
    let mut session = match Session::start(server, &args.work, &[]).await? {
        ControlFlow::Continue(session) => session,
        ControlFlow::Break(code) => return Ok(code),
    };
    // A suspended leader could not renew.
    session.signals.catch(&[Signal::SIGTSTP])?;
    if Terminal::open().is_none() {
        // No terminal hung up. `systemctl reload` sends the signal on every
        // host, and a standby has nothing to reload.
        session.signals.take_hup_for_reload();
    }
    let election = session.servers.election(&args)?;
    loop {
        let campaign = election.campaign();
        let guard = match session.wait(&args.name, args.verbose, campaign).await {
            ControlFlow::Continue(Ok(guard)) => guard.into(),
            ControlFlow::Continue(Err(error)) => {
                session.abandon().await;
                return Err(error.into());
            }
            ControlFlow::Break(code) => {
                session.abandon().await;
                return Ok(code);
            }
        };
        match serve(&mut session, &election, guard, &args).await {
            Ok(Some(code)) => {
                session.close().await;
                return Ok(code);
            }
            Ok(None) => tokio::time::sleep(CAMPAIGN_DELAY).await,
            Err(error) => {
                session.close().await;
                return Err(error);
            }
        }
    }
}

/// Runs the command for one term. Returns `None` if the term was lost, and
/// otherwise the exit code.
async fn serve(
    session: &mut Session,
    election: &Election,
    guard: Guard<Shared>,
    args: &LeadArgs,
) -> Result<Option<u8>, CliError> {
    let plan = Plan {
        command: &args.work.command,
        mode: "exclusive",
        on_lost: OnLost::Stop(Signal::SIGTERM),
        at_most: None,
    };
    let name = election.name();
    if args.verbose {
        message(format!("leading `{name}`, epoch {}", guard.token()));
    }
    let ended = match session.extend(&guard).await {
        Ok(()) => session.execute(guard.lease(), &plan).await,
        Err(error) => {
            message(format!("cannot lead `{name}`: {error}"));
            Ok(Ended::before_start())
        }
    };
    match session.release(name, guard.release(), ended).await? {
        ended if ended.lost && !ended.terminated => {
            message(format!("campaigning for `{name}` again"));
            Ok(None)
        }
        ended => Ok(Some(ended.code)),
    }
}
