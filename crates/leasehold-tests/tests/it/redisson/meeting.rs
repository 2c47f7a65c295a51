//! Holding, waiting and crashing on both sides, for every lock and every pair of operations.

use std::time::{Duration, Instant};

use leasehold::{Error, Loss, ReleaseOutcome};
use testkit::{Cluster, Flavor, Redisson as Java, RedissonConfig, Reply, Setup};
use tokio::runtime::Handle;

use super::sharing::{
    latch_opens, permits_are_kept, permits_are_renewed, permits_expire, permits_pass,
    readers_and_writers, spin_lock_is_found_free, tokens_rise,
};
use super::{
    ENDLESS, ONCE, PROMPT, Pace, Stage, WATCHDOG, client, enter, force, is_refused, of, rule,
    server, take, take_for, take_now, with_every_version, with_newest,
};
use crate::deployment::{cluster_url, old_and_new};
use crate::support::{AMPLE, LEASE, SHORT, eventually, name, run, url_at};
use crate::worker::Worker;

/// Both sides, a pair of locks, and a name.
struct Meeting<'a> {
    stage: &'a Stage<'a>,
    /// What we take.
    our_kind: &'a str,
    /// What Java takes.
    kind: &'a str,
    name: String,
}

/// What we take and what Java takes that exclude each other.
const PAIRS: [(&str, &str); 6] = [
    ("lock", "lock"),
    ("fenced", "fenced"),
    ("fair", "fair"),
    ("write", "write"),
    ("read", "write"),
    ("write", "read"),
];

impl<'a> Meeting<'a> {
    fn new(stage: &'a Stage<'a>, (our_kind, kind): (&'a str, &'a str)) -> Self {
        Self {
            stage,
            our_kind,
            kind,
            name: name(),
        }
    }

    fn java(&self, thread: &str, method: &str) -> String {
        let java = self.stage.java;
        java.ask(&self.thread(thread), &self.order(method))
    }

    /// Takes away what is ours.
    fn java_forces(&self) -> String {
        let order = format!("lock {}/force {}", self.our_kind, self.name);
        self.stage.java.ask(&self.thread("b"), &order)
    }

    /// Threads of one meeting are not those of another.
    fn thread(&self, thread: &str) -> String {
        format!("{thread}:{}", self.name)
    }

    fn order(&self, method: &str) -> String {
        let (method, argument) = method.split_once(' ').unwrap_or((method, ""));
        format!("lock {}/{method} {} {argument}", self.kind, self.name)
    }

    fn server(&self, words: &[&str]) -> Reply {
        self.stage.servers[0].ask(words)
    }

    /// Each is refused while the other holds, and has the lock when it is released.
    async fn exclude_and_wake(&self) {
        let (ours, our_kind, name) = (&self.stage.ours, self.our_kind, &self.name);
        for round in 0..self.stage.pace.rounds {
            let held = take_now(ours, our_kind, name).await;
            assert_eq!(self.java("a", "try"), "false");
            let (thread, order) = (self.thread("a"), self.order("lock"));
            let release = async || {
                assert!(held.check().is_ok());
                held.give_back().await;
            };
            let woken = self.stage.java_is_woken(round, (&thread, order), release);
            assert_eq!(woken.await.text, "ok");

            assert!(is_refused(ours, our_kind, name).await);
            let waiting = take(ours, our_kind, name, AMPLE);
            let woken = self.stage.we_are_woken(round, name, waiting, || {
                assert_eq!(self.java("a", "unlock"), "ok");
            });
            woken.await.unwrap().give_back().await;
        }
    }

    /// How often it was entered is seen on the server, and it is free only when it was left as often.
    async fn enter_again(&self) {
        let (ours, our_kind, name) = (&self.stage.ours, self.our_kind, &self.name);
        let count = || {
            let fields = self.server(&["HVALS", name]);
            let counts = fields.list().iter().map(Reply::text);
            counts
                .filter_map(|count| count.parse::<u32>().ok())
                .collect::<Vec<_>>()
        };
        let first = enter(ours, our_kind, name).await;
        let second = first.again().await;
        eventually("entered twice", || count() == [2]).await;
        drop(second);
        eventually("left once", || count() == [1]).await;
        assert_eq!(self.java("a", "try"), "false");
        first.give_back().await;
        assert_eq!(self.java("a", "lock"), "ok");
        assert_eq!(self.java("a", "lock"), "ok");
        assert_eq!(count(), [2]);
        assert_eq!(self.java("a", "unlock"), "ok");
        assert_eq!(count(), [1]);
        assert!(is_refused(ours, our_kind, name).await);
        assert_eq!(self.java("a", "unlock"), "ok");
        assert!(!is_refused(ours, our_kind, name).await);
    }

    /// What one takes away, the other has lost.
    async fn force(&self) {
        let (ours, our_kind, name) = (&self.stage.ours, self.our_kind, &self.name);
        assert_eq!(self.java("a", "lock"), "ok");
        assert!(force(ours, self.kind, name).await);
        assert_eq!(self.java("a", "held"), "false");
        // The holder learns of it when it renews.
        let renewing = ours.clone().watchdog(LEASE);
        let held = take_now(&renewing, our_kind, name).await;
        assert_eq!(self.java_forces(), "true");
        let limit = self.stage.pace.limit.max(LEASE);
        let lost = tokio::time::timeout(limit, held.lost()).await;
        assert_eq!(lost, Ok(Some(Loss::Revoked)));
        assert_eq!(
            held.release().await,
            ReleaseOutcome::AlreadyLost {
                loss: Loss::Revoked
            }
        );
        assert!(!force(ours, self.kind, name).await);
        assert_eq!(self.java_forces(), "false");
        // A holder that does not know yet takes nothing from the next holder.
        let held = take_now(ours, our_kind, name).await;
        assert_eq!(self.java_forces(), "true");
        assert_eq!(self.java("b", "try"), "true");
        assert_eq!(
            held.release().await,
            ReleaseOutcome::AlreadyLost {
                loss: Loss::Revoked
            }
        );
        assert_eq!(self.java("b", "held"), "true");
        assert_eq!(self.java("b", "unlock"), "ok");
    }

    /// Our keeper makes the lease last longer; `meanwhile` takes the time.
    async fn renew(&self, meanwhile: impl Future<Output = ()>) {
        let kept = Self::new(self.stage, (self.our_kind, self.kind));
        let renewing = self.stage.ours.clone().watchdog(LEASE);
        let held = take_now(&renewing, kept.our_kind, &kept.name).await;
        let end = || self.server(&["PEXPIRETIME", &kept.name]).int();
        let first_end = end();
        meanwhile.await;
        eventually("the lease was renewed", || end() > first_end).await;
        assert_eq!(kept.java("a", "try"), "false");
        held.give_back().await;
        assert_eq!(kept.java("a", "try"), "true");
    }

    /// Each keeps its lock for three times as long as it would last by itself.
    async fn keep(&self) {
        let ours = &self.stage.ours.clone().watchdog(WATCHDOG);
        let held = take_now(ours, self.our_kind, &self.name).await;
        let start = Instant::now();
        while start.elapsed() < 3 * WATCHDOG {
            assert_eq!(self.java("a", "try"), "false");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        held.give_back().await;
        assert_eq!(self.java("a", "lock"), "ok");
        let start = Instant::now();
        while start.elapsed() < 3 * WATCHDOG {
            assert!(is_refused(ours, self.our_kind, &self.name).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(self.java("a", "unlock"), "ok");
    }
}

/// Both sides meet with every pair of locks at the same time.
fn meet<'a>(stage: &'a Stage<'a>, test: impl AsyncFn(&Meeting<'a>) + Sync) {
    std::thread::scope(|scope| {
        let test = &test;
        let meetings: Vec<_> = PAIRS
            .into_iter()
            .map(|pair| {
                let runtime = Handle::current();
                let body = move || runtime.block_on(test(&Meeting::new(stage, pair)));
                (pair, scope.spawn(body))
            })
            .collect();
        for (pair, meeting) in meetings {
            assert!(meeting.join().is_ok(), "failed with {pair:?}");
        }
    });
}

/// Both sides exclude and wake each other with one pair of locks after the other.
async fn wake_in_turn(stage: &Stage<'_>) {
    for pair in PAIRS {
        Meeting::new(stage, pair).exclude_and_wake().await;
    }
}

#[test]
fn each_excludes_wakes_and_overrules_the_other() {
    with_every_version(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(version, &RedissonConfig::single(server.port(), ENDLESS));
        run(async {
            let stage = Stage::new(&java, &server, ONCE).await;
            meet(&stage, async |meeting| {
                meeting.exclude_and_wake().await;
                meeting.enter_again().await;
                meeting.renew(meeting.force()).await;
            });
        });
    });
}

#[test]
#[ignore = "deep: measures how soon waiters are woken"]
fn each_wakes_the_other_at_once() {
    for version in Java::versions() {
        let server = server(&Flavor::one());
        let java = Java::start(version, &RedissonConfig::single(server.port(), ENDLESS));
        run(async {
            let stage = Stage::new(&java, &server, PROMPT).await;
            wake_in_turn(&stage).await;
            meet(&stage, async |meeting| meeting.force().await);
        });
    }
}

#[test]
#[ignore = "deep: waits for three watchdogs that a stall would let expire"]
fn each_keeps_its_lock_for_three_watchdogs() {
    for version in Java::versions() {
        let server = server(&Flavor::one());
        let java = Java::start(version, &RedissonConfig::single(server.port(), WATCHDOG));
        run(async {
            let stage = Stage::new(&java, &server, ONCE).await;
            meet(&stage, async |meeting| meeting.keep().await);
            permits_are_kept(&stage).await;
        });
    }
}

#[test]
#[ignore = "deep: measures how soon waiters are woken, on other servers"]
fn it_is_the_same_on_newer_servers() {
    with_newest(|version| {
        for flavor in old_and_new().iter().skip(1) {
            let server = server(flavor);
            let java = Java::start(version, &RedissonConfig::single(server.port(), ENDLESS));
            run(async {
                wake_in_turn(&Stage::new(&java, &server, PROMPT).await).await;
            });
        }
    });
}

/// Plays `scene` in a Cluster of three masters.
fn in_a_cluster(replicated: bool, pace: Pace, scene: &impl AsyncFn(&Stage<'_>)) {
    with_newest(|version| {
        let setup = Setup::default().user(&format!("{} +cluster|slots +asking", rule()));
        let cluster = Cluster::start(&setup, &Flavor::one(), 3, replicated);
        for server in cluster.servers() {
            // No node calls another one down after a stall.
            server.tell(&["CONFIG", "SET", "cluster-node-timeout", "60000"]);
        }
        let java = Java::start(version, &RedissonConfig::cluster(&cluster.hosts(), ENDLESS));
        run(async {
            let stage = Stage {
                java: &java,
                ours: of(&client(&cluster_url(&cluster)).await),
                servers: cluster.servers().iter().collect(),
                pace,
            };
            wake_in_turn(&stage).await;
            scene(&stage).await;
        });
    });
}

/// A Java waiter has only the messages in sharded channels to go by.
#[test]
fn lock_in_a_cluster_excludes_and_wakes_both_sides() {
    in_a_cluster(false, ONCE, &async |stage: &Stage<'_>| {
        for name in ["a}b", "a{b", "{}x"] {
            let refused = stage.ours.lock(name).lock().await;
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{name}");
        }
    });
}

#[test]
#[ignore = "deep: measures how soon waiters are woken, in a Cluster"]
fn it_is_the_same_in_a_cluster_with_sharded_channels() {
    in_a_cluster(true, PROMPT, &async |stage: &Stage<'_>| {
        meet(stage, async |meeting| meeting.force().await);
        permits_pass(stage).await;
        latch_opens(stage).await;
        readers_and_writers(stage).await;
    });
}

/// A holder with a fixed lease that never releases is to others as one that crashed.
#[test]
fn the_lock_of_one_that_crashed_ends_with_its_lease() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let mut java = Java::start(version, &RedissonConfig::single(server.port(), ENDLESS));
        run(async {
            let stage = Stage::new(&java, &server, ONCE).await;
            meet(&stage, async |meeting| {
                let (ours, our_kind, name) = (&stage.ours, meeting.our_kind, &meeting.name);
                let start = Instant::now();
                let held = take_for(Some(SHORT), ours, our_kind, name, Duration::ZERO).await;
                std::mem::forget(held.expect("it is free"));
                assert_eq!(meeting.java("a", "lock"), "ok");
                assert!(start.elapsed() >= SHORT);
            });
            let ours = stage.ours.clone();
            let (start, lease) = (Instant::now(), SHORT.as_millis());
            for (_, kind) in PAIRS {
                let order = format!("lock {kind}/lease doomed:{kind} {lease}");
                assert_eq!(java.ask("main", &order), "ok");
            }
            java.kill();
            for (our_kind, kind) in PAIRS {
                let held = take(&ours, our_kind, &format!("doomed:{kind}"), AMPLE).await;
                assert!(start.elapsed() >= SHORT);
                held.unwrap().give_back().await;
            }
        });
    });
}

#[test]
#[ignore = "deep: measures how soon after a crash the lock is free"]
fn lock_of_a_killed_holder_ends_within_its_watchdog() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let fleet = RedissonConfig::single(server.port(), WATCHDOG);
        let java = Java::start(version, &fleet);
        let url = url_at(server.port());
        run(async {
            let stage = Stage::new(&java, &server, ONCE).await;
            meet(&stage, async |meeting| {
                let mut worker = Worker::start_at(&url, WATCHDOG);
                let order = format!("hold-shared {} {}", meeting.our_kind, meeting.name);
                assert_eq!(worker.ask(&order), "held");
                java.tell(&meeting.thread("a"), &meeting.order("lock"));
                tokio::time::sleep(WATCHDOG * 2).await;
                worker.kill();
                let killed = Instant::now();
                let taken = java.response(&meeting.thread("a"));
                assert_eq!(taken.text, "ok");
                let waited = taken.at - killed;
                // The lease was renewed up to a third of it ago; the other side asks again when it ends.
                assert!(waited > WATCHDOG / 3 && waited < WATCHDOG * 2, "{waited:?}");
            });
            let mut doomed = Java::start(version, &fleet);
            for (_, kind) in PAIRS {
                let locked = doomed.ask("main", &format!("lock {kind}/lock doomed:{kind}"));
                assert_eq!(locked, "ok");
            }
            tokio::time::sleep(WATCHDOG * 2).await;
            doomed.kill();
            let killed = Instant::now();
            for (our_kind, kind) in PAIRS {
                let name = format!("doomed:{kind}");
                let held = take(&stage.ours, our_kind, &name, AMPLE).await;
                let waited = killed.elapsed();
                let limit = WATCHDOG + Duration::from_millis(1200);
                assert!(waited < limit, "{waited:?}");
                held.unwrap().give_back().await;
            }
        });
    });
}

#[test]
fn readers_permits_and_latches_are_shared() {
    with_every_version(|version| share(version, ONCE));
}

#[test]
#[ignore = "deep: measures how soon waiters are woken"]
fn readers_permits_and_latches_wake_at_once() {
    for version in Java::versions() {
        share(version, PROMPT);
    }
}

fn share(version: &str, pace: Pace) {
    let server = server(&Flavor::one());
    let java = Java::start(version, &RedissonConfig::single(server.port(), ENDLESS));
    run(async {
        let stage = Stage::new(&java, &server, pace).await;
        let scenes = async {
            readers_and_writers(&stage).await;
            permits_pass(&stage).await;
            permits_expire(&stage).await;
            latch_opens(&stage).await;
            tokens_rise(&stage).await;
            spin_lock_is_found_free(&stage).await;
        };
        tokio::join!(permits_are_renewed(&stage), scenes);
    });
}

#[test]
fn names_are_mapped_alike() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let fleet = RedissonConfig {
            prefix: "app:".to_owned(),
            ..RedissonConfig::single(server.port(), ENDLESS)
        };
        let java = Java::start(version, &fleet);
        run(async {
            let mut stage = Stage::new(&java, &server, ONCE).await;
            stage.ours = stage.ours.prefix("app:");
            for name in ["plain", "{tagged}:name"] {
                let held = take_now(&stage.ours, "lock", name).await;
                assert_eq!(java.ask("a", &format!("lock lock/try {name}")), "false");
                let order = format!("lock lock/lock {name}");
                let release = async || held.give_back().await;
                let woken = stage.java_is_woken(0, ("a", order), release).await;
                assert_eq!(woken.text, "ok");
                let key = format!("app:{name}");
                assert_eq!(server.ask(&["EXISTS", &key]).int(), 1);
            }
        });
    });
}
