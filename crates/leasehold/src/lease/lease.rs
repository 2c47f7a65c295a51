//! The public view of a lease.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lost::{Lost, View};
use super::state::{EndReason, LeaseState, Validity};
use crate::error::{Error, Loss};
use crate::owner::Token;
use crate::time::BootInstant;

/// A view of a held lease. It can check the lease, but not release it.
///
/// A view is cheap to clone. Pass it to the code that does the protected work,
/// which may run in other tasks and threads.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let import = client.mutex("import").lock();
/// import
///     .run(|lease| async move {
///         for row in 1..=1000 {
///             lease.check()?;
///             println!("row {row} with token {}", lease.token());
///         }
///         Ok(())
///     })
///     .await?
/// # }
/// ```
pub struct Lease<M = Exclusive> {
    state: Arc<LeaseState>,
    /// The holder that this is a view of; see `LeaseState::validity_of`.
    generation: u64,
    token: Token,
    fencing: PhantomData<fn() -> M>,
}

/// Marks a [`Guard`](crate::Guard) or [`Lease`] of an exclusive lock: no other
/// holder is valid at the same time.
///
/// A resource that rejects tokens below the largest it has seen therefore
/// rejects stale holders only.
#[derive(Clone, Copy, Debug)]
pub enum Exclusive {}

/// Marks a [`Guard`](crate::Guard) or [`Lease`] of a lock that others may hold
/// at the same time: a permit of a [`Semaphore`](crate::Semaphore), or a reader
/// of an [`RwLock`](crate::RwLock).
///
/// A resource must not reject the smaller of two such tokens, because both
/// holders can be valid. A guard, lease or acquire of an exclusive lock
/// converts into this one with `.into()`, for code that accepts both.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

impl Lease {
    /// Returns the fencing token. It is larger than the token of every earlier
    /// holder of this lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, Token};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn update(sql: &str, token: Token) {}
    /// let guard = client.mutex("coupon:42").lock().await?;
    /// let lease = guard.lease();
    /// let sql = "UPDATE coupon SET used = true, token = $1
    ///            WHERE id = 42 AND token <= $1";
    /// update(sql, lease.token()).await;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }
}

impl Lease<Shared> {
    /// Returns the fencing token. It is larger than the token of every earlier
    /// holder of this lock, and valid beside the tokens of other [`Shared`]
    /// leases.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let reader = client.rw_lock("catalogue").read().await?;
    /// println!("reading with token {}", reader.lease().token());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }
}

impl From<Lease> for Lease<Shared> {
    /// Forgets that the lock is exclusive.
    fn from(lease: Lease) -> Self {
        lease.marked()
    }
}

impl<M> Lease<M> {
    pub(super) fn new(state: Arc<LeaseState>, generation: u64, token: Token) -> Self {
        Self {
            state,
            generation,
            token,
            fencing: PhantomData,
        }
    }

    /// Returns the same view with another marker.
    pub(crate) fn marked<N>(&self) -> Lease<N> {
        Lease::new(self.state.clone(), self.generation, self.token)
    }

    /// Returns the token, whatever the marker says about its use.
    pub(crate) fn any_token(&self) -> Token {
        self.token
    }

    /// Replaces the token with a larger one, which is below those of all later
    /// holders.
    pub(super) fn set_token(&mut self, token: Token) {
        self.token = token;
    }

    pub(super) fn state(&self) -> &Arc<LeaseState> {
        &self.state
    }

    /// Returns the lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.state.kind.name()
    }

    /// Returns the lock's key on the server: the client's
    /// [prefix](crate::Connect::prefix) followed by the name.
    ///
    /// It identifies the lock among those of all applications that use the
    /// server, where the name alone does not.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let guard = client.mutex("coupon:42").lock().await?;
    /// let lease = guard.lease();
    /// assert_eq!(lease.name(), "coupon:42");
    /// assert_eq!(lease.key(), "lock:coupon:42");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn key(&self) -> &str {
        let key = std::str::from_utf8(self.state.kind.key());
        key.expect("a prefix and a name, which are text")
    }

    /// Returns the instant until which the lock is held if no further renewal
    /// is confirmed.
    ///
    /// Every confirmed renewal moves it. It is in the past once the lease has
    /// ended. On Linux and macOS, `Instant` does not advance while the machine
    /// is suspended; [`check`](Self::check) uses a clock that does.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn upload() {}
    /// let guard = client.mutex("upload").lock().await?;
    /// let deadline = guard.lease().deadline();
    /// let upload = tokio::time::timeout_at(deadline.into(), upload());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// Returns the time until the deadline; zero once the lease has ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # async fn page(number: u32, limit: std::time::Duration) {}
    /// let import = client.mutex("import").lock().run(|lease| async move {
    ///     for number in 1..=10 {
    ///         page(number, lease.remaining()).await; // the page's timeout
    ///     }
    /// });
    /// import.await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.state.validity_of(self.generation) {
            Validity::Valid { deadline } => deadline.since(BootInstant::now()),
            Validity::Ended(_) => Duration::ZERO,
        }
    }

    /// Checks, by the local clock alone, that the lease is still valid.
    ///
    /// It costs a few nanoseconds. Call it before every effect that must not
    /// happen twice.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] once the lease is lost; loss is permanent. A lease that
    /// its own guard released is lost for every remaining view.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// # fn charge(account: u32) {}
    /// let billing = client.mutex("billing").lock();
    /// billing.run_blocking(|lease| {
    ///     (1..=100).try_for_each(|account| {
    ///         lease.check()?;
    ///         charge(account);
    ///         Ok::<_, Error>(())
    ///     })
    /// })??;
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        match self.state.validity_of(self.generation) {
            Validity::Valid { .. } => Ok(()),
            Validity::Ended(EndReason::Lost(loss)) => Err(self.error(loss)),
            // `Loss` has no case for a release, and to this view the lease is
            // over.
            Validity::Ended(EndReason::Released) => Err(self.error(Loss::Expired)),
        }
    }

    /// Reports that the protected work makes progress; see
    /// [`progress_within`](crate::Acquire::progress_within).
    ///
    /// It sends no request and reads no clock: call it in every iteration of
    /// a loop, and from any number of threads. Without that option it has no
    /// effect, nor has it once the lease has ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client, rows: Vec<u32>) -> Result<(), Error> {
    /// # fn import(row: u32) {}
    /// let limit = Duration::from_secs(60);
    /// let import_lock = client.mutex("import").lock().progress_within(limit);
    /// import_lock.run_blocking(|lease| {
    ///     for row in rows {
    ///         import(row); // a call that hangs here loses the lock
    ///         lease.progress();
    ///     }
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn progress(&self) {
        if self.state.is_held_by(self.generation) {
            self.state.progress.report();
        }
    }

    /// Returns whether the client has stopped renewing the lease, because the
    /// holder did not report [progress](Self::progress) in time.
    ///
    /// The next report before the deadline resumes the renewals. After the
    /// deadline, the lease is lost with [`Loss::Stuck`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let limit = Duration::from_secs(60);
    /// let guard = client.mutex("import").lock().progress_within(limit).await?;
    /// let lease = guard.lease();
    /// let is_healthy = move || !lease.is_stuck(); // for a health check
    /// # drop(is_healthy); Ok(()) }
    /// ```
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.state.is_held_by(self.generation) && self.state.progress.is_stuck()
    }

    /// Counts the holder as making progress until the exemption is dropped.
    pub(crate) fn exempt_from_progress(&self) -> Exemption {
        self.state.progress.begin_exemption();
        Exemption(self.state.clone())
    }

    /// Returns a future that resolves when the lease is lost or released, with
    /// how it was lost. A thread [waits](Lost::wait_timeout) for it.
    ///
    /// `None` means that the guard released the lock. The future resolves no
    /// later than the deadline.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # fn stop() {}
    /// let guard = client.mutex("import").lock().await?;
    /// let lease = guard.lease();
    /// tokio::spawn(async move {
    ///     if lease.lost().await.is_some() {
    ///         stop();
    ///     }
    /// });
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> Lost {
        Lost::new(vec![View {
            state: self.state.clone(),
            generation: self.generation,
        }])
    }

    pub(super) async fn ended(&self) -> EndReason {
        self.state.ended(self.generation).await
    }

    pub(super) fn error(&self, loss: Loss) -> Error {
        let name = self.name().to_owned();
        Error::Lost { name, loss }
    }
}

/// A holder that need not report progress, as while it waits for other locks.
pub(crate) struct Exemption(Arc<LeaseState>);

impl Drop for Exemption {
    fn drop(&mut self) {
        self.0.progress.end_exemption();
    }
}

impl<M> Clone for Lease<M> {
    fn clone(&self) -> Self {
        Self::new(self.state.clone(), self.generation, self.token)
    }
}

impl<M> AsRef<Self> for Lease<M> {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<M> fmt::Debug for Lease<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name())
            .field("validity", &self.state.validity_of(self.generation))
            .finish_non_exhaustive()
    }
}
