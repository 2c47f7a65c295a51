//! Where a lock is taken: on one server or cluster, or on several servers at once.

use std::time::Duration;

use leasehold::{Acquire, Client, LockInfo, Quorum, Replicas};

use crate::args::RunArgs;
use crate::output::{CliError, hint, revoked, say};
use crate::settings::Settings;

/// How long the server may take to reply, and replicas to confirm, where nothing else is set.
const REPLY: Duration = Duration::from_secs(1);

/// The shortest time for the last release.
const FAREWELL: Duration = Duration::from_secs(2);

pub(super) struct Servers {
    connection: Connection,
    request_timeout: Duration,
}

enum Connection {
    One(Client),
    Several(Quorum),
}

impl Servers {
    pub(super) async fn connect(settings: &Settings, args: &RunArgs) -> Result<Self, CliError> {
        let connection = match args.quorum_urls().as_slice() {
            [] => settings.connect(args.lease).await.map(Connection::One)?,
            urls => {
                let builder = settings.builder_of_all(urls, args.lease);
                Connection::Several(builder.connect().await?)
            }
        };
        Ok(Self {
            connection,
            request_timeout: settings.request_timeout.unwrap_or(REPLY),
        })
    }

    /// The acquisition that was asked for.
    pub(super) fn lock(&self, args: &RunArgs) -> Result<Acquire, CliError> {
        let name = &args.name;
        let mut lock = match &self.connection {
            Connection::Several(quorum) => quorum.mutex(name).lock(),
            Connection::One(client) if args.shared => client.rw_lock(name).read(),
            Connection::One(client) if args.exclusive => client.rw_lock(name).write().into(),
            Connection::One(client) if args.fair => client.fair_mutex(name).lock(),
            Connection::One(client) => match args.permits {
                Some(permits) => client.semaphore(name, permits).acquire(),
                None => client.mutex(name).lock(),
            },
        };
        let wait = args.wait.or(args.nonblock.then_some(Duration::ZERO));
        if let Some(limit) = wait {
            lock = lock.timeout(limit);
        }
        if let Some(length) = args.at_least {
            lock = lock.at_least(length);
        }
        if let Some(replicas) = &args.replicas {
            lock = lock.replicas(count(replicas)?, self.request_timeout);
        }
        Ok(lock.note(note(args)))
    }

    /// Takes the lock away from whoever has it.
    pub(super) async fn steal(&self, name: &str) -> Result<(), CliError> {
        let Connection::One(client) = &self.connection else {
            return Err(CliError::usage("a lock of a quorum cannot be taken away")
                .with_hint("it is free when its lease ends"));
        };
        for holder in client.force_release(name).await? {
            say(revoked(name, &holder));
            if !holder.released {
                hint("it was told, and may go on until it has stopped");
            }
        }
        Ok(())
    }

    /// What is to be seen of the lock; nothing where several servers would have to be asked.
    pub(super) async fn inspect(&self, name: &str) -> Option<LockInfo> {
        match &self.connection {
            Connection::One(client) => client.inspect(name).await.ok().flatten(),
            Connection::Several(_) => None,
        }
    }

    /// How long the last release may take.
    pub(super) fn farewell(&self) -> Duration {
        FAREWELL.max(self.request_timeout * 2)
    }

    pub(super) async fn shutdown(&self, limit: Duration) {
        // What is not given back in time ends with its lease.
        let _ = match &self.connection {
            Connection::One(client) => client.shutdown(limit).await,
            Connection::Several(quorum) => quorum.shutdown(limit).await,
        };
    }
}

fn count(text: &str) -> Result<Replicas, CliError> {
    match text {
        "all" => Ok(Replicas::All),
        number => number
            .parse()
            .map(Replicas::AtLeast)
            .map_err(|_| CliError::usage(format!("--replicas {text}: neither a number nor `all`"))),
    }
}

/// What others see: only the program's name, since its arguments may hold secrets.
fn note(args: &RunArgs) -> String {
    let program = args.command.first().map(std::path::Path::new);
    let name = program.and_then(std::path::Path::file_name);
    let name = name.map(|name| name.to_string_lossy().into_owned());
    args.note.clone().or(name).unwrap_or_default()
}
