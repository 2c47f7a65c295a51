//! Slots that move while requests are in flight: an unasked push is never taken for a reply.

use std::time::Duration;

use leasehold::Client;
use testkit::{Cluster, Flavor, Setup};

use crate::support::deployment::{cluster_url, rule_with};
use crate::support::{key, name, patient, run, scaled};

/// Clients that each have two requests in flight when a slot moves.
const CLIENTS: usize = 20;

/// A cluster, the node that has the channel of this process, and where its slot moves to.
struct Stage {
    cluster: Cluster,
    at: usize,
    to: usize,
    slot: u16,
}

impl Stage {
    async fn new(flavor: &Flavor) -> Self {
        let rule = rule_with(flavor, &["+cluster|slots", "+asking"]);
        let cluster = Cluster::start(&Setup::default().user(&rule), flavor, 3, false);
        let client = patient(Client::builder(&cluster_url(&cluster)));
        let _client = client.connect().await.unwrap();
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

    /// A name whose key stays where it is.
    fn name(&self) -> String {
        loop {
            let name = name();
            let slot = self.cluster.slot(&key(&name));
            if slot != self.slot && self.cluster.owner(slot, 0) == self.at {
                return name;
            }
        }
    }

    fn give_slot_to(&self, owner: usize, told: &[usize]) {
        let id = self.cluster.server(owner).ask(&["CLUSTER", "MYID"]);
        let slot = self.slot.to_string();
        for node in told {
            let server = self.cluster.server(*node);
            server.tell(&["CLUSTER", "SETSLOT", &slot, "NODE", id.text()]);
        }
    }

    /// Moves the slot while the node is stopped and requests of every client lie in its sockets.
    async fn move_slot_under_load(&self) {
        self.give_slot_to(self.to, &[self.to]);
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

/// One slot move beneath all clients; returns how many locks had two holders.
async fn second_holders(stage: &Stage, url: &str) -> usize {
    let connect = || async { Client::connect(url).await.unwrap() };
    let holder = connect().await;
    let (mut held, mut ends_by_itself, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let waiter = connect().await;
        let (ends, stays) = (stage.name(), stage.name());
        held.push((
            waiter.fair_mutex(&stays),
            holder.fair_mutex(&stays).lock().await.unwrap(),
        ));
        // It ends while the node is stopped: the reply to its waiter's request is a grant.
        let ending = holder
            .fair_mutex(&ends)
            .lock()
            .lease(Duration::from_millis(1400));
        ends_by_itself.push(ending.await.unwrap());
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
    stage.move_slot_under_load().await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let mut doubles = 0;
    for (waiter, (_, guard)) in waiters.into_iter().zip(&held) {
        if waiter.is_finished() && matches!(waiter.await, Ok(Ok(_))) && guard.check().is_ok() {
            doubles += 1;
        }
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    stage.give_slot_to(stage.at, &[stage.at, stage.to]);
    doubles
}

#[test]
#[ignore = "deep: a thousand rounds on each server"]
fn slot_moves_make_no_second_holder() {
    for flavor in Flavor::all() {
        run(async {
            let stage = Stage::new(&flavor).await;
            let url = cluster_url(&stage.cluster);
            let moves = scaled(1000) / CLIENTS as u64;
            let mut doubles = 0;
            for _ in 0..moves {
                doubles += second_holders(&stage, &url).await;
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
