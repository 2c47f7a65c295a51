//! Worker processes that write to a resource under a lock. They do not check
//! their lease: a paused one must write late.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use leasehold::{Client, Guard};
use leasehold_fence::{Fence, FenceError};
use testkit::worker::{say, say_ready, task};
use testkit::{SeededRng, Worker};

use super::run;
use super::store::{Entry, Store};

/// The number of writes of a storm per acquisition.
const WRITES_PER_HOLD: u64 = 40;

/// The length of an acknowledgement in a log.
pub(crate) const ACK_LENGTH: u64 = 45;

/// How a worker locks and writes.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// The server of the locks.
    pub(crate) locks: String,
    /// The resource; see [`Store::open`].
    pub(crate) store: String,
    pub(crate) lease: Duration,
    pub(crate) guarded: bool,
}

/// Starts a worker with a unique number.
pub(crate) fn start(task: &Task, number: i64) -> Worker {
    let lease = task.lease.as_millis();
    let words = format!(
        "{} {} {lease} {} {number}",
        task.locks, task.store, task.guarded
    );
    Worker::spawn(&words)
}

/// The body of a worker process. Not a test; only [`Worker`] runs it.
#[test]
#[ignore = "the body of worker processes"]
fn process() {
    let Some(words) = task() else { return };
    let words: Vec<_> = words.split(' ').collect();
    let [locks, store, lease, guarded, number] = words[..] else {
        panic!("five words");
    };
    let lease = Duration::from_millis(lease.parse().expect("a lease"));
    run(async {
        // Short timeouts, so that a failover is noticed before the lease ends.
        let client = Client::connect(locks)
            .lease(lease)
            .request_timeout(lease / 2)
            .await
            .expect("the server is up");
        let writer = Writer {
            client,
            store: Store::open(store).await,
            guarded: guarded == "true",
            number: number.parse().expect("a number"),
        };
        say_ready();
        writer.serve().await;
    });
}

struct Writer {
    client: Client,
    store: Store,
    guarded: bool,
    number: i64,
}

impl Writer {
    async fn serve(&self) {
        let mut held: Option<Guard> = None;
        let mut written = 0;
        for line in std::io::stdin().lines() {
            let line = line.expect("a line");
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["lock", name] => {
                    let guard = self.client.mutex(name).lock().await.expect("the lock");
                    say(guard.token());
                    held = Some(guard);
                }
                ["write"] => {
                    let fence = Fence::of(held.as_ref().expect("held"));
                    written += 1;
                    say(describe(&self.write(&fence, written).await));
                }
                ["storm", names, folder] => {
                    let names = names.parse().expect("a number");
                    self.storm(names, Path::new(folder)).await;
                }
                ref other => panic!("unknown command {other:?}"),
            }
        }
    }

    async fn write(&self, fence: &Fence, written: i64) -> Result<(), FenceError> {
        let write = self.store.write(fence, self.number, written, self.guarded);
        write.await
    }

    /// Acquires random locks of `names` and writes under them, until killed.
    /// Logs each acknowledged and each rejected write.
    async fn storm(&self, names: u64, folder: &Path) {
        let open = |kind: &str| {
            let name = format!("{kind}-{}", self.number);
            File::create(folder.join(name)).expect("a log")
        };
        let (mut acknowledged, mut rejected) = (open("acknowledged"), open("rejected"));
        let seed = u64::try_from(self.number).expect("a positive number");
        let (mut rng, mut written) = (SeededRng::new(seed + 1), 0);
        loop {
            let name = storm_name(rng.below(names));
            let lock = self.client.mutex(&name).lock();
            let Ok(guard) = lock.timeout(Duration::from_secs(1)).await else {
                continue;
            };
            let fence = Fence::of(&guard);
            for _ in 0..WRITES_PER_HOLD {
                written += 1;
                match self.write(&fence, written).await {
                    // Unbuffered: a killed worker loses no acknowledgement.
                    Ok(()) => {
                        let line = format!("{name} {:020} {written:020}\n", fence.token());
                        acknowledged.write_all(line.as_bytes()).expect("a log");
                    }
                    Err(FenceError::Stale { ours, seen, .. }) => {
                        let valid = guard.check().is_ok();
                        let line = format!("{name} {ours} {seen} {valid}\n");
                        rejected.write_all(line.as_bytes()).expect("a log");
                        break;
                    }
                    // The outcome of a failed commit is unknown.
                    Err(_) => break,
                }
            }
            let _: Result<_, _> = guard.release().await;
        }
    }
}

/// Returns the name of a lock of a storm; always of the same length.
pub(crate) fn storm_name(number: u64) -> String {
    format!("n{}", number % 10)
}

fn describe(outcome: &Result<(), FenceError>) -> String {
    match outcome {
        Ok(()) => "written".to_owned(),
        Err(FenceError::Stale { ours, seen, .. }) => format!("stale {ours} {seen}"),
        Err(error) => format!("failed: {error}"),
    }
}

/// The writes that a storm's worker logged.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) acknowledged: Vec<(String, Entry)>,
    /// Names, own and seen tokens, and whether the lease was valid afterwards.
    pub(crate) rejected: Vec<(String, u64, u64, bool)>,
}

impl Log {
    /// Reads the logs of the workers `0..workers`.
    pub(crate) fn read(folder: &Path, workers: i64) -> Self {
        let mut log = Self::default();
        for worker in 0..workers {
            let read = |kind: &str| {
                let text = std::fs::read_to_string(folder.join(format!("{kind}-{worker}")));
                text.unwrap_or_default()
            };
            for line in complete_lines(&read("acknowledged")) {
                let (name, numbers) = line.split_once(' ').expect("three words");
                let (token, number) = numbers.split_once(' ').expect("three words");
                let entry = Entry {
                    token: token.parse().expect("a token"),
                    worker,
                    number: number.parse().expect("a number"),
                };
                log.acknowledged.push((name.to_owned(), entry));
            }
            for line in complete_lines(&read("rejected")) {
                let words: Vec<_> = line.split(' ').collect();
                let token = |word: &str| word.parse().expect("a token");
                let (ours, seen) = (token(words[1]), token(words[2]));
                log.rejected
                    .push((words[0].to_owned(), ours, seen, words[3] == "true"));
            }
        }
        log
    }

    /// Returns the number of acknowledged writes so far.
    pub(crate) fn count(folder: &Path, workers: i64) -> u64 {
        let length = |worker| {
            let file = folder.join(format!("acknowledged-{worker}"));
            std::fs::metadata(file).map_or(0, |file| file.len())
        };
        (0..workers).map(length).sum::<u64>() / ACK_LENGTH
    }
}

/// Returns the lines, without a line that a kill has cut short.
fn complete_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
}
