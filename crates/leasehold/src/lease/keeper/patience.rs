//! How long the keeper waits for a server that is dead or only slow.
//!
//! A release or cancel that has no reply is sent again, on another connection.
//! On a slow link that would make everything slower. So we wait for as long as
//! the server replies to other requests on the same connection.

use std::time::Duration;

use crate::backend::{Connection, RequestError};
use crate::protocol::Call;

/// How long a request in flight can still reach the server after the connection
/// broke: it may be in a buffer of the server or of a proxy. See decision 2 in
/// `docs/decisions/`.
pub(super) const MAX_IN_FLIGHT: Duration = Duration::from_secs(15);

/// The shortest silence after which we give up a connection. A short lease must
/// not make others pay for a round trip that is long.
pub(super) const MIN_SILENCE: Duration = Duration::from_millis(250);

/// Sends `call` and waits for the reply: for `timeout`, or longer while the
/// connection is not silent. Not for the slowest node of a quorum.
pub(super) async fn send_patiently<R>(
    call: Call<R>,
    connection: &dyn Connection,
    timeout: Duration,
) -> Result<R, RequestError> {
    if connection.is_quorum() {
        return call.send(connection, timeout).await;
    }
    let mut sending = std::pin::pin!(call.send(connection, MAX_IN_FLIGHT));
    loop {
        match tokio::time::timeout(timeout, &mut sending).await {
            Ok(reply) => return reply,
            Err(_) if connection.is_silent_for(timeout) => {
                connection.retire_if_silent(timeout);
                let why = format!("no reply within {timeout:?}");
                return Err(RequestError::Unknown(why.into()));
            }
            Err(_) => {}
        }
    }
}
