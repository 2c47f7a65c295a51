//! Redisson's `RSemaphore`: permits without an owner or an expiry.

use std::sync::Arc;

use super::Unfenced;
use super::calls::SemaphoreCalls;
use super::context::RedissonContext;
use crate::error::Error;
use crate::lease::Pending;
use crate::locks::Acquire;
use crate::locks::Handle;
use crate::options::{AcquireOptions, MAX_LEASE};
use crate::owner::Owner;
use crate::protocol::{Description, Kind};

/// A semaphore of Redisson, with permits that do not expire.
///
/// It is unfair, and the server does not store who holds permits. The permits
/// of a process that crashes are lost until a client [adds](Self::add_permits)
/// them again. Permits are also lost if the reply to their acquire was lost and
/// the server then stays unreachable for a minute, or the reply to their
/// release and 45 seconds. Use [`RPermitExpirableSemaphore`] where that is not
/// acceptable.
///
/// The permits have no lease and cannot be lost. Dropping the guard releases
/// them in the background. No replica acknowledges them: the `replicas` of a
/// client does not apply, and [`Acquire::replicas`] is [`Error::Invalid`].
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let downloads = client.redisson().semaphore("downloads");
/// downloads.try_set_permits(10).await?;
/// let permits = downloads.acquire(2).await?;
/// permits.release().await?;
/// # Ok(()) }
/// ```
///
/// [`RPermitExpirableSemaphore`]: super::RPermitExpirableSemaphore
#[derive(Clone)]
pub struct RSemaphore {
    handle: Handle<SemaphoreCalls>,
}

impl RSemaphore {
    pub(super) fn new(context: &RedissonContext, name: &str) -> Self {
        let kind = context.naming.object(name).map(SemaphoreCalls::new);
        // Permits do not expire: the lease is the longest possible, and is not
        // renewed, so no replica can acknowledge it.
        let options = AcquireOptions {
            lease: MAX_LEASE,
            expires: false,
            renewed: false,
            replica_ack: None,
            ..context.options.clone()
        };
        Self {
            handle: Handle::new(context.engine.clone(), name, kind, &options),
        }
    }

    /// Acquires `permits` permits, waiting until they are available.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let downloads = client.redisson().semaphore("downloads");
    /// let limit = Duration::from_secs(5);
    /// let permits = downloads.acquire(2).timeout(limit).wait()?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn acquire(&self, permits: u32) -> Acquire<Unfenced> {
        let request = self.handle.request_as(self.with_permits(permits));
        Acquire::new(request)
    }

    /// Acquires `permits` permits if they are available, and fails with
    /// [`Error::Busy`] otherwise.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn download() {}
    /// let downloads = client.redisson().semaphore("downloads");
    /// let one = downloads.try_acquire(1);
    /// one.run_or_skip(|_lease| download()).await?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_acquire(&self, permits: u32) -> Acquire<Unfenced> {
        let request = self.handle.request_as(self.with_permits(permits));
        Acquire::without_waiting(request)
    }

    /// Adds permits: Redisson's `release` without a preceding `acquire`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the permits added or not.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `permits` is zero, and [`Error::Unavailable`] or
    /// [`Error::OutcomeUnknown`] if the server does not reply. After the last
    /// one, the permits may have been added.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// // A worker crashed while it held two permits.
    /// client.redisson().semaphore("downloads").add_permits(2).await?;
    /// # Ok(()) }
    /// ```
    pub fn add_permits(&self, permits: u32) -> Pending<'_, ()> {
        self.handle.engine.pending(self.add_permits_now(permits))
    }

    async fn add_permits_now(&self, permits: u32) -> Result<(), Error> {
        let kind = self.with_permits(permits)?;
        // No acquire precedes this, so the release counts as certain. The id is
        // new, or an earlier call's deduplication key would suppress this one.
        let value = kind.value(&Owner::random(), Description::default());
        self.handle
            .send(|_| kind.release_permits(&value, true))
            .await
            .map(drop)
    }

    /// Sets the number of permits if it was never set. Returns whether it was
    /// set by this call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future can leave the number set or not.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply. After the last one, the number may have been set.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let downloads = client.redisson().semaphore("downloads");
    /// downloads.try_set_permits(10).wait()?;
    /// # Ok(()) }
    /// ```
    pub fn try_set_permits(&self, permits: u32) -> Pending<'_, bool> {
        let set = self.handle.send(move |kind| kind.set(permits));
        self.handle.engine.pending(set)
    }

    /// Returns the number of available permits.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the server does
    /// not reply.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let downloads = client.redisson().semaphore("downloads");
    /// println!("{} permits are free", downloads.available_permits().await?);
    /// # Ok(()) }
    /// ```
    pub fn available_permits(&self) -> Pending<'_, i64> {
        let available = self.handle.send(SemaphoreCalls::available);
        self.handle.engine.pending(available)
    }

    /// Returns the calls that acquire `permits` permits.
    fn with_permits(&self, permits: u32) -> Result<Arc<SemaphoreCalls>, Error> {
        if permits == 0 {
            return Err(Error::invalid("permits", "0 is below the minimum of 1"));
        }
        Ok(Arc::new(self.handle.kind()?.with_permits(permits)))
    }

    /// Returns the semaphore's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

impl std::fmt::Debug for RSemaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RSemaphore").field(&self.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::super::calls::Naming;
    use super::*;
    use crate::backend::RequestError;
    use crate::backend::scripted::Scripted;
    use crate::lease::Guard;
    use crate::lease::tests::scripted::{engine, yes};

    /// A release whose reply is lost is repeated only while the server
    /// remembers that it executed one: permits would be added twice.
    #[tokio::test(start_paused = true)]
    async fn uncertain_release_is_not_repeated_for_long() {
        let (_, guard, releases) = held().await;
        drop(guard);
        tokio::time::sleep(Duration::from_secs(47)).await;
        let repeated = releases.load(Ordering::SeqCst);
        assert!(repeated > 1, "it is repeated at first");
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(releases.load(Ordering::SeqCst), repeated);
    }

    /// The same if the client connects in between, which takes long.
    #[tokio::test(start_paused = true)]
    async fn uncertain_release_is_not_repeated_after_a_long_connect() {
        let (backend, guard, releases) = held().await;
        backend.delay_connections(Duration::from_secs(61));
        let released = guard.release().await;
        assert!(
            matches!(released, Err(Error::OutcomeUnknown(_))),
            "{released:?}"
        );
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(releases.load(Ordering::SeqCst), 1);
    }

    /// Acquires a permit. The replies to its releases, which are counted, are
    /// lost.
    async fn held() -> (Arc<Scripted>, Guard<Unfenced>, Arc<AtomicU32>) {
        let acquired = AtomicU32::new(0);
        let releases = Arc::new(AtomicU32::new(0));
        let sent_releases = releases.clone();
        let backend = Scripted::new(move |sent| {
            if acquired.fetch_add(1, Ordering::SeqCst) == 0 {
                return yes(sent);
            }
            sent_releases.fetch_add(1, Ordering::SeqCst);
            (
                Duration::from_secs(1),
                Err(RequestError::Unknown("cut".into())),
            )
        });
        let engine = engine(&backend);
        let object = Naming::new(
            "0123456789abcdef0123456789abcdef",
            true,
            Duration::from_secs(5),
        )
        .object("job");
        let kind: Arc<dyn Kind> = Arc::new(SemaphoreCalls::new(object.unwrap()));
        let options = AcquireOptions {
            expires: false,
            renewed: false,
            ..AcquireOptions::new(MAX_LEASE)
        };
        let lease = engine.acquire(&kind, &options).await.unwrap();
        (backend, Guard::new(lease), releases)
    }
}
