//! The fence of one holder.

use std::fmt;

use leasehold::Lease;

use crate::error::FenceError;

/// The maximum length of a name in bytes, as for the keys of locks.
const MAX_NAME: usize = 640;

/// The name and the token of one holder of an exclusive lock.
///
/// The name is the lock's key: the client's prefix followed by the lock's name.
/// Locks of the same name that belong to applications with different prefixes
/// are different locks, and so are their fences.
///
/// A resource that is written through fences accepts a token that it has seen
/// last, and larger ones. It rejects smaller ones with [`FenceError::Stale`].
///
/// A fence does not check the lease, and stays usable after the lease has ended
/// as long as no later holder has used the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    pub(crate) name: String,
    token: u64,
}

impl Fence {
    /// Returns the fence of a [`Guard`](leasehold::Guard) or a [`Lease`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// use leasehold_fence::Fence;
    ///
    /// let guard = client.mutex("coupon:42").lock().await?;
    /// let fence = Fence::of(&guard);
    /// assert_eq!(fence.name(), "lock:coupon:42");
    /// let writer = client.rw_lock("catalogue").write().await?;
    /// let fence = Fence::of(&writer);
    /// # drop(fence); Ok(()) }
    /// ```
    ///
    /// Permits and readers have no fence. Several of them are valid at the same
    /// time, and the resource would reject all but the one with the largest
    /// token:
    ///
    /// ```compile_fail,E0277
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # use leasehold_fence::Fence;
    /// let permit = client.semaphore("downloads", 10).acquire().await?;
    /// let fence = Fence::of(&permit);
    /// # drop(fence); Ok(()) }
    /// ```
    ///
    /// ```compile_fail,E0277
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # use leasehold_fence::Fence;
    /// let reader = client.rw_lock("catalogue").read().await?;
    /// let fence = Fence::of(&reader);
    /// # drop(fence); Ok(()) }
    /// ```
    ///
    /// Nor have locks without tokens:
    ///
    /// ```compile_fail,E0277
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// # use leasehold_fence::Fence;
    /// let guard = client.redisson().lock("coupon:42").lock().await?;
    /// let fence = Fence::of(&guard);
    /// # drop(fence); Ok(()) }
    /// ```
    #[must_use]
    pub fn of(holder: &impl AsRef<Lease>) -> Self {
        let lease = holder.as_ref();
        Self::new(lease.key(), lease.token().as_u64())
    }

    /// Creates a fence from a name and a token, for example those that another
    /// process passed on.
    ///
    /// The token must come from an exclusive lock. The name is the lock's
    /// [key](leasehold::Lease::key), as [`of`](Self::of) takes it. Choose
    /// another one only if locks with the same key on different servers protect
    /// different data in one database.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_fence::Fence;
    ///
    /// let fence = Fence::new("lock:coupon:42", 33);
    /// assert_eq!(fence.to_string(), "`lock:coupon:42` with token 33");
    /// ```
    #[must_use]
    pub fn new(name: impl Into<String>, token: u64) -> Self {
        Self {
            name: name.into(),
            token,
        }
    }

    /// Returns the fence of a program that `leasehold run` started, from
    /// `LEASEHOLD_KEY` and `LEASEHOLD_TOKEN`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use leasehold_fence::Fence;
    ///
    /// // leasehold run nightly -- ./report
    /// let fence = Fence::from_env()?;
    /// # Ok::<(), leasehold_fence::FenceError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] if a variable is missing or invalid, or if the
    /// lock is not exclusive (`LEASEHOLD_MODE` is `shared`).
    pub fn from_env() -> Result<Self, FenceError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(value: impl Fn(&str) -> Option<String>) -> Result<Self, FenceError> {
        const MODE: &str = "LEASEHOLD_MODE";
        let required = |variable| {
            let why = "it is not set; start the program with `leasehold run`";
            value(variable).ok_or_else(|| FenceError::invalid(variable, why))
        };
        let name = required("LEASEHOLD_KEY")?;
        let token = required("LEASEHOLD_TOKEN")?;
        let token = token.parse().map_err(|error| {
            FenceError::invalid("LEASEHOLD_TOKEN", format!("`{token}` is no token: {error}"))
        })?;
        match value(MODE) {
            Some(mode) if mode != "exclusive" => {
                let why = format!("`{mode}`: only an exclusive lock has a fence");
                Err(FenceError::invalid(MODE, why))
            }
            _ => Ok(Self { name, token }),
        }
    }

    /// Returns the name.
    ///
    /// # Examples
    ///
    /// ```
    /// let fence = leasehold_fence::Fence::new("lock:coupon:42", 33);
    /// assert_eq!(fence.name(), "lock:coupon:42");
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the token.
    ///
    /// # Examples
    ///
    /// ```
    /// let fence = leasehold_fence::Fence::new("lock:coupon:42", 33);
    /// assert_eq!(fence.token(), 33);
    /// ```
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the name and the token as a database stores them.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] if the name is longer than 640 bytes or the
    /// token exceeds a signed 64-bit integer. No lock has such a name or token.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_fence::{Fence, sql};
    ///
    /// let fence = Fence::new("lock:coupon:42", 33);
    /// let (name, token) = fence.to_sql()?; // the parameters of the guard
    /// println!("{} with {name} and {token}", sql::POSTGRES.guard);
    /// # Ok::<(), leasehold_fence::FenceError>(())
    /// ```
    pub fn to_sql(&self) -> Result<(&str, i64), FenceError> {
        if self.name.len() > MAX_NAME {
            let length = self.name.len();
            let why = format!("{length} bytes is above the maximum of {MAX_NAME}");
            return Err(FenceError::invalid("name", why));
        }
        match i64::try_from(self.token) {
            Ok(token) => Ok((&self.name, token)),
            Err(_) => {
                let why = format!("{} is above the maximum of {}", self.token, i64::MAX);
                Err(FenceError::invalid("token", why))
            }
        }
    }

    /// Checks the token that the resource has stored.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_fence::Fence;
    ///
    /// let fence = Fence::new("lock:report", 33);
    /// assert!(fence.check(33).is_ok());
    /// assert!(fence.check(34).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`FenceError::Stale`] if `seen` is larger than the own token.
    pub fn check(&self, seen: u64) -> Result<(), FenceError> {
        match seen > self.token {
            false => Ok(()),
            true => Err(FenceError::Stale {
                name: self.name.clone(),
                ours: self.token,
                seen,
            }),
        }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` with token {}", self.name, self.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Fence, FenceError> {
        Fence::from_variables(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn environment_of_exclusive_lock_is_accepted() {
        let both = [("LEASEHOLD_KEY", "coupon"), ("LEASEHOLD_TOKEN", "17")];
        assert_eq!(from(&both).unwrap(), Fence::new("coupon", 17));
        let mode = [both[0], both[1], ("LEASEHOLD_MODE", "exclusive")];
        assert_eq!(from(&mode).unwrap().to_string(), "`coupon` with token 17");
    }

    #[test]
    fn environment_of_shared_lock_is_rejected() {
        let variables = [
            ("LEASEHOLD_KEY", "coupon"),
            ("LEASEHOLD_TOKEN", "17"),
            ("LEASEHOLD_MODE", "shared"),
        ];
        let error = from(&variables).unwrap_err().to_string();
        assert!(error.contains("LEASEHOLD_MODE"), "{error}");
    }

    #[test]
    fn missing_or_malformed_variables_are_named() {
        let error = from(&[]).unwrap_err().to_string();
        assert!(error.contains("LEASEHOLD_KEY"), "{error}");
        let error = from(&[("LEASEHOLD_KEY", "x"), ("LEASEHOLD_TOKEN", "-1")]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("`-1`"), "{error}");
    }

    #[test]
    fn smaller_token_is_stale() {
        let fence = Fence::new("coupon", 17);
        fence.check(0).unwrap();
        fence.check(17).unwrap();
        let stale = fence.check(18).unwrap_err();
        assert!(stale.is_stale());
        let text = "stale token 17 for `coupon`: a later holder has used token 18";
        assert_eq!(stale.to_string(), text);
    }

    #[test]
    fn sql_rejects_what_a_column_cannot_store() {
        assert_eq!(Fence::new("a", 7).to_sql().unwrap(), ("a", 7));
        assert!(Fence::new("a".repeat(640), 7).to_sql().is_ok());
        assert!(Fence::new("a".repeat(641), 7).to_sql().is_err());
        assert!(Fence::new("a", 1 << 63).to_sql().is_err());
    }
}
