//! A storm: Java threads and Rust processes that hold at random, and are killed and started again.

use std::time::{Duration, Instant};

use testkit::{Flavor, Redisson as Java, RedissonConfig, SeededRng, Server};

use super::{client, server, with_newest};
use crate::support::{run, scaled, url_at};
use crate::worker::Worker;

/// Long enough that a busy machine loses no lease: Java would not notice.
const LEASE: Duration = Duration::from_secs(3);

/// How long a dead waiter holds up a fair lock.
const FAIR_WAIT: Duration = Duration::from_millis(300);

const THREADS: [&str; 4] = ["a", "b", "c", "d"];

/// Who takes part, and in what.
struct Storm<'a> {
    server: &'a Server,
    version: &'a str,
    digest: String,
    kinds: &'static str,
    end: Instant,
}

impl Storm<'_> {
    fn order(&self, seed: u64) -> String {
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
            java.tell(thread, &self.order(seed * 4 + number));
        }
        java
    }

    fn worker(&self, seed: u64) -> Worker {
        let mut worker = Worker::start(self.server.port(), LEASE);
        worker.tell(&self.order(seed));
        worker
    }
}

/// Lets `kinds` be used for `length` by four threads and four processes, of which some are killed if need be.
fn rage(server: &Server, version: &str, kinds: &'static str, length: Duration, kills: bool) {
    let digest = server.ask(&["SCRIPT", "LOAD", include_str!("storm.lua")]);
    let storm = Storm {
        server,
        version,
        digest: digest.text().to_owned(),
        kinds,
        end: Instant::now() + length,
    };
    let mut rng = SeededRng::new(7);
    let mut java = storm.java(0);
    let mut workers: Vec<_> = (1..5).map(|number| storm.worker(number)).collect();
    let mut killed = 0;
    // Those that are killed last leave time for the others to go on without them.
    while kills && Instant::now() + LEASE * 3 < storm.end {
        std::thread::sleep(Duration::from_millis(500 + rng.below(1500)));
        killed += 1;
        if killed % 4 == 0 {
            java.kill();
            java = storm.java(100 + killed);
        } else {
            let which = usize::try_from(rng.below(4)).expect("few");
            workers[which].kill();
            workers[which] = storm.worker(100 + killed);
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
        assert!(idle < limit, "{} was idle for {idle} ms", pair[0].text());
    }
}

#[test]
#[ignore = "deep: a storm, and measures how long a free lock is idle"]
fn a_storm_with_crashes_makes_no_second_holder_and_strands_nobody() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        for number in 0..10 {
            server.tell(&["SET", &format!("permits:{number}"), "3"]);
        }
        let length = Duration::from_secs(scaled(20));
        rage(
            &server,
            version,
            "lock,fenced,fair,read,write,permits",
            length,
            true,
        );

        // What is left is what Redisson leaves too.
        std::thread::sleep(LEASE + Duration::from_secs(1));
        let keys = server.ask(&["KEYS", "*"]);
        for key in keys.list() {
            let left_by_java_too = [
                "storm:",
                "redisson_lock_token:",
                "permits:",
                "redisson_unlock_latch:",
                "{permits:",
                // Waiters that were killed, until somebody asks for the lock.
                "redisson_lock_queue:",
                "redisson_lock_timeout:",
            ];
            let known = left_by_java_too
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
                assert!(fair.try_lock().await.unwrap().is_some());
            }
        });
    });
}

/// Whoever crashes with permits of a plain semaphore takes them along, in Java too: nobody does here.
#[test]
#[ignore = "deep: a storm"]
fn a_storm_on_plain_semaphores_keeps_the_number_of_permits() {
    with_newest(|version| {
        let server = server(&Flavor::one());
        let names: Vec<_> = (0..10)
            .map(|number| format!("semaphore:{number}"))
            .collect();
        for name in &names {
            server.tell(&["SET", name, "3"]);
        }
        rage(
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
