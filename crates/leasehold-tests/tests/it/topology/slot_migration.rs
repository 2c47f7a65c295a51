//! Slots that move while requests are in flight: an unsolicited push is never
//! taken for a reply.

use std::time::Duration;

use leasehold::Client;
use testkit::{Cluster, Flavor, ServerExt, Setup};

use crate::support::deployment::{cluster_url, rule_with_grants};
use crate::support::{key, name, run, scaled, with_long_timeouts};

/// The number of clients, each with two requests in flight when a slot moves.
const CLIENTS: usize = 20;

/// A cluster, the node that owns the channel of this process, and where its
/// slot moves.
struct Migration {
    cluster: Cluster,
    at: usize,
    to: usize,
    slot: u16,
}

impl Migration {
    async fn new(flavor: &Flavor) -> Self {
        let rule = rule_with_grants(flavor, &["+cluster|slots", "+asking"]);
        let cluster = Cluster::start(&Setup::default().user(&rule), flavor, 3, false);
        let client = with_long_timeouts(Client::connect(&cluster_url(&cluster)));
        let _client = client.await.unwrap();
        let channels = |at: usize| {
            let pattern = ["PUBSUB", "SHARDCHANNELS", "leasehold:process:*"];
            let channels = cluster.server(at).ask(&pattern);
            channels
                .list()
                .first()
                .map(|channel| channel.text().to_owned())
        };
        let (at, channel) = loop {
            let found = (0..3).find_map(|at| Some((at, channels(at)?)));
            match found {
                Some(found) => break found,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let slot = cluster.slot(&channel);
        let to = (at + 1) % 3;
        Self {
            cluster,
            at,
            to,
            slot,
        }
    }

    /// Returns a name whose key stays on its node.
    fn name(&self) -> String {
        loop {
            let name = name();
            let slot = self.cluster.slot(&key(&name));
            if slot != self.slot && self.cluster.owner(slot, 0) == self.at {
                return name;
            }
        }
    }

    fn assign_slot(&self, owner: usize, nodes: &[usize]) {
        let id = self.cluster.server(owner).ask(&["CLUSTER", "MYID"]);
        let slot = self.slot.to_string();
        for node in nodes {
            let server = self.cluster.server(*node);
            server.tell(&["CLUSTER", "SETSLOT", &slot, "NODE", id.text()]);
        }
    }

    /// Moves the slot while the node is paused, with requests of every client
    /// in its sockets.
    async fn move_slot_under_load(&self) {
        self.assign_slot(self.to, &[self.to]);
        let node = self.cluster.server(self.at);
        let id = self.cluster.server(self.to).ask(&["CLUSTER", "MYID"]);
        let mut control = node.connect();
        control.ask(&["PING"]).unwrap();
        node.pause();
        let slot = self.slot.to_string();
        control
            .send(&["CLUSTER", "SETSLOT", &slot, "NODE", id.text()])
            .unwrap();
        tokio::time::sleep(Duration::from_millis(650)).await;
        node.resume();
        control.receive().unwrap();
    }
}

/// Moves a slot once. Returns how many locks had two holders.
async fn count_double_holders(migration: &Migration, url: &str) -> usize {
    let connect = || async { Client::connect(url).await.unwrap() };
    let holder = connect().await;
    let (mut held, mut expiring, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let waiter = connect().await;
        let (ends, stays) = (migration.name(), migration.name());
        held.push((
            waiter.fair_mutex(&stays),
            holder.fair_mutex(&stays).lock().await.unwrap(),
        ));
        // It expires while the node is paused, so the reply to its waiter's
        // request is a grant.
        let ending = holder
            .fair_mutex(&ends)
            .lock()
            .fixed_lease(Duration::from_millis(1400));
        expiring.push(ending.await.unwrap());
        let mutex = waiter.fair_mutex(&ends);
        waiting.push(tokio::spawn(async move {
            let _ = mutex.lock().timeout(Duration::from_secs(4)).await;
        }));
    }
    let wait = Duration::from_secs(4);
    let waiters = held.iter().map(|(mutex, _)| mutex.clone());
    let waiters: Vec<_> = waiters
        .map(|mutex| tokio::spawn(async move { mutex.lock().timeout(wait).await }))
        .collect();
    tokio::time::sleep(Duration::from_millis(1000)).await;
    migration.move_slot_under_load().await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let mut doubles = 0;
    for (waiter, (_, guard)) in waiters.into_iter().zip(&held) {
        if waiter.is_finished() && matches!(waiter.await, Ok(Ok(_))) && guard.check().is_ok() {
            doubles += 1;
        }
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    migration.assign_slot(migration.at, &[migration.at, migration.to]);
    doubles
}

#[test]
#[ignore = "deep: a thousand rounds on each server"]
fn slot_migration_keeps_exclusion() {
    for flavor in Flavor::all() {
        run(async {
            let migration = Migration::new(&flavor).await;
            let url = cluster_url(&migration.cluster);
            let moves = scaled(1000) / CLIENTS as u64;
            let mut doubles = 0;
            for _ in 0..moves {
                doubles += count_double_holders(&migration, &url).await;
            }
            let rounds = moves * CLIENTS as u64;
            println!(
                "{}: {doubles} of {rounds} locks had two holders",
                flavor.name
            );
            assert_eq!(doubles, 0);
        });
    }
}
