//! Stress: Java threads and Rust processes hold random objects, and are killed
//! and restarted.

use std::time::{Duration, Instant};

use testkit::{Flavor, Redisson as Java, RedissonConfig, SeededRng, Server, ServerExt, Worker};

use crate::support::redisson::{client, server, with_newest};
use crate::support::worker;
use crate::support::{run, scaled, url_at};

/// Long enough that a busy machine loses no lease, which Java would not notice.
const LEASE: Duration = Duration::from_secs(3);

/// How long a dead waiter delays a fair lock.
const FAIR_WAIT: Duration = Duration::from_millis(300);

const THREADS: [&str; 4] = ["a", "b", "c", "d"];

/// The server, the objects and the duration of a run.
struct StressRun<'a> {
    server: &'a Server,
    version: &'a str,
    digest: String,
    kinds: &'static str,
    end: Instant,
}

impl StressRun<'_> {
    fn command(&self, seed: u64) -> String {
        let left = self.end.saturating_duration_since(Instant::now());
        format!(
            "storm {} {} {seed} {}",
            self.digest,
            left.as_millis(),
            self.kinds
        )
    }

    fn java(&self, seed: u64) -> Java {
        let fleet = RedissonConfig {
            fair_wait: FAIR_WAIT,
            ..RedissonConfig::single(self.server.port(), LEASE)
        };
        let java = Java::start(self.version, &fleet);
        for (number, thread) in (0..).zip(THREADS) {
            java.tell(thread, &self.command(seed * 4 + number));
        }
        java
    }

    fn worker(&self, seed: u64) -> Worker {
        let mut worker = worker::start(self.server.port(), LEASE);
        worker.tell(&self.command(seed));
        worker
    }
}

/// Lets four threads and four processes use `kinds` for `length`, and kills
/// some of them if `kills` is set.
fn stress_objects(
    server: &Server,
    version: &str,
    kinds: &'static str,
    length: Duration,
    kills: bool,
) {
    let digest = server.ask(&["SCRIPT", "LOAD", include_str!("stress.lua")]);
    let stress = StressRun {
        server,
        version,
        digest: digest.text().to_owned(),
        kinds,
        end: Instant::now() + length,
    };
    let mut rng = SeededRng::new(7);
    let mut java = stress.java(0);
    let mut workers: Vec<_> = (1..5).map(|number| stress.worker(number)).collect();
    let mut killed = 0;
    // Leave the others time to continue without the last one killed.
    while kills && Instant::now() + LEASE * 3 < stress.end {
        std::thread::sleep(Duration::from_millis(500 + rng.below(1500)));
        killed += 1;
        if killed % 4 == 0 {
            java.kill();
            java = stress.java(100 + killed);
        } else {
            let which = usize::try_from(rng.below(4)).expect("few");
            workers[which].kill();
            workers[which] = stress.worker(100 + killed);
        }
    }
    for worker in &mut workers {
        let said = worker.answer();
        assert!(said.starts_with("held "), "{said}");
    }
    for thread in THREADS {
        let said = java.response(thread).text;
        assert!(said.starts_with("held "), "{said}");
    }
    println!(
        "{killed} killed; held {:?}",
        server.ask(&["HGETALL", "storm:held"])
    );
    println!("longest idle {:?}", server.ask(&["HGETALL", "storm:idle"]));
    let overlaps = server.ask(&["LRANGE", "storm:overlaps", "0", "-1"]);
    assert!(overlaps.list().is_empty(), "{overlaps:?}");
    let limit = (LEASE + Duration::from_secs(2)).as_millis();
    for pair in server.ask(&["HGETALL", "storm:idle"]).list().chunks(2) {
        let idle = u128::try_from(pair[1].int()).expect("a time");
        assert!(
            idle < limit,
            "{} was free and idle for {idle} ms",
            pair[0].text()
        );
    }
}

#[test]
#[ignore = "deep: runs for minutes, and measures how long a free lock is idle"]
fn crashes_keep_exclusion_and_strand_no_waiter() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        for number in 0..10 {
            server.tell(&["SET", &format!("permits:{number}"), "3"]);
        }
        let length = Duration::from_secs(scaled(20));
        stress_objects(
            &server,
            version,
            "lock,fenced,fair,read,write,permits",
            length,
            true,
        );

        // Redisson leaves these keys as well.
        std::thread::sleep(LEASE + Duration::from_secs(1));
        let keys = server.ask(&["KEYS", "*"]);
        for key in keys.list() {
            let left_by_redisson = [
                "storm:",
                "redisson_lock_token:",
                "permits:",
                "redisson_unlock_latch:",
                "{permits:",
                // Killed waiters, until the next request for the lock.
                "redisson_lock_queue:",
                "redisson_lock_timeout:",
            ];
            let known = left_by_redisson
                .iter()
                .any(|start| key.text().starts_with(start));
            assert!(known, "{key:?} is left");
        }
        run(async {
            let ours = client(&url_at(server.port())).await.redisson();
            for number in 0..10 {
                let semaphore = ours.permit_expirable_semaphore(&format!("permits:{number}"));
                assert_eq!(semaphore.available_permits().await.unwrap(), 3);
                let fair = ours.fair_lock(&format!("fair:{number}"));
                drop(fair.try_lock().await.unwrap());
            }
        });
    });
}

/// A process that crashes loses its permits of a plain semaphore, in Java too,
/// so none crashes here.
#[test]
#[ignore = "deep: runs for minutes"]
fn plain_semaphores_conserve_permits() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let names: Vec<_> = (0..10)
            .map(|number| format!("semaphore:{number}"))
            .collect();
        for name in &names {
            server.tell(&["SET", name, "3"]);
        }
        stress_objects(
            &server,
            version,
            "semaphore",
            Duration::from_secs(scaled(8)),
            false,
        );
        for name in &names {
            assert_eq!(server.ask(&["GET", name]).int(), 3, "{name}");
        }
    });
}
