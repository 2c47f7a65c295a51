//! Bugs of quorums: votes and errors.

use std::time::{Duration, Instant};

use leasehold::Error;
use testkit::{Fault, Flavor, Proxy, Server, ServerExt};

use crate::support::deployment::{Deployment, FiveServers, LONGEST, connect_to_quorum};
use crate::support::{AMPLE, eventually, is_busy, key, name, run, url_at};

/// Returns the highest token that the node has granted for the only lock.
fn highest_vote(server: &Server) -> String {
    let keys = server.ask(&["KEYS", "leasehold:votes:*"]);
    let vote = server.ask(&["GET", keys.list()[0].text()]);
    vote.text().to_owned()
}

/// A client that found the lock held left its votes on the other nodes for a
/// whole lease. Meanwhile the lock needed all of the remaining nodes.
#[test]
fn votes_of_the_loser_are_withdrawn() {
    run(async {
        let five = FiveServers::start(&Flavor::one());
        let ours = five.client().await;
        let lease = AMPLE * 2;
        let builder = five.quorum().lease(lease).max_lease(lease * 2);
        let theirs = builder.await.unwrap();
        let name = name();
        let lock = ours.mutex(&name).lock();
        let guard = lock.fixed_lease(LONGEST).await.unwrap();
        let everywhere = || five.count_with_key(&name) == 5;
        eventually("all nodes have granted the lock", everywhere).await;
        let others = &five.servers[3..];
        let votes = || others.iter().map(highest_vote).collect::<Vec<_>>();
        let before = votes();
        for server in others {
            server.tell(&["DEL", &key(&name)]);
        }

        assert!(is_busy(theirs.mutex(&name).try_lock()).await);
        eventually("the other nodes vote for the loser", || {
            votes()
                .iter()
                .zip(&before)
                .all(|(now, before)| now != before)
        })
        .await;
        let withdrawn = || five.count_with_key(&name) == 3;
        eventually("the votes are withdrawn", withdrawn).await;
        guard.release().await.unwrap();
    });
}

/// The error did not state how many nodes had replied, or why one had not.
#[test]
fn error_states_replies_and_the_first_failure() {
    run(async {
        let mut five = FiveServers::start(&Flavor::one());
        let quorum = five.client().await;
        let name = name();
        let lock = quorum.mutex(&name).lock();
        let guard = lock.fixed_lease(LONGEST).await.unwrap();
        for index in [0, 2, 4] {
            five.servers[index].kill();
        }
        let extended = guard.extend(LONGEST).await;
        let Err(Error::OutcomeUnknown(cause)) = extended else {
            panic!("{extended:?}");
        };
        let expected = " of 5 nodes have replied, 3 are needed; node 1: ";
        assert!(cause.to_string().contains(expected), "{cause}");
        let tried = quorum.mutex(&name).try_lock().await;
        let Err(Error::NoQuorum(cause)) = tried else {
            panic!("{tried:?}");
        };
        let expected = " of 5 nodes can vote, 3 are needed; node 1: ";
        assert!(cause.to_string().contains(expected), "{cause}");
    });
}

/// A shutdown waited for a node that was slow, although a majority had released
/// the locks.
#[test]
fn slow_node_does_not_delay_shutdown() {
    run(async {
        let five = FiveServers::start(&Flavor::one());
        let proxy = Proxy::start(five.servers[4].port());
        let mut urls = five.urls();
        urls[4] = url_at(proxy.port());
        let builder = connect_to_quorum(urls).lease(Duration::from_secs(3));
        let timeout = Duration::from_secs(1);
        let quorum = builder.request_timeout(timeout).await.unwrap();
        let mut guards = Vec::new();
        for _ in 0..100 {
            guards.push(quorum.mutex(&name()).lock().await.unwrap());
        }
        // Renewals come faster than it replies, so it is never silent.
        proxy.inject(|_| Fault::Delay(Duration::from_millis(50)));
        tokio::time::sleep(Duration::from_secs(5)).await;
        let start = Instant::now();
        drop(guards);
        quorum.shutdown(AMPLE).await.unwrap();
        let elapsed = start.elapsed();
        assert!(elapsed < timeout * 8, "{elapsed:?}");
    });
}
