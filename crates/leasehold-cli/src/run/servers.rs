//! The connection of `run`: one server or cluster, or a quorum of servers.

use std::path::Path;
use std::time::Duration;

use leasehold::{Acquire, Client, Election, Error, LockInfo, Once, Quorum, Replicas, Shared, Tick};

use crate::args::{LeadArgs, RunArgs, WorkArgs};
use crate::output::{CliError, hint, message, revoked};
use crate::settings::{Settings, rejected_at_login};

/// The default time for a reply, and for acknowledgements of replicas.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The minimum time for the final release.
const MIN_RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Servers {
    connection: Connection,
    request_timeout: Duration,
}

enum Connection {
    Single(Client),
    Quorum(Quorum),
}

impl Servers {
    /// Connects to a quorum of `urls`, or to the configured server if there are
    /// none.
    pub(super) async fn connect(
        settings: &Settings,
        lease: Option<Duration>,
        urls: &[String],
    ) -> Result<Self, CliError> {
        let connection = match urls {
            [] => settings.connect(lease).await.map(Connection::Single)?,
            urls => {
                let quorum = settings.quorum(urls, lease).await;
                Connection::Quorum(quorum.map_err(rejected_at_login)?)
            }
        };
        Ok(Self {
            connection,
            request_timeout: settings.request_timeout.unwrap_or(REQUEST_TIMEOUT),
        })
    }

    /// Returns the acquisition that the arguments describe.
    pub(super) fn acquire(&self, args: &RunArgs) -> Result<Acquire<Shared>, CliError> {
        let name = &args.name;
        let mut acquire = match &self.connection {
            Connection::Quorum(quorum) => quorum.mutex(name).lock().into(),
            Connection::Single(client) if args.shared => client.rw_lock(name).read(),
            Connection::Single(client) if args.exclusive => client.rw_lock(name).write().into(),
            Connection::Single(client) if args.fair => client.fair_mutex(name).lock().into(),
            Connection::Single(client) => match args.permits {
                Some(permits) => client.semaphore(name, permits).acquire(),
                None => client.mutex(name).lock().into(),
            },
        };
        let timeout = args.wait.or(args.nonblock.then_some(Duration::ZERO));
        if let Some(timeout) = timeout {
            acquire = acquire.timeout(timeout);
        }
        if let Some(length) = args.at_least {
            acquire = acquire.at_least(length);
        }
        if let Some(limit) = args.work.watchdog {
            acquire = acquire.progress_within(limit);
        }
        if let Some(replicas) = &args.replicas {
            acquire = acquire.replicas(parse_replicas(replicas)?, self.request_timeout);
        }
        Ok(acquire.note(note(&args.work)))
    }

    /// Returns the election that the arguments describe.
    pub(super) fn election(&self, args: &LeadArgs) -> Result<Election, CliError> {
        let election = self.client("an election")?.election(&args.name);
        let election = election.note(note(&args.work));
        Ok(match args.work.watchdog {
            Some(limit) => election.progress_within(limit),
            None => election,
        })
    }

    /// Returns a tick of the job that the arguments describe.
    pub(super) fn once(&self, args: &RunArgs, tick: Tick) -> Result<Once, CliError> {
        let client = self.client("--once-per")?;
        let once = client.once(&args.name, tick).note(note(&args.work));
        Ok(match args.work.watchdog {
            Some(limit) => once.progress_within(limit),
            None => once,
        })
    }

    /// Revokes the lock from the holders.
    pub(super) async fn revoke(&self, name: &str) -> Result<(), CliError> {
        for holder in self.client("a revocation")?.force_release(name).await? {
            message(revoked(name, &holder));
            if !holder.released && !holder.handed_over {
                hint("the holder was notified and may continue to work until it has stopped");
            }
        }
        Ok(())
    }

    fn client(&self, purpose: &str) -> Result<&Client, CliError> {
        match &self.connection {
            Connection::Single(client) => Ok(client),
            Connection::Quorum(_) => Err(CliError::usage(format!(
                "{purpose} needs one server or cluster, not a quorum"
            ))
            .with_hint("a quorum lock is free when its lease ends")),
        }
    }

    /// Returns the lock's state, or `None` for a quorum: its servers may
    /// disagree.
    pub(super) async fn inspect(&self, name: &str) -> Result<Option<LockInfo>, Error> {
        match &self.connection {
            Connection::Single(client) => client.inspect(name).await,
            Connection::Quorum(_) => Ok(None),
        }
    }

    /// Asks for the lock's holder, which costs one command. Fails in an outage;
    /// a quorum's outage ends the wait.
    pub(super) async fn probe(&self, name: &str) -> Result<(), Error> {
        match &self.connection {
            Connection::Single(client) => client.mutex(name).holder().await.map(drop),
            Connection::Quorum(_) => Ok(()),
        }
    }

    /// Returns the time limit of the final release.
    pub(super) fn release_timeout(&self) -> Duration {
        MIN_RELEASE_TIMEOUT.max(self.request_timeout.saturating_mul(2))
    }

    pub(super) async fn shutdown(&self, timeout: Duration) {
        // A lock that is not released in time is free when its lease ends.
        let _ = match &self.connection {
            Connection::Single(client) => client.shutdown(timeout).await,
            Connection::Quorum(quorum) => quorum.shutdown(timeout).await,
        };
    }
}

fn parse_replicas(text: &str) -> Result<Replicas, CliError> {
    let invalid = |_| {
        CliError::usage(format!(
            "invalid --replicas {text}: expected a number or `all`"
        ))
    };
    match text {
        "all" => Ok(Replicas::All),
        number => number.parse().map(Replicas::AtLeast).map_err(invalid),
    }
}

/// Returns the note. The default omits the arguments of the command, which may
/// contain secrets.
fn note(args: &WorkArgs) -> String {
    let command = args.command.first().map(Path::new);
    let name = command.and_then(Path::file_name);
    let name = name.map(|name| name.to_string_lossy().into_owned());
    args.note.clone().or(name).unwrap_or_default()
}
