//! The socket of one connection: callers write, one task reads.
//!
//! A caller encodes a request into a shared buffer. If the buffer then holds at
//! least half of all unanswered requests, the caller writes it from the same
//! task: the server must not run out of work. Otherwise the reading task writes
//! it after it let other ready tasks add theirs. Many requests then leave in
//! one write, without a timer, while the server works on others. Callers that
//! got their replies together will probably ask again together, so the first
//! ones leave theirs in the buffer until half of them have.
//!
//! One task reads, on the runtime that owns the connection, and completes
//! requests. A second one, on the keeper's thread, counts ticks while requests
//! are pending, and fails requests that time out. A timer for each request
//! would cost more, and a blocked runtime would stop it.
//!
//! A connection whose server may be dead is *retired*: new requests go to
//! another one, while those in flight may still be answered. A silent server
//! may only be slow, and a reply that is late is better than none.
//!
//! # Invariants
//!
//! 1. Requests are written whole, in registration order, and at most once each.
//! 2. A request is written by the caller or by the reading task. It never
//!    depends on another caller's task being polled.
//! 3. Bytes that the socket does not accept immediately are written by the
//!    reading task when the socket is ready.
//! 4. When the reading or the ticking task ends, for any reason, the connection
//!    is closed.
//! 5. A retired connection is closed as soon as no caller waits for a reply,
//!    and after [`RETIREMENT`] at the latest.

use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::park::is_blocking;
use crate::process::HomeProcess;
use crate::sync::{Mutex, MutexGuard};
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::matching::{Matcher, PushEvent};
use super::outgoing::Outgoing;
use super::request::{Completions, Deadline, Message, PendingRequest, SubscribeOp, Unanswered};
use super::resp::{Decoder, MAX_FRAME, MAX_HELLO_FRAME};
use super::socket::{SocketReader, SocketReady, SocketWriter};
use crate::backend::{Admitted, Batch, Channel, Reply};

/// How much is read at once. The buffer grows to the size of the largest frame.
const READ_CHUNK: usize = 16 * 1024;

/// The resolution of deadlines.
const TICK_MILLIS: u64 = 10;

/// How long a retired connection waits for replies. Long enough for renewals,
/// and not longer: a request that was given up must not arrive much later.
const RETIREMENT: Duration = Duration::from_secs(5);

/// A callback for pushes. It runs on the reading task and must not block.
pub(super) type OnEvent = Box<dyn Fn(PushEvent) + Send + Sync>;

/// `matcher` is locked before `outgoing`.
pub(super) struct Wire {
    /// The process that may use the socket.
    process: HomeProcess,
    /// Shared by the callers, and briefly by the reading task.
    outgoing: Mutex<Outgoing>,
    /// Locked by the reading task while it handles replies. Callers don't wait
    /// for it.
    matcher: Mutex<Matcher>,
    /// Locked only by the thread that set `Outgoing::is_writing`, so the lock
    /// is never contended while the connection is open. `None` once it is
    /// closed.
    writer: Mutex<Option<SocketWriter>>,
    /// Wakes the reading task when it has to flush.
    ready: Arc<SocketReady>,
    /// Wakes the ticking task.
    must_tick: Notify,
    ticks: AtomicU64,
    closed: AtomicBool,
    /// The tick at which the connection was retired; [`Deadline::NEVER`] before
    /// that.
    retired_at: AtomicU64,
    /// Whether the handshake has succeeded.
    is_established: AtomicBool,
    /// Notified when the connection is retired, and when it is closed.
    on_end: Notify,
    /// The tick at which the last reply was accepted, or from which on the
    /// server has owed one.
    silent_since: AtomicU64,
}

impl Wire {
    /// Starts reading from `reader` on the current runtime, once the first
    /// request is registered. Deadlines are checked on `keeper`.
    pub(super) fn start(
        reader: SocketReader,
        writer: SocketWriter,
        keeper: &Handle,
        on_event: OnEvent,
    ) -> Arc<Self> {
        let wire = Arc::new(Self {
            process: HomeProcess::current(),
            outgoing: Mutex::new(Outgoing::new()),
            matcher: Mutex::default(),
            writer: Mutex::new(Some(writer)),
            ready: Arc::default(),
            must_tick: Notify::new(),
            ticks: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            retired_at: AtomicU64::new(Deadline::NEVER.0),
            is_established: AtomicBool::new(false),
            on_end: Notify::new(),
            silent_since: AtomicU64::new(0),
        });
        // Created before the spawn, so that a task that never runs also closes
        // the connection (invariant 4).
        let reading = CloseWhenDropped(wire.clone());
        tokio::spawn(async move { reading.read(reader, on_event).await });
        let ticking = CloseWhenDropped(wire.clone());
        keeper.spawn(async move { ticking.tick().await });
        wire
    }

    /// Returns the deadline of a request that starts now.
    pub(super) fn deadline(&self, timeout: Duration) -> Deadline {
        // Rounded up, and one more: the current tick has begun before.
        Deadline(self.now().saturating_add(ticks(timeout) + 2))
    }

    /// Returns the current tick.
    fn now(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Sends `batch` and waits for the replies.
    pub(super) fn request<'a>(&'a self, batch: &'a Batch, deadline: Deadline) -> RequestFuture<'a> {
        self.send(Message::Commands(batch), deadline)
    }

    /// Subscribes or unsubscribes. A confirmation is [`Reply::Nil`], an error
    /// reply is returned as such.
    pub(super) fn update_subscriptions<'a>(
        &'a self,
        op: SubscribeOp,
        channels: &'a [Channel],
        deadline: Deadline,
    ) -> RequestFuture<'a> {
        self.send(Message::SubscriptionChange(op, channels), deadline)
    }

    fn send<'a>(&'a self, message: Message<'a>, deadline: Deadline) -> RequestFuture<'a> {
        RequestFuture {
            wire: self,
            message,
            deadline,
            admitted: None,
            request: None,
        }
    }

    /// Adds a request to the buffer, and writes the buffer or leaves that to
    /// the reading task (invariant 2).
    fn register(
        &self,
        message: &Message<'_>,
        deadline: Deadline,
        admitted: Option<Admitted>,
        waker: Waker,
    ) -> Result<Arc<PendingRequest>, Unanswered> {
        let request = PendingRequest::new(waker);
        let mut outgoing = self.outgoing.lock();
        if let Some(reason) = &outgoing.close_reason {
            return Err(Unanswered::Closed(reason.clone()));
        }
        if outgoing.unanswered == 0 {
            self.silent_since.store(self.now(), Ordering::Relaxed);
        }
        outgoing.add(message, request.clone(), deadline, admitted);
        if !mem::replace(&mut outgoing.is_ticking, true) {
            self.must_tick.notify_one();
        }
        // A thread that blocks may be the runtime's, and the reading task then
        // runs only after the request is complete.
        if outgoing.is_worth_a_write() || is_blocking() {
            self.flush(outgoing);
        } else if !mem::replace(&mut outgoing.reader_will_flush, true) {
            self.ready.0.notify_one();
        }
        if !self.is_established() {
            // Starts the reading task.
            self.ready.0.notify_one();
        }
        Ok(request)
    }

    /// Writes all buffered requests. If another thread is writing, that thread
    /// also writes what was added meanwhile.
    fn flush<'a>(&'a self, mut outgoing: MutexGuard<'a, Outgoing>) {
        // The other thread looks at the buffer again before it stops.
        if outgoing.is_writing {
            return;
        }
        outgoing.is_writing = true;
        loop {
            if self.is_closed() || (outgoing.bytes.is_empty() && !outgoing.is_unflushed) {
                break;
            }
            outgoing.seal();
            // We swap buffers and unlock, so that callers can add requests
            // during the system call.
            let spare = mem::take(&mut outgoing.spare);
            let mut bytes = mem::replace(&mut outgoing.bytes, spare);
            drop(outgoing);
            let (written, outcome) = self.write(&bytes);
            outgoing = self.outgoing.lock();
            bytes.drain(..written);
            if bytes.is_empty() {
                outgoing.spare = bytes;
            } else {
                // The socket took only a part. What was added meanwhile goes
                // behind the rest (invariant 1).
                bytes.extend_from_slice(&outgoing.bytes);
                outgoing.bytes = bytes;
            }
            outgoing.is_unflushed = outcome.is_pending();
            match outcome {
                Poll::Ready(Ok(())) => {}
                // The reading task writes the rest (invariant 3).
                Poll::Pending => break,
                // A server that rejects the client sends an error and closes.
                // The reading task returns that error, or finds the end.
                Poll::Ready(Err(_)) if !self.is_established() => break,
                Poll::Ready(Err(error)) => {
                    outgoing.is_writing = false;
                    drop(outgoing);
                    return self.close(&error.to_string());
                }
            }
        }
        outgoing.is_writing = false;
    }

    /// Writes as much of `bytes` as the socket accepts, and flushes the socket.
    fn write(&self, bytes: &[u8]) -> (usize, Poll<io::Result<()>>) {
        let waker = Waker::from(self.ready.clone());
        let mut context = Context::from_waker(&waker);
        let mut writer = self.writer.lock();
        let Some(writer) = &mut *writer else {
            return (0, Poll::Ready(Err(io::ErrorKind::NotConnected.into())));
        };
        let mut written = 0;
        while written < bytes.len() {
            match writer.as_mut().poll_write(&mut context, &bytes[written..]) {
                Poll::Ready(Ok(0)) => {
                    return (written, Poll::Ready(Err(io::ErrorKind::WriteZero.into())));
                }
                Poll::Ready(Ok(count)) => written += count,
                Poll::Ready(Err(error)) => return (written, Poll::Ready(Err(error))),
                Poll::Pending => return (written, Poll::Pending),
            }
        }
        (written, writer.as_mut().poll_flush(&mut context))
    }

    /// Ends the handshake. From now on, requests are sealed if `is_sealed`.
    pub(super) fn establish(&self, is_sealed: bool) {
        self.outgoing.lock().is_sealed = is_sealed;
        self.is_established.store(true, Ordering::Release);
    }

    fn is_established(&self) -> bool {
        self.is_established.load(Ordering::Acquire)
    }

    /// Returns whether the server has confirmed a subscription to `channel`.
    pub(super) fn is_subscribed(&self, channel: &Channel) -> bool {
        self.matcher.lock().is_subscribed(channel)
    }

    /// Returns whether this process may use the socket.
    pub(super) fn is_own(&self) -> bool {
        self.process.is_current()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn is_retired(&self) -> bool {
        self.retired_at.load(Ordering::Acquire) < Deadline::NEVER.0
    }

    /// Returns whether the connection is neither retired nor closed.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed() && !self.is_retired()
    }

    /// Returns whether the server has owed a reply for `time`, and has sent
    /// none. A pause of this process does not count.
    pub(super) fn is_silent_for(&self, time: Duration) -> bool {
        let silent_since = self.silent_since.load(Ordering::Relaxed);
        // The ticks are up to two late.
        let is_silent = silent_since + ticks(time) <= self.now() + 2;
        is_silent && self.outgoing.lock().unanswered > 0
    }

    /// Retires the connection (invariant 5). Only the first call has an effect.
    pub(super) fn retire(&self) {
        if !self.process.is_current() {
            return self.close("the process was forked");
        }
        let (never, now) = (Deadline::NEVER.0, self.now());
        let retired_at = &self.retired_at;
        if retired_at
            .compare_exchange(never, now, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.on_end.notify_waiters();
            // It closes the connection, perhaps at once.
            self.must_tick.notify_one();
        }
    }

    /// Returns how many requests were completed with replies.
    pub(super) fn completed(&self) -> usize {
        self.matcher.lock().completed()
    }

    /// Fails every incomplete request, ends both tasks and closes the socket.
    /// Only the first call has an effect.
    ///
    /// A request that fails here reaches the server now or never: bytes that
    /// the system has not delivered are discarded.
    pub(super) fn close(&self, reason: &str) {
        if !self.process.is_current() {
            // The mutexes may be locked by threads that a forked child lacks.
            self.closed.store(true, Ordering::Release);
            return;
        }
        let mut matcher = self.matcher.lock();
        let mut outgoing = self.outgoing.lock();
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        // With all replies here, the server sees an orderly end.
        let discards = outgoing.unanswered > 0;
        let reason: Arc<str> = reason.into();
        outgoing.close_reason = Some(reason.clone());
        // What is not written yet stays unwritten: its callers learn that the
        // outcome is unknown.
        outgoing.bytes = Vec::new();
        matcher.expect(outgoing.registered.drain(..));
        drop(outgoing);
        let mut ended = Completions::default();
        matcher.close(&reason, &mut ended);
        drop(matcher);
        ended.announce();
        // The reading task drops the other half. The socket must not stay open
        // for as long as a caller keeps the closed connection.
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            writer.disconnect(discards);
        }
        self.on_end.notify_waiters();
        self.ready.0.notify_one();
        self.must_tick.notify_one();
    }

    /// Waits until the connection is closed.
    pub(super) async fn closed(&self) {
        self.until(Self::is_closed).await;
    }

    /// Waits until the connection is retired or closed.
    pub(super) async fn ended(&self) {
        self.until(|wire| !wire.is_open()).await;
    }

    async fn until(&self, has_come: impl Fn(&Self) -> bool) {
        loop {
            let mut notified = std::pin::pin!(self.on_end.notified());
            // Enabled before the check: we would otherwise miss an end in
            // between.
            notified.as_mut().enable();
            if has_come(self) {
                return;
            }
            notified.await;
        }
    }

    pub(super) fn close_reason(&self) -> Arc<str> {
        let reason = self.outgoing.lock().close_reason.clone();
        reason.unwrap_or_else(|| "closed".into())
    }
}

/// Returns how many whole ticks `time` has.
fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX) / TICK_MILLIS
}

/// Sends a request when it is first polled, and waits for the replies. Dropping
/// it abandons the request.
pub(super) struct RequestFuture<'a> {
    wire: &'a Wire,
    message: Message<'a>,
    deadline: Deadline,
    /// `None` once it is sent.
    admitted: Option<Admitted>,
    /// `None` until it is sent.
    request: Option<Arc<PendingRequest>>,
}

impl RequestFuture<'_> {
    /// Ends `admitted` with the reply, which the caller need not wait for.
    pub(super) fn ending(mut self, admitted: Option<Admitted>) -> Self {
        self.admitted = admitted;
        self
    }
}

impl Future for RequestFuture<'_> {
    type Output = Result<Vec<Reply>, Unanswered>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(request) = &self.request {
            return request.poll(context);
        }
        if self.message.is_empty() {
            return Poll::Ready(Ok(Vec::new()));
        }
        let (waker, admitted) = (context.waker().clone(), self.admitted.take());
        let wire = self.wire;
        let request = wire.register(&self.message, self.deadline, admitted, waker)?;
        self.request = Some(request);
        Poll::Pending
    }
}

impl Drop for RequestFuture<'_> {
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            request.abandon();
        }
    }
}

/// One of the two tasks. Closes the connection when dropped (invariant 4).
struct CloseWhenDropped(Arc<Wire>);

impl Drop for CloseWhenDropped {
    fn drop(&mut self) {
        self.0.close("the runtime of the connection was shut down");
    }
}

impl CloseWhenDropped {
    async fn read(self, mut reader: SocketReader, on_event: OnEvent) {
        let wire = &*self.0;
        // Otherwise an error that the server sends at once, such as `max number
        // of clients reached`, would be a reply without a request.
        wire.ready.0.notified().await;
        wire.gather().await;
        let mut decoder = Decoder::new(MAX_HELLO_FRAME);
        let (mut buffer, mut start) = (Vec::with_capacity(READ_CHUNK), 0);
        let (mut ended, mut events) = (Completions::default(), Vec::new());
        while !wire.is_closed() {
            // Keeps the start of an incomplete frame only.
            buffer.drain(..mem::take(&mut start));
            buffer.reserve(READ_CHUNK);
            let read = tokio::select! {
                biased;
                read = reader.read_buf(&mut buffer) => read,
                () = wire.ready.0.notified() => {
                    wire.gather().await;
                    continue;
                }
            };
            match read {
                Ok(0) => return wire.close("the server closed the connection"),
                Ok(_) => {}
                Err(error) => return wire.close(&error.to_string()),
            }
            if wire.is_established() {
                decoder.set_max_frame(MAX_FRAME);
            }
            let handled = wire.handle(&mut decoder, &buffer, &mut start, &mut ended, &mut events);
            if let Err(reason) = handled {
                tracing::warn!(reason, "protocol violation, closing the connection");
                wire.close(&reason);
            }
            // The connection that replaces a retired one has subscribed again,
            // and listeners must not mix up what both report.
            if wire.is_retired() {
                events.clear();
            }
            // Also after a violation: closing wakes only the callers whose
            // requests had not completed before.
            events.drain(..).for_each(&on_event);
            ended.announce();
            // Not only once the socket is empty, which may take long.
            if wire.outgoing.lock().reader_will_flush {
                wire.gather().await;
            }
        }
    }

    /// Counts ticks while requests are pending.
    async fn tick(self) {
        let wire = &*self.0;
        while !wire.is_closed() {
            wire.must_tick.notified().await;
            let mut next = Instant::now();
            while wire.expire() {
                // From tick to tick, since each sleep is a little late. After a
                // pause of the process we don't catch up: replies may have
                // arrived that are not read yet.
                next = (next + Duration::from_millis(TICK_MILLIS)).max(Instant::now());
                tokio::time::sleep_until(next).await;
            }
        }
    }
}

impl Wire {
    /// Lets tasks that are ready add their requests, then writes all of them.
    async fn gather(&self) {
        tokio::task::yield_now().await;
        let mut outgoing = self.outgoing.lock();
        outgoing.reader_will_flush = false;
        outgoing.woken = 0;
        self.flush(outgoing);
    }

    /// Handles all complete frames.
    fn handle(
        &self,
        decoder: &mut Decoder,
        bytes: &[u8],
        start: &mut usize,
        ended: &mut Completions,
        events: &mut Vec<PushEvent>,
    ) -> Result<(), String> {
        let mut matcher = self.matcher.lock();
        matcher.expect(self.outgoing.lock().registered.drain(..));
        let (completed, accepted) = (matcher.completed(), matcher.accepted());
        let outcome = loop {
            let (used, frame) = match decoder.decode(&bytes[*start..]) {
                Ok(decoded) => decoded,
                Err(malformed) => break Err(malformed.to_string()),
            };
            *start += used;
            let Some(frame) = frame else { break Ok(()) };
            match matcher.handle(frame, ended) {
                Ok(event) => events.extend(event),
                Err(violation) => break Err(violation.to_string()),
            }
        };
        // Only replies count, not pushes: a busy channel must not hide a server
        // that no longer answers.
        if matcher.accepted() > accepted {
            self.silent_since.store(self.now(), Ordering::Relaxed);
        }
        let mut outgoing = self.outgoing.lock();
        outgoing.unanswered -= matcher.completed() - completed;
        // For several callers, one flush after all of them have run saves
        // writes.
        outgoing.reader_will_flush |= ended.wakers.len() > 1;
        outgoing.woken = ended.wakers.len();
        outcome
    }

    /// Counts a tick, and fails the requests whose deadline has passed. Returns
    /// `false` once no request is pending, or the connection is closed.
    fn expire(&self) -> bool {
        let mut ended = Completions::default();
        let mut matcher = self.matcher.lock();
        let mut outgoing = self.outgoing.lock();
        matcher.expect(outgoing.registered.drain(..));
        outgoing.is_ticking = !matcher.is_idle();
        drop(outgoing);
        let now = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        matcher.expire(Deadline(now), &mut ended);
        let retired_at = self.retired_at.load(Ordering::Acquire);
        let is_over = retired_at.saturating_add(ticks(RETIREMENT)) <= now;
        let is_done = is_over || (self.is_retired() && !matcher.is_awaited());
        let is_idle = matcher.is_idle();
        drop(matcher);
        ended.announce();
        if is_done {
            self.close("the client replaced the connection");
        }
        !is_idle && !is_done
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::backend::ServerError;
    use crate::backend::connection::socket::{Disconnect, own_halves, shared_halves};

    impl Disconnect for tokio::io::WriteHalf<DuplexStream> {
        /// Dropping the half is enough.
        fn disconnect(&self, _: bool) {}
    }

    /// The limit of an event that must happen.
    const AMPLE: Duration = Duration::from_secs(60);

    /// Returns a connection over TCP, and the server's end of it. If
    /// `is_shared`, its halves are those of TLS.
    async fn start_tcp(is_shared: bool) -> (Arc<Wire>, std::net::TcpStream) {
        let socket = TcpSocket::new_v4().unwrap();
        // What the server does not read soon stays with the client.
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let server = server.into_std().unwrap();
        server.set_nonblocking(false).unwrap();
        server.set_read_timeout(Some(AMPLE)).unwrap();
        let (reader, writer) = match is_shared {
            true => {
                let (reader, writer) = shared_halves(client);
                own_halves(reader, writer)
            }
            false => {
                let (reader, writer) = client.into_split();
                own_halves(reader, writer)
            }
        };
        let on_event = Box::new(|_| ());
        let wire = Wire::start(reader, writer, &Handle::current(), on_event);
        (wire, server)
    }

    /// Reads until the client ends the connection. Returns how many bytes
    /// arrived, and whether the connection was reset.
    fn read_to_the_end(mut server: std::net::TcpStream) -> (usize, bool) {
        let mut buffer = vec![0; 1 << 16];
        let mut count = 0;
        loop {
            match io::Read::read(&mut server, &mut buffer) {
                Ok(0) => return (count, false),
                Ok(more) => count += more,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return (count, true);
                }
                Err(error) => panic!("the connection stays open: {error}"),
            }
        }
    }

    /// Returns a connection before the login, and the server's end of it.
    fn start() -> (Arc<Wire>, DuplexStream) {
        let (client, server) = duplex(1024);
        let (reader, writer) = tokio::io::split(client);
        let wire = Wire::start(
            Box::pin(reader),
            Box::pin(writer),
            &Handle::current(),
            Box::new(|_| ()),
        );
        (wire, server)
    }

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    /// Sends a `PING` from a task of its own. The outcome is the reply, or
    /// `None` if the connection was closed.
    fn ping(wire: &Arc<Wire>) -> JoinHandle<Option<Reply>> {
        let wire = wire.clone();
        tokio::spawn(async move {
            let batch = Batch::new("PING");
            let deadline = wire.deadline(AMPLE);
            wire.request(&batch, deadline).await.ok()?.pop()
        })
    }

    /// Waits until the server has received a `PING`.
    async fn receive_ping(server: &mut DuplexStream) {
        let mut received = [0; 14];
        server.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"*1\r\n$4\r\nPING\r\n");
    }

    async fn outcome(ping: JoinHandle<Option<Reply>>) -> Option<Reply> {
        let outcome = tokio::time::timeout(AMPLE, ping).await;
        outcome.expect("the caller is woken").unwrap()
    }

    /// The caller of a reply that was accepted just before a violation was
    /// never woken.
    #[tokio::test]
    async fn reply_before_a_violation_wakes_its_caller() {
        let violations: [&[u8]; 2] = [b"+PONG\r\n>1\r\n+x\r\n", b"+PONG\r\n?\r\n"];
        for bytes in violations {
            let (wire, mut server) = start();
            let accepted = ping(&wire);
            receive_ping(&mut server).await;
            let unknown = ping(&wire);
            receive_ping(&mut server).await;
            server.write_all(bytes).await.unwrap();
            assert_eq!(outcome(accepted).await, Some(text("PONG")));
            assert_eq!(outcome(unknown).await, None);
        }
    }

    /// The caller saw that the connection was reset, not why.
    #[tokio::test]
    async fn error_of_a_closing_server_is_returned() {
        let (wire, mut server) = start();
        let sent = b"-ERR max number of clients reached\r\n";
        server.write_all(sent).await.unwrap();
        drop(server);
        // The reading task must not take the error before the request.
        tokio::task::yield_now().await;
        let error = ServerError::new("ERR", "max number of clients reached");
        assert_eq!(outcome(ping(&wire)).await, Some(Reply::Refused(error)));
    }

    #[tokio::test]
    async fn frame_limit_grows_with_the_login() {
        for is_established in [false, true] {
            let (wire, mut server) = start();
            let first = ping(&wire);
            receive_ping(&mut server).await;
            server.write_all(b"+PONG\r\n").await.unwrap();
            assert_eq!(outcome(first).await, Some(text("PONG")));
            if is_established {
                wire.establish(false);
            }
            let second = ping(&wire);
            receive_ping(&mut server).await;
            let long = "x".repeat(MAX_HELLO_FRAME + 1);
            let reply = format!("${}\r\n{long}\r\n", long.len());
            // A client that closes the connection does not read the rest.
            tokio::spawn(async move { server.write_all(reply.as_bytes()).await });
            let expected = is_established.then(|| text(&long));
            assert!(outcome(second).await == expected, "{is_established}");
        }
    }

    /// The request waited for the reading task, which could not run before the
    /// call returned.
    #[tokio::test]
    async fn blocking_caller_writes_at_once() {
        let (wire, mut server) = start();
        let waiting: Vec<_> = (0..3).map(|_| ping(&wire)).collect();
        for _ in &waiting {
            receive_ping(&mut server).await;
        }
        let batch = Batch::new("PING");
        let mut blocking = std::pin::pin!(wire.request(&batch, Deadline::NEVER));
        let mut context = Context::from_waker(Waker::noop());
        let polled = crate::park::polling(|| blocking.as_mut().poll(&mut context));
        assert!(polled.is_pending());
        let mut received = [0; 14];
        let reading = server.read_exact(&mut received);
        // Polled once: no other task runs meanwhile.
        let mut reading = std::pin::pin!(reading);
        assert!(reading.as_mut().poll(&mut context).is_ready());
    }

    /// Reads `pings` requests and the seals behind them. Returns the replies,
    /// and how many writes there were.
    async fn receive_writes(server: &mut DuplexStream, pings: usize) -> (Vec<u8>, usize) {
        let mut received = Vec::new();
        loop {
            server.read_buf(&mut received).await.unwrap();
            let sent = String::from_utf8(received.clone()).unwrap();
            let words: Vec<_> = sent.split_terminator("\r\n").collect();
            let names = words.iter().filter(|word| **word == "PING").count();
            // A write ends with the number of its seal.
            if names < pings || !words[words.len() - 1].starts_with("lh-seal-") {
                continue;
            }
            let seals = words.iter().filter(|word| word.starts_with("lh-seal-"));
            let replies = words.iter().filter_map(|word| match *word {
                "PING" => Some("+PONG\r\n".to_owned()),
                seal if seal.starts_with("lh-seal-") => Some(format!("+{seal}\r\n")),
                _ => None,
            });
            return (replies.collect::<String>().into_bytes(), seals.count());
        }
    }

    /// Each of the first ones left in a write of its own, although the others
    /// were about to follow.
    #[tokio::test]
    async fn callers_woken_together_share_two_writes() {
        let (wire, mut server) = start();
        let first = ping(&wire);
        receive_ping(&mut server).await;
        server.write_all(b"+PONG\r\n").await.unwrap();
        assert_eq!(outcome(first).await, Some(text("PONG")));
        wire.establish(true);
        let callers = (0..8).map(|_| {
            let wire = wire.clone();
            tokio::spawn(async move {
                for _ in 0..2 {
                    assert_eq!(ping(&wire).await.unwrap(), Some(text("PONG")));
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        let (replies, _) = receive_writes(&mut server, 8).await;
        server.write_all(&replies).await.unwrap();
        let (replies, writes) = receive_writes(&mut server, 8).await;
        assert_eq!(writes, 2);
        server.write_all(&replies).await.unwrap();
        for caller in callers {
            caller.await.unwrap();
        }
    }

    /// The matcher kept it until the reply, and dropped it while it was locked.
    #[tokio::test]
    async fn waker_is_dropped_with_its_request() {
        let (wire, _server) = start();
        let batch = Batch::new("PING");
        let task = Arc::<SocketReady>::default();
        let waker = Waker::from(task.clone());
        let mut request = Box::pin(wire.request(&batch, Deadline::NEVER));
        let polled = request.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        drop((request, waker));
        assert_eq!(Arc::strong_count(&task), 1);
    }

    /// The system went on sending the rest of a request, and the server
    /// executed it long after the caller had given up.
    #[tokio::test]
    async fn given_up_request_is_not_sent_later() {
        for is_shared in [false, true] {
            let (wire, server) = start_tcp(is_shared).await;
            let sent = 16 << 20;
            let batch = Batch::new("PING").arg(vec![b'x'; sent]);
            let deadline = wire.deadline(Duration::from_millis(50));
            let unanswered = wire.request(&batch, deadline).await;
            assert_eq!(unanswered, Err(Unanswered::TimedOut));
            wire.close("given up");
            let reading = tokio::task::spawn_blocking(move || read_to_the_end(server));
            let (received, is_reset) = reading.await.unwrap();
            assert!(is_reset && received < sent, "{received} of {sent}");
        }
    }

    /// The socket was closed when its runtime was driven again, if ever.
    #[cfg(target_os = "linux")]
    #[test]
    fn close_needs_no_runtime() {
        for (is_shared, is_answered) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            let (wire, server) = runtime.block_on(async {
                let (wire, mut server) = start_tcp(is_shared).await;
                let ping = ping(&wire);
                let mut received = [0; 14];
                tokio::task::yield_now().await;
                io::Read::read_exact(&mut server, &mut received).unwrap();
                if is_answered {
                    io::Write::write_all(&mut server, b"+PONG\r\n").unwrap();
                    assert_eq!(outcome(ping).await, Some(text("PONG")));
                }
                (wire, server)
            });
            // Nothing drives the runtime from here on.
            wire.close("the client closed the connection");
            let (received, is_reset) = read_to_the_end(server);
            // An orderly end if nothing is outstanding.
            assert_eq!((received, is_reset), (0, !is_answered), "{is_shared}");
        }
    }

    /// A reply was lost with every other request in flight when one of them
    /// timed out.
    #[tokio::test]
    async fn retired_connection_delivers_replies() {
        let (wire, mut server) = start();
        let callers = [ping(&wire), ping(&wire)];
        for _ in &callers {
            receive_ping(&mut server).await;
        }
        wire.retire();
        wire.ended().await;
        for caller in callers {
            tokio::time::sleep(Duration::from_millis(3 * TICK_MILLIS)).await;
            assert!(!wire.is_open() && !wire.is_closed());
            server.write_all(b"+PONG\r\n").await.unwrap();
            assert_eq!(outcome(caller).await, Some(text("PONG")));
        }
        let closed = tokio::time::timeout(AMPLE, wire.closed()).await;
        closed.expect("no caller waits");
    }

    #[tokio::test]
    async fn retired_connection_without_callers_closes() {
        for gives_up in [false, true] {
            let (wire, mut server) = start();
            let abandoned = ping(&wire);
            receive_ping(&mut server).await;
            abandoned.abort();
            if gives_up {
                let batch = Batch::new("PING");
                let deadline = wire.deadline(Duration::from_millis(TICK_MILLIS));
                let unanswered = wire.request(&batch, deadline).await;
                assert_eq!(unanswered, Err(Unanswered::TimedOut));
            }
            wire.retire();
            let closed = tokio::time::timeout(AMPLE, wire.closed()).await;
            closed.expect("no caller waits");
        }
        let (idle, _server) = start();
        idle.retire();
        let closed = tokio::time::timeout(AMPLE, idle.closed()).await;
        closed.expect("there was no caller");
    }

    #[tokio::test(start_paused = true)]
    async fn retired_connection_closes_in_the_end() {
        let (wire, _server) = start();
        let waiting = ping(&wire);
        tokio::task::yield_now().await;
        let before = Instant::now();
        wire.retire();
        wire.closed().await;
        assert_eq!(outcome(waiting).await, None);
        let after = before.elapsed();
        let tick = Duration::from_millis(TICK_MILLIS);
        assert!(after + 2 * tick >= RETIREMENT && after <= RETIREMENT + 2 * tick);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_last_reply() {
        let (wire, mut server) = start();
        let time = Duration::from_secs(1);
        let pings: Vec<_> = (0..3).map(|_| ping(&wire)).collect();
        for caller in pings {
            assert!(!wire.is_silent_for(time));
            tokio::time::sleep(time * 3 / 4).await;
            assert!(!wire.is_silent_for(time));
            server.write_all(b"+PONG\r\n").await.unwrap();
            assert_eq!(outcome(caller).await, Some(text("PONG")));
        }
        tokio::time::sleep(time * 2).await;
        assert!(!wire.is_silent_for(time), "it owes nothing");
        let _unanswered = ping(&wire);
        tokio::time::sleep(time).await;
        assert!(wire.is_silent_for(time));
    }

    #[tokio::test]
    async fn silent_server_times_out() {
        let (wire, mut server) = start();
        let batch = Batch::new("PING");
        let (before, timeout) = (Instant::now(), Duration::from_millis(50));
        let unanswered = wire.request(&batch, wire.deadline(timeout)).await;
        assert_eq!(unanswered, Err(Unanswered::TimedOut));
        assert!(before.elapsed() >= timeout);
        // The reply that is late belongs to that request.
        receive_ping(&mut server).await;
        let next = ping(&wire);
        receive_ping(&mut server).await;
        server.write_all(b"+LATE\r\n+PONG\r\n").await.unwrap();
        assert_eq!(outcome(next).await, Some(text("PONG")));
    }
}
