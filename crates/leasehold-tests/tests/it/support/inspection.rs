//! Rights and conditions for tests that inspect and revoke locks.

use std::time::Duration;

use testkit::Server;

use super::{AMPLE, README, eventually};

/// Longer than any test: what is told, is not told by a renewal or an end.
pub(crate) const LONG: Duration = AMPLE.saturating_mul(10);

/// Gives the user of the tests what the README says one needs who looks.
pub(crate) fn allow_looking(server: &Server) {
    let mut rules = README
        .lines()
        .filter(|line| line.starts_with("ACL SETUSER "));
    let rule = rules.nth(1).expect("the README has the rule for looking");
    server.tell(&rule.split(' ').collect::<Vec<_>>());
}

/// Waits until so many clients of this process hear what it is told; they do a little after they have connected.
pub(crate) async fn listened_to(servers: &[Server], clients: i64) {
    let listening = |server: &Server| {
        let channels = server.ask(&["PUBSUB", "SHARDCHANNELS", "leasehold:process:*"]);
        channels.list().first().map_or(0, |channel| {
            let heard = server.ask(&["PUBSUB", "SHARDNUMSUB", channel.text()]);
            heard.list()[1].int()
        })
    };
    let all = || servers.iter().map(listening).sum::<i64>() == clients;
    eventually("they listen", all).await;
}
