//! A provider of credentials that a test changes.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Connect, Credentials};
use testkit::sentinel_group::SENTINEL_PASSWORD;
use testkit::{Server, ServerExt};

use crate::support::PASSWORD;

/// What the provider of a test does.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// Returns this user and password, which end after this time.
    Login(&'static str, String, Duration),
    Fail,
    Hang,
}

/// A provider of credentials, which a test changes while clients use it.
#[derive(Clone)]
pub(crate) struct Vault(Arc<Mutex<Answer>>);

impl Vault {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(login(PASSWORD))))
    }

    pub(crate) fn set(&self, answer: Answer) {
        *self.0.lock().unwrap() = answer;
    }

    pub(crate) fn attach<C>(&self, connect: Connect<C>) -> Connect<C> {
        let vault = self.clone();
        connect.credentials(move |server| {
            let answer = vault.0.lock().unwrap().clone();
            async move {
                match answer {
                    Answer::Login(..) if server.is_sentinel() => {
                        Ok(Credentials::default_user(SENTINEL_PASSWORD))
                    }
                    Answer::Login(user, password, lifetime) => {
                        Ok(Credentials::new(user, password).valid_for(lifetime))
                    }
                    Answer::Fail => Err("the vault is sealed"),
                    Answer::Hang => pending().await,
                }
            }
        })
    }
}

/// Returns the login of the suite's user with this password.
pub(crate) fn login(password: &str) -> Answer {
    Answer::Login("leasehold", password.to_owned(), Duration::from_secs(3600))
}

/// Returns a URL without credentials.
pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// Sets another password on the servers and closes the user's connections, as
/// services do.
pub(crate) fn rotate<'a>(servers: impl IntoIterator<Item = &'a Server>, password: &str) {
    for server in servers {
        let rule = format!(">{password}");
        server.tell(&["ACL", "SETUSER", "leasehold", "resetpass", &rule]);
        server.tell(&["CLIENT", "KILL", "USER", "leasehold"]);
    }
}
