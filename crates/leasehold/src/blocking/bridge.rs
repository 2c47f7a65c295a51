//! The bridge from a blocking type to its async counterpart.

use std::fmt;

use crate::error::Error;
use crate::lease::KeeperRuntime;

/// A value of the async API, and the runtime on which its requests run.
#[derive(Clone)]
pub(super) struct Bridge<T> {
    pub(super) inner: T,
    pub(super) runtime: KeeperRuntime,
}

impl<T> Bridge<T> {
    /// Returns a bridge to a value that `make` creates from this one.
    pub(super) fn map<U>(&self, make: impl FnOnce(&T) -> U) -> Bridge<U> {
        Bridge {
            inner: make(&self.inner),
            runtime: self.runtime.clone(),
        }
    }

    /// Blocks the current thread until a request of the value has completed.
    pub(super) fn wait<R>(
        &self,
        request: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Error> {
        self.runtime.wait(request)
    }
}

impl<T: fmt::Debug> fmt::Debug for Bridge<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
