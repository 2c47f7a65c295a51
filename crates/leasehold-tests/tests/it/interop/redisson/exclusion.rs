//! Hold, wait and crash on both sides, for every lock and every pair
//! of operations.

use std::time::{Duration, Instant};

use leasehold::{Error, Loss};
use testkit::{Cluster, Flavor, Redisson as Java, RedissonConfig, Reply, ServerExt, Setup};
use tokio::runtime::Handle;

use super::sharing::{
    latch_opens, permits_are_exchanged, permits_are_renewed, permits_expire, permits_stay_renewed,
    readers_and_writers, spin_lock_is_polled, tokens_increase,
};
use crate::support::deployment::{cluster_url, oldest_and_newest};
use crate::support::redisson::{
    Harness, LONG_WATCHDOG, ONCE, PROMPT, Pace, WATCHDOG, acquire, acquire_now, acquire_reentrant,
    acquire_with_lease, client, force_unlock, is_refused, redisson_of, rule, server,
    with_all_versions, with_newest,
};
use crate::support::worker;
use crate::support::{AMPLE, LEASE, SHORT, eventually, loss_of, name, run, url_at};

/// Both sides, a pair of lock types and a name.
struct LockPairing<'a> {
    harness: &'a Harness<'a>,
    /// The lock type of the Rust side.
    rust_kind: &'a str,
    /// The lock type of the Java side.
    java_kind: &'a str,
    name: String,
}

/// The pairs of a Rust and a Java lock type that exclude each other.
const PAIRS: [(&str, &str); 6] = [
    ("lock", "lock"),
    ("fenced", "fenced"),
    ("fair", "fair"),
    ("write", "write"),
    ("read", "write"),
    ("write", "read"),
];

impl<'a> LockPairing<'a> {
    fn new(harness: &'a Harness<'a>, (rust_kind, java_kind): (&'a str, &'a str)) -> Self {
        Self {
            harness,
            rust_kind,
            java_kind,
            name: name(),
        }
    }

    fn java(&self, thread: &str, method: &str) -> String {
        let java = self.harness.java;
        java.ask(&self.thread(thread), &self.command(method))
    }

    /// Revokes the Rust lock from Java.
    fn force_unlock_from_java(&self) -> String {
        let command = format!("lock {}/force {}", self.rust_kind, self.name);
        self.harness.java.ask(&self.thread("b"), &command)
    }

    /// Keeps the threads of one pairing apart from those of another.
    fn thread(&self, thread: &str) -> String {
        format!("{thread}:{}", self.name)
    }

    fn command(&self, method: &str) -> String {
        let (method, argument) = method.split_once(' ').unwrap_or((method, ""));
        format!("lock {}/{method} {} {argument}", self.java_kind, self.name)
    }

    fn server(&self, words: &[&str]) -> Reply {
        self.harness.servers[0].ask(words)
    }

    /// Asserts that each side is excluded while the other holds the lock, and
    /// acquires it after the release.
    async fn exclude_and_wake(&self) {
        let (ours, rust_kind, name) = (&self.harness.ours, self.rust_kind, &self.name);
        for round in 0..self.harness.pace.rounds {
            let held = acquire_now(ours, rust_kind, name).await;
            assert_eq!(self.java("a", "try"), "false");
            let (thread, command) = (self.thread("a"), self.command("lock"));
            let release = async || {
                assert!(held.check().is_ok());
                held.release_held().await;
            };
            let woken = self
                .harness
                .assert_java_woken(round, (&thread, command), release);
            assert_eq!(woken.await.text, "ok");

            assert!(is_refused(ours, rust_kind, name).await);
            let waiting = acquire(ours, rust_kind, name, AMPLE);
            let woken = self.harness.assert_rust_woken(round, name, waiting, || {
                assert_eq!(self.java("a", "unlock"), "ok");
            });
            woken.await.unwrap().release_held().await;
        }
    }

    /// Asserts that the server counts entries, and that the lock is free only
    /// after as many exits.
    async fn reenter(&self) {
        let (ours, rust_kind, name) = (&self.harness.ours, self.rust_kind, &self.name);
        let count = || {
            let fields = self.server(&["HVALS", name]);
            let counts = fields.list().iter().map(Reply::text);
            counts
                .filter_map(|count| count.parse::<u32>().ok())
                .collect::<Vec<_>>()
        };
        let first = acquire_reentrant(ours, rust_kind, name).await;
        let second = first.reacquire().await;
        eventually("the lock is entered twice", || count() == [2]).await;
        drop(second);
        eventually("the lock is left once", || count() == [1]).await;
        assert_eq!(self.java("a", "try"), "false");
        first.release_held().await;
        assert_eq!(self.java("a", "lock"), "ok");
        assert_eq!(self.java("a", "lock"), "ok");
        assert_eq!(count(), [2]);
        assert_eq!(self.java("a", "unlock"), "ok");
        assert_eq!(count(), [1]);
        assert!(is_refused(ours, rust_kind, name).await);
        assert_eq!(self.java("a", "unlock"), "ok");
        assert!(!is_refused(ours, rust_kind, name).await);
    }

    /// Asserts that a lock revoked by one side is lost on the other.
    async fn force_unlock(&self) {
        let (ours, rust_kind, name) = (&self.harness.ours, self.rust_kind, &self.name);
        assert_eq!(self.java("a", "lock"), "ok");
        assert!(force_unlock(ours, self.java_kind, name).await);
        assert_eq!(self.java("a", "held"), "false");
        // The holder notices at its next renewal.
        let renewing = ours.clone().watchdog(LEASE);
        let held = acquire_now(&renewing, rust_kind, name).await;
        assert_eq!(self.force_unlock_from_java(), "true");
        let limit = self.harness.pace.limit.max(LEASE);
        let lost = tokio::time::timeout(limit, held.lost()).await;
        assert_eq!(lost, Ok(Some(Loss::Revoked)));
        assert_eq!(loss_of(held.release().await), Some(Loss::Revoked));
        assert!(!force_unlock(ours, self.java_kind, name).await);
        assert_eq!(self.force_unlock_from_java(), "false");
        // A holder that has not noticed yet revokes nothing from the next
        // holder.
        let held = acquire_now(ours, rust_kind, name).await;
        assert_eq!(self.force_unlock_from_java(), "true");
        assert_eq!(self.java("b", "try"), "true");
        assert_eq!(loss_of(held.release().await), Some(Loss::Revoked));
        assert_eq!(self.java("b", "held"), "true");
        assert_eq!(self.java("b", "unlock"), "ok");
    }

    /// Asserts that the keeper extends the lease while `meanwhile` runs.
    async fn renew(&self, meanwhile: impl Future<Output = ()>) {
        let kept = Self::new(self.harness, (self.rust_kind, self.java_kind));
        let renewing = self.harness.ours.clone().watchdog(LEASE);
        let held = acquire_now(&renewing, kept.rust_kind, &kept.name).await;
        let end = || self.server(&["PEXPIRETIME", &kept.name]).int();
        let first_end = end();
        meanwhile.await;
        eventually("the lease is renewed", || end() > first_end).await;
        assert_eq!(kept.java("a", "try"), "false");
        held.release_held().await;
        assert_eq!(kept.java("a", "try"), "true");
    }

    /// Asserts that each side keeps its lock for three leases.
    async fn renew_for_three_leases(&self) {
        let ours = &self.harness.ours.clone().watchdog(WATCHDOG);
        let held = acquire_now(ours, self.rust_kind, &self.name).await;
        let start = Instant::now();
        while start.elapsed() < 3 * WATCHDOG {
            assert_eq!(self.java("a", "try"), "false");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        held.release_held().await;
        assert_eq!(self.java("a", "lock"), "ok");
        let start = Instant::now();
        while start.elapsed() < 3 * WATCHDOG {
            assert!(is_refused(ours, self.rust_kind, &self.name).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(self.java("a", "unlock"), "ok");
    }
}

/// Runs `test` with all pairs of lock types in parallel.
fn for_all_pairs<'a>(harness: &'a Harness<'a>, test: impl AsyncFn(&LockPairing<'a>) + Sync) {
    std::thread::scope(|scope| {
        let test = &test;
        let running: Vec<_> = PAIRS
            .into_iter()
            .map(|pair| {
                let runtime = Handle::current();
                let body = move || runtime.block_on(test(&LockPairing::new(harness, pair)));
                (pair, scope.spawn(body))
            })
            .collect();
        for (pair, pairing) in running {
            assert!(pairing.join().is_ok(), "failed with {pair:?}");
        }
    });
}

/// Asserts that both sides exclude and wake each other, one pair after another.
async fn exclude_in_turn(harness: &Harness<'_>) {
    for pair in PAIRS {
        LockPairing::new(harness, pair).exclude_and_wake().await;
    }
}

#[test]
fn both_sides_exclude_wake_and_revoke() {
    with_all_versions(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(
            version,
            &RedissonConfig::single(server.port(), LONG_WATCHDOG),
        );
        run(async {
            let harness = Harness::new(&java, &server, ONCE).await;
            for_all_pairs(&harness, async |pairing| {
                pairing.exclude_and_wake().await;
                pairing.reenter().await;
                pairing.renew(pairing.force_unlock()).await;
            });
        });
    });
}

#[test]
#[ignore = "deep: measures how soon waiters are woken"]
fn both_sides_wake_each_other_promptly() {
    for version in Java::versions() {
        let server = server(&Flavor::one());
        let java = Java::start(
            version,
            &RedissonConfig::single(server.port(), LONG_WATCHDOG),
        );
        run(async {
            let harness = Harness::new(&java, &server, PROMPT).await;
            exclude_in_turn(&harness).await;
            for_all_pairs(&harness, async |pairing| pairing.force_unlock().await);
        });
    }
}

#[test]
#[ignore = "deep: waits for three watchdogs that a stall would let expire"]
fn both_sides_renew_for_three_watchdogs() {
    for version in Java::versions() {
        let server = server(&Flavor::one());
        let java = Java::start(version, &RedissonConfig::single(server.port(), WATCHDOG));
        run(async {
            let harness = Harness::new(&java, &server, ONCE).await;
            for_all_pairs(&harness, async |pairing| {
                pairing.renew_for_three_leases().await;
            });
            permits_stay_renewed(&harness).await;
        });
    }
}

#[test]
#[ignore = "deep: measures how soon waiters are woken, on other servers"]
fn newer_servers_interoperate() {
    with_newest(|version| {
        for flavor in oldest_and_newest().iter().skip(1) {
            let server = server(flavor);
            let java = Java::start(
                version,
                &RedissonConfig::single(server.port(), LONG_WATCHDOG),
            );
            run(async {
                exclude_in_turn(&Harness::new(&java, &server, PROMPT).await).await;
            });
        }
    });
}

/// Runs `scene` in a cluster of three masters.
fn in_cluster(replicated: bool, pace: Pace, scene: &impl AsyncFn(&Harness<'_>)) {
    with_newest(|version| {
        let setup = Setup::default().user(&format!("{} +cluster|slots +asking", rule()));
        let cluster = Cluster::start(&setup, &Flavor::one(), 3, replicated);
        for server in cluster.servers() {
            // No node marks another as failed after a stall.
            server.tell(&["CONFIG", "SET", "cluster-node-timeout", "60000"]);
        }
        let java = Java::start(
            version,
            &RedissonConfig::cluster(&cluster.hosts(), LONG_WATCHDOG),
        );
        run(async {
            let harness = Harness {
                java: &java,
                ours: redisson_of(&client(&cluster_url(&cluster)).await),
                servers: cluster.servers().iter().collect(),
                pace,
            };
            exclude_in_turn(&harness).await;
            scene(&harness).await;
        });
    });
}

/// A Java waiter depends on the messages in sharded channels.
#[test]
fn cluster_lock_excludes_and_wakes_both_sides() {
    in_cluster(false, ONCE, &async |harness: &Harness<'_>| {
        for name in ["a}b", "a{b", "{}x"] {
            let refused = harness.ours.lock(name).lock().await;
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{name}");
        }
    });
}

#[test]
#[ignore = "deep: measures how soon waiters are woken, in a cluster"]
fn cluster_with_sharded_channels_interoperates() {
    in_cluster(true, PROMPT, &async |harness: &Harness<'_>| {
        for_all_pairs(harness, async |pairing| pairing.force_unlock().await);
        permits_are_exchanged(harness).await;
        latch_opens(harness).await;
        readers_and_writers(harness).await;
    });
}

/// To others, a holder with a fixed lease that never releases equals a crashed
/// one.
#[test]
fn crashed_holder_blocks_until_its_lease_ends() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let mut java = Java::start(
            version,
            &RedissonConfig::single(server.port(), LONG_WATCHDOG),
        );
        run(async {
            let harness = Harness::new(&java, &server, ONCE).await;
            for_all_pairs(&harness, async |pairing| {
                let (ours, rust_kind, name) = (&harness.ours, pairing.rust_kind, &pairing.name);
                let start = Instant::now();
                let held =
                    acquire_with_lease(Some(SHORT), ours, rust_kind, name, Duration::ZERO).await;
                std::mem::forget(held.expect("the lock is free"));
                assert_eq!(pairing.java("a", "lock"), "ok");
                assert!(start.elapsed() >= SHORT);
            });
            let ours = harness.ours.clone();
            let (start, lease) = (Instant::now(), SHORT.as_millis());
            for (_, java_kind) in PAIRS {
                let command = format!("lock {java_kind}/lease doomed:{java_kind} {lease}");
                assert_eq!(java.ask("main", &command), "ok");
            }
            java.kill();
            for (rust_kind, java_kind) in PAIRS {
                let held = acquire(&ours, rust_kind, &format!("doomed:{java_kind}"), AMPLE).await;
                assert!(start.elapsed() >= SHORT);
                held.unwrap().release_held().await;
            }
        });
    });
}

#[test]
#[ignore = "deep: measures how soon after a crash the lock is free"]
fn killed_holder_blocks_for_at_most_one_watchdog() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let fleet = RedissonConfig::single(server.port(), WATCHDOG);
        let java = Java::start(version, &fleet);
        let url = url_at(server.port());
        run(async {
            let harness = Harness::new(&java, &server, ONCE).await;
            for_all_pairs(&harness, async |pairing| {
                let mut worker = worker::start_at(&url, WATCHDOG);
                let command = format!("hold-shared {} {}", pairing.rust_kind, pairing.name);
                assert_eq!(worker.ask(&command), "held");
                java.tell(&pairing.thread("a"), &pairing.command("lock"));
                tokio::time::sleep(WATCHDOG * 2).await;
                worker.kill();
                let killed = Instant::now();
                let taken = java.response(&pairing.thread("a"));
                assert_eq!(taken.text, "ok");
                let waited = taken.at - killed;
                // The last renewal was up to a third of the lease ago, and the
                // other side retries when the lease ends.
                assert!(waited > WATCHDOG / 3 && waited < WATCHDOG * 2, "{waited:?}");
            });
            let mut dying = Java::start(version, &fleet);
            for (_, java_kind) in PAIRS {
                let locked =
                    dying.ask("main", &format!("lock {java_kind}/lock doomed:{java_kind}"));
                assert_eq!(locked, "ok");
            }
            tokio::time::sleep(WATCHDOG * 2).await;
            dying.kill();
            let killed = Instant::now();
            for (rust_kind, java_kind) in PAIRS {
                let name = format!("doomed:{java_kind}");
                let held = acquire(&harness.ours, rust_kind, &name, AMPLE).await;
                let waited = killed.elapsed();
                let limit = WATCHDOG + Duration::from_millis(1200);
                assert!(waited < limit, "{waited:?}");
                held.unwrap().release_held().await;
            }
        });
    });
}

#[test]
fn readers_permits_and_latches_are_shared() {
    with_all_versions(|version| share_objects(version, ONCE));
}

#[test]
#[ignore = "deep: measures how soon waiters are woken"]
fn readers_permits_and_latches_wake_promptly() {
    for version in Java::versions() {
        share_objects(version, PROMPT);
    }
}

fn share_objects(version: &str, pace: Pace) {
    let server = server(&Flavor::one());
    let java = Java::start(
        version,
        &RedissonConfig::single(server.port(), LONG_WATCHDOG),
    );
    let run_scenes = async {
        let harness = Harness::new(&java, &server, pace).await;
        readers_and_writers(&harness).await;
        permits_are_exchanged(&harness).await;
        permits_expire(&harness).await;
        latch_opens(&harness).await;
        tokens_increase(&harness).await;
        spin_lock_is_polled(&harness).await;
    };
    let renew_permits = async {
        let harness = Harness::new(&java, &server, pace).await;
        permits_are_renewed(&harness).await;
    };
    // On two threads: a call to Java blocks its thread, and a request that is
    // not polled meanwhile would be cancelled.
    std::thread::scope(|scope| {
        scope.spawn(|| run(renew_permits));
        run(run_scenes);
    });
}

#[test]
fn both_sides_map_names_to_same_keys() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let fleet = RedissonConfig {
            prefix: "app:".to_owned(),
            ..RedissonConfig::single(server.port(), LONG_WATCHDOG)
        };
        let java = Java::start(version, &fleet);
        run(async {
            let mut harness = Harness::new(&java, &server, ONCE).await;
            harness.ours = harness.ours.prefix("app:");
            for name in ["plain", "{tagged}:name"] {
                let held = acquire_now(&harness.ours, "lock", name).await;
                assert_eq!(java.ask("a", &format!("lock lock/try {name}")), "false");
                let command = format!("lock lock/lock {name}");
                let release = async || held.release_held().await;
                let woken = harness.assert_java_woken(0, ("a", command), release).await;
                assert_eq!(woken.text, "ok");
                let key = format!("app:{name}");
                assert_eq!(server.ask(&["EXISTS", &key]).int(), 1);
            }
        });
    });
}
