//! A uniform interface to all kinds of locks.

use std::time::Duration;

use leasehold::redisson::{RLock, Unfenced};
use leasehold::{Acquire, Client, Error, Guard, Quorum, Replicas, Shared};

use super::job::Job;
use crate::history::{Failure, Timestamp, now};
use crate::plan::{Kind, PERMITS, Plan};

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) weight: u32,
    /// How long to wait; `None` for a request that does not wait.
    pub(super) timeout: Option<Duration>,
}

/// A connected client of the library.
pub(super) struct Locks {
    backend: Backend,
    lease: Duration,
}

enum Backend {
    Server(Client),
    Quorum(Quorum),
}

impl Locks {
    /// Connects, and retries until it succeeds.
    pub(super) async fn connect(job: &Job) -> Self {
        let lease = job.plan.lease();
        loop {
            match Self::try_connect(job).await {
                Ok(backend) => return Self { backend, lease },
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn try_connect(job: &Job) -> Result<Backend, Error> {
        let plan = &job.plan;
        let outage = plan.max_wait();
        if job.urls.contains(' ') {
            let quorum = Quorum::connect(job.urls.split(' '))
                .lease(plan.lease())
                .max_outage(outage)
                .max_lease(plan.max_lease());
            return quorum.await.map(Backend::Quorum);
        }
        let mut client = Client::connect(&job.urls)
            .lease(plan.lease())
            .request_timeout(request_timeout(plan))
            .max_outage(outage);
        if plan.replica_acks {
            client = client.replicas(Replicas::All, request_timeout(plan));
        }
        client.await.map(Backend::Server)
    }

    pub(super) async fn shutdown(&self) {
        // Cancellations of requests that may still take effect continue for
        // longer. The worker waits for them afterwards.
        let limit = Duration::from_secs(1);
        let _ = match &self.backend {
            Backend::Server(client) => client.shutdown(limit).await,
            Backend::Quorum(quorum) => quorum.shutdown(limit).await,
        };
    }

    pub(super) async fn acquire(
        &self,
        kind: Kind,
        name: &str,
        request: Request,
    ) -> Result<Held, Failure> {
        let client = match &self.backend {
            Backend::Server(client) => client,
            Backend::Quorum(quorum) => {
                let mutex = quorum.mutex(name);
                return exclusive(request, || mutex.lock(), || mutex.try_lock()).await;
            }
        };
        let redisson = client.redisson().watchdog(self.lease);
        let redisson = redisson.fair_wait(self.lease / 2);
        let unfenced = async |lock: &RLock| {
            let held = run(request, || lock.lock(), || lock.try_lock()).await;
            held.map(Held::Unfenced)
        };
        match kind {
            Kind::Mutex => {
                let mutex = client.mutex(name);
                exclusive(request, || mutex.lock(), || mutex.try_lock()).await
            }
            Kind::Fair => {
                let mutex = client.fair_mutex(name);
                exclusive(request, || mutex.lock(), || mutex.try_lock()).await
            }
            Kind::Semaphore => {
                let semaphore = client.semaphore(name, PERMITS);
                let acquire = || semaphore.acquire_many(request.weight);
                let try_acquire = || semaphore.try_acquire_many(request.weight);
                run(request, acquire, try_acquire).await.map(Held::Shared)
            }
            Kind::ReadWrite if request.weight == 1 => {
                let lock = client.rw_lock(name);
                let held = run(request, || lock.read(), || lock.try_read()).await;
                held.map(Held::Shared)
            }
            Kind::ReadWrite => {
                let lock = client.rw_lock(name);
                exclusive(request, || lock.write(), || lock.try_write()).await
            }
            Kind::RedissonFenced => {
                let lock = redisson.fenced_lock(name);
                exclusive(request, || lock.lock(), || lock.try_lock()).await
            }
            Kind::RedissonLock => unfenced(&redisson.lock(name)).await,
            Kind::RedissonFair => unfenced(&redisson.fair_lock(name)).await,
            Kind::RedissonReadWrite => {
                let lock = redisson.read_write_lock(name);
                match request.weight {
                    1 => unfenced(lock.read_lock()).await,
                    _ => unfenced(lock.write_lock()).await,
                }
            }
        }
    }
}

impl Locks {
    /// Adopts a lock that was handed over.
    pub(super) async fn adopt(&self, ticket: &str) -> Result<Held, Failure> {
        let Backend::Server(client) = &self.backend else {
            return Err(Failure::Error);
        };
        let ticket = ticket.parse().expect("a ticket");
        let adopted = client.adopt(&ticket).await;
        adopted.map(Held::Exclusive).map_err(|_| Failure::Error)
    }
}

fn request_timeout(plan: &Plan) -> Duration {
    (plan.lease() / 4).min(Duration::from_millis(250))
}

async fn exclusive(
    request: Request,
    lock: impl FnOnce() -> Acquire,
    try_lock: impl FnOnce() -> Acquire,
) -> Result<Held, Failure> {
    run(request, lock, try_lock).await.map(Held::Exclusive)
}

/// Acquires with a timeout, or tries once. It calls only one of the functions:
/// an acquire that is never started logs a warning.
async fn run<M: 'static>(
    request: Request,
    lock: impl FnOnce() -> Acquire<M>,
    try_lock: impl FnOnce() -> Acquire<M>,
) -> Result<Guard<M>, Failure> {
    let acquire = match request.timeout {
        Some(limit) => lock().timeout(limit),
        None => try_lock(),
    };
    acquire.await.map_err(|error| match error {
        Error::Busy { .. } => Failure::Busy,
        Error::Timeout { .. } => Failure::Timeout,
        _ => Failure::Error,
    })
}

/// A guard of any kind.
pub(super) enum Held {
    Exclusive(Guard),
    Shared(Guard<Shared>),
    Unfenced(Guard<Unfenced>),
}

impl Held {
    /// Returns the fencing token, or 0 for an unfenced lock.
    pub(super) fn token(&self) -> u64 {
        match self {
            Self::Exclusive(guard) => guard.token().as_u64(),
            Self::Shared(guard) => guard.token().as_u64(),
            Self::Unfenced(_) => 0,
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::Exclusive(guard) => guard.check().is_ok(),
            Self::Shared(guard) => guard.check().is_ok(),
            Self::Unfenced(guard) => guard.check().is_ok(),
        }
    }

    /// Returns the lease's deadline, or an earlier time.
    pub(super) fn deadline(&self) -> Timestamp {
        let before = now();
        let remaining = match self {
            Self::Exclusive(guard) => guard.remaining(),
            Self::Shared(guard) => guard.remaining(),
            Self::Unfenced(guard) => guard.remaining(),
        };
        before + u64::try_from(remaining.as_nanos()).unwrap_or_default()
    }

    /// Hands the lock over. Returns the ticket's text, or `None` if the lock is
    /// released instead.
    pub(super) async fn hand_over(self, within: Duration) -> Option<String> {
        let Self::Exclusive(guard) = self else {
            return None;
        };
        let ticket = guard.hand_over(within).await.ok()?;
        Some(ticket.to_string())
    }

    /// Releases the lock, in the background if `dropped`. Returns whether the
    /// lock is known to be released or lost.
    pub(super) async fn release(self, dropped: bool) -> bool {
        let released = match self {
            _ if dropped => return false,
            Self::Exclusive(guard) => guard.release(),
            Self::Shared(guard) => guard.release(),
            Self::Unfenced(guard) => guard.release(),
        };
        matches!(released.await, Ok(()) | Err(Error::Lost { .. }))
    }
}
