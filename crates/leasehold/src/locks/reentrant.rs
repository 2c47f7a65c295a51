//! Reentrant handles.
//!
//! Reentrancy belongs to a handle, not to a thread, because tasks move between
//! threads.

use std::marker::PhantomData;
use std::sync::Arc;

use super::acquire::{Acquire, AcquireRequest};
use super::handle::Handle;
use crate::lease::{Exclusive, Reentry};
use crate::protocol::Kind;

/// A handle that can acquire the lock again while it holds it.
///
/// All clones of the handle share one acquisition. The first guard acquires the
/// lock, and dropping the last guard releases it. The guards in between send no
/// request. All guards share one lease and one token, and the options of the
/// first acquire apply.
///
/// Reentrancy belongs to the handle and its clones, not to a task or thread.
///
/// # Examples
///
/// ```no_run
/// # use leasehold::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let account = client.mutex("account:1").reentrant();
/// let outer = account.lock().await?;
/// let inner = account.lock().await?; // without a request
/// inner.release().await?;
/// assert_eq!(account.guards(), 1);
/// outer.release().await?;
/// # Ok(()) }
/// ```
pub struct Reentrant<M = Exclusive> {
    handle: Handle<dyn Kind>,
    reentry: Arc<Reentry>,
    mode: PhantomData<fn() -> M>,
}

impl<M> Reentrant<M> {
    pub(crate) fn new(handle: Handle<dyn Kind>) -> Self {
        Self {
            handle,
            reentry: Arc::default(),
            mode: PhantomData,
        }
    }

    /// Acquires the lock, waiting until it is free. Resolves immediately if
    /// this handle holds it.
    ///
    /// # Examples
    ///
    /// A function that needs the lock, and can be called while it is held:
    ///
    /// ```no_run
    /// # use leasehold::{Error, Reentrant};
    /// async fn credit(account: &Reentrant, amount: u64) -> Result<(), Error> {
    ///     let _guard = account.lock().await?;
    ///     // …
    ///     Ok(())
    /// }
    /// ```
    #[track_caller]
    pub fn lock(&self) -> Acquire<M> {
        Acquire::new(self.request())
    }

    /// Acquires the lock if it is free or held by this handle, and fails with
    /// [`Error::Busy`](crate::Error::Busy) otherwise.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let account = client.mutex("account:1").reentrant();
    /// let outer = account.try_lock().wait()?; // or `Error::Busy`
    /// let inner = account.try_lock().wait()?; // the handle holds it
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn try_lock(&self) -> Acquire<M> {
        Acquire::without_waiting(self.request())
    }

    /// Returns how many guards this handle holds; zero if it does not hold the
    /// lock.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # fn example(client: Client) -> Result<(), Error> {
    /// let account = client.mutex("account:1").reentrant();
    /// let guard = account.lock().wait()?;
    /// assert_eq!(account.guards(), 1);
    /// guard.release().wait()?;
    /// assert_eq!(account.guards(), 0);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn guards(&self) -> usize {
        self.reentry.guards()
    }

    #[track_caller]
    fn request(&self) -> AcquireRequest {
        AcquireRequest {
            reentry: Some(self.reentry.clone()),
            ..self.handle.request()
        }
    }
}

impl<M> Clone for Reentrant<M> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            reentry: self.reentry.clone(),
            mode: PhantomData,
        }
    }
}

impl<M> std::fmt::Debug for Reentrant<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reentrant")
            .field(&self.handle.name())
            .finish()
    }
}
