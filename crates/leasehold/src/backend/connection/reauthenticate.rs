//! Logging in again on an open connection, before its credentials end.
//!
//! Some services close a connection when the token that it logged in with
//! expires. A connection with such credentials has a task that asks the
//! provider for new ones in time, and sends `AUTH`. In RESP3 a subscribed
//! connection accepts it, too.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::handshake::{is_login_refused, login_error};
use super::request::Unanswered;
use super::wire::Wire;
use crate::backend::{Backoff, Batch, Reply, ServerError};
use crate::credentials::{CredentialsProvider, Server};
use crate::rng;
use crate::time::BootInstant;

/// The shortest time between two logins of a connection.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// The longest time between two attempts while they fail.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The longest that we sleep at once. Timers stop while the machine is
/// suspended, and the server's clock does not.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// The connection to log in on, and where the credentials come from.
pub(super) struct Reauthentication {
    pub(super) wire: Arc<Wire>,
    pub(super) provider: CredentialsProvider,
    pub(super) server: Server,
    pub(super) keeper: Handle,
    /// The connect timeout, which also limits one login.
    pub(super) timeout: Duration,
}

impl Reauthentication {
    /// Starts a task that logs in again before `end`, and before each later
    /// one, until the connection is retired or closed.
    pub(super) fn start(self, end: BootInstant) {
        let keeper = self.keeper.clone();
        keeper.spawn(self.run(end));
    }

    async fn run(self, end: BootInstant) {
        tokio::select! {
            () = self.wire.ended() => {}
            () = self.repeat(end) => {}
        }
    }

    /// Returns when the credentials no longer end.
    async fn repeat(&self, end: BootInstant) {
        let mut backoff = Backoff::new(2 * MIN_PAUSE, MAX_PAUSE);
        let mut next = due(end, self.timeout);
        loop {
            sleep_until(next).await;
            let now = BootInstant::now();
            next = match self.log_in().await {
                Ok(None) => return,
                Ok(Some(end)) if end > now => {
                    tracing::debug!(server = self.server.address(), "logged in again");
                    backoff.reset();
                    due(end, self.timeout).max(now + MIN_PAUSE)
                }
                // We go on after the end, too: our clock may be ahead of the
                // server's, which then still accepts the connection.
                outcome => {
                    let error = outcome.err();
                    let error = error.as_deref().unwrap_or(ENDED);
                    let server = self.server.address();
                    tracing::warn!(server, error, "cannot log in again, retrying");
                    BootInstant::now() + backoff.pause()
                }
            };
        }
    }

    /// Logs in with new credentials, and returns their end.
    async fn log_in(&self) -> Result<Option<BootInstant>, String> {
        let server = self.server.clone();
        let asked = self.provider.ask(server, &self.keeper, self.timeout).await;
        let credentials = asked?;
        let Some((user, password)) = credentials.login() else {
            return Ok(credentials.end());
        };
        let auth = Batch::new("AUTH").arg(user).arg(password);
        let deadline = self.wire.deadline(self.timeout);
        let replies = self.wire.request(&auth, deadline).await;
        let replies = replies.map_err(|unanswered| match unanswered {
            Unanswered::Closed(reason) => reason.to_string(),
            Unanswered::TimedOut => format!("no reply within {:?}", self.timeout),
        })?;
        match replies.first() {
            // The connection keeps the login that it has.
            Some(Reply::Refused(error)) => Err(refusal(error)),
            _ => Ok(credentials.end()),
        }
    }
}

/// What a provider returned that only has expired tokens.
const ENDED: &str = "the credentials provider returned credentials that have ended";

/// Describes why `AUTH` was refused, without a text that can quote the
/// password.
fn refusal(error: &ServerError) -> String {
    match is_login_refused(error) {
        true => refused_login(&login_error(error)),
        false => "the server refused `AUTH`; its message is not shown, \
                  since it can quote the password"
            .to_owned(),
    }
}

/// Describes why a server refused credentials of a provider. `error` contains
/// no words of the server.
pub(super) fn refused_login(error: &ServerError) -> String {
    format!("the server refused the credentials of the provider: {error}")
}

/// Returns when to log in again with credentials that have arrived now and
/// last until `end`.
///
/// After about three quarters of their life, and early enough for some
/// attempts. Providers often cache a token until shortly before its end. What
/// they return then has the same end, and we ask again after three quarters
/// of the rest.
fn due(end: BootInstant, timeout: Duration) -> BootInstant {
    let lifetime = end.since(BootInstant::now());
    // Spreads the connections of clients that were started together.
    let lead = lifetime.mul_f64(0.2 + 0.1 * rng::jitter());
    end.saturating_sub(lead.max(4 * timeout).min(lifetime / 2))
}

async fn sleep_until(when: BootInstant) {
    loop {
        let rest = when.since(BootInstant::now());
        if rest.is_zero() {
            return;
        }
        tokio::time::sleep(rest.min(MAX_SLEEP)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::backend::connection::request::Deadline;
    use crate::backend::connection::socket::own_halves;
    use crate::credentials::Credentials;

    const TIMEOUT: Duration = Duration::from_secs(2);
    const HOUR: Duration = Duration::from_secs(3600);

    /// Starts the task of a connection with credentials that last for
    /// `lifetime`. The provider's are `secret-1` and so on, and last as long.
    /// Returns the server's end.
    async fn start(lifetime: Duration, asked: Arc<AtomicU64>) -> (Arc<Wire>, DuplexStream) {
        let (client, mut server) = duplex(1024);
        let (reader, writer) = tokio::io::split(client);
        let (reader, writer) = own_halves(reader, writer);
        let wire = Wire::start(reader, writer, &Handle::current(), Box::new(|_| ()));
        // The first request, as in a handshake, starts the reading task.
        let ping = Batch::new("PING");
        let (pong, ()) = tokio::join!(wire.request(&ping, Deadline::NEVER), async {
            let mut received = [0; 14];
            server.read_exact(&mut received).await.unwrap();
            server.write_all(b"+PONG\r\n").await.unwrap();
        });
        assert!(pong.is_ok());
        wire.establish(false);
        let provider = CredentialsProvider::new(move |_| {
            let number = asked.fetch_add(1, Ordering::Relaxed) + 1;
            let credentials = Credentials::new("web", format!("secret-{number}"));
            async move { Ok::<_, String>(credentials.valid_for(lifetime)) }
        });
        let task = Reauthentication {
            wire: wire.clone(),
            provider,
            server: Server {
                address: "127.0.0.1:1".to_owned(),
                is_sentinel: false,
            },
            keeper: Handle::current(),
            timeout: TIMEOUT,
        };
        task.start(BootInstant::now() + lifetime);
        (wire, server)
    }

    /// Receives one `AUTH`, and replies. Returns its password.
    async fn answer(server: &mut DuplexStream, reply: &str) -> String {
        let mut received = [0; 256];
        let count = server.read(&mut received).await.unwrap();
        server.write_all(reply.as_bytes()).await.unwrap();
        let received = String::from_utf8_lossy(&received[..count]).into_owned();
        assert!(received.starts_with("*3\r\n$4\r\nAUTH\r\n"), "{received}");
        received.lines().last().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn login_is_repeated_before_each_end() {
        let (_wire, mut server) = start(HOUR, Arc::default()).await;
        let mut last = BootInstant::now();
        for number in 1..4 {
            let password = answer(&mut server, "+OK\r\n").await;
            assert_eq!(password, format!("secret-{number}"));
            let now = BootInstant::now();
            assert!(now.since(last) >= HOUR / 2, "{:?}", now.since(last));
            assert!(now.since(last) <= HOUR - 4 * TIMEOUT);
            last = now;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_login_is_retried_before_the_end() {
        let (wire, mut server) = start(HOUR, Arc::default()).await;
        let start = BootInstant::now();
        answer(&mut server, "-WRONGPASS invalid\r\n").await;
        answer(&mut server, "-ERR unknown command 'AUTH'\r\n").await;
        let password = answer(&mut server, "+OK\r\n").await;
        assert_eq!(password, "secret-3");
        assert!(BootInstant::now().since(start) < HOUR);
        assert!(!wire.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn task_ends_with_its_connection() {
        let (wire, _server) = start(HOUR, Arc::default()).await;
        tokio::task::yield_now().await;
        wire.close("the test closes it");
        // Longer than a tick of the connection, and shorter than the task
        // sleeps.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(&wire), 1);
    }

    /// A provider with expired credentials only was asked without a pause.
    #[tokio::test(start_paused = true)]
    async fn ended_credentials_are_not_a_busy_loop() {
        let asked = Arc::<AtomicU64>::default();
        let (_wire, mut server) = start(Duration::ZERO, asked.clone()).await;
        tokio::spawn(async move {
            loop {
                answer(&mut server, "+OK\r\n").await;
            }
        });
        tokio::time::sleep(HOUR).await;
        let asked = asked.load(Ordering::Relaxed);
        assert!((100..300).contains(&asked), "{asked} in an hour");
    }

    #[test]
    fn refusal_never_quotes_the_password() {
        let quoted = ServerError::new("ERR", "unknown command 'AUTH' 'web' 'secret-1'");
        assert!(!refusal(&quoted).contains("secret-1"));
        let wrong = refusal(&ServerError::new("WRONGPASS", "secret-1"));
        assert!(wrong.contains("WRONGPASS") && wrong.contains("provider"));
        assert!(!wrong.contains("secret-1"));
    }
}
