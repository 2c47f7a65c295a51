//! Holding, waiting and crashing on both sides, for every lock and every pair of operations.

use std::time::{Duration, Instant};

use leasehold::redisson::Redisson as Ours;
use leasehold::{Error, Loss, Release};
use testkit::machine::{ran_between, ran_since};
use testkit::redisson::Said;
use testkit::{Answer, Cluster, Flavor, Fleet, Redisson as Java, Setup};

use super::sharing::{latch_opens, permits_expire, permits_pass, readers_and_writers, tokens_rise};
use super::{
    AT_ONCE, LONG, WATCHDOG, alone_with_newest, client, enter, fleet, force, is_refused, of, rule,
    server, take, take_now, with_newest,
};
use crate::deployment::{cluster_url, old_and_new};
use crate::support::{alone, eventually, name, run, url_at};
use crate::worker::Worker;

/// Both sides, and a name.
struct Meeting<'a> {
    java: &'a Java,
    ours: &'a Ours,
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

impl Meeting<'_> {
    fn java(&self, thread: &str, method: &str) -> String {
        self.java.ask(&self.thread(thread), &self.order(method))
    }

    fn java_begins(&self, thread: &str, method: &str) {
        self.java.tell(&self.thread(thread), &self.order(method));
    }

    fn java_ends(&self, thread: &str) -> Said {
        self.java.answer(&self.thread(thread))
    }

    /// Takes away what is ours.
    fn java_forces(&self) -> String {
        let order = format!("lock {}/force {}", self.our_kind, self.name);
        self.java.ask(&self.thread("b"), &order)
    }

    /// Threads of one meeting are not those of another.
    fn thread(&self, thread: &str) -> String {
        format!("{thread}:{}", self.name)
    }

    fn order(&self, method: &str) -> String {
        let (method, argument) = method.split_once(' ').unwrap_or((method, ""));
        format!("lock {}/{method} {} {argument}", self.kind, self.name)
    }

    /// Each is refused while the other holds, and has the lock at once when it is released.
    async fn exclude_and_wake(&self) {
        let mut wakes = Vec::new();
        for round in 0..4 {
            let held = take_now(self.ours, self.our_kind, &self.name).await;
            assert_eq!(self.java("a", "try"), "false");
            self.java_begins("a", "lock");
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(held.check().is_ok());
            let released = Instant::now();
            held.give_back().await;
            let taken = self.java_ends("a");
            assert_eq!(taken.text, "ok");
            wakes.push(("Java", round, ran_between(released, taken.at)));

            assert!(is_refused(self.ours, self.our_kind, &self.name).await);
            let (ours, kind, name) = (
                self.ours.clone(),
                self.our_kind.to_owned(),
                self.name.clone(),
            );
            let waiting = tokio::spawn(async move {
                let held = take(&ours, &kind, &name, LONG).await.unwrap();
                (Instant::now(), held)
            });
            tokio::time::sleep(Duration::from_millis(200)).await;
            let released = Instant::now();
            assert_eq!(self.java("a", "unlock"), "ok");
            let (taken, held) = waiting.await.unwrap();
            wakes.push(("Rust", round, ran_between(released, taken)));
            held.give_back().await;
        }
        for who in ["Java", "Rust"] {
            // The first round loads classes and scripts.
            let those = |(whose, round, _): &&(_, u32, _)| *whose == who && *round > 0;
            let mut times: Vec<_> = wakes.iter().filter(those).map(|wake| wake.2).collect();
            times.sort();
            // Six kinds at a time keep a small machine busy: who is told by nobody is late every time, not once.
            assert!(times[1] < AT_ONCE, "{} {who} {times:?}", self.kind);
        }
    }

    /// How often it was entered is seen on the server, and it is free only when it was left as often.
    async fn enter_again(&self, server: &impl Fn(&[&str]) -> Answer) {
        let count = || {
            let fields = server(&["HVALS", &self.name]);
            let counts = fields.list().iter().map(Answer::text);
            counts
                .filter_map(|count| count.parse::<u32>().ok())
                .collect::<Vec<_>>()
        };
        let first = enter(self.ours, self.our_kind, &self.name).await;
        let second = first.again().await;
        eventually(LONG, "entered twice", || count() == [2]).await;
        drop(second);
        eventually(LONG, "left once", || count() == [1]).await;
        assert_eq!(self.java("a", "try"), "false");
        first.give_back().await;
        assert_eq!(self.java("a", "lock"), "ok");
        assert_eq!(self.java("a", "lock"), "ok");
        assert_eq!(count(), [2]);
        assert_eq!(self.java("a", "unlock"), "ok");
        assert_eq!(count(), [1]);
        assert!(is_refused(self.ours, self.our_kind, &self.name).await);
        assert_eq!(self.java("a", "unlock"), "ok");
        assert!(!is_refused(self.ours, self.our_kind, &self.name).await);
    }

    /// What one takes away, the other has lost.
    async fn force(&self) {
        assert_eq!(self.java("a", "lock"), "ok");
        assert!(force(self.ours, self.kind, &self.name).await);
        assert_eq!(self.java("a", "held"), "false");
        let held = take_now(self.ours, self.our_kind, &self.name).await;
        assert_eq!(self.java_forces(), "true");
        let lost = tokio::time::timeout(WATCHDOG, held.lost()).await;
        assert_eq!(lost, Ok(Some(Loss::Taken)));
        assert_eq!(held.release().await, Release::WasLost { loss: Loss::Taken });
        assert!(!force(self.ours, self.kind, &self.name).await);
        assert_eq!(self.java_forces(), "false");
        // One who does not know yet takes nothing from whoever has it now.
        let held = take_now(self.ours, self.our_kind, &self.name).await;
        assert_eq!(self.java_forces(), "true");
        assert_eq!(self.java("b", "try"), "true");
        assert_eq!(held.release().await, Release::WasLost { loss: Loss::Taken });
        assert_eq!(self.java("b", "held"), "true");
        assert_eq!(self.java("b", "unlock"), "ok");
    }

    /// Each keeps its lock for three times as long as it would last by itself.
    async fn keep(&self) {
        let held = take_now(self.ours, self.our_kind, &self.name).await;
        let start = Instant::now();
        while start.elapsed() < 3 * WATCHDOG {
            assert_eq!(self.java("a", "try"), "false");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        held.give_back().await;
        assert_eq!(self.java("a", "lock"), "ok");
        let start = Instant::now();
        while start.elapsed() < 3 * WATCHDOG {
            assert!(is_refused(self.ours, self.our_kind, &self.name).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(self.java("a", "unlock"), "ok");
    }
}

/// Both sides meet with every kind of lock at the same time, at the server that `url` and `java` are connected to.
fn meet(java: &Java, url: &str, test: impl AsyncFn(&Meeting<'_>) + Sync) {
    std::thread::scope(|scope| {
        let test = &test;
        let meetings: Vec<_> = PAIRS
            .into_iter()
            .map(|(our_kind, kind)| {
                let body = move || {
                    run(async {
                        let (ours, name) = (&of(&client(url).await), name());
                        let meeting = Meeting {
                            java,
                            ours,
                            our_kind,
                            kind,
                            name,
                        };
                        test(&meeting).await;
                    });
                };
                (our_kind, kind, scope.spawn(body))
            })
            .collect();
        for (our_kind, kind, meeting) in meetings {
            assert!(meeting.join().is_ok(), "failed with {our_kind} and {kind}");
        }
    });
}

#[test]
fn each_excludes_wakes_and_overrules_the_other() {
    for version in Java::versions() {
        alone(|| {
            let server = server(&Flavor::one());
            let java = Java::start(version, &fleet(&server));
            meet(&java, &url_at(server.port()), async |meeting| {
                meeting.exclude_and_wake().await;
                meeting.enter_again(&|words| server.ask(words)).await;
                meeting.force().await;
                meeting.keep().await;
            });
        });
    }
}

#[test]
fn it_is_the_same_on_newer_servers() {
    let Some(newest) = Java::versions().first().copied() else {
        return;
    };
    for flavor in old_and_new().iter().skip(1) {
        alone(|| {
            let server = server(flavor);
            let java = Java::start(newest, &fleet(&server));
            meet(&java, &url_at(server.port()), async |meeting| {
                meeting.exclude_and_wake().await;
            });
        });
    }
}

#[test]
fn it_is_the_same_in_a_cluster_with_sharded_channels() {
    let Some(newest) = Java::versions().first().copied() else {
        return;
    };
    alone(|| {
        let setup = Setup::default().user(&format!("{} +cluster|slots +asking", rule()));
        let cluster = Cluster::start(&setup, &Flavor::one(), 3, true);
        let fleet = Fleet {
            watchdog: WATCHDOG,
            ..Fleet::of_cluster(&cluster.hosts())
        };
        let java = Java::start(newest, &fleet);
        let url = cluster_url(&cluster);
        meet(&java, &url, async |meeting| {
            meeting.exclude_and_wake().await;
            meeting.force().await;
        });
        run(async {
            let ours = of(&client(&url).await);
            permits_pass(&java, &ours).await;
            latch_opens(&java, &ours).await;
            readers_and_writers(&java, &ours).await;
            for name in ["a}b", "a{b", "{}x"] {
                let refused = ours.lock(name).lock().await;
                assert!(matches!(refused, Err(Error::Invalid { .. })), "{name}");
            }
        });
    });
}

#[test]
fn the_lock_of_one_that_crashed_ends_with_its_lease() {
    let Some(newest) = Java::versions().first().copied() else {
        return;
    };
    alone(|| {
        let server = server(&Flavor::one());
        let java = Java::start(newest, &fleet(&server));
        let url = url_at(server.port());
        meet(&java, &url, async |meeting| {
            let mut worker = Worker::start_at(&url, WATCHDOG);
            let order = format!("hold-shared {} {}", meeting.our_kind, meeting.name);
            assert_eq!(worker.ask(&order), "held");
            meeting.java_begins("a", "lock");
            tokio::time::sleep(WATCHDOG * 2).await;
            worker.kill();
            let killed = Instant::now();
            let taken = meeting.java_ends("a");
            assert_eq!(taken.text, "ok");
            let waited = taken.at - killed;
            // The lease was renewed up to a third of it ago; the other side looks when it ends.
            assert!(waited > WATCHDOG / 3 && waited < WATCHDOG * 2, "{waited:?}");
        });
        let mut doomed = Java::start(newest, &fleet(&server));
        for (_, kind) in PAIRS {
            let locked = doomed.ask("main", &format!("lock {kind}/lock doomed:{kind}"));
            assert_eq!(locked, "ok");
        }
        std::thread::sleep(WATCHDOG * 2);
        doomed.kill();
        let killed = Instant::now();
        run(async {
            let ours = of(&client(&url).await);
            for (our_kind, kind) in PAIRS {
                let held = take(&ours, our_kind, &format!("doomed:{kind}"), LONG).await;
                let waited = killed.elapsed();
                assert!(
                    waited < WATCHDOG + Duration::from_millis(1200),
                    "{waited:?}"
                );
                held.unwrap().give_back().await;
            }
        });
    });
}

/// It announces nothing.
#[test]
fn a_spin_lock_is_found_free_by_looking() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let java = Java::start(version, &fleet(&server));
        run(async {
            let ours = of(&client(&url_at(server.port())).await);
            assert_eq!(java.ask("a", "lock spin/lock job"), "ok");
            let waiting = take(&ours, "lock", "job", LONG);
            let mut waiting = std::pin::pin!(waiting);
            let early = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
            assert!(early.is_err());
            assert_eq!(java.ask("a", "lock spin/unlock job"), "ok");
            let released = Instant::now();
            let held = waiting.await.unwrap();
            assert!(ran_since(released) < LONG / 4);
            java.tell("a", "lock spin/lock job");
            assert!(
                java.answer_within("a", Duration::from_millis(300))
                    .is_none()
            );
            held.give_back().await;
            assert_eq!(java.answer("a").text, "ok");
        });
    });
}

#[test]
fn readers_permits_and_latches_are_shared() {
    for version in Java::versions() {
        alone(|| {
            let server = server(&Flavor::one());
            let java = Java::start(version, &fleet(&server));
            run(async {
                let ours = of(&client(&url_at(server.port())).await);
                readers_and_writers(&java, &ours).await;
                permits_pass(&java, &ours).await;
                permits_expire(&java, &ours).await;
                latch_opens(&java, &ours).await;
                tokens_rise(&java, &ours).await;
            });
        });
    }
}

#[test]
fn names_are_mapped_alike() {
    alone_with_newest(|version| {
        let server = server(&Flavor::one());
        let prefix = "app:".to_owned();
        let java = Java::start(
            version,
            &Fleet {
                prefix,
                ..fleet(&server)
            },
        );
        run(async {
            let ours = of(&client(&url_at(server.port())).await).prefix("app:");
            for name in ["plain", "{tagged}:name"] {
                let held = take_now(&ours, "lock", name).await;
                assert_eq!(java.ask("a", &format!("lock lock/try {name}")), "false");
                java.tell("a", &format!("lock lock/lock {name}"));
                tokio::time::sleep(Duration::from_millis(200)).await;
                held.give_back().await;
                assert_eq!(java.answer("a").text, "ok");
                let key = format!("app:{name}");
                assert_eq!(server.ask(&["EXISTS", &key]).int(), 1);
            }
        });
    });
}
