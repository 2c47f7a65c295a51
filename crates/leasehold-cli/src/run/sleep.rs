//! A sleep with an optional end.

use tokio::time::Instant;

/// Sleeps until `deadline`. Without one, the future never completes.
pub(super) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
