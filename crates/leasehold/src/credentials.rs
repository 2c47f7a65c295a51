//! Credentials, and the function that a client asks for them.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::error::BoxError;
use crate::plain::plain;
use crate::time::BootInstant;

/// The user of a URL that has only a password.
const DEFAULT_USER: &str = "default";

/// A user and a password, with the time at which they end; see
/// [`Connect::credentials`](crate::Connect::credentials).
///
/// The `Debug` form shows the user, and never the password.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use leasehold::Credentials;
///
/// let token = "eyJhbGciOi…";
/// let hour = Duration::from_secs(3600);
/// let credentials = Credentials::new("web", token).valid_for(hour);
/// assert!(!format!("{credentials:?}").contains(token));
/// ```
#[derive(Clone)]
pub struct Credentials {
    /// The user and the password; `None` if the server requires no login.
    login: Option<(String, String)>,
    end: Option<BootInstant>,
}

impl Credentials {
    /// Returns the credentials of `user`.
    ///
    /// # Examples
    ///
    /// ```
    /// let credentials = leasehold::Credentials::new("web", "open sesame");
    /// ```
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            login: Some((user.into(), password.into())),
            end: None,
        }
    }

    /// Returns the credentials of the user `default`, as a server with
    /// `requirepass` has.
    ///
    /// # Examples
    ///
    /// ```
    /// let credentials = leasehold::Credentials::default_user("open sesame");
    /// ```
    #[must_use]
    pub fn default_user(password: impl Into<String>) -> Self {
        Self::new(DEFAULT_USER, password)
    }

    /// Returns the credentials for a server that requires no login, such as a
    /// sentinel without a password.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::{Credentials, Server};
    ///
    /// fn credentials(server: &Server) -> Credentials {
    ///     match server.is_sentinel() {
    ///         true => Credentials::none(),
    ///         false => Credentials::new("web", "open sesame"),
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn none() -> Self {
        Self {
            login: None,
            end: None,
        }
    }

    /// Sets when the server ends connections that logged in with these
    /// credentials. The client logs in again before that; without an end it
    /// does so only when it connects.
    ///
    /// We convert the time here, once. A clock that is set later does not move
    /// the end.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    ///
    /// use leasehold::Credentials;
    ///
    /// // What an access token says about itself.
    /// let expires_on = SystemTime::now() + Duration::from_secs(3600);
    /// let credentials = Credentials::new("web", "eyJhbGciOi…")
    ///     .valid_until(expires_on);
    /// ```
    #[must_use]
    pub fn valid_until(self, end: SystemTime) -> Self {
        let rest = end.duration_since(SystemTime::now());
        self.valid_for(rest.unwrap_or_default())
    }

    /// Like [`valid_until`](Self::valid_until), with the time from now.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold::Credentials;
    ///
    /// // ElastiCache ends a connection after twelve hours.
    /// let credentials = Credentials::new("web", "web/?Action=connect…")
    ///     .valid_for(Duration::from_secs(12 * 3600));
    /// ```
    #[must_use]
    pub fn valid_for(mut self, lifetime: Duration) -> Self {
        self.end = Some(BootInstant::now() + lifetime);
        self
    }

    /// Returns the user and the password, or `None` if no login is required.
    pub(crate) fn login(&self) -> Option<(&str, &str)> {
        let (user, password) = self.login.as_ref()?;
        Some((user, password))
    }

    pub(crate) fn end(&self) -> Option<BootInstant> {
        self.end
    }
}

impl fmt::Debug for Credentials {
    /// Shows the user only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.login().map(|(user, _)| user))
            .finish_non_exhaustive()
    }
}

/// The server that a client asks credentials for; see
/// [`Connect::credentials`](crate::Connect::credentials).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Server {
    pub(crate) address: String,
    pub(crate) is_sentinel: bool,
}

impl Server {
    /// Returns `host:port`, or the path of a Unix socket. A node of a Cluster,
    /// and a server behind Sentinel, have the address that they announce.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn fetch_secret(name: &str) -> std::io::Result<String> {
    /// #     Err(std::io::ErrorKind::Other.into())
    /// # }
    /// use leasehold::{Credentials, Server};
    ///
    /// /// The nodes of a quorum can have different passwords.
    /// async fn credentials(server: Server) -> std::io::Result<Credentials> {
    ///     let password = fetch_secret(server.address()).await?;
    ///     Ok(Credentials::new("web", password))
    /// }
    /// ```
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns whether it is a sentinel, which has users of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// fn user(server: &leasehold::Server) -> &'static str {
    ///     if server.is_sentinel() { "web-sentinel" } else { "web" }
    /// }
    /// ```
    #[must_use]
    pub fn is_sentinel(&self) -> bool {
        self.is_sentinel
    }
}

/// What a provider returns.
type ProviderFuture = Pin<Box<dyn Future<Output = Result<Credentials, BoxError>> + Send>>;

/// A function that returns the credentials for a server.
#[derive(Clone)]
pub(crate) struct CredentialsProvider(Arc<dyn Fn(Server) -> ProviderFuture + Send + Sync>);

impl CredentialsProvider {
    pub(crate) fn new<F, E>(provider: impl Fn(Server) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self(Arc::new(move |server| {
            let credentials = provider(server);
            Box::pin(async { credentials.await.map_err(Into::into) })
        }))
    }

    /// Asks for the credentials for `server`, and waits at most `limit`. The
    /// error names the provider.
    ///
    /// The provider runs on the keeper's runtime, because no other runtime
    /// lives as long as the client: what a provider keeps open between calls,
    /// such as an HTTP client's connections, must not end with a caller's
    /// runtime. It runs in a task of its own, since a panic must not end the
    /// task that connects.
    pub(crate) async fn ask(
        &self,
        server: Server,
        keeper: &Handle,
        limit: Duration,
    ) -> Result<Credentials, String> {
        let provider = self.clone();
        // Dropping the set stops the provider.
        let mut task = JoinSet::new();
        task.spawn_on(async move { (provider.0)(server).await }, keeper);
        match tokio::time::timeout(limit, task.join_next()).await {
            Ok(Some(Ok(Ok(credentials)))) => Ok(credentials),
            Ok(Some(Ok(Err(error)))) => {
                let causes = causes(&*error);
                Err(format!("the credentials provider failed: {causes}"))
            }
            Ok(Some(Err(error))) if error.is_panic() => {
                Err("the credentials provider panicked".to_owned())
            }
            Ok(Some(Err(_)) | None) => {
                Err("the credentials provider ended with the client".to_owned())
            }
            Err(_) => Err(format!(
                "the credentials provider did not return within {limit:?}"
            )),
        }
    }
}

/// Returns the text of `error` and of its causes, in one line: SDKs often
/// write only what failed, and leave the reason to the cause.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let error_text = error.to_string();
        // Some errors repeat their cause.
        if !text.contains(&error_text) {
            let _ = write!(text, ": {error_text}");
        }
        cause = error.source();
    }
    plain(&text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "open-sesame-1763";

    fn server() -> Server {
        Server {
            address: "127.0.0.1:1".to_owned(),
            is_sentinel: false,
        }
    }

    async fn ask<F, E>(
        provider: impl Fn(Server) -> F + Send + Sync + 'static,
    ) -> Result<Credentials, String>
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let provider = CredentialsProvider::new(provider);
        let limit = Duration::from_secs(60);
        provider.ask(server(), &Handle::current(), limit).await
    }

    #[test]
    fn debug_shows_user_without_password() {
        let credentials = Credentials::new("web", SECRET).valid_for(Duration::from_secs(1));
        let text = format!("{credentials:?}");
        assert!(text.contains("web") && !text.contains(SECRET), "{text}");
        assert!(format!("{:?}", Credentials::none()).contains("None"));
    }

    #[tokio::test(start_paused = true)]
    async fn provider_that_fails_is_named_with_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("no token")]
        struct NoToken(#[source] std::io::Error);

        let failing = |_| async { Err(NoToken(std::io::Error::other("no\nroute"))) };
        let error = ask(failing).await.unwrap_err();
        assert_eq!(
            error,
            r"the credentials provider failed: no token: no\nroute"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn provider_that_hangs_is_named() {
        let error = ask(|_| std::future::pending::<Result<_, String>>()).await;
        assert_eq!(
            error.unwrap_err(),
            "the credentials provider did not return within 60s"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn provider_that_panics_is_named() {
        async fn panics(_: Server) -> Result<Credentials, String> {
            panic!("in the future")
        }

        type Never = std::future::Ready<Result<Credentials, String>>;
        let early = ask(|_| -> Never { panic!("before the future") }).await;
        let late = ask(panics).await;
        for error in [early.unwrap_err(), late.unwrap_err()] {
            assert_eq!(error, "the credentials provider panicked");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn end_is_counted_from_arrival() {
        let past = SystemTime::now() - Duration::from_secs(60);
        let ended = Credentials::new("web", SECRET).valid_until(past);
        assert_eq!(ended.end(), Some(BootInstant::now()));
        let lasting = Credentials::new("web", SECRET).valid_for(Duration::MAX);
        assert_eq!(lasting.end(), Some(BootInstant::NEVER));
        assert_eq!(Credentials::none().end(), None);
    }
}
