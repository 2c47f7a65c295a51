//! A majority of five: minorities that fail cost nothing, majorities that fail are told, and nothing is forgotten.

use std::time::{Duration, Instant};

use leasehold::{Error, Loss, Quorum, QuorumBuilder, ReleaseOutcome};
use testkit::{Fault, Flavor, Proxy, Server};

use crate::deployment::{Deployment, Five, builder_of};
use crate::support::{AMPLE, LEASE, SHORT, eventually, key, name, percentile, run, scaled, url_at};

/// How long a node has to answer unless a test says otherwise.
const DEFAULT: Duration = Duration::from_millis(200);

/// Each of the five behind a network of its own.
struct Networked {
    five: Five,
    proxies: Vec<Proxy>,
}

impl Networked {
    fn start() -> Self {
        let five = Five::start(&Flavor::one());
        let ports = five.servers.iter().map(Server::port);
        let proxies = ports.map(Proxy::start).collect();
        Self { five, proxies }
    }

    fn builder(&self) -> QuorumBuilder {
        let ports = self.proxies.iter().map(Proxy::port);
        builder_of(ports.map(url_at).collect())
    }

    /// Brings two nodes into a state, or both of them back.
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

/// With timeouts that a stall of the machine does not reach.
fn patient(builder: QuorumBuilder) -> QuorumBuilder {
    builder.request_timeout(LEASE / 2).connect_timeout(LEASE)
}

/// How long so many acquisitions took, sorted.
async fn acquire(quorum: &Quorum, count: u64) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..count {
        let name = name();
        let start = Instant::now();
        let guard = quorum.mutex(&name).lock().await.unwrap();
        times.push(start.elapsed());
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    }
    times.sort_unstable();
    times
}

#[test]
fn quorum_without_two_of_five_grants_and_releases() {
    run(async {
        let mut net = Networked::start();
        let quorum = net.builder().connect().await.unwrap();
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
fn two_of_five_that_are_slow_cut_off_or_dead_cost_nothing() {
    run(async {
        let mut net = Networked::start();
        let builder = net.builder().request_timeout(DEFAULT);
        let quorum = builder.connect().await.unwrap();
        acquire(&quorum, 50).await;
        for state in STATES {
            // Healthy and not, one after the other, so that both see the same machine.
            let (mut well, mut ill) = (Vec::new(), Vec::new());
            for _ in 0..2 {
                well.extend(acquire(&quorum, 100).await);
                net.set(state, true);
                ill.extend(acquire(&quorum, 100).await);
                net.set(state, false);
                // What was sent to them is worked off.
                tokio::time::sleep(Duration::from_millis(1500)).await;
            }
            well.sort_unstable();
            ill.sort_unstable();
            let (well, ill) = (percentile(&well, 500), percentile(&ill, 500));
            let ratio = ill.as_secs_f64() / well.as_secs_f64();
            println!("two {state}: p50 {ill:?} against {well:?}, {ratio:.2} times");
            assert!(ratio <= 1.5, "two {state}: {ratio:.2}");
        }
        for index in [1, 3] {
            net.five.servers[index].kill();
        }
        acquire(&quorum, 50).await;
    });
}

#[test]
fn three_of_five_dead_is_told_in_time_and_leaves_nothing() {
    lose_majority(AMPLE, AMPLE);
}

#[test]
#[ignore = "deep: measures how soon errors are returned"]
fn majority_that_is_dead_is_reported_in_time() {
    lose_majority(Duration::from_millis(1500), Duration::from_secs(4));
}

/// An attempt must fail within `limit`, and a connect within `connect_limit`.
fn lose_majority(limit: Duration, connect_limit: Duration) {
    run(async {
        let mut five = Five::start(&Flavor::one());
        let builder = || five.builder().request_timeout(DEFAULT);
        // Long enough that a stall does not end it at the nodes, which would be reported as another loss.
        let holding = builder().lease(LEASE / 2).connect_timeout(LEASE);
        let quorum = holding.connect().await.unwrap();
        let late = builder().connect_timeout(Duration::from_secs(2));
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
        let none = || five.having(&name) == 0;
        eventually("nothing left", none).await;
        assert_eq!(held.lost().await, Some(Loss::Expired));
        let start = Instant::now();
        let error = late.connect().await.unwrap_err();
        assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
        assert!(start.elapsed() < connect_limit);
    });
}

#[test]
fn a_node_started_again_votes_when_every_lease_has_ended_and_is_filled_in() {
    run(async {
        const LONGEST: Duration = Duration::from_secs(8);
        let mut five = Five::start(&Flavor::one());
        let builder = five.builder().lease(LONGEST).max_lease(LONGEST);
        let quorum = builder.connect().await.unwrap();
        let name = name();
        let held = quorum.mutex(&name).lock().await.unwrap();
        eventually("at all", || five.having(&name) == 5).await;
        let restarted = Instant::now();
        five.servers[0].restart();
        five.servers[3].restart();
        // A third of them gone would be one too many: the two do not vote yet.
        loop {
            let having = five.having(&name);
            let after = restarted.elapsed();
            if after >= LONGEST {
                break;
            }
            assert_eq!(having, 3, "let in early, after {after:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        eventually("let in and filled in", || five.having(&name) == 5).await;
        held.check().unwrap();
        assert_eq!(held.release().await.unwrap(), ReleaseOutcome::Released);
        let of_most = || five.having(&name) <= 2;
        eventually("released", of_most).await;
        // One that did not hear of it forgets it with the lease.
        eventually("gone", || five.having(&name) == 0).await;
    });
}

#[test]
fn a_majority_that_forgot_is_not_trusted_until_told() {
    run(async {
        const LONGEST: Duration = Duration::from_secs(1);
        let mut five = Five::start(&Flavor::one());
        let builder = five.builder().lease(SHORT).max_lease(LONGEST);
        let quorum = builder.connect().await.unwrap();
        let name = name();
        let first = quorum.mutex(&name).lock().await.unwrap();
        let token = first.token();
        for index in [0, 1, 2] {
            five.servers[index].restart();
        }
        assert!(first.lost().await.is_some());
        tokio::time::sleep(LONGEST + Duration::from_secs(2)).await;
        let error = quorum.mutex(&name).try_lock().await.unwrap_err();
        assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
        five.builder().bootstrap().await.unwrap();
        let again = quorum.mutex(&name).lock().await.unwrap();
        assert!(again.token() > token);
    });
}

#[test]
fn a_virgin_quorum_must_be_founded_and_all_must_be_there() {
    run(async {
        let servers: Vec<_> = (0..3).map(|_| Server::start(&Flavor::one())).collect();
        let urls: Vec<_> = servers
            .iter()
            .map(|server| format!("redis://127.0.0.1:{}", server.port()))
            .collect();
        let error = Quorum::connect(urls.clone()).await.unwrap_err();
        assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
        let mut more = urls.clone();
        more[2] = "redis://127.0.0.1:1".to_owned();
        let error = Quorum::builder(more).bootstrap().await.unwrap_err();
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
        let wrong = patient(Quorum::builder(wrong)).connect_timeout(LEASE / 2);
        let error = wrong.connect().await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error:?}");
        patient(Quorum::builder(urls.clone()))
            .bootstrap()
            .await
            .unwrap();
        let quorum = patient(Quorum::builder(urls)).connect().await.unwrap();
        let mutex = quorum.mutex(&name());
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
fn a_quorum_outlives_the_runtime_that_connected_it() {
    let five = Five::start(&Flavor::one());
    let quorum = run(async {
        let quorum = five.builder().connect().await.unwrap();
        acquire(&quorum, 3).await;
        quorum
    });
    for _ in 0..3 {
        run(async {
            let mutex = quorum.mutex(&name());
            let guard = mutex.lock().timeout(AMPLE).await.unwrap();
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        });
    }
}

#[test]
fn a_key_of_another_type_is_told() {
    run(async {
        let five = Five::start(&Flavor::one());
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
fn many_who_try_at_once_all_get_their_turn() {
    run(async {
        let five = Five::start(&Flavor::one());
        let (name, turns) = (name(), scaled(10));
        let mut tasks = Vec::new();
        for _ in 0..6 {
            let quorum = five.builder().connect().await.unwrap();
            let mutex = quorum.mutex(&name);
            tasks.push(tokio::spawn(async move {
                let mut tokens = Vec::new();
                for _ in 0..turns {
                    let guard = mutex.lock().timeout(AMPLE).await.unwrap();
                    tokens.push(guard.token());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
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
        assert_eq!(tokens.len() as u64, 6 * turns, "a token was given twice");
    });
}
