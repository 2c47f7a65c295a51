//! All kinds of locks as one: asked for, held, given back.

use std::time::Duration;

use leasehold::{Acquire, Client, Error, Guard, Quorum, Replicas, TryAcquire, Unfenced};

use super::Job;
use crate::history::{Failure, Moment, now};
use crate::plan::{Kind, PERMITS, Plan};

/// How much is wanted, and for how long it is waited for, if at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) weight: u32,
    pub(super) patience: Option<Duration>,
}

/// Where locks are had.
pub(super) struct Locks {
    of: Of,
    lease: Duration,
}

enum Of {
    Server(Client),
    Quorum(Quorum),
}

impl Locks {
    /// Connects, however long that takes.
    pub(super) async fn connect(job: &Job) -> Self {
        let lease = job.plan.lease();
        loop {
            match Self::try_connect(job).await {
                Ok(of) => return Self { of, lease },
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn try_connect(job: &Job) -> Result<Of, Error> {
        let plan = &job.plan;
        let outage = plan.stuck();
        if job.urls.contains(' ') {
            let builder = Quorum::builder(job.urls.split(' '));
            let builder = builder.lease(plan.lease()).max_outage(outage);
            let builder = builder.max_lease(max_lease(plan));
            return builder.connect().await.map(Of::Quorum);
        }
        let mut builder = Client::builder(&job.urls)
            .lease(plan.lease())
            .request_timeout(request_timeout(plan))
            .max_outage(outage);
        if plan.replicas {
            builder = builder.replicas(Replicas::All, request_timeout(plan));
        }
        builder.connect().await.map(Of::Server)
    }

    pub(super) async fn shutdown(&self) {
        // Cancels of requests that may arrive late go on for longer; they are waited for when the client has gone.
        let limit = Duration::from_secs(1);
        match &self.of {
            Of::Server(client) => client.shutdown(limit).await,
            Of::Quorum(quorum) => quorum.shutdown(limit).await,
        };
    }

    pub(super) async fn take(&self, kind: Kind, name: &str, ask: Ask) -> Result<Held, Failure> {
        let client = match &self.of {
            Of::Server(client) => client,
            Of::Quorum(quorum) => {
                let mutex = quorum.mutex(name);
                return fenced(mutex.lock(), mutex.try_lock(), ask).await;
            }
        };
        let redisson = client.redisson().watchdog(self.lease);
        let redisson = redisson.fair_wait(self.lease / 2);
        match kind {
            Kind::Mutex => {
                let mutex = client.mutex(name);
                fenced(mutex.lock(), mutex.try_lock(), ask).await
            }
            Kind::Fair => {
                let mutex = client.fair_mutex(name);
                fenced(mutex.lock(), mutex.try_lock(), ask).await
            }
            Kind::Semaphore => {
                let semaphore = client.semaphore(name, PERMITS);
                let (some, try_some) = (
                    semaphore.acquire_many(ask.weight),
                    semaphore.try_acquire_many(ask.weight),
                );
                fenced(some, try_some, ask).await
            }
            Kind::ReadWrite => {
                let lock = client.rw_lock(name);
                match ask.weight {
                    1 => fenced(lock.read(), lock.try_read(), ask).await,
                    _ => fenced(lock.write(), lock.try_write(), ask).await,
                }
            }
            Kind::RedissonFenced => {
                let lock = redisson.fenced_lock(name);
                fenced(lock.lock(), lock.try_lock(), ask).await
            }
            Kind::RedissonLock => {
                let lock = redisson.lock(name);
                unfenced(lock.lock(), lock.try_lock(), ask).await
            }
            Kind::RedissonFair => {
                let lock = redisson.fair_lock(name);
                unfenced(lock.lock(), lock.try_lock(), ask).await
            }
            Kind::RedissonReadWrite => {
                let lock = redisson.read_write_lock(name);
                let (read, write) = (lock.read_lock(), lock.write_lock());
                match ask.weight {
                    1 => unfenced(read.lock(), read.try_lock(), ask).await,
                    _ => unfenced(write.lock(), write.try_lock(), ask).await,
                }
            }
        }
    }
}

/// A server that was started again votes after so long.
pub(crate) fn max_lease(plan: &Plan) -> Duration {
    plan.lease() * 2
}

fn request_timeout(plan: &Plan) -> Duration {
    (plan.lease() / 4).min(Duration::from_millis(250))
}

async fn fenced<G: Into<Guard> + Send + 'static>(
    lock: Acquire<G>,
    try_lock: TryAcquire<G>,
    ask: Ask,
) -> Result<Held, Failure> {
    one_of(lock, try_lock, ask)
        .await
        .map(|guard| Held::Fenced(guard.into()))
}

async fn unfenced<G: Into<Guard<Unfenced>> + Send + 'static>(
    lock: Acquire<G>,
    try_lock: TryAcquire<G>,
    ask: Ask,
) -> Result<Held, Failure> {
    one_of(lock, try_lock, ask)
        .await
        .map(|guard| Held::Unfenced(guard.into()))
}

/// Waits or not.
async fn one_of<G: Send + 'static>(
    lock: Acquire<G>,
    try_lock: TryAcquire<G>,
    ask: Ask,
) -> Result<G, Failure> {
    let taken = match ask.patience {
        Some(limit) => lock.timeout(limit).await.map(Some),
        None => try_lock.await,
    };
    match taken {
        Ok(Some(guard)) => Ok(guard),
        Ok(None) => Err(Failure::Busy),
        Err(Error::Timeout { .. }) => Err(Failure::Timeout),
        Err(_) => Err(Failure::Trouble),
    }
}

/// What is held.
pub(super) enum Held {
    Fenced(Guard),
    Unfenced(Guard<Unfenced>),
}

impl Held {
    /// 0 where there is none.
    pub(super) fn token(&self) -> u64 {
        match self {
            Self::Fenced(guard) => guard.token().as_u64(),
            Self::Unfenced(_) => 0,
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::Fenced(guard) => guard.check().is_ok(),
            Self::Unfenced(guard) => guard.check().is_ok(),
        }
    }

    /// Until when it is held, on the machine's clock; rather too early than too late.
    pub(super) fn deadline(&self) -> Moment {
        let before = now();
        let left = match self {
            Self::Fenced(guard) => guard.remaining(),
            Self::Unfenced(guard) => guard.remaining(),
        };
        before + u64::try_from(left.as_nanos()).unwrap_or_default()
    }

    /// Gives it back, in the background if it is dropped; whether it is known to be given back.
    pub(super) async fn give_back(self, dropped: bool) -> bool {
        match self {
            _ if dropped => false,
            Self::Fenced(guard) => guard.release().await.is_ok(),
            Self::Unfenced(guard) => guard.release().await.is_ok(),
        }
    }
}
