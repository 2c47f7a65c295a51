//! `leasehold run`: takes a lock, runs a program, gives the lock back when nothing of the program is left.
//!
//! # Invariants
//!
//! 1. Nothing of the program runs without the lock: it starts after the lock is ours, and all of it is gone before
//!    the lock is given back.
//! 2. A lock that cannot be kept is given up early enough that KILL has done its work before the lease ends.
//! 3. Whoever ends this process ends the program: it is told by the system when its parent is gone.

mod process_group;
mod progress;
mod servers;
mod terminal;

use std::ops::ControlFlow;
use std::os::unix::process::CommandExt;
use std::time::{Duration, SystemTime};

use leasehold::{Error, Guard, Lease, Loss};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use crate::args::{RunArgs, ServerArgs};
use crate::output::{CliError, hint, say};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::{duration, exit};
use process_group::{Group, Life};
use servers::Servers;

/// The first word for a process that is to become the program; no verb of the command line.
const SHIM: &str = "exec-with-parent";

/// What the library does unless told otherwise.
const LEASE: Duration = Duration::from_secs(30);

/// How long a program has from TERM to KILL, unless it is told otherwise.
const GRACE: Duration = Duration::from_secs(5);

/// KILL comes this long before the lease ends, or later where the grace is short: machines stand still for half a second at times.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// How long after a KILL it is looked who is left.
const KILL_AGAIN: Duration = Duration::from_millis(50);

/// How long a program may be gone before those it left behind are mentioned.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// Signals that are for the program only.
const PASSED_ON: [Signal; 3] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH];

/// What to do with the program when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnLost {
    Stop(Signal),
    Ignore,
}

impl OnLost {
    fn parse(text: &str) -> Result<Self, CliError> {
        let name = text.trim_start_matches("signal:").to_ascii_uppercase();
        let full = match name.strip_prefix("SIG") {
            Some(_) => name.clone(),
            None => format!("SIG{name}"),
        };
        match (name.as_str(), full.parse()) {
            ("IGNORE", _) => Ok(Self::Ignore),
            (_, Ok(signal)) => Ok(Self::Stop(signal)),
            _ => Err(CliError::usage(format!("--on-lost {text}: no such signal"))
                .with_hint("term, kill, ignore, or a signal as in USR1")),
        }
    }
}

/// Runs a program under a lock; the code to end with.
pub(crate) async fn run(server: &ServerArgs, args: RunArgs, steal: bool) -> Result<u8, CliError> {
    let on_lost = OnLost::parse(&args.on_lost)?;
    let settings = Settings::read(server)?;
    let lease = args.lease.or(settings.lease);
    let lease = lease.unwrap_or(LEASE);
    let grace = grace(&args, lease)?;
    terminal::stay_awake();
    let mut signals = Signals::catch()?;
    signals.also(&PASSED_ON)?;
    let servers = tokio::select! {
        biased;
        signal = signals.end() => return Ok(exit::by_signal(signal as i32)),
        servers = Servers::connect(&settings, &args) => servers?,
    };
    let guard = match take(&servers, &args, &mut signals, steal).await {
        Ok(ControlFlow::Continue(guard)) => guard,
        // Leaves the line, and gives back what was granted and is of no use.
        Ok(ControlFlow::Break(code)) => {
            servers.shutdown(servers.farewell()).await;
            return Ok(code);
        }
        Err(trouble) => {
            servers.shutdown(servers.farewell()).await;
            return Err(trouble);
        }
    };
    // One who was served in line has only a short lease at first, too short for manners if it cannot be renewed.
    if guard.remaining() < lease / 2
        && let Err(error) = guard.extend(lease).await
    {
        give_back(&servers, guard).await;
        return Err(error.into());
    }
    let started = Instant::now();
    // Ctrl-Z may stop a command that waits, but none that holds a lock: it would renew nothing.
    let awake = signals.also(&[Signal::SIGTSTP]);
    let mut group = match awake.and_then(|()| Group::start(&args.command, &environment(&guard))) {
        Ok(group) => group,
        Err(trouble) => {
            give_back(&servers, guard).await;
            return Err(trouble);
        }
    };
    let mut watch = Watch {
        lease: guard.lease().clone(),
        on_lost,
        grace,
        limit: args.at_most.and_then(|long| started.checked_add(long)),
        deadline: guard.deadline().into(),
        stopping: None,
        lost: false,
    };
    watch.until_gone(&mut group, &mut signals).await;
    let code = watch.code(&group);
    // What the library knows of losses is told by now; an unanswered release ends with the lease.
    give_back(&servers, guard).await;
    Ok(code)
}

/// Waits for the lock; or for the code to end with.
async fn take(
    servers: &Servers,
    args: &RunArgs,
    signals: &mut Signals,
    steal: bool,
) -> Result<ControlFlow<u8, Guard>, CliError> {
    if steal {
        servers.steal(&args.name).await?;
    }
    let lock = servers.lock(args)?;
    let outcome = tokio::select! {
        biased;
        signal = signals.end() => Err(signal),
        got = lock.into_future() => Ok(got),
        () = progress::show(servers, args) => unreachable!("BUG: it is shown without end"),
    };
    progress::clear();
    match outcome {
        Ok(Ok(guard)) => Ok(ControlFlow::Continue(guard)),
        Ok(Err(error @ Error::Timeout { .. })) => Ok(ControlFlow::Break(busy(&error, args))),
        Ok(Err(error)) => Err(error.into()),
        Err(signal) => Ok(ControlFlow::Break(exit::by_signal(signal as i32))),
    }
}

/// Told only where somebody wants to know: cron sends mail for every line.
fn busy(error: &Error, args: &RunArgs) -> u8 {
    if !args.skip_ok || args.verbose {
        say(CliError::busy(error));
    }
    match args.skip_ok {
        true => exit::OK,
        false => args.conflict_exit_code.unwrap_or(exit::BUSY),
    }
}

fn grace(args: &RunArgs, lease: Duration) -> Result<Duration, CliError> {
    let longest = lease / 2;
    match args.grace {
        Some(grace) if grace > longest => Err(CliError::usage(format!(
            "--grace {} is more than half of the lease, {}",
            duration::show(grace),
            duration::show(lease)
        ))
        .with_hint("a longer --lease leaves time for it; after a crash others wait that long")),
        Some(grace) => Ok(grace),
        None => Ok(GRACE.min(lease / 3)),
    }
}

fn environment(guard: &Guard) -> [(&'static str, String); 4] {
    let deadline = SystemTime::now() + guard.remaining();
    let since_1970 = deadline.duration_since(SystemTime::UNIX_EPOCH);
    [
        ("LEASEHOLD_NAME", guard.name().to_owned()),
        ("LEASEHOLD_TOKEN", guard.token().to_string()),
        ("LEASEHOLD_OWNER", crate::me()),
        (
            "LEASEHOLD_DEADLINE",
            since_1970.unwrap_or_default().as_millis().to_string(),
        ),
    ]
}

async fn give_back(servers: &Servers, guard: Guard) {
    let name = guard.name().to_owned();
    match tokio::time::timeout(servers.farewell(), guard.release()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => say(format!(
            "`{name}` was not given back ({error}); it is free when its lease ends"
        )),
        Err(_) => say(format!(
            "`{name}` was not given back in time; it is free when its lease ends"
        )),
    }
    servers.shutdown(Duration::from_millis(100)).await;
}

/// Looks after a program that runs under a lease.
struct Watch {
    lease: Lease,
    on_lost: OnLost,
    grace: Duration,
    /// When it has run long enough.
    limit: Option<Instant>,
    /// Until when the lock is certainly held, as last seen while it was.
    deadline: Instant,
    stopping: Option<Stopping>,
    lost: bool,
}

/// A program that was told to end.
struct Stopping {
    /// When it is killed, or killed again.
    kill_at: Instant,
    killed: bool,
}

impl Watch {
    async fn until_gone(&mut self, group: &mut Group, signals: &mut Signals) {
        let lease = self.lease.clone();
        let mut lost = std::pin::pin!(lease.lost());
        let (mut left_behind, mut mentioned) = (None, false);
        loop {
            match (group.life(), left_behind) {
                (Life::Gone, _) => return,
                (Life::LeftBehind, None) => left_behind = Some(Instant::now() + LEFT_BEHIND),
                _ => {}
            }
            if !self.lost {
                self.deadline = self.deadline.max(lease.deadline().into());
            }
            tokio::select! {
                () = group.changed() => {}
                signal = signals.next() => group.pass_on(signal),
                loss = &mut lost, if !self.lost => self.lose(group, loss.unwrap_or(Loss::ShutDown)),
                () = at(self.last_chance()), if !self.lost => self.check(group),
                () = at(self.limit), if self.stopping.is_none() && self.limit.is_some() => self.end(group),
                () = at(self.kill_at()), if self.kill_at().is_some() => self.kill(group),
                () = at(left_behind), if !mentioned && left_behind.is_some() => {
                    mentioned = true;
                    say(group.left_behind());
                    hint("the lock is given back when they have ended too");
                }
            }
        }
    }

    /// When a program must be told to end, if nothing is heard from the server.
    fn last_chance(&self) -> Option<Instant> {
        self.deadline.checked_sub(self.grace + self.last_moment())
    }

    fn last_moment(&self) -> Duration {
        LAST_MOMENT.min(self.grace / 4)
    }

    fn kill_at(&self) -> Option<Instant> {
        let stopping = self.stopping.as_ref()?;
        let latest = self.deadline.checked_sub(self.last_moment());
        match stopping.killed {
            true => Some(stopping.kill_at),
            false => Some(latest?.min(stopping.kill_at)),
        }
    }

    /// The last chance: has it been renewed?
    fn check(&mut self, group: &Group) {
        self.deadline = self.deadline.max(self.lease.deadline().into());
        if self.last_chance().is_some_and(|at| at <= Instant::now()) {
            self.lose(group, Loss::Expired);
        }
    }

    fn lose(&mut self, group: &Group, loss: Loss) {
        self.lost = true;
        let name = self.lease.name();
        if loss == Loss::Expired && self.lease.check().is_err() {
            // Told too late, as after the machine has slept: there is no time for manners.
            self.deadline = Instant::now();
        }
        match self.on_lost {
            OnLost::Ignore => say(format!("lost `{name}`: {loss}; the program goes on")),
            OnLost::Stop(signal) => {
                say(format!(
                    "lost `{name}`: {loss}; stopping the program with {}",
                    signal.as_str()
                ));
                self.stop(group, signal);
            }
        }
    }

    fn end(&mut self, group: &Group) {
        say("the program has run for as long as it may; stopping it with SIGTERM");
        self.stop(group, Signal::SIGTERM);
    }

    fn stop(&mut self, group: &Group, signal: Signal) {
        let killed = signal == Signal::SIGKILL;
        let patience = if killed { KILL_AGAIN } else { self.grace };
        group.stop(signal);
        self.stopping.get_or_insert(Stopping {
            kill_at: Instant::now() + patience,
            killed,
        });
    }

    /// Again and again: one that was being started in that moment may have been missed.
    fn kill(&mut self, group: &Group) {
        group.stop(Signal::SIGKILL);
        if let Some(stopping) = &mut self.stopping {
            if !std::mem::replace(&mut stopping.killed, true) {
                say("the program has not ended; killing it");
            }
            stopping.kill_at = Instant::now() + KILL_AGAIN;
        }
    }

    fn code(&self, group: &Group) -> u8 {
        match (self.lost, &self.stopping) {
            (true, _) => exit::LOST,
            (false, Some(_)) => exit::TOO_LONG,
            (false, None) => group.code(),
        }
    }
}

/// Until `moment`; for ever where there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Where this process was started to become a program: becomes it, and has the system end it with its parent
/// (invariant 3). Returns only if that fails, or is not what it was started for.
pub(crate) fn become_program() -> Option<u8> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != SHIM {
        return None;
    }
    let parent = words.next()?.to_str()?.parse().ok()?;
    let program = words.next()?;
    process_group::end_with_parent(parent);
    terminal::be_stopped();
    let error = std::process::Command::new(&program).args(words).exec();
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_RUNNABLE,
    };
    let text = format!("cannot run {}: {error}", program.to_string_lossy());
    Some(CliError::new(code, text).tell())
}
