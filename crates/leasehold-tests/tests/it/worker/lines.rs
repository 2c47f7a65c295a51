//! What worker processes do with locks that have a line, and with the bare driver beside them.

use std::time::Duration;

use leasehold::{Client, Error};
use testkit::Dice;

use super::say;
use crate::support::clock;

/// Waits in line for at most `limit`, holds the lock, and gives it back; says its token, or its place when
/// it gave up.
pub(super) async fn serve(client: &Client, name: &str, limit: Duration, hold: Duration) {
    match client.fair_mutex(name).lock().wait(limit).await {
        Ok(held) => {
            say(format_args!("{} {}", held.token(), clock()));
            tokio::time::sleep(hold).await;
            let release = held.release().await.expect("released");
            say(format_args!("{release:?}"));
        }
        Err(Error::Timeout { position, .. }) => say(format_args!("gave up at {position:?}")),
        Err(error) => panic!("{error}"),
    }
}

/// Takes and gives back permits without pause, some of them by dropping; says how many were held when.
pub(super) async fn permits(client: &Client, name: &str, permits: u32, count: u64, seed: u64) {
    const TASKS: u64 = 4;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let semaphore = client.semaphore(name, permits);
            let mut dice = Dice::new(seed * TASKS + task);
            tokio::spawn(async move {
                for _ in 0..count / TASKS {
                    let weight = u32::try_from(1 + dice.below(3)).expect("small");
                    let Ok(held) = semaphore.acquire_many(weight).await else {
                        continue;
                    };
                    let start = clock();
                    if dice.below(8) == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    let end = clock();
                    if held.check().is_ok() {
                        say(format_args!("{start} {end} {weight}"));
                    }
                    match dice.below(4) {
                        0 => drop(held),
                        _ => drop(held.release().await),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    say("done");
}

/// Reads without end: so many tasks, each holding the lock for a while and asking for it again.
pub(super) async fn read(client: &Client, name: &str, tasks: u64, hold: Duration) {
    for _ in 0..tasks {
        let lock = client.rw_lock(name);
        tokio::spawn(async move {
            loop {
                let held = lock.read().await.expect("the lock");
                tokio::time::sleep(hold).await;
                let _ = held.release().await.expect("released");
            }
        });
    }
    say("reading");
}

/// Hears so many messages by the bare driver; says when each came in.
pub(super) async fn listen(url: &str, channel: &str, count: usize) {
    let (push, mut pushed) = tokio::sync::mpsc::unbounded_channel();
    let config = redis::AsyncConnectionConfig::new().set_push_sender(push);
    let mut connection = bare(url, config).await;
    let subscribe = redis::cmd("SSUBSCRIBE").arg(channel).to_owned();
    let subscribed = connection.send_packed_command(&subscribe).await;
    subscribed.expect("subscribed");
    say("listening");
    let mut times = Vec::with_capacity(count);
    while times.len() < count {
        let push: redis::PushInfo = pushed.recv().await.expect("a message");
        if push.kind == redis::PushKind::SMessage {
            times.push(clock());
        }
    }
    for time in times {
        say(time);
    }
}

/// Publishes so many messages from a script by the bare driver; says when each was sent.
pub(super) async fn publish(url: &str, channel: &str, count: usize) {
    let mut connection = bare(url, redis::AsyncConnectionConfig::new()).await;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        // As far apart as the hand-overs that this is compared with.
        tokio::time::sleep(Duration::from_millis(3)).await;
        times.push(clock());
        let heard: i64 = redis::cmd("EVAL")
            .arg("return redis.call('SPUBLISH', ARGV[1], ARGV[2])")
            .arg(0)
            .arg(channel)
            .arg("0123456789abcdef0123456789abcdef 1763000000000000 1763000000000000")
            .query_async(&mut connection)
            .await
            .expect("published");
        assert_eq!(heard, 1);
    }
    for time in times {
        say(time);
    }
}

pub(super) async fn bare(
    url: &str,
    config: redis::AsyncConnectionConfig,
) -> redis::aio::MultiplexedConnection {
    let url = format!("{url}?protocol=resp3");
    let client = redis::Client::open(url).expect("an address");
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .expect("a connection")
}
