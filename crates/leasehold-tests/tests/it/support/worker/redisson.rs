//! Commands of worker processes that share objects with Java.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::redisson::Redisson;
use testkit::SeededRng;
use testkit::worker::say;

use crate::support::redisson::{Held, acquire, acquire_now};

/// Acquires a free lock and holds it until the process is killed.
pub(super) async fn hold(client: &Client, watchdog: Duration, kind: &str, name: &str) {
    let redisson = client.redisson().watchdog(watchdog);
    let held = acquire_now(&redisson, kind, name).await;
    say("held");
    held.lost().await;
}

/// Acquires and releases objects of ten names of each kind at random. A script
/// on the server checks exclusion. Prints the number of holds.
pub(super) async fn storm(client: &Client, url: &str, watchdog: Duration, words: [&str; 4]) {
    const TASKS: u64 = 2;
    let [digest, length, seed, kinds] = words;
    let number = |word: &str| word.parse::<u64>().expect("a number");
    let end = Instant::now() + Duration::from_millis(number(length));
    let seed = number(seed);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let redisson = client.redisson().watchdog(watchdog);
            let redisson = redisson.fair_wait(Duration::from_millis(300));
            let id = format!("{}:{task}", std::process::id());
            let url = url.to_owned();
            let digest = digest.to_owned();
            let kinds = kinds.to_owned();
            let mut rng = SeededRng::new(seed * TASKS + task + 1);
            tokio::spawn(async move {
                let referee = Referee::new(&url, &digest, id).await;
                let kinds: Vec<_> = kinds.split(',').collect();
                let mut held = 0;
                while Instant::now() < end {
                    let kind = kinds[usize::try_from(rng.below(kinds.len() as u64)).expect("few")];
                    hold_once(&redisson, &referee, kind, &mut rng).await;
                    held += 1;
                }
                held
            })
        })
        .collect();
    let mut held = 0;
    for task in tasks {
        held += task.await.expect("no panic");
    }
    say(format_args!("held {held}"));
}

async fn hold_once(redisson: &Redisson, referee: &Referee, kind: &str, rng: &mut SeededRng) {
    let family = match kind {
        "read" | "write" => "rw",
        other => other,
    };
    let name = format!("{family}:{}", rng.below(10));
    let stay = Duration::from_millis(rng.below(20));
    referee.check(&name, "wait", kind, 0).await;
    let held = match kind {
        "semaphore" => {
            let semaphore = redisson.semaphore(&name);
            Held::Unfenced(semaphore.acquire(1).await.expect("a permit"))
        }
        "permits" => {
            let semaphore = redisson.permit_expirable_semaphore(&name);
            Held::Unfenced(semaphore.acquire(1).await.expect("a permit"))
        }
        _ => {
            let long = Duration::from_secs(60);
            acquire(redisson, kind, &name, long)
                .await
                .expect("the lock")
        }
    };
    let token = match &held {
        Held::Fenced(guard) => guard.token().as_u64(),
        _ => 0,
    };
    referee.watch(&name, kind, token, stay).await;
    held.release_held().await;
}

/// The script on the server that checks exclusion.
struct Referee {
    connection: redis::aio::MultiplexedConnection,
    digest: String,
    id: String,
}

impl Referee {
    /// Connects with all permissions to the server in `url`.
    async fn new(url: &str, digest: &str, id: String) -> Self {
        let host = url.rsplit('@').next().expect("a host");
        let client = redis::Client::open(format!("redis://{host}")).expect("an address");
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let connection = connection.await;
        Self {
            connection: connection.expect("a connection"),
            digest: digest.to_owned(),
            id,
        }
    }

    /// Enters, stays for a while and leaves.
    async fn watch(&self, name: &str, kind: &str, token: u64, stay: Duration) {
        self.check(name, "enter", kind, token).await;
        tokio::time::sleep(stay).await;
        self.check(name, "leave", kind, 0).await;
    }

    async fn check(&self, name: &str, step: &str, kind: &str, token: u64) {
        let checked = redis::cmd("EVALSHA")
            .arg(&self.digest)
            .arg(2)
            .arg(format!("storm:inside:{name}"))
            .arg(format!("storm:last:{name}"))
            .arg(&[step, &self.id, kind, name])
            .arg(token)
            .query_async::<()>(&mut self.connection.clone())
            .await;
        checked.expect("the referee");
    }
}
