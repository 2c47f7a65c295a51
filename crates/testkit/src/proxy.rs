//! A network between a client and a server that can be made to fail, request by request.
//!
//! Runs on a thread of its own, so that a test may block its own runtime. It understands frames: a
//! fault is chosen for each request by what the request says.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use crate::resp::{arguments, frame_length};

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It waits this long before it goes on; later ones of the same connection wait behind it.
    Delay(Duration),
    /// It waits until [`Proxy::release_held`], and then reaches the server even if its client has gone.
    Hold,
    /// The connection is closed before it reaches the server.
    CutRequest,
    /// It reaches the server; the connection is closed instead of its answer.
    CutReply,
    /// It reaches the server; its answer and all that follow on this connection are swallowed.
    DropReplies,
    /// It reaches the server twice; one answer comes back.
    DuplicateRequest,
    /// It reaches the server; its reply alone is lost.
    DropReply,
    /// It reaches the server; its reply comes back twice.
    DuplicateReply,
    /// It reaches the server; its reply comes back after the next one of the same connection.
    ReorderReply,
    /// It reaches the server; these bytes come back before its reply.
    InsertBefore(&'static [u8]),
}

/// Decides about a request by its arguments, the command's name first.
pub type FaultPolicy = dyn Fn(&[Vec<u8>]) -> Fault + Send + Sync;

/// The network in front of one server.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

struct Shared {
    upstream: u16,
    judge: Mutex<Arc<FaultPolicy>>,
    /// How long what is sent at once is on its way.
    latency: Mutex<Duration>,
    /// What passes in neither direction, though nothing is closed.
    black_hole: watch::Sender<BlackHole>,
    connections: AtomicU64,
    refuse: AtomicBool,
    /// Raised to close every connection there is.
    severed: watch::Sender<u64>,
    release_held: Notify,
    requests: AtomicU64,
}

/// Which connections are swallowed whole.
#[derive(Clone, Copy, Default)]
struct BlackHole {
    all: bool,
    /// Those with a smaller number, for ever.
    before: u64,
}

impl Proxy {
    /// Starts one in front of the server on `upstream`.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    #[must_use]
    pub fn start(upstream: u16) -> Self {
        let shared = Arc::new(Shared {
            upstream,
            judge: Mutex::new(Arc::new(|_: &[Vec<u8>]| Fault::None)),
            latency: Mutex::default(),
            black_hole: watch::Sender::new(BlackHole::default()),
            connections: AtomicU64::new(0),
            refuse: AtomicBool::new(false),
            severed: watch::Sender::new(0),
            release_held: Notify::new(),
            requests: AtomicU64::new(0),
        });
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (tell_port, port) = std::sync::mpsc::channel();
        let accepting = shared.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                let port = listener.local_addr().expect("its address").port();
                tell_port.send(port).expect("the starter waits");
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

    /// The port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Has every further request judged by `judge`.
    ///
    /// # Panics
    ///
    /// When a judge has panicked before.
    pub fn inject(&self, judge: impl Fn(&[Vec<u8>]) -> Fault + Send + Sync + 'static) {
        *self.shared.judge.lock().expect("no panic") = Arc::new(judge);
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        self.inject(|_| Fault::None);
        self.black_hole(false);
        self.refuse(false);
    }

    /// Sends on what was held back.
    pub fn release_held(&self) {
        self.shared.release_held.notify_waiters();
    }

    /// Closes every connection there is now.
    pub fn sever(&self) {
        self.shared.severed.send_modify(|count| *count += 1);
    }

    /// Stops all traffic without closing anything, or lets it flow again.
    pub fn black_hole(&self, on: bool) {
        self.shared.black_hole.send_modify(|hole| hole.all = on);
    }

    /// Lets the connections there are fall silent for ever without closing them; new ones are well.
    pub fn stall_connections(&self) {
        let next = self.shared.connections.load(Ordering::SeqCst);
        self.shared
            .black_hole
            .send_modify(|hole| hole.before = next);
    }

    /// Closes new connections at once, or accepts them again.
    pub fn refuse(&self, on: bool) {
        self.shared.refuse.store(on, Ordering::SeqCst);
    }

    /// Moves the server away: whatever is sent at once takes so long to arrive.
    ///
    /// # Panics
    ///
    /// Never, unless another thread has.
    pub fn latency(&self, latency: Duration) {
        *self.shared.latency.lock().expect("no panic") = latency;
    }

    /// How many requests have come in.
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
            tokio::spawn(carry(client, shared.clone()));
        }
    }
}

/// What to do with the next answer of the server.
enum Fate {
    Deliver,
    Drop,
    Close,
    FallSilent,
    DeliverTwice,
    DeliverLater,
    DeliverBehind(&'static [u8]),
}

/// One connection, from both ends.
struct Pair {
    shared: Arc<Shared>,
    number: u64,
    fates: Mutex<VecDeque<Fate>>,
    closed: Notify,
}

async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", shared.upstream)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let mut severed = shared.severed.subscribe();
    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
    let pair = Arc::new(Pair {
        shared,
        number,
        fates: Mutex::default(),
        closed: Notify::new(),
    });
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Goes on after the client has gone: what was held back still reaches the server.
    let requests = tokio::spawn(carry_requests(pair.clone(), from_client, to_server));
    tokio::select! {
        () = carry_replies(pair.clone(), from_server, to_client) => {}
        () = pair.closed.notified() => {}
        _ = severed.changed() => requests.abort(),
    }
}

async fn carry_requests(pair: Arc<Pair>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = Vec::new();
    loop {
        let begins = buffer.is_empty();
        let Some(frame) = next_frame(&mut from, &mut buffer).await else {
            break;
        };
        if begins {
            let latency = *pair.shared.latency.lock().expect("no panic");
            tokio::time::sleep(latency).await;
        }
        let args = arguments(&frame);
        // The library's seals stand behind a request each, and are none.
        let is_seal = args[0] == b"ECHO";
        let counted = u64::from(!is_seal);
        pair.shared.requests.fetch_add(counted, Ordering::SeqCst);
        let judge = pair.shared.judge.lock().expect("no panic").clone();
        let fault = judge(&args);
        wait_while_black(&pair).await;
        match fault {
            Fault::Delay(pause) => tokio::time::sleep(pause).await,
            Fault::Hold => pair.shared.release_held.notified().await,
            Fault::CutRequest => break,
            _ => {}
        }
        let by_pushes = is_answered_by_pushes(&args);
        // Pushes cannot be told apart, so an answer too many could not be kept from the client.
        let copies = if fault == Fault::DuplicateRequest && !by_pushes {
            2
        } else {
            1
        };
        if !by_pushes {
            pair.fates.lock().expect("no panic").extend(fates(fault));
        }
        for _ in 0..copies {
            if to.write_all(&frame).await.is_err() {
                break;
            }
        }
    }
    pair.closed.notify_one();
}

fn fates(fault: Fault) -> Vec<Fate> {
    match fault {
        Fault::CutReply => vec![Fate::Close],
        Fault::DropReplies => vec![Fate::FallSilent],
        Fault::DuplicateRequest => vec![Fate::Drop, Fate::Deliver],
        Fault::DropReply => vec![Fate::Drop],
        Fault::DuplicateReply => vec![Fate::DeliverTwice],
        Fault::ReorderReply => vec![Fate::DeliverLater],
        Fault::InsertBefore(bytes) => vec![Fate::DeliverBehind(bytes)],
        _ => vec![Fate::Deliver],
    }
}

/// The answers to these come as pushes, in any number.
fn is_answered_by_pushes(args: &[Vec<u8>]) -> bool {
    let name = args[0].to_ascii_uppercase();
    name.ends_with(b"SUBSCRIBE")
}

async fn carry_replies(pair: Arc<Pair>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut buffer = Vec::new();
    let mut silent = false;
    let mut later = Vec::new();
    while let Some(frame) = next_frame(&mut from, &mut buffer).await {
        wait_while_black(&pair).await;
        let fate = match frame[0] {
            b'>' => None,
            _ => pair.fates.lock().expect("no panic").pop_front(),
        };
        let bytes = match fate {
            _ if silent => continue,
            Some(Fate::Close) => return,
            Some(Fate::FallSilent) => {
                silent = true;
                continue;
            }
            Some(Fate::Drop) => continue,
            Some(Fate::DeliverLater) => {
                later = [later, frame].concat();
                continue;
            }
            Some(Fate::DeliverTwice) => frame.repeat(2),
            Some(Fate::DeliverBehind(bytes)) => [bytes, &frame].concat(),
            Some(Fate::Deliver) | None => frame,
        };
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        if to.write_all(&std::mem::take(&mut later)).await.is_err() {
            return;
        }
    }
}

async fn wait_while_black(pair: &Pair) {
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
