//! The timing of grants that are pushed, with scripted answers and a paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::line::next_beat;
use super::{Engine, Guard, Keeper, Limits};
use crate::backend::scripted::{Answer, Scripted, Sent};
use crate::backend::{Purpose, Reply};
use crate::error::Error;
use crate::options::{AcquireOptions, margin};
use crate::protocol::{Counters, Keyspace, Kind, QueueParams, Queued};
use crate::time::BootInstant;

const LEASE: Duration = Duration::from_secs(30);
const FIRST: Duration = Duration::from_secs(3);
const AT_ONCE: Duration = Duration::from_millis(1);

/// The server's clock when the test began.
const EPOCH: u64 = 1_763_000_000_000_000;

fn kind() -> Arc<dyn Kind> {
    let keys = Keyspace::new("lock:", Counters::one()).unwrap();
    let share = QueueParams {
        kind: "fair",
        capacity: 1,
        weight: 1,
        shared: false,
        local_handoff: true,
    };
    Arc::new(Queued::new(keys.queue("job").unwrap(), share))
}

fn engine(backend: &Arc<Scripted>) -> Arc<Engine> {
    let keeper = Keeper::default();
    let request = Duration::from_secs(1);
    tokio::spawn(keeper.clone().work(backend.clone(), request));
    let limits = Limits {
        request,
        outage: Duration::from_secs(10),
    };
    Arc::new(Engine::new(backend.clone(), keeper, limits))
}

fn acquire(engine: &Arc<Engine>, options: AcquireOptions) -> JoinHandle<Result<Guard, Error>> {
    let engine = engine.clone();
    tokio::spawn(async move {
        let hold = engine.take(&kind(), &options).await?;
        Ok(Guard::new(Arc::new(hold)))
    })
}

fn list(numbers: &[u64]) -> Reply {
    let number = |number: &u64| Reply::Int(i64::try_from(*number).unwrap());
    let mut parts: Vec<_> = numbers.iter().map(number).collect();
    if parts.len() == 4 && numbers[0] != 1 {
        parts.extend([Reply::Bytes(Vec::new()), Reply::Int(0)]);
    }
    Reply::List(parts)
}

/// A server with a line that our owner stands in, until the test says otherwise.
struct Desk {
    start: BootInstant,
    /// The owner that entered, and how many heartbeats it has sent.
    owner: Mutex<String>,
    beats: AtomicU64,
    /// What the server says of it: 2 waits, 1 holds, 0 gone.
    stands: AtomicU64,
}

impl Desk {
    fn open() -> (Arc<Self>, Arc<Scripted>) {
        let desk = Arc::new(Self {
            start: BootInstant::now(),
            owner: Mutex::default(),
            beats: AtomicU64::new(0),
            stands: AtomicU64::new(2),
        });
        let asked = desk.clone();
        (desk, Scripted::new(move |sent| asked.answer(sent)))
    }

    fn now(&self) -> u64 {
        let passed = BootInstant::now().since(self.start).as_micros();
        EPOCH + u64::try_from(passed).unwrap()
    }

    fn answer(&self, sent: &Sent<'_>) -> Answer {
        let args: Vec<_> = sent.batch.args(0).map(String::from_utf8_lossy).collect();
        if args[0] == "SET" {
            // The first try, which does not wait: another owner holds the lock.
            let held = format!("lh1:fair:1:1 {:032x} 1 1 host ", 7);
            let replies = vec![Reply::Bytes(held.into_bytes()), Reply::Int(1)];
            return (AT_ONCE, Ok(replies));
        }
        // Six keys and the arguments follow the name, the digest and the number of keys.
        let stands = self.stands.load(Ordering::SeqCst);
        let known = match (sent.purpose, args.len()) {
            (Purpose::Requests, 14) => 0,
            (Purpose::Keeper, 14) => {
                *self.owner.lock() = args[9].split(' ').nth(1).unwrap().to_owned();
                stands
            }
            _ if args[9] == *self.owner.lock() => {
                self.beats.fetch_add(1, Ordering::SeqCst);
                stands
            }
            _ => 0,
        };
        let reply = match known {
            1 => list(&[1, EPOCH, self.now(), self.now() + 3_000_000]),
            known => list(&[known, 0, self.now(), 7]),
        };
        (AT_ONCE, Ok(vec![reply]))
    }

    /// What the server publishes when it gives the lock to our owner now.
    fn grant(&self) -> Vec<u8> {
        let end = self.now() + u64::try_from(FIRST.as_micros()).unwrap();
        format!("{} {EPOCH} {end}", self.owner.lock()).into_bytes()
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_counts_from_when_the_server_made_it_however_late_it_is_heard() {
    for delay in [0, 1, 400].map(Duration::from_millis) {
        let (desk, backend) = Desk::open();
        let engine = engine(&backend);
        let waiting = acquire(&engine, AcquireOptions::new(LEASE));
        sleep(Duration::from_millis(1500)).await;
        let (message, granted) = (desk.grant(), BootInstant::now());
        sleep(delay).await;
        backend.publish(&message);
        let guard = waiting.await.unwrap().unwrap();
        let deadline = (BootInstant::now() + guard.remaining()).since(granted);
        // The last heartbeat was sent a millisecond before it was answered, half a second before.
        let exact = FIRST - margin(FIRST);
        assert!(deadline <= exact, "{deadline:?} is after {exact:?}");
        assert!(deadline > exact - Duration::from_millis(10), "{deadline:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_heard_when_it_is_over_is_not_believed() {
    let (desk, backend) = Desk::open();
    let engine = engine(&backend);
    let waiting = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(Duration::from_millis(1500)).await;
    let message = desk.grant();
    sleep(FIRST).await;
    backend.publish(&message);
    sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "held after its end");
}

#[tokio::test(start_paused = true)]
async fn a_server_s_clock_that_jumps_ahead_makes_no_lease_longer() {
    let (desk, backend) = Desk::open();
    let engine = engine(&backend);
    let waiting = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(Duration::from_millis(1500)).await;
    let hour = 3_600_000_000;
    let end = desk.now() + hour + u64::try_from(FIRST.as_micros()).unwrap();
    let message = format!("{} {EPOCH} {end}", desk.owner.lock());
    backend.publish(message.as_bytes());
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.remaining() <= FIRST - margin(FIRST));
}

#[tokio::test(start_paused = true)]
async fn a_grant_on_another_connection_is_confirmed_first() {
    let (desk, backend) = Desk::open();
    let engine = engine(&backend);
    let waiting = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(Duration::from_millis(1500)).await;
    let before = desk.beats.load(Ordering::SeqCst);
    backend.break_links();
    backend.publish(&desk.grant());
    sleep(Duration::from_millis(10)).await;
    assert!(!waiting.is_finished(), "believed without asking");
    assert_eq!(desk.beats.load(Ordering::SeqCst), before + 1);
    desk.stands.store(1, Ordering::SeqCst);
    backend.publish(&desk.grant());
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.remaining() > FIRST / 2);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_a_second_and_a_grant_without_a_message_is_found() {
    let (desk, backend) = Desk::open();
    let engine = engine(&backend);
    let waiting = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(Duration::from_millis(10_500)).await;
    assert_eq!(desk.beats.load(Ordering::SeqCst), 10);
    desk.stands.store(1, Ordering::SeqCst);
    let start = BootInstant::now();
    let guard = waiting.await.unwrap().unwrap();
    assert!(BootInstant::now().since(start) <= Duration::from_secs(1));
    assert!(guard.remaining() > FIRST / 2);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_of_one_client_leave_together() {
    let mut moments = std::collections::BTreeSet::new();
    for _ in 0..60 {
        let pause = next_beat(FIRST);
        assert!(pause > FIRST / 3 - FIRST / 40 && pause <= FIRST / 3);
        moments.insert((BootInstant::now() + pause).as_nanos());
        sleep(Duration::from_millis(1)).await;
    }
    assert!(moments.len() <= 2, "{moments:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_lease_is_renewed_in_time_and_a_fixed_one_once() {
    for renewed in [true, false] {
        let (desk, backend) = Desk::open();
        let engine = engine(&backend);
        let mut options = AcquireOptions::new(LEASE);
        options.renewed = renewed;
        let waiting = acquire(&engine, options);
        sleep(Duration::from_millis(1500)).await;
        let message = desk.grant();
        desk.stands.store(1, Ordering::SeqCst);
        let before = desk.beats.load(Ordering::SeqCst);
        backend.publish(&message);
        let guard = waiting.await.unwrap().unwrap();
        sleep(LEASE - Duration::from_secs(1)).await;
        guard.check().unwrap();
        let renewals = desk.beats.load(Ordering::SeqCst) - before;
        assert_eq!(renewals, if renewed { 3 } else { 1 });
        sleep(Duration::from_secs(2)).await;
        assert_eq!(guard.check().is_ok(), renewed);
    }
}
