//! Rights and conditions for tests that inspect and revoke locks.

use std::time::Duration;

use testkit::{Server, ServerExt};

use super::{AMPLE, SERVERS, eventually};

/// Longer than any test. A loss within this time is not due to a renewal or an
/// expiry.
pub(crate) const LONG: Duration = AMPLE.saturating_mul(10);

/// Grants the user of the tests the permissions that the guide lists for
/// inspection.
pub(crate) fn allow_inspection(server: &Server) {
    let mut rules = SERVERS
        .lines()
        .filter(|line| line.starts_with("ACL SETUSER "));
    let rule = rules
        .nth(1)
        .expect("the guide contains the rule for inspection");
    server.tell(&rule.split(' ').collect::<Vec<_>>());
}

/// Waits until `clients` clients of this process subscribe to its channel,
/// which they do shortly after they connect.
pub(crate) async fn wait_for_listeners(servers: &[Server], clients: i64) {
    let listening = |server: &Server| {
        let channels = server.ask(&["PUBSUB", "SHARDCHANNELS", "leasehold:process:*"]);
        channels.list().first().map_or(0, |channel| {
            let counts = server.ask(&["PUBSUB", "SHARDNUMSUB", channel.text()]);
            counts.list()[1].int()
        })
    };
    let all = || servers.iter().map(listening).sum::<i64>() == clients;
    eventually("all clients subscribe", all).await;
}
