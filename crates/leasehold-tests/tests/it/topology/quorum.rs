//! Quorums of five: a failed minority costs nothing, a failed majority is
//! reported, and no lock is granted twice.

use std::time::{Duration, Instant};

use leasehold::{Connect, Error, Loss, Quorum};
use testkit::{Fault, Flavor, Proxy, Server, ServerExt};

use crate::support::deployment::{Deployment, FiveServers, connect_to_quorum};
use crate::support::{AMPLE, LEASE, SHORT, eventually, key, name, percentile, run, scaled, url_at};

/// The request timeout of a node, unless a test sets its own.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(200);

/// Five servers, each behind its own proxy.
struct ProxiedServers {
    five: FiveServers,
    proxies: Vec<Proxy>,
}

impl ProxiedServers {
    fn start() -> Self {
        let five = FiveServers::start(&Flavor::one());
        let ports = five.servers.iter().map(Server::port);
        let proxies = ports.map(Proxy::start).collect();
        Self { five, proxies }
    }

    fn builder(&self) -> Connect<Quorum> {
        let ports = self.proxies.iter().map(Proxy::port);
        connect_to_quorum(ports.map(url_at).collect())
    }

    /// Puts two nodes into a state, or restores them.
    fn set(&self, state: &str, on: bool) {
        for index in [1, 3] {
            let (proxy, server) = (&self.proxies[index], &self.five.servers[index]);
            match (state, on) {
                ("slow", true) => proxy.inject(|_| Fault::Delay(Duration::from_secs(1))),
                ("slow", false) => proxy.inject(|_| Fault::None),
                ("cut off", _) => proxy.black_hole(on),
                (_, true) => server.pause(),
                (_, false) => server.resume(),
            }
        }
    }
}

const STATES: [&str; 3] = ["slow", "cut off", "paused"];

/// Sets timeouts that survive a stall of the machine.
fn with_long_timeouts(builder: Connect<Quorum>) -> Connect<Quorum> {
    builder.request_timeout(LEASE / 2).connect_timeout(LEASE)
}

/// Returns the sorted durations of `count` acquisitions.
async fn acquire(quorum: &Quorum, count: u64) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..count {
        let name = name();
        let start = Instant::now();
        let guard = quorum.mutex(&name).lock().await.unwrap();
        times.push(start.elapsed());
        guard.release().await.unwrap();
    }
    times.sort_unstable();
    times
}

#[test]
fn minority_failure_keeps_quorum_working() {
    run(async {
        let mut net = ProxiedServers::start();
        let quorum = net.builder().await.unwrap();
        for state in STATES {
            net.set(state, true);
            acquire(&quorum, scaled(3)).await;
            net.set(state, false);
        }
        for index in [1, 3] {
            net.five.servers[index].kill();
        }
        acquire(&quorum, scaled(3)).await;
    });
}

#[test]
#[ignore = "deep: compares latencies"]
fn minority_failure_adds_no_latency() {
    run(async {
        let mut net = ProxiedServers::start();
        let builder = net.builder().request_timeout(REQUEST_TIMEOUT);
        let quorum = builder.await.unwrap();
        acquire(&quorum, 50).await;
        for state in STATES {
            // Alternate, so that both see the same machine.
            let (mut healthy, mut impaired) = (Vec::new(), Vec::new());
            for _ in 0..2 {
                healthy.extend(acquire(&quorum, 100).await);
                net.set(state, true);
                impaired.extend(acquire(&quorum, 100).await);
                net.set(state, false);
                // Let the nodes finish what was sent to them.
                tokio::time::sleep(Duration::from_millis(1500)).await;
            }
            healthy.sort_unstable();
            impaired.sort_unstable();
            let (healthy, impaired) = (percentile(&healthy, 500), percentile(&impaired, 500));
            let ratio = impaired.as_secs_f64() / healthy.as_secs_f64();
            println!("two {state}: p50 {impaired:?} against {healthy:?}, {ratio:.2} times");
            assert!(ratio <= 1.5, "two {state}: {ratio:.2}");
        }
        for index in [1, 3] {
            net.five.servers[index].kill();
        }
        acquire(&quorum, 50).await;
    });
}

#[test]
fn dead_majority_fails_and_leaves_nothing() {
    lose_majority(AMPLE, AMPLE);
}

#[test]
#[ignore = "deep: measures how soon errors are returned"]
fn dead_majority_fails_within_limit() {
    lose_majority(Duration::from_millis(1500), Duration::from_secs(4));
}

/// Kills a majority. An attempt must fail within `limit`, and a connect within
/// `connect_limit`.
fn lose_majority(limit: Duration, connect_limit: Duration) {
    run(async {
        let mut five = FiveServers::start(&Flavor::one());
        let builder = || five.quorum().request_timeout(REQUEST_TIMEOUT);
        // A stall must not expire the lease on the nodes, which would be
        // another loss.
        let holder_builder = builder().lease(LEASE / 2).connect_timeout(LEASE);
        let quorum = holder_builder.await.unwrap();
        let late_builder = builder().connect_timeout(Duration::from_secs(2));
        let held = quorum.mutex(&name()).lock().await.unwrap();
        for index in [0, 2, 4] {
            five.servers[index].kill();
        }
        let name = name();
        for _ in 0..5 {
            let start = Instant::now();
            let error = quorum.mutex(&name).try_lock().await.unwrap_err();
            assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
            let took = start.elapsed();
            assert!(took < limit, "reported after {took:?}");
        }
        let none = || five.count_with_key(&name) == 0;
        eventually("no node has the lock", none).await;
        assert_eq!(held.lost().await, Some(Loss::Expired));
        let start = Instant::now();
        let error = late_builder.await.unwrap_err();
        assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
        assert!(start.elapsed() < connect_limit);
    });
}

#[test]
fn restarted_node_rejoins_after_max_lease() {
    run(async {
        const MAX_LEASE: Duration = Duration::from_secs(8);
        let mut five = FiveServers::start(&Flavor::one());
        let builder = five.quorum().lease(MAX_LEASE).max_lease(MAX_LEASE);
        let quorum = builder.await.unwrap();
        let name = name();
        let held = quorum.mutex(&name).lock().await.unwrap();
        eventually("all nodes have the lock", || {
            five.count_with_key(&name) == 5
        })
        .await;
        let restarted = Instant::now();
        five.servers[0].restart().unwrap();
        five.servers[3].restart().unwrap();
        // The two restarted nodes do not vote yet.
        loop {
            let count = five.count_with_key(&name);
            let after = restarted.elapsed();
            if after >= MAX_LEASE {
                break;
            }
            assert_eq!(count, 3, "rejoined early, after {after:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        eventually("the nodes rejoin and are repaired", || {
            five.count_with_key(&name) == 5
        })
        .await;
        held.check().unwrap();
        held.release().await.unwrap();
        let on_minority = || five.count_with_key(&name) <= 2;
        eventually("the lock is released", on_minority).await;
        // A node that missed the release keeps the lock until its lease ends.
        eventually("no node has the lock", || five.count_with_key(&name) == 0).await;
    });
}

#[test]
fn restarted_majority_requires_bootstrap() {
    run(async {
        const MAX_LEASE: Duration = Duration::from_secs(1);
        let mut five = FiveServers::start(&Flavor::one());
        let builder = five.quorum().lease(SHORT).max_lease(MAX_LEASE);
        let quorum = builder.await.unwrap();
        let name = name();
        let first = quorum.mutex(&name).lock().await.unwrap();
        let token = first.token();
        for index in [0, 1, 2] {
            five.servers[index].restart().unwrap();
        }
        assert!(first.lost().await.is_some());
        tokio::time::sleep(MAX_LEASE + Duration::from_secs(2)).await;
        let error = quorum.mutex(&name).try_lock().await.unwrap_err();
        assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
        let builder = five.quorum().lease(SHORT).max_lease(MAX_LEASE);
        builder.bootstrap().await.unwrap();
        let again = quorum.mutex(&name).lock().await.unwrap();
        assert!(again.token() > token);
    });
}

#[test]
fn bootstrap_waits_for_forgotten_leases() {
    run(async {
        let mut five = FiveServers::start(&Flavor::one());
        let quorum = five.quorum().await.unwrap();
        let name = name();
        let held = quorum.mutex(&name).lock().await.unwrap();
        for index in [0, 1, 2] {
            five.servers[index].restart().unwrap();
        }
        // Two nodes have the lock. The others do not know about it.
        let error = five.quorum().bootstrap().await.unwrap_err();
        assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
        assert!(format!("{error:?}").contains("quarantine"), "{error:?}");
        let other = five.quorum().await.unwrap_err();
        assert!(matches!(other, Error::NoQuorum(_)), "{other:?}");
        let again = quorum.mutex(&name).try_lock().await.unwrap_err();
        assert!(matches!(again, Error::NoQuorum(_)), "{again:?}");
        drop(held);
    });
}

#[test]
fn bootstrap_requires_all_nodes() {
    run(async {
        let servers: Vec<_> = (0..3).map(|_| Flavor::one().start()).collect();
        let urls: Vec<_> = servers
            .iter()
            .map(|server| format!("redis://127.0.0.1:{}", server.port()))
            .collect();
        let error = Quorum::connect(urls.clone()).await.unwrap_err();
        assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
        let mut more = urls.clone();
        more[2] = "redis://127.0.0.1:1".to_owned();
        let error = Quorum::connect(more).bootstrap().await.unwrap_err();
        assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
        for wrong in [
            urls[..2].to_vec(),
            vec!["redis+cluster://127.0.0.1".to_owned(); 3],
            vec!["nonsense".to_owned(); 3],
        ] {
            let error = Quorum::connect(wrong).await.unwrap_err();
            assert!(
                matches!(error, Error::Invalid { what: "url", .. }),
                "{error:?}"
            );
        }
        let wrong = urls
            .iter()
            .map(|url| url.replace("redis://", "redis://u:wrong@"));
        let wrong = with_long_timeouts(Quorum::connect(wrong)).connect_timeout(LEASE / 2);
        let error = wrong.await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
        with_long_timeouts(Quorum::connect(urls.clone()))
            .bootstrap()
            .await
            .unwrap();
        let quorum = with_long_timeouts(Quorum::connect(urls)).await.unwrap();
        let mutex = quorum.mutex(&name());
        for outcome in [
            mutex.lock().lease(Duration::from_secs(61)).await,
            mutex.lock().fixed_lease(Duration::from_secs(61)).await,
        ] {
            let invalid = matches!(outcome, Err(Error::Invalid { what: "lease", .. }));
            assert!(invalid, "{outcome:?}");
        }
        let too_long = mutex
            .lock()
            .lease(Duration::from_secs(61))
            .await
            .unwrap_err();
        assert!(
            matches!(too_long, Error::Invalid { what: "lease", .. }),
            "{too_long:?}"
        );
        let needless = mutex.try_lock().replicas(1, LEASE).await.unwrap_err();
        assert!(
            matches!(
                needless,
                Error::Invalid {
                    what: "replicas",
                    ..
                }
            ),
            "{needless:?}"
        );
        let guard = mutex.lock().await.unwrap();
        let too_long = guard.extend(Duration::from_secs(61)).await.unwrap_err();
        assert!(
            matches!(too_long, Error::Invalid { what: "lease", .. }),
            "{too_long:?}"
        );
    });
}

#[test]
fn quorum_outlives_its_runtime() {
    let five = FiveServers::start(&Flavor::one());
    let quorum = run(async {
        let quorum = five.quorum().await.unwrap();
        acquire(&quorum, 3).await;
        quorum
    });
    for _ in 0..3 {
        run(async {
            let mutex = quorum.mutex(&name());
            let guard = mutex.lock().timeout(AMPLE).await.unwrap();
            guard.release().await.unwrap();
        });
    }
}

#[test]
fn other_data_type_returns_wrong_type() {
    run(async {
        let five = FiveServers::start(&Flavor::one());
        let quorum = five.client().await;
        let name = name();
        for server in &five.servers {
            server.tell(&["RPUSH", &key(&name), "x"]);
        }
        let error = quorum.mutex(&name).lock().await.unwrap_err();
        assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
    });
}

#[test]
fn contending_clients_all_acquire() {
    run(async {
        let five = FiveServers::start(&Flavor::one());
        let (name, turns) = (name(), scaled(10));
        let mut tasks = Vec::new();
        for _ in 0..6 {
            let quorum = five.quorum().await.unwrap();
            let mutex = quorum.mutex(&name);
            tasks.push(tokio::spawn(async move {
                let mut tokens = Vec::new();
                for _ in 0..turns {
                    let guard = mutex.lock().timeout(AMPLE).await.unwrap();
                    tokens.push(guard.token());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    guard.release().await.unwrap();
                }
                tokens
            }));
        }
        let mut tokens = Vec::new();
        for task in tasks {
            tokens.extend(task.await.unwrap());
        }
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len() as u64, 6 * turns, "a token was issued twice");
    });
}

/// A node is down, so the keeper also repairs leases.
#[test]
fn stuck_holder_alone_loses_its_quorum() {
    run(async {
        let mut five = FiveServers::start(&Flavor::one());
        let (client, other) = (five.client().await, five.client().await);
        five.servers[4].kill();
        let (reporting, hung) = (name(), name());
        let lock = client.mutex(&reporting).lock();
        let reporting = lock.progress_within(LEASE / 2).await.unwrap();
        let lock = client.mutex(&hung).lock().lease(LEASE / 2);
        let stuck = lock.progress_within(SHORT / 5).await.unwrap();
        let lost = tokio::time::timeout(AMPLE, stuck.lost());
        let report = async {
            loop {
                reporting.progress();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            loss = lost => assert_eq!(loss.unwrap(), Some(Loss::Stuck)),
            () = report => unreachable!("it reports without end"),
        }
        reporting.check().unwrap();
        let next = other.mutex(&hung).lock().timeout(AMPLE).await.unwrap();
        next.release().await.unwrap();
    });
}
