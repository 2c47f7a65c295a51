//! Moves to a quorum and to a cluster, and what a move costs.

use leasehold::{Error, Lease, MultiLock, Mutex};
use testkit::{Fault, Flavor, Proxy, ServerExt, Setup};

use super::{Rising, token_of};
use crate::support::deployment::{Deployment, FiveServers, cluster};
use crate::support::{AMPLE, LEASE, client, connect_at, name, run, server, with_least_privilege};

/// Holds the lock on both servers, and then on each of them.
async fn hold_both_then_each([old, new]: [Mutex; 2], rising: &mut Rising) {
    let both = MultiLock::moving(old.lock(), new.lock()).await.unwrap();
    rising.see(token_of(&both, <Lease>::token), "both");
    both.release().await.unwrap();
    for mutex in [old, new] {
        let guard = mutex.lock().timeout(AMPLE).await.unwrap();
        assert!(rising.0 < Some(guard.token()));
        guard.release().await.unwrap();
    }
}

#[test]
fn quorum_as_new_server_records_tokens() {
    run(async {
        let flavor = &Flavor::all()[0];
        let old = with_least_privilege(Setup::default().movable_clock(), flavor);
        let five = FiveServers::with(&Setup::default(), flavor);
        // The quorum's clocks are behind by half a minute.
        old.set_clock(30);
        let (from, to) = (client(&old).await, five.client().await);
        let (name, mut rising) = (name(), Rising(None));
        for _ in 0..3 {
            hold_both_then_each([from.mutex(&name), to.mutex(&name)], &mut rising).await;
        }
        // By more than the nodes accept.
        old.set_clock(300);
        let from = client(&old).await;
        let both = MultiLock::moving(from.mutex(&name).lock(), to.mutex(&name).lock());
        let error = both.await.unwrap_err();
        assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
        for mutex in [from.mutex(&name), to.mutex(&name)] {
            mutex
                .lock()
                .timeout(AMPLE)
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
    });
}

#[test]
fn cluster_as_new_server_records_tokens() {
    run(async {
        let old = server();
        let cluster = cluster(&Flavor::one());
        let (from, to) = (client(&old).await, cluster.client().await);
        for round in 0..8 {
            let (name, mut rising) = (format!("{round}"), Rising(None));
            for _ in 0..2 {
                hold_both_then_each([from.mutex(&name), to.mutex(&name)], &mut rising).await;
            }
        }
    });
}

/// Both servers get the requests of an ordinary pair. One of them records the
/// larger token.
#[test]
fn pair_costs_two_pairs_and_a_recording() {
    run(async {
        let (old, new) = (server(), server());
        let proxies = [&old, &new].map(|server| Proxy::start(server.port()));
        let connect = |proxy: &Proxy| connect_at(proxy.port()).lease(LEASE * 100);
        let (from, to) = (
            connect(&proxies[0]).await.unwrap(),
            connect(&proxies[1]).await.unwrap(),
        );
        let recordings = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
        for proxy in &proxies {
            let counted = recordings.clone();
            proxy.inject(move |request| {
                let counter = |arg: &Vec<u8>| arg.starts_with(b"leasehold:token:");
                if request[0].starts_with(b"EVAL") && request.iter().any(counter) {
                    counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                }
                Fault::None
            });
        }
        let recordings = || recordings.load(std::sync::atomic::Ordering::SeqCst);
        let both = || MultiLock::moving(from.mutex("n").lock(), to.mutex("n").lock());
        for _ in 0..3 {
            both().await.unwrap().release().await.unwrap();
        }
        let sum = || proxies.iter().map(Proxy::requests).sum::<u64>();
        let mut costs = Vec::new();
        for _ in 0..100 {
            let (before, recorded) = (sum(), recordings());
            both().await.unwrap().release().await.unwrap();
            costs.push((recordings() - recorded, sum() - before));
        }
        // During a stall, a pair that its caller does not take in time is
        // acquired again.
        costs.sort_unstable();
        let (recorded, requests) = costs[costs.len() / 2];
        assert!(recorded <= 1, "{costs:?}");
        // Three or four for each server, as without the other one, and a
        // renewal after the recording.
        assert!(requests <= 10, "{costs:?}");
    });
}
