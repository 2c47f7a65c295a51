//! What a worker does with objects that it shares with Java.

use std::time::Duration;

use leasehold::Client;

use super::say;
use crate::redisson::take_now;

/// Takes a lock that must be free, and holds it until the process is killed.
pub(super) async fn hold(client: &Client, watchdog: Duration, kind: &str, name: &str) {
    let redisson = client.redisson().watchdog(watchdog);
    let held = take_now(&redisson, kind, name).await;
    say("held");
    held.lost().await;
}
