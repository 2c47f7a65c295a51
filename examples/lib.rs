//! The connection that the examples share.

use std::time::Duration;

use leasehold::{Client, Error};

/// How long a request of an example may take. The defaults of the library are
/// shorter, but an example must also run on a busy machine.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long connecting may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the URL in `LEASEHOLD_URL`, or that of a local server.
#[must_use]
pub fn url() -> String {
    std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned())
}

/// Connects to the server at [`url`].
///
/// # Errors
///
/// As for [`Client::connect`].
pub async fn connect() -> Result<Client, Error> {
    Client::builder(&url())
        .connect_timeout(CONNECT_TIMEOUT)
        .request_timeout(REQUEST_TIMEOUT)
        .connect()
        .await
}
