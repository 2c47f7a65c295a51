//! The connection that all callers on one runtime share, made on demand.
//!
//! A separate task connects, on the callers' runtime, which then owns the
//! connection. All callers wait for that task, and a caller that gives up does
//! not cancel it. When the runtime shuts down, the connection closes.

use std::sync::Arc;
use std::time::Duration;

use crate::sync::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::RedisConnection;
use super::opened::OpenedConnections;
use crate::backend::topology::Master;
use crate::backend::{Backoff, RequestError};
use crate::time::BootInstant;

/// See the module's documentation.
pub(crate) struct SharedConnection {
    master: Master,
    keeper: Handle,
    opened: OpenedConnections,
    state: Mutex<SharedState>,
}

struct SharedState {
    current: Option<Arc<RedisConnection>>,
    /// The attempt in progress; holds `None` until it ends.
    connecting: Option<watch::Receiver<Option<ConnectOutcome>>>,
    backoff: Backoff,
    /// When the next attempt may start.
    not_before: BootInstant,
    last_error: Option<Arc<RequestError>>,
}

/// The result of an attempt, for all callers that wait for it.
type ConnectOutcome = Result<Arc<RedisConnection>, Arc<RequestError>>;

impl SharedConnection {
    pub(crate) fn new(master: Master, keeper: Handle) -> Arc<Self> {
        let state = SharedState {
            current: None,
            connecting: None,
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(1)),
            not_before: BootInstant::now(),
            last_error: None,
        };
        Arc::new(Self {
            master,
            keeper,
            opened: OpenedConnections::default(),
            state: Mutex::new(state),
        })
    }

    pub(crate) fn open_connection(&self) -> Option<Arc<RedisConnection>> {
        self.state.lock().open()
    }

    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Arc<RedisConnection>, RequestError> {
        let mut connecting = match self.open_or_connect() {
            ConnectStep::Open(connection) => return Ok(connection),
            ConnectStep::Backoff(error) => return Err(clone_error(&error)),
            ConnectStep::Connecting(connecting) => connecting,
        };
        let outcome = match connecting.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        };
        match outcome {
            Some(outcome) => outcome.map_err(|error| clone_error(&error)),
            // The runtime, which is also the caller's, was shut down.
            None => Err(RequestError::ShutDown),
        }
    }

    /// Returns all open connections, also retired ones.
    pub(crate) fn connections(&self) -> Vec<Arc<RedisConnection>> {
        self.opened.all()
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.state.lock().attempt().is_some()
    }

    /// Returns why the last attempt failed; `None` after a success.
    pub(crate) fn last_error(&self) -> Option<Arc<RequestError>> {
        self.state.lock().last_error.clone()
    }

    /// Returns whether there is neither a connection nor an attempt, nor a
    /// pause before the next one.
    pub(super) fn is_unused(&self) -> bool {
        let state = self.state.lock();
        let is_idle = state.open().is_none() && state.attempt().is_none();
        let is_paused = state.last_error.is_some() && BootInstant::now() < state.not_before;
        is_idle && !is_paused
    }
}

/// What a caller does next.
pub(super) enum ConnectStep {
    Open(Arc<RedisConnection>),
    /// A task connects.
    Connecting(watch::Receiver<Option<ConnectOutcome>>),
    Backoff(Arc<RequestError>),
}

impl SharedState {
    fn open(&self) -> Option<Arc<RedisConnection>> {
        let current = self.current.as_ref();
        current.filter(|connection| connection.is_open()).cloned()
    }

    /// Returns the attempt in progress. One that ended with its runtime does
    /// not count.
    fn attempt(&self) -> Option<&watch::Receiver<Option<ConnectOutcome>>> {
        let connecting = self.connecting.as_ref();
        connecting.filter(|connecting| connecting.has_changed().is_ok())
    }

    /// Forgets a connection that is retired or closed. If the server has
    /// replied on it, the next attempt need not wait.
    fn forget_ended(&mut self) {
        let ended = self.current.take_if(|current| !current.is_open());
        if ended.is_some_and(|ended| ended.has_replied()) {
            self.backoff.reset();
            self.not_before = BootInstant::now();
        }
    }
}

impl SharedConnection {
    /// Starts a task that connects, unless the connection is open or the last
    /// attempt has just failed.
    pub(super) fn open_or_connect(self: &Arc<Self>) -> ConnectStep {
        let mut state = self.state.lock();
        if let Some(connection) = state.open() {
            return ConnectStep::Open(connection);
        }
        // All callers wait for the one attempt in progress.
        if let Some(connecting) = state.attempt() {
            return ConnectStep::Connecting(connecting.clone());
        }
        state.forget_ended();
        if let Some(error) = &state.last_error
            // Callers that fail fast must not add load to a server that is in
            // trouble.
            && BootInstant::now() < state.not_before
        {
            return ConnectStep::Backoff(error.clone());
        }
        let (sender, connecting) = watch::channel(None);
        state.connecting = Some(connecting.clone());
        tokio::spawn(self.clone().connect(sender, state.not_before));
        ConnectStep::Connecting(connecting)
    }

    async fn connect(
        self: Arc<Self>,
        sender: watch::Sender<Option<ConnectOutcome>>,
        not_before: BootInstant,
    ) {
        // After a connection without a reply. Its callers don't fail, because
        // one lost connection is no reason to.
        if BootInstant::now() < not_before {
            tokio::time::sleep_until(not_before.as_timer()).await;
        }
        let connecting = self
            .master
            .connect(&self.keeper, "leasehold-requests", |_, _| ());
        let outcome = connecting.await.map_err(Arc::new);
        let mut state = self.state.lock();
        match &outcome {
            Ok(connection) => {
                self.opened.add(connection);
                state.current = Some(connection.clone());
                state.last_error = None;
            }
            Err(error) => {
                state.current = None;
                state.last_error = Some(error.clone());
            }
        }
        // Also after a success, which proves nothing yet: a server that closes
        // every connection after the login must not be asked without a pause.
        state.not_before = BootInstant::now() + state.backoff.pause();
        // Before the outcome is sent: a caller that it wakes must not find this
        // attempt again.
        state.connecting = None;
        drop(state);
        sender.send_replace(Some(outcome));
    }
}

/// Clones an error for one more caller. No request was sent before it, so it
/// never means that an outcome is unknown.
fn clone_error(error: &RequestError) -> RequestError {
    match error {
        RequestError::Refused(error) => RequestError::Refused(error.clone()),
        other => RequestError::Unreachable(other.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::task::{Context, Poll, Waker};

    use testkit::{Fault, Flavor, Proxy, SeededRng, scaled};

    use super::*;
    use crate::backend::Batch;
    use crate::backend::connection::{ConnectOptions, Endpoint, Role};

    /// Frames that a server never sends at this position.
    const UNEXPECTED: [&[u8]; 11] = [
        b">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n",
        b">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n",
        b">3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n",
        b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        b">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
        b"+OK\r\n",
        b"$9\r\nlh-seal-1\r\n",
        b"-ERR unsent\r\n",
        b"-BUSY unsent\r\n",
    ];

    /// Chooses the fault for the reply to one command, at most one for each
    /// write: a lost reply and an inserted one would pass for a valid reply,
    /// which no seal detects. Seals do not detect reordering within one write
    /// either.
    fn choose_fault(rng: &mut SeededRng, is_harmed: &mut bool, is_seal: bool) -> Fault {
        let fault = match any_fault(rng) {
            _ if *is_harmed => Fault::None,
            Fault::ReorderReply if !is_seal => Fault::None,
            fault => fault,
        };
        // A harmed seal harms the next write, too.
        *is_harmed = fault != Fault::None || (*is_harmed && !is_seal);
        fault
    }

    fn any_fault(rng: &mut SeededRng) -> Fault {
        match rng.below(400) {
            0 => Fault::DropReply,
            1 => Fault::DuplicateReply,
            2 => Fault::ReorderReply,
            3 => Fault::InsertBefore(UNEXPECTED[usize::try_from(rng.below(11)).unwrap()]),
            _ => Fault::None,
        }
    }

    /// Sends unique texts, like those of seals, until `left` is used up.
    /// Returns how many replies were accepted, and how many were wrong.
    async fn ask(requests: Arc<SharedConnection>, task: u64, left: Arc<AtomicI64>) -> (u64, u64) {
        // Short, because the loss of the last reply is detected only by the
        // timeout.
        let timeout = Duration::from_millis(30);
        let (mut accepted, mut wrong) = (0, 0);
        for round in 0u64.. {
            if left.fetch_sub(1, Ordering::Relaxed) <= 0 {
                break;
            }
            let Ok(connection) = requests.connection().await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let last = round % 3;
            let sent: Vec<_> = (0..=last)
                .map(|at| format!("lh-seal-{task}{round:06}{at}"))
                .collect();
            let batch = sent.iter().map(|text| Batch::new("PING").arg(text));
            let Ok(replies) = connection.exchange(batch.collect(), timeout).await else {
                continue;
            };
            let is_expected =
                |(reply, text): (&crate::backend::Reply, &String)| reply.text() == Some(text);
            let is_right =
                replies.len() == sent.len() && replies.iter().zip(&sent).all(is_expected);
            accepted += 1;
            wrong += u64::from(!is_right);
        }
        (accepted, wrong)
    }

    /// The caller connected again and again, because each attempt ended at
    /// once.
    #[test]
    fn caller_of_an_ended_runtime_gives_up() {
        let tokio = tokio::runtime::Builder::new_current_thread().build();
        let ended = tokio.unwrap().handle().clone();
        let _entered = ended.enter();
        let endpoint = Endpoint::new("redis://127.0.0.1:1", &ConnectOptions::default());
        let master = Master::Fixed(Arc::new(endpoint.unwrap()), Role::Master);
        let requests = SharedConnection::new(master, ended.clone());
        let mut connecting = std::pin::pin!(requests.connection());
        let mut context = Context::from_waker(Waker::noop());
        let polled = connecting.as_mut().poll(&mut context);
        assert!(matches!(polled, Poll::Ready(Err(RequestError::ShutDown))));
    }

    /// Connects to the server behind `proxy`.
    fn shared_through(proxy: &Proxy, options: &ConnectOptions) -> Arc<SharedConnection> {
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let endpoint = Endpoint::new(&url, options).unwrap();
        let master = Master::Fixed(Arc::new(endpoint), Role::Master);
        SharedConnection::new(master, Handle::current())
    }

    /// Returns whether the server replied.
    async fn ping(requests: &Arc<SharedConnection>) -> bool {
        let Ok(connection) = requests.connection().await else {
            return false;
        };
        let timeout = Duration::from_secs(30);
        connection
            .exchange(Batch::new("PING"), timeout)
            .await
            .is_ok()
    }

    /// The backoff was reset by the login alone, and the server was connected
    /// to as fast as callers asked.
    #[tokio::test]
    async fn login_alone_does_not_reset_backoff() {
        let server = Flavor::one().start();
        let proxy = Proxy::start(server.port());
        let options = ConnectOptions {
            timeout: Duration::from_secs(30),
            ..ConnectOptions::default()
        };
        let requests = shared_through(&proxy, &options);
        proxy.inject(|args| match args[0].as_slice() {
            b"PING" => Fault::CutRequest,
            _ => Fault::None,
        });
        let start = std::time::Instant::now();
        while proxy.connections() < 7 {
            assert!(!ping(&requests).await);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The shortest pauses: 10, 20, 40, 80, 160 and 320 ms.
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(600), "{took:?}");

        proxy.heal();
        while !ping(&requests).await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // After a reply, a broken connection is replaced without a pause.
        for _ in 0..3 {
            let connection = requests.open_connection().unwrap();
            proxy.sever();
            connection.ended().await;
            assert!(ping(&requests).await);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn faulty_replies_are_never_accepted() {
        let server = Flavor::one().start();
        let proxy = Proxy::start(server.port());
        let rng = Mutex::new((SeededRng::new(1), false));
        let injected = Arc::new(AtomicI64::new(0));
        let count = injected.clone();
        proxy.inject(move |args| match args[0].as_slice() {
            b"PING" | b"ECHO" => {
                let (rng, is_harmed) = &mut *rng.lock();
                let fault = choose_fault(rng, is_harmed, args[0] == b"ECHO");
                count.fetch_add(i64::from(fault != Fault::None), Ordering::Relaxed);
                fault
            }
            _ => Fault::None,
        });
        let options = ConnectOptions {
            timeout: Duration::from_millis(200),
            ..ConnectOptions::default()
        };
        let requests = shared_through(&proxy, &options);
        let total = i64::try_from(scaled(10_000)).unwrap();
        let left = Arc::new(AtomicI64::new(total));
        let tasks: Vec<_> = (0..32)
            .map(|task| tokio::spawn(ask(requests.clone(), task, left.clone())))
            .collect();
        let (mut accepted, mut wrong) = (0, 0);
        for task in tasks {
            let (task_accepted, task_wrong) = task.await.unwrap();
            accepted += task_accepted;
            wrong += task_wrong;
        }
        let injected = injected.load(Ordering::Relaxed);
        println!(
            "{total} requests, {accepted} accepted, {injected} faults injected, {wrong} wrong"
        );
        assert_eq!(wrong, 0);
        assert!(
            accepted > 0 && injected > total / 400,
            "{accepted} {injected}"
        );
    }
}
