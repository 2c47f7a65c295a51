//! The timing of pushed grants against a scripted server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::backend::scripted::{Answer, Scripted, Sent};
use crate::backend::{Purpose, Reply};
use crate::error::Error;
use crate::lease::attempt::PATIENCE;
use crate::lease::wait::queued::next_heartbeat_delay;
use crate::lease::{Engine, Exclusive, Guard, Keeper, Limits};
use crate::observe::Observers;
use crate::options::{AcquireOptions, margin};
use crate::protocol::{Counters, Keyspace, Kind, QueueParams, Queued};
use crate::time::BootInstant;

const LEASE: Duration = Duration::from_secs(30);
const FIRST: Duration = Duration::from_secs(3);
const AT_ONCE: Duration = Duration::from_millis(1);

/// The server's clock at the test's start.
const EPOCH: u64 = 1_763_000_000_000_000;

fn kind() -> Arc<dyn Kind> {
    let keys = Keyspace::new("lock:", Counters::one()).unwrap();
    Arc::new(Queued::new(keys.queue("job").unwrap(), QueueParams::FAIR))
}

fn engine(backend: &Arc<Scripted>) -> Arc<Engine> {
    let keeper = Keeper::default();
    let request = Duration::from_secs(1);
    tokio::spawn(
        keeper
            .clone()
            .work(backend.clone(), request, Observers::default()),
    );
    let limits = Limits {
        request,
        outage: Duration::from_secs(10),
    };
    Arc::new(Engine::new(
        backend.clone(),
        keeper,
        limits,
        Observers::default(),
    ))
}

fn acquire(engine: &Arc<Engine>, options: AcquireOptions) -> JoinHandle<Result<Guard, Error>> {
    let engine = engine.clone();
    tokio::spawn(async move {
        let lease = engine.acquire(&kind(), &options).await?;
        Ok(Guard::new(lease))
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

/// A server whose queue has one waiter, until the test changes the status.
struct QueueServer {
    start: BootInstant,
    /// The owner that enqueued.
    owner: Mutex<String>,
    /// The tickets with which owners enqueued.
    tickets: Mutex<Vec<String>>,
    heartbeats: AtomicU64,
    requests: AtomicU64,
    /// The status: 2 waits, 1 holds, 0 unknown.
    status: AtomicU64,
}

impl QueueServer {
    fn start() -> (Arc<Self>, Arc<Scripted>) {
        let server = Arc::new(Self {
            start: BootInstant::now(),
            owner: Mutex::default(),
            tickets: Mutex::default(),
            heartbeats: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            status: AtomicU64::new(2),
        });
        let shared = server.clone();
        (server, Scripted::new(move |sent| shared.reply(sent)))
    }

    fn now(&self) -> u64 {
        let passed = BootInstant::now().since(self.start).as_micros();
        EPOCH + u64::try_from(passed).unwrap()
    }

    fn reply(&self, sent: &Sent<'_>) -> Answer {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let args: Vec<_> = sent.batch.args(0).map(String::from_utf8_lossy).collect();
        if args[0] == "SET" {
            // The first attempt does not wait: another owner holds the lock.
            let held = format!("lh1:fair:1:1 {:032x} 1 1 host - ", 7);
            let replies = vec![Reply::Bytes(held.into_bytes()), Reply::Int(1)];
            return (AT_ONCE, Ok(replies));
        }
        // The command's name, the digest, the number of keys, six keys, and the
        // arguments.
        let status = self.status.load(Ordering::SeqCst);
        let replied = match (sent.purpose, args.len()) {
            (Purpose::Requests, 14) => 0,
            (Purpose::Keeper, 14) => {
                self.tickets.lock().push(args[13].to_string());
                *self.owner.lock() = args[9].split(' ').nth(1).unwrap().to_owned();
                status
            }
            _ if args[9] == *self.owner.lock() => {
                self.heartbeats.fetch_add(1, Ordering::SeqCst);
                status
            }
            _ => 0,
        };
        let reply = match replied {
            1 => list(&[1, EPOCH, self.now(), self.now() + 3_000_000]),
            status => list(&[status, 0, self.now(), 7]),
        };
        (AT_ONCE, Ok(vec![reply]))
    }

    /// Returns the message of a grant at this instant.
    fn grant(&self) -> Vec<u8> {
        let end = self.now() + u64::try_from(FIRST.as_micros()).unwrap();
        format!("{} {EPOCH} {end}", self.owner.lock()).into_bytes()
    }
}

#[tokio::test(start_paused = true)]
async fn grant_counts_from_the_server_s_time_of_it() {
    for delay in [0, 1, 400].map(Duration::from_millis) {
        let (server, backend) = QueueServer::start();
        let engine = engine(&backend);
        let waiting = acquire(&engine, AcquireOptions::new(LEASE));
        sleep(Duration::from_millis(1500)).await;
        let (message, granted) = (server.grant(), BootInstant::now());
        sleep(delay).await;
        backend.publish(&message);
        let guard = waiting.await.unwrap().unwrap();
        let deadline = (BootInstant::now() + guard.remaining()).since(granted);
        // The last heartbeat was sent half a second before, and a millisecond
        // before its reply.
        let exact = FIRST - margin(FIRST);
        assert!(deadline <= exact, "{deadline:?} is after {exact:?}");
        let earliest = FIRST - margin(LEASE) - Duration::from_millis(10);
        assert!(deadline > earliest, "{deadline:?}");
    }
}

/// The guard of a grant that arrived late outlived the server's lease, after a
/// step of the server's clock that the requested lease tolerates.
#[tokio::test(start_paused = true)]
async fn step_within_the_margin_extends_no_grant() {
    let (server, backend) = QueueServer::start();
    let engine = engine(&backend);
    let waiting = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(Duration::from_millis(1500)).await;
    let granted = BootInstant::now();
    let stepped = FIRST + margin(LEASE);
    let end = server.now() + u64::try_from(stepped.as_micros()).unwrap();
    let message = format!("{} {EPOCH} {end}", server.owner.lock());
    sleep(Duration::from_millis(400)).await;
    backend.publish(message.as_bytes());
    let guard = waiting.await.unwrap().unwrap();
    let deadline = (BootInstant::now() + guard.remaining()).since(granted);
    assert!(deadline <= FIRST, "{deadline:?}");
}

#[tokio::test(start_paused = true)]
async fn expired_grant_is_ignored() {
    let (server, backend) = QueueServer::start();
    let engine = engine(&backend);
    let waiting = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(Duration::from_millis(1500)).await;
    let message = server.grant();
    sleep(FIRST).await;
    backend.publish(&message);
    sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "held after its lease");
}

#[tokio::test(start_paused = true)]
async fn forward_clock_step_extends_no_lease() {
    let (server, backend) = QueueServer::start();
    let engine = engine(&backend);
    let waiting = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(Duration::from_millis(1500)).await;
    let hour = 3_600_000_000;
    let end = server.now() + hour + u64::try_from(FIRST.as_micros()).unwrap();
    let message = format!("{} {EPOCH} {end}", server.owner.lock());
    backend.publish(message.as_bytes());
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.remaining() <= FIRST - margin(FIRST));
}

#[tokio::test(start_paused = true)]
async fn grant_on_another_connection_is_confirmed() {
    let (server, backend) = QueueServer::start();
    let engine = engine(&backend);
    let waiting = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(Duration::from_millis(1500)).await;
    let before = server.heartbeats.load(Ordering::SeqCst);
    backend.break_links();
    backend.publish(&server.grant());
    sleep(Duration::from_millis(10)).await;
    assert!(!waiting.is_finished(), "accepted without confirmation");
    assert_eq!(server.heartbeats.load(Ordering::SeqCst), before + 1);
    server.status.store(1, Ordering::SeqCst);
    backend.publish(&server.grant());
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.remaining() > FIRST / 2);
}

#[tokio::test(start_paused = true)]
async fn heartbeat_finds_a_grant_without_message() {
    let (server, backend) = QueueServer::start();
    let engine = engine(&backend);
    let waiting = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(Duration::from_millis(10_500)).await;
    assert_eq!(server.heartbeats.load(Ordering::SeqCst), 10);
    server.status.store(1, Ordering::SeqCst);
    let start = BootInstant::now();
    let guard = waiting.await.unwrap().unwrap();
    assert!(BootInstant::now().since(start) <= Duration::from_secs(1));
    assert!(guard.remaining() > FIRST / 2);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_of_one_client_leave_together() {
    let mut instants = std::collections::BTreeSet::new();
    for _ in 0..60 {
        let delay = next_heartbeat_delay(FIRST);
        assert!(delay > FIRST / 3 - FIRST / 40 && delay <= FIRST / 3);
        instants.insert((BootInstant::now() + delay).as_nanos());
        sleep(Duration::from_millis(1)).await;
    }
    assert!(instants.len() <= 2, "{instants:?}");
}

#[tokio::test(start_paused = true)]
async fn granted_lease_is_renewed_and_fixed_one_once() {
    for renewed in [true, false] {
        let (server, backend) = QueueServer::start();
        let engine = engine(&backend);
        let mut options = AcquireOptions::new(LEASE);
        options.renewed = renewed;
        let waiting = acquire(&engine, options);
        sleep(Duration::from_millis(1500)).await;
        let message = server.grant();
        server.status.store(1, Ordering::SeqCst);
        let before = server.heartbeats.load(Ordering::SeqCst);
        backend.publish(&message);
        let guard = waiting.await.unwrap().unwrap();
        sleep(LEASE - Duration::from_secs(1)).await;
        guard.check().unwrap();
        let renewals = server.heartbeats.load(Ordering::SeqCst) - before;
        assert_eq!(renewals, if renewed { 3 } else { 1 });
        sleep(Duration::from_secs(2)).await;
        assert_eq!(guard.check().is_ok(), renewed);
    }
}

/// Returns how many requests a client sends after a pushed grant, while the
/// caller is not polled.
async fn requests_while_unpolled(is_granted: bool) -> u64 {
    let (server, backend) = QueueServer::start();
    let engine = engine(&backend);
    let kind = reader();
    let options = AcquireOptions::new(LEASE);
    let mut acquiring = Box::pin(engine.acquire(&kind, &options));
    let waited = tokio::time::timeout(Duration::from_millis(1500), &mut acquiring).await;
    assert!(waited.is_err(), "acquired at once");
    let before = server.requests.load(Ordering::SeqCst);
    if is_granted {
        backend.publish(&server.grant());
    }
    sleep(PATIENCE - AT_ONCE).await;
    assert_eq!(server.requests.load(Ordering::SeqCst), before, "too early");
    sleep(3 * AT_ONCE).await;
    server.requests.load(Ordering::SeqCst) - before
}

#[tokio::test(start_paused = true)]
async fn unclaimed_pushed_grant_is_cancelled() {
    assert_eq!(requests_while_unpolled(false).await, 0);
    assert_eq!(requests_while_unpolled(true).await, 1);
}

fn reader() -> Arc<dyn Kind> {
    let keys = Keyspace::new("lock:", Counters::one()).unwrap();
    let params = QueueParams {
        shared: true,
        local_handoff: false,
        hand_over: false,
        ..QueueParams::FAIR
    };
    Arc::new(Queued::new(keys.queue("job").unwrap(), params))
}

/// A caller that entered the queue, and was polled after the keeper had
/// cancelled that, failed as if the client was shut down.
#[tokio::test(start_paused = true)]
async fn reader_polled_late_waits_on() {
    let (server, backend) = QueueServer::start();
    let engine = engine(&backend);
    let (kind, options) = (reader(), AcquireOptions::new(LEASE));
    let mut acquiring = Box::pin(engine.acquire(&kind, &options));
    // Polled until it has sent the request, and not when the reply arrives.
    while server.owner.lock().is_empty() {
        sleep(AT_ONCE).await;
        let mut context = Context::from_waker(Waker::noop());
        assert!(acquiring.as_mut().poll(&mut context).is_pending());
    }
    sleep(Duration::from_secs(2)).await;
    let polled = tokio::time::timeout(Duration::from_secs(2), &mut acquiring).await;
    assert!(polled.is_err(), "{:?}", polled.map(|lease| lease.map(drop)));
    server.status.store(1, Ordering::SeqCst);
    backend.publish(&server.grant());
    Guard::<Exclusive>::new(acquiring.await.unwrap())
        .check()
        .unwrap();
}

/// A caller inherited the position of a caller that had left long before.
#[tokio::test(start_paused = true)]
async fn ticket_of_departed_caller_is_not_used() {
    let (server, backend) = QueueServer::start();
    let engine = engine(&backend);
    let (kind, options) = (kind(), AcquireOptions::new(LEASE));
    let wait = Duration::from_millis(1500);
    let mut dormant = Box::pin(engine.acquire(&kind, &options));
    assert!(tokio::time::timeout(wait, &mut dormant).await.is_err());
    backend.publish(&server.grant());
    sleep(wait).await;
    let departed = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(wait).await;
    departed.abort();
    sleep(wait).await;
    let next = acquire(&engine, AcquireOptions::new(LEASE));
    sleep(wait).await;
    assert_eq!(*server.tickets.lock(), ["0", "0", "0"]);
    next.abort();
}
