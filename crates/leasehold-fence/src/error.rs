//! A fence's errors.

use std::fmt;

/// The error of a driver.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The failure of a fenced write.
#[derive(Debug)]
#[non_exhaustive]
pub enum FenceError {
    /// A later holder has used the resource. This holder lost the lock before,
    /// and must not write.
    Stale {
        /// The fence's name.
        name: String,
        /// This holder's token.
        ours: u64,
        /// The largest token that the resource has seen.
        seen: u64,
    },
    /// The transaction ended before its commit, so the statements after that
    /// were committed one by one, without a fence.
    ///
    /// DDL on MySQL or MariaDB does this, and so does `COMMIT` or `ROLLBACK`
    /// sent as a statement. It is a defect of the program: repeating the
    /// transaction repeats what is already committed.
    Ended {
        /// The fence's name.
        name: String,
        /// Why the commit was refused.
        source: BoxError,
    },
    /// The database failed, or could not be reached.
    Database(BoxError),
    /// A name, a token or an environment variable cannot be used.
    Invalid {
        /// What is invalid.
        what: &'static str,
        /// Why it is.
        why: String,
    },
}

impl FenceError {
    /// Returns whether a later holder has used the resource.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_fence::Fence;
    ///
    /// let fence = Fence::new("lock:coupon:42", 33);
    /// let error = fence.check(34).unwrap_err();
    /// assert!(error.is_stale());
    /// ```
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. })
    }

    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid {
            what,
            why: why.into(),
        }
    }

    #[cfg(any(feature = "_sqlx", feature = "tokio-postgres"))]
    pub(crate) fn database(error: impl Into<BoxError>) -> Self {
        Self::Database(error.into())
    }
}

impl fmt::Display for FenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { name, ours, seen } => write!(
                f,
                "stale token {ours} for `{name}`: a later holder has used token {seen}"
            ),
            Self::Ended { name, source } => write!(
                f,
                "the transaction under `{name}` ended before its commit, \
                 and later statements were not fenced: {source}"
            ),
            Self::Database(error) => write!(f, "the fenced write failed: {error}"),
            Self::Invalid { what, why } => write!(f, "invalid `{what}`: {why}"),
        }
    }
}

impl std::error::Error for FenceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Database(source) | Self::Ended { source, .. } => Some(&**source),
            _ => None,
        }
    }
}
