//! A proxy between a client and a server that injects network faults.
//!
//! The proxy decodes frames, so a test can choose a fault for each request by
//! its content. It runs on its own thread, so a test may block its runtime.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};

use crate::resp::{arguments, frame_length};

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Delays the request, and later ones on the same connection behind it.
    Delay(Duration),
    /// Holds the request until [`Proxy::release_held`]. It reaches the server
    /// even if its client has disconnected.
    Hold,
    /// Closes the connection before the request reaches the server.
    CutRequest,
    /// Closes the connection instead of delivering the reply.
    CutReply,
    /// Drops the reply and all later ones on this connection.
    DropReplies,
    /// Sends the request to the server twice, and delivers one reply.
    DuplicateRequest,
    /// Drops the reply.
    DropReply,
    /// Delivers the reply twice.
    DuplicateReply,
    /// Delivers the reply after the next one on the same connection.
    ReorderReply,
    /// Delivers these bytes before the reply.
    InsertBefore(&'static [u8]),
    /// Delivers these bytes instead of the reply.
    ReplaceReply(&'static [u8]),
    /// Exchanges the reply with the next one of another connection that has
    /// this fault.
    ExchangeReply,
}

/// Chooses the fault of a request by its arguments, starting with the command.
pub type FaultPolicy = dyn Fn(&[Vec<u8>]) -> Fault + Send + Sync;

/// A faulty network in front of one server.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
}

struct Shared {
    upstream: AtomicU16,
    policy: Mutex<Arc<FaultPolicy>>,
    /// The latency of requests that are sent together.
    latency: Mutex<Duration>,
    /// Connections without traffic in either direction, though not closed.
    black_hole: watch::Sender<BlackHole>,
    connections: AtomicU64,
    refuse: AtomicBool,
    /// Incremented to close every connection.
    severed: watch::Sender<u64>,
    release_held: Notify,
    requests: AtomicU64,
    to_exchange: Mutex<Option<ReplyToExchange>>,
    /// The link to the server, and the one back. All connections share them.
    links: [Link; 2],
}

/// One direction of a slow network.
#[derive(Default)]
struct Link {
    /// Bytes per second; 0 means no limit.
    bandwidth: AtomicU64,
    /// When the bytes before have passed.
    free_at: Mutex<Option<tokio::time::Instant>>,
}

impl Link {
    /// Waits until `bytes` have passed, behind all earlier ones.
    async fn pass(&self, bytes: &[u8]) {
        let bandwidth = self.bandwidth.load(Ordering::SeqCst);
        if bandwidth == 0 {
            return;
        }
        let passed_at = {
            let now = tokio::time::Instant::now();
            let mut free_at = self.free_at.lock().expect("no panic");
            let start = free_at.map_or(now, |free_at| free_at.max(now));
            let nanos = 1_000_000_000 * bytes.len() as u64 / bandwidth;
            *free_at.insert(start + Duration::from_nanos(nanos))
        };
        tokio::time::sleep_until(passed_at).await;
    }
}

/// A reply of one connection, and where to send that of another.
type ReplyToExchange = (Vec<u8>, oneshot::Sender<Vec<u8>>);

/// The connections whose traffic is stalled.
#[derive(Clone, Copy, Default)]
struct BlackHole {
    all: bool,
    /// Connections with a smaller number, permanently.
    before: u64,
}

impl Proxy {
    /// Starts a proxy in front of the server on port `upstream`.
    ///
    /// # Panics
    ///
    /// If no port is free.
    #[must_use]
    pub fn start(upstream: u16) -> Self {
        let shared = Arc::new(Shared {
            upstream: AtomicU16::new(upstream),
            policy: Mutex::new(Arc::new(|_: &[Vec<u8>]| Fault::None)),
            latency: Mutex::default(),
            black_hole: watch::Sender::new(BlackHole::default()),
            connections: AtomicU64::new(0),
            refuse: AtomicBool::new(false),
            severed: watch::Sender::new(0),
            release_held: Notify::new(),
            requests: AtomicU64::new(0),
            to_exchange: Mutex::default(),
            links: Default::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let (port_sender, port) = std::sync::mpsc::channel();
        let accepting = shared.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                let port = listener.local_addr().expect("its address").port();
                port_sender.send(port).expect("the receiver waits");
                tokio::select! {
                    () = accept(listener, accepting) => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            port: port.recv().expect("the proxy starts"),
            shared,
            stop: Some(stop),
        }
    }

    /// Returns the port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Chooses the fault of every further request by `policy`.
    ///
    /// # Panics
    ///
    /// If an earlier policy has panicked.
    pub fn inject(&self, policy: impl Fn(&[Vec<u8>]) -> Fault + Send + Sync + 'static) {
        *self.shared.policy.lock().expect("no panic") = Arc::new(policy);
    }

    /// Removes all faults except of stalled connections.
    pub fn heal(&self) {
        self.inject(|_| Fault::None);
        self.black_hole(false);
        self.refuse(false);
    }

    /// Forwards the requests that are held.
    pub fn release_held(&self) {
        self.shared.release_held.notify_waiters();
    }

    /// Closes every open connection.
    pub fn sever(&self) {
        self.shared.severed.send_modify(|count| *count += 1);
    }

    /// Connects further connections to the server on port `upstream`, as an
    /// address that moves in a failover does.
    pub fn redirect(&self, upstream: u16) {
        self.shared.upstream.store(upstream, Ordering::SeqCst);
    }

    /// Stalls all traffic without closing connections, or resumes it.
    pub fn black_hole(&self, on: bool) {
        self.shared.black_hole.send_modify(|hole| hole.all = on);
    }

    /// Stalls every open connection permanently without closing it. New
    /// connections are not affected.
    pub fn stall_connections(&self) {
        let next = self.shared.connections.load(Ordering::SeqCst);
        self.shared
            .black_hole
            .send_modify(|hole| hole.before = next);
    }

    /// Closes new connections immediately, or accepts them again.
    pub fn refuse(&self, on: bool) {
        self.shared.refuse.store(on, Ordering::SeqCst);
    }

    /// Sets the latency of requests that are sent together.
    ///
    /// # Panics
    ///
    /// If another thread has panicked.
    pub fn latency(&self, latency: Duration) {
        *self.shared.latency.lock().expect("no panic") = latency;
    }

    /// Limits all connections together, in each direction; 0 means no limit.
    pub fn bandwidth(&self, bytes_per_second: u64) {
        for link in &self.shared.links {
            link.bandwidth.store(bytes_per_second, Ordering::SeqCst);
        }
    }

    /// Returns how many connections were made to the server.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of requests received.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if !shared.refuse.load(Ordering::SeqCst) {
            tokio::spawn(forward(client, shared.clone()));
        }
    }
}

/// What to do with the next reply of the server.
enum ReplyAction {
    Deliver,
    Drop,
    Close,
    Stall,
    DeliverTwice,
    DeliverLater,
    DeliverAfter(&'static [u8]),
    Replace(&'static [u8]),
    Exchange,
}

/// A connection of a client and its connection to the server.
struct Pair {
    shared: Arc<Shared>,
    number: u64,
    actions: Mutex<VecDeque<ReplyAction>>,
    closed: Notify,
}

async fn forward(client: TcpStream, shared: Arc<Shared>) {
    let upstream = shared.upstream.load(Ordering::SeqCst);
    let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let mut severed = shared.severed.subscribe();
    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
    let pair = Arc::new(Pair {
        shared,
        number,
        actions: Mutex::default(),
        closed: Notify::new(),
    });
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Continues after the client disconnects: held requests still reach the
    // server.
    let requests = tokio::spawn(forward_requests(pair.clone(), from_client, to_server));
    tokio::select! {
        () = forward_replies(pair.clone(), from_server, to_client) => {}
        () = pair.closed.notified() => {}
        _ = severed.changed() => requests.abort(),
    }
}

async fn forward_requests(pair: Arc<Pair>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = Vec::new();
    loop {
        let starts_batch = buffer.is_empty();
        let Some(frame) = next_frame(&mut from, &mut buffer).await else {
            break;
        };
        if starts_batch {
            let latency = *pair.shared.latency.lock().expect("no panic");
            tokio::time::sleep(latency).await;
        }
        let args = arguments(&frame);
        // The library sends an `ECHO` after each request, which does not count.
        let is_echo = args[0] == b"ECHO";
        let counted = u64::from(!is_echo);
        pair.shared.requests.fetch_add(counted, Ordering::SeqCst);
        pair.shared.links[0].pass(&frame).await;
        let policy = pair.shared.policy.lock().expect("no panic").clone();
        let fault = policy(&args);
        wait_while_stalled(&pair).await;
        match fault {
            Fault::Delay(pause) => tokio::time::sleep(pause).await,
            Fault::Hold => pair.shared.release_held.notified().await,
            Fault::CutRequest => break,
            _ => {}
        }
        let by_pushes = is_confirmed_by_pushes(&args);
        // Pushes are indistinguishable, so a duplicate could not be withheld
        // from the client.
        let copies = if fault == Fault::DuplicateRequest && !by_pushes {
            2
        } else {
            1
        };
        if !by_pushes {
            pair.actions
                .lock()
                .expect("no panic")
                .extend(reply_actions(fault));
        }
        for _ in 0..copies {
            if to.write_all(&frame).await.is_err() {
                break;
            }
        }
    }
    pair.closed.notify_one();
}

fn reply_actions(fault: Fault) -> Vec<ReplyAction> {
    match fault {
        Fault::CutReply => vec![ReplyAction::Close],
        Fault::DropReplies => vec![ReplyAction::Stall],
        Fault::DuplicateRequest => vec![ReplyAction::Drop, ReplyAction::Deliver],
        Fault::DropReply => vec![ReplyAction::Drop],
        Fault::DuplicateReply => vec![ReplyAction::DeliverTwice],
        Fault::ReorderReply => vec![ReplyAction::DeliverLater],
        Fault::InsertBefore(bytes) => vec![ReplyAction::DeliverAfter(bytes)],
        Fault::ReplaceReply(bytes) => vec![ReplyAction::Replace(bytes)],
        Fault::ExchangeReply => vec![ReplyAction::Exchange],
        _ => vec![ReplyAction::Deliver],
    }
}

/// Returns whether a command is confirmed by pushes, in any number.
fn is_confirmed_by_pushes(args: &[Vec<u8>]) -> bool {
    let name = args[0].to_ascii_uppercase();
    name.ends_with(b"SUBSCRIBE")
}

async fn forward_replies(pair: Arc<Pair>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = Vec::new();
    let mut stalled = false;
    let mut later = Vec::new();
    while let Some(frame) = next_frame(&mut from, &mut buffer).await {
        wait_while_stalled(&pair).await;
        pair.shared.links[1].pass(&frame).await;
        let action = match frame[0] {
            b'>' => None,
            _ => pair.actions.lock().expect("no panic").pop_front(),
        };
        let bytes = match action {
            _ if stalled => continue,
            Some(ReplyAction::Close) => return,
            Some(ReplyAction::Stall) => {
                stalled = true;
                continue;
            }
            Some(ReplyAction::Drop) => continue,
            Some(ReplyAction::DeliverLater) => {
                later = [later, frame].concat();
                continue;
            }
            Some(ReplyAction::DeliverTwice) => frame.repeat(2),
            Some(ReplyAction::DeliverAfter(bytes)) => [bytes, &frame].concat(),
            Some(ReplyAction::Replace(bytes)) => bytes.to_vec(),
            Some(ReplyAction::Exchange) => exchange(&pair.shared, frame).await,
            Some(ReplyAction::Deliver) | None => frame,
        };
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        if to.write_all(&std::mem::take(&mut later)).await.is_err() {
            return;
        }
    }
}

/// Waits for a reply of another connection, and exchanges it with `frame`.
async fn exchange(shared: &Shared, frame: Vec<u8>) -> Vec<u8> {
    let waiting = {
        let mut slot = shared.to_exchange.lock().expect("no panic");
        match slot.take() {
            Some((other, sender)) => {
                let _ = sender.send(frame);
                return other;
            }
            None => {
                let (sender, other) = oneshot::channel();
                *slot = Some((frame, sender));
                other
            }
        }
    };
    waiting.await.unwrap_or_default()
}

async fn wait_while_stalled(pair: &Pair) {
    let mut black_hole = pair.shared.black_hole.subscribe();
    let passes = |hole: &BlackHole| !hole.all && pair.number >= hole.before;
    let _ = black_hole.wait_for(passes).await;
}

async fn next_frame(from: &mut OwnedReadHalf, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(length) = frame_length(buffer) {
            return Some(buffer.drain(..length).collect());
        }
        if from.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}
