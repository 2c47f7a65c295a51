//! What a worker does that is connected to a quorum.

use std::time::Duration;

use leasehold::Quorum;
use testkit::Dice;

use super::say;
use crate::support::clock;

/// Connects, and does as it is told: `vote-many NAMES COUNT SEED`.
pub(super) async fn process(urls: &str, lease: Duration) {
    let builder = Quorum::builder(urls.split(',')).lease(lease);
    let quorum = builder.longest_lease(lease).connect().await;
    let quorum = quorum.expect("a majority votes");
    say("ready");
    let mut lines = std::io::stdin().lines();
    while let Some(Ok(line)) = lines.next() {
        let words: Vec<_> = line.split(' ').collect();
        let ["vote-many", names, count, seed] = words.as_slice() else {
            panic!("unknown order {words:?}");
        };
        let number = |word: &str| word.parse::<u64>().expect("a number");
        vote_many(&quorum, number(names), number(count), number(seed)).await;
    }
}

/// Takes and releases locks of so many names at random, in several tasks; says of each holding its name, when it was
/// asked for, from when until when it was certainly held, and its token.
async fn vote_many(quorum: &Quorum, names: u64, count: u64, seed: u64) {
    const TASKS: u64 = 8;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let quorum = quorum.clone();
            let mut dice = Dice::new(seed * TASKS + task + 1);
            tokio::spawn(async move {
                let mut holdings = Vec::new();
                while holdings.len() < usize::try_from(count / TASKS).expect("a count") {
                    let name = dice.below(names);
                    let asked = clock();
                    // Too few may vote for a while; a worker only goes on.
                    let Ok(held) = quorum.mutex(&format!("vote:{name}")).lock().await else {
                        continue;
                    };
                    let (taken, left) = (clock(), held.remaining());
                    if dice.below(50) == 0 {
                        tokio::time::sleep(Duration::from_millis(dice.below(300))).await;
                    }
                    let until = taken + u64::try_from(left.as_nanos()).expect("not so long");
                    let end = match held.check() {
                        Ok(()) => clock(),
                        Err(_) => clock().min(until),
                    };
                    holdings.push((name, asked, taken, end, held.token()));
                    let _: Result<_, _> = held.release().await;
                }
                holdings
            })
        })
        .collect();
    for task in tasks {
        for (name, asked, taken, end, token) in task.await.expect("no panic") {
            say(format_args!("{name} {asked} {taken} {end} {token}"));
        }
    }
    say("done");
}
