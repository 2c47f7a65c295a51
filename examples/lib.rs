//! The connection that the examples share.

use std::time::Duration;

use leasehold::{Client, Connect, Error};

/// How long a request may take. The library's default is shorter, but the
/// examples must also run on a busy machine.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long connecting may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the URL in `LEASEHOLD_URL`, or a local server's.
#[must_use]
pub fn url() -> String {
    std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned())
}

/// Returns a connect to the server at [`url`], which a task awaits and a thread
/// waits for.
pub fn settings() -> Connect {
    Client::connect(&url())
        .connect_timeout(CONNECT_TIMEOUT)
        .request_timeout(REQUEST_TIMEOUT)
}

/// Connects to the server at [`url`].
///
/// # Errors
///
/// As for [`Client::connect`].
pub async fn connect() -> Result<Client, Error> {
    settings().await
}
