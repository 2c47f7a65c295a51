//! Bugs between client and servers: sentinels, clusters, quorums and subscriptions.

use leasehold::{Client, Release};
use testkit::group::{GROUP, Group};
use testkit::{Flavor, Server};

use crate::deployment::{builder_by, group};
use crate::support::{eventually, name, patient, run};

async fn works(client: &Client) {
    let guard = client.mutex(&name()).lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// A client with two sentinels, in both orders; which of them it asks first is chance.
async fn connect_by(group: &Group, one: usize, other: usize) {
    for [first, second] in [[one, other], [other, one]] {
        let sentinels = format!("{},{}", group.sentinel(first), group.sentinel(second));
        for _ in 0..3 {
            let builder = patient(builder_by(&sentinels, GROUP));
            works(&builder.connect().await.unwrap()).await;
        }
    }
}

/// A sentinel that had forgotten the group, or named a server that was dead or a replica, blocked its clients as long as
/// it replied: no other one was asked.
#[test]
fn sentinel_that_is_behind_is_passed_over() {
    run(async {
        let group = group(&Flavor::one());
        group.reset_sentinel(0);
        connect_by(&group, 0, 1).await;
        let dead = {
            let server = Server::start(&Flavor::one());
            server.port()
        };
        group.mislead_sentinel(0, dead);
        connect_by(&group, 0, 1).await;
        group.mislead_sentinel(0, group.server(1).port());
        connect_by(&group, 0, 1).await;
    });
}

/// A client left its master when the one sentinel that it asked named another server.
#[test]
fn misled_sentinel_does_not_end_connections() {
    run(async {
        let group = group(&Flavor::one());
        let builder = patient(builder_by(&group.sentinels(), GROUP));
        let client = builder.connect().await.unwrap();
        works(&client).await;
        let connections = || {
            let clients = group.server(0).ask(&["CLIENT", "LIST"]);
            let clients = clients.text().lines();
            let own = clients.filter(|line| line.contains("name=leasehold"));
            let ids = own.filter_map(|line| Some(line.split_once(' ')?.0.to_owned()));
            ids.collect::<Vec<_>>()
        };
        eventually("both connections", || connections().len() == 2).await;
        eventually("a sentinel is asked", || group.asked_sentinels().len() == 1).await;
        let (before, asked) = (connections(), group.asked_sentinels()[0]);
        group.mislead_sentinel(asked, group.server(1).port());
        let left = || !group.asked_sentinels().contains(&asked);
        eventually("another sentinel is asked", left).await;
        works(&client).await;
        assert_eq!(connections(), before, "the master was left");
    });
}
