//! A uniform interface to all kinds of locks.

use std::time::Duration;

use leasehold::{Acquire, Client, Error, Guard, Quorum, Replicas, Shared, TryAcquire, Unfenced};

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
            let builder = Quorum::builder(job.urls.split(' '));
            let builder = builder.lease(plan.lease()).max_outage(outage);
            let builder = builder.max_lease(plan.max_lease());
            return builder.connect().await.map(Backend::Quorum);
        }
        let mut builder = Client::builder(&job.urls)
            .lease(plan.lease())
            .request_timeout(request_timeout(plan))
            .max_outage(outage);
        if plan.replica_acks {
            builder = builder.replicas(Replicas::All, request_timeout(plan));
        }
        builder.connect().await.map(Backend::Server)
    }

    pub(super) async fn shutdown(&self) {
        // Cancellations of requests that may still take effect continue for
        // longer. The worker waits for them afterwards.
        let limit = Duration::from_secs(1);
        match &self.backend {
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
                return fenced(mutex.lock(), mutex.try_lock(), request).await;
            }
        };
        let redisson = client.redisson().watchdog(self.lease);
        let redisson = redisson.fair_wait(self.lease / 2);
        match kind {
            Kind::Mutex => {
                let mutex = client.mutex(name);
                let held = run(mutex.lock(), mutex.try_lock(), request).await;
                held.map(Held::Exclusive)
            }
            Kind::Fair => {
                let mutex = client.fair_mutex(name);
                let held = run(mutex.lock(), mutex.try_lock(), request).await;
                held.map(Held::Exclusive)
            }
            Kind::Semaphore => {
                let semaphore = client.semaphore(name, PERMITS);
                let (some, try_some) = (
                    semaphore.acquire_many(request.weight),
                    semaphore.try_acquire_many(request.weight),
                );
                fenced(some, try_some, request).await
            }
            Kind::ReadWrite => {
                let lock = client.rw_lock(name);
                match request.weight {
                    1 => fenced(lock.read(), lock.try_read(), request).await,
                    _ => fenced(lock.write(), lock.try_write(), request).await,
                }
            }
            Kind::RedissonFenced => {
                let lock = redisson.fenced_lock(name);
                fenced(lock.lock(), lock.try_lock(), request).await
            }
            Kind::RedissonLock => {
                let lock = redisson.lock(name);
                unfenced(lock.lock(), lock.try_lock(), request).await
            }
            Kind::RedissonFair => {
                let lock = redisson.fair_lock(name);
                unfenced(lock.lock(), lock.try_lock(), request).await
            }
            Kind::RedissonReadWrite => {
                let lock = redisson.read_write_lock(name);
                let (read, write) = (lock.read_lock(), lock.write_lock());
                match request.weight {
                    1 => unfenced(read.lock(), read.try_lock(), request).await,
                    _ => unfenced(write.lock(), write.try_lock(), request).await,
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

async fn fenced<G: Into<Guard<Shared>> + Send + 'static>(
    lock: Acquire<G>,
    try_lock: TryAcquire<G>,
    request: Request,
) -> Result<Held, Failure> {
    run(lock, try_lock, request)
        .await
        .map(|guard| Held::Fenced(guard.into()))
}

async fn unfenced<G: Into<Guard<Unfenced>> + Send + 'static>(
    lock: Acquire<G>,
    try_lock: TryAcquire<G>,
    request: Request,
) -> Result<Held, Failure> {
    run(lock, try_lock, request)
        .await
        .map(|guard| Held::Unfenced(guard.into()))
}

/// Acquires with a timeout, or tries once.
async fn run<G: Send + 'static>(
    lock: Acquire<G>,
    try_lock: TryAcquire<G>,
    request: Request,
) -> Result<G, Failure> {
    let outcome = match request.timeout {
        Some(limit) => lock.timeout(limit).await.map(Some),
        None => try_lock.await,
    };
    match outcome {
        Ok(Some(guard)) => Ok(guard),
        Ok(None) => Err(Failure::Busy),
        Err(Error::Timeout { .. }) => Err(Failure::Timeout),
        Err(_) => Err(Failure::Error),
    }
}

/// A guard of any kind.
pub(super) enum Held {
    /// Can be handed over.
    Exclusive(Guard),
    Fenced(Guard<Shared>),
    Unfenced(Guard<Unfenced>),
}

impl Held {
    /// Returns the fencing token, or 0 for an unfenced lock.
    pub(super) fn token(&self) -> u64 {
        match self {
            Self::Exclusive(guard) => guard.token().as_u64(),
            Self::Fenced(guard) => guard.token().as_u64(),
            Self::Unfenced(_) => 0,
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::Exclusive(guard) => guard.check().is_ok(),
            Self::Fenced(guard) => guard.check().is_ok(),
            Self::Unfenced(guard) => guard.check().is_ok(),
        }
    }

    /// Returns the deadline of the lease, or an earlier time.
    pub(super) fn deadline(&self) -> Timestamp {
        let before = now();
        let remaining = match self {
            Self::Exclusive(guard) => guard.remaining(),
            Self::Fenced(guard) => guard.remaining(),
            Self::Unfenced(guard) => guard.remaining(),
        };
        before + u64::try_from(remaining.as_nanos()).unwrap_or_default()
    }

    /// Hands the lock over. Returns the text of the ticket, or `None` if the
    /// lock is released instead.
    pub(super) async fn hand_over(self, within: Duration) -> Option<String> {
        match self {
            Self::Exclusive(guard) => {
                let ticket = guard.hand_over(within).await.ok()?;
                Some(ticket.to_string())
            }
            Self::Fenced(_) | Self::Unfenced(_) => None,
        }
    }

    /// Releases the lock, in the background if `dropped`. Returns whether the
    /// release is confirmed.
    pub(super) async fn release(self, dropped: bool) -> bool {
        match self {
            _ if dropped => false,
            Self::Exclusive(guard) => guard.release().await.is_ok(),
            Self::Fenced(guard) => guard.release().await.is_ok(),
            Self::Unfenced(guard) => guard.release().await.is_ok(),
        }
    }
}
