//! The purpose of callers: one shared connection, made when a caller first needs it.
//!
//! A task of its own makes the connection, on the runtime of the caller that asked first, which owns the connection from
//! then on. Every caller waits for that task, and none ends it by giving up. When the runtime ends, the connection ends
//! with it, and the next caller has another made on its own runtime.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::backoff::Backoff;
use super::connection::RedisConnection;
use super::origin::Origin;
use super::reply::RequestError;
use crate::time::BootInstant;

pub(super) struct Requests {
    shared: Arc<Shared>,
}

struct Shared {
    origin: Origin,
    state: Mutex<State>,
}

struct State {
    current: Option<Arc<RedisConnection>>,
    /// The outcome of the dial under way, `None` until it has one.
    dial: Option<watch::Receiver<Option<Outcome>>>,
    backoff: Backoff,
    /// When the next dial may begin, and why the last one failed.
    not_before: BootInstant,
    last_failure: Option<Arc<RequestError>>,
}

/// What every caller that waits for a dial gets.
type Outcome = Result<Arc<RedisConnection>, Arc<RequestError>>;

impl Requests {
    pub(super) fn new(origin: Origin) -> Self {
        let state = State {
            current: None,
            dial: None,
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(1)),
            not_before: BootInstant::now(),
            last_failure: None,
        };
        Self {
            shared: Arc::new(Shared {
                origin,
                state: Mutex::new(state),
            }),
        }
    }

    pub(super) fn open_connection(&self) -> Option<Arc<RedisConnection>> {
        self.shared.state.lock().open()
    }

    pub(super) async fn connection(&self) -> Result<Arc<RedisConnection>, RequestError> {
        loop {
            let mut dial = match self.shared.open_or_dial() {
                Step::Open(connection) => return Ok(connection),
                Step::Pausing(failure) => return Err(copy(&failure)),
                Step::Dialing(dial) => dial,
            };
            // A task that ended with its runtime leaves no outcome: the next one is this caller's.
            if let Ok(outcome) = dial.wait_for(Option::is_some).await
                && let Some(outcome) = outcome.clone()
            {
                return outcome.map_err(|failure| copy(&failure));
            }
        }
    }
}

/// What a caller does next.
enum Step {
    Open(Arc<RedisConnection>),
    Dialing(watch::Receiver<Option<Outcome>>),
    Pausing(Arc<RequestError>),
}

impl State {
    fn open(&self) -> Option<Arc<RedisConnection>> {
        let current = self.current.as_ref();
        current.filter(|connection| connection.is_open()).cloned()
    }
}

impl Shared {
    fn open_or_dial(self: &Arc<Self>) -> Step {
        let mut state = self.state.lock();
        if let Some(connection) = state.open() {
            return Step::Open(connection);
        }
        if let Some(dial) = state
            .dial
            .as_ref()
            .filter(|dial| dial.has_changed().is_ok())
        {
            return Step::Dialing(dial.clone());
        }
        if let Some(failure) = &state.last_failure
            && BootInstant::now() < state.not_before
        {
            return Step::Pausing(failure.clone());
        }
        let (sender, dial) = watch::channel(None);
        state.dial = Some(dial.clone());
        tokio::spawn(self.clone().dial(sender));
        Step::Dialing(dial)
    }

    async fn dial(self: Arc<Self>, sender: watch::Sender<Option<Outcome>>) {
        let connecting = self.origin.connect("leasehold-requests", |_, _| ());
        let outcome = connecting.await.map_err(Arc::new);
        let mut state = self.state.lock();
        match &outcome {
            Ok(connection) => {
                state.backoff.reset();
                state.current = Some(connection.clone());
                state.last_failure = None;
            }
            Err(failure) => {
                state.current = None;
                state.not_before = BootInstant::now() + state.backoff.pause();
                state.last_failure = Some(failure.clone());
            }
        }
        state.dial = None;
        drop(state);
        sender.send_replace(Some(outcome));
    }
}

/// Copies a failure for one more caller. No request of a caller was sent before the dial failed.
fn copy(failure: &RequestError) -> RequestError {
    match failure {
        RequestError::Refused(refusal) => RequestError::Refused(refusal.clone()),
        other => RequestError::Unreachable(other.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use testkit::{Fault, Flavor, Proxy, SeededRng, Server, scaled};

    use super::*;
    use crate::backend::Command;
    use crate::backend::connection::{Endpoint, Role, Tls};

    /// Frames that no server sends at this place.
    const UNASKED: [&[u8]; 10] = [
        b">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n",
        b">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n",
        b">3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n",
        b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        b">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
        b"+OK\r\n",
        b"$9\r\nlh-seal-1\r\n",
        b"-ERR unasked\r\n",
    ];

    /// What the proxy does to the reply to one command. A second harm comes later: a reply that is lost while another is
    /// put in its place is a forgery, which no seal shows. Nor does one show that replies to one request were swapped.
    fn harm(rng: &mut SeededRng, untouched: &mut u32, is_last: bool) -> Fault {
        *untouched += 1;
        if *untouched < 8 {
            return Fault::None;
        }
        let fault = match any_harm(rng) {
            Fault::ReorderReply if !is_last => Fault::None,
            fault => fault,
        };
        if fault != Fault::None {
            *untouched = 0;
        }
        fault
    }

    fn any_harm(rng: &mut SeededRng) -> Fault {
        match rng.below(400) {
            0 => Fault::DropReply,
            1 => Fault::DuplicateReply,
            2 => Fault::ReorderReply,
            3 => Fault::InsertBefore(UNASKED[usize::try_from(rng.below(10)).unwrap()]),
            _ => Fault::None,
        }
    }

    /// Asks for texts of its own until `left` is used up; returns how many replies were believed, and how many of them
    /// were wrong.
    async fn ask(requests: Arc<Requests>, task: u64, left: Arc<AtomicI64>) -> (u64, u64) {
        // Short: a reply that is lost behind all others shows only by the timeout.
        let timeout = Duration::from_millis(30);
        let (mut believed, mut wrong) = (0, 0);
        for round in 0u64.. {
            if left.fetch_sub(1, Ordering::Relaxed) <= 0 {
                break;
            }
            let Ok(connection) = requests.connection().await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let last = round % 3;
            let asked: Vec<_> = (0..=last)
                .map(|at| format!("{task}-{round}-{at}-of-{last}"))
                .collect();
            let batch = asked.iter().map(|text| Command::new("PING").arg(text));
            let Ok(replies) = connection.exchange(batch.collect(), timeout).await else {
                continue;
            };
            let is_own =
                |(reply, text): (&super::super::Reply, &String)| reply.text() == Some(text);
            let is_right = replies.len() == asked.len() && replies.iter().zip(&asked).all(is_own);
            believed += 1;
            wrong += u64::from(!is_right);
        }
        (believed, wrong)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn harmed_replies_are_never_believed() {
        let server = Server::start(&Flavor::one());
        let proxy = Proxy::start(server.port());
        let rng = Mutex::new((SeededRng::new(1), 0));
        let harmed = Arc::new(AtomicI64::new(0));
        let count = harmed.clone();
        proxy.inject(move |args| match args[0].as_slice() {
            b"PING" | b"ECHO" => {
                let (rng, untouched) = &mut *rng.lock();
                let words: Vec<_> = args[1].split(|byte| *byte == b'-').collect();
                let is_last = args[0] == b"ECHO" || words[2] == words[4];
                let fault = harm(rng, untouched, is_last);
                count.fetch_add(i64::from(fault != Fault::None), Ordering::Relaxed);
                fault
            }
            _ => Fault::None,
        });
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let endpoint = Endpoint::new(&url, &Tls::default(), Duration::from_millis(200)).unwrap();
        let origin = Origin::Fixed(Arc::new(endpoint), Role::Master);
        let requests = Arc::new(Requests::new(origin));
        let total = i64::try_from(scaled(10_000)).unwrap();
        let left = Arc::new(AtomicI64::new(total));
        let tasks: Vec<_> = (0..32)
            .map(|task| tokio::spawn(ask(requests.clone(), task, left.clone())))
            .collect();
        let (mut believed, mut wrong) = (0, 0);
        for task in tasks {
            let (more, worse) = task.await.unwrap();
            (believed, wrong) = (believed + more, wrong + worse);
        }
        let harmed = harmed.load(Ordering::Relaxed);
        println!("{total} requests, {believed} believed, {harmed} replies harmed, {wrong} wrong");
        assert_eq!(wrong, 0);
        assert!(believed > 0 && harmed > total / 400, "{believed} {harmed}");
    }
}
