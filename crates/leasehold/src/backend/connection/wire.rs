//! The socket of one connection: callers write, one task reads.
//!
//! A caller encodes a request into a shared buffer and writes the buffer from
//! the same task. If other requests are pending, it first yields once, so other
//! ready tasks can add theirs. Many requests then leave in one write, without a
//! timer. One task reads, on the runtime that owns the connection, and
//! completes requests.
//!
//! # Invariants
//!
//! 1. Requests are written whole, in registration order, and at most once each.
//! 2. A request is written by its own task, at the latest when that task is
//!    next polled or dropped. No request depends on another caller's task being
//!    polled.
//! 3. Bytes that the socket does not accept immediately are written by the
//!    reading task when the socket is ready.
//! 4. When the reading task ends, for any reason, the connection is closed.

use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use crate::park::yield_to_tasks;
use crate::process::HomeProcess;
use crate::sync::Mutex;
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;

use super::matching::{ConnectionClosed, Matcher, PushEvent, RequestId, SubscribeOp, write_seal};
use super::resp::{Decoder, Frame, MAX_FRAME, MAX_HELLO_FRAME, Malformed};
use super::socket::{SocketReader, SocketReady, SocketWriter};
use crate::backend::command::Batch;
use crate::backend::{Channel, Reply};
use crate::rng;

/// How much is read at once. The buffer grows to the size of the largest frame.
const READ_CHUNK: usize = 16 * 1024;

/// A callback for pushes. It runs on the reading task and must not block.
pub(super) type OnEvent = Box<dyn Fn(PushEvent) + Send + Sync>;

pub(super) struct Wire {
    /// The process that may use the socket.
    process: HomeProcess,
    state: Mutex<WireState>,
    /// Locked only by the thread that set `WireState::is_writing`, so the lock
    /// is never contended while the connection is open. `None` once it is
    /// closed.
    writer: Mutex<Option<SocketWriter>>,
    /// Wakes the reading task when the socket accepts more bytes.
    ready: Arc<SocketReady>,
    closed: AtomicBool,
    /// Whether the handshake has succeeded.
    is_established: AtomicBool,
    on_close: Notify,
    /// How many reads contained accepted replies.
    reply_count: AtomicU64,
}

struct WireState {
    matcher: Matcher,
    /// Encoded requests that are not yet written.
    out: Vec<u8>,
    /// An empty buffer for reuse.
    spare: Vec<u8>,
    is_writing: bool,
    /// The reading task is about to flush, so callers need not.
    reader_will_flush: bool,
    /// The socket buffers bytes that must be flushed, as TLS does.
    is_unflushed: bool,
    /// Whether requests are sealed. Starts after the handshake, and never on
    /// connections to sentinels, which do not support `ECHO`.
    is_sealed: bool,
    close_reason: Option<Arc<str>>,
}

impl WireState {
    fn new() -> Self {
        Self {
            // Random, so that replies of another connection are noticed.
            matcher: Matcher::new(rng::next_u64()),
            out: Vec::new(),
            spare: Vec::new(),
            is_writing: false,
            reader_will_flush: false,
            is_unflushed: false,
            is_sealed: false,
            close_reason: None,
        }
    }

    fn request(&mut self, batch: &Batch) -> RequestId {
        let request = self.matcher.register(batch.len());
        batch.write_to(&mut self.out);
        for _ in 0..batch.len() {
            self.matcher.expect_reply(request);
        }
        self.seal(request);
        request
    }

    fn update_subscriptions(&mut self, op: SubscribeOp, channels: &[Channel]) -> RequestId {
        let request = self.matcher.register(channels.len());
        for channel in channels {
            // One command per channel: a cluster node rejects a command whose
            // channels belong to different slots.
            let command = Batch::new(command_name(op, channel)).arg(channel.name());
            command.write_to(&mut self.out);
            self.matcher
                .expect_confirmation(request, op, channel.clone());
        }
        self.seal(request);
        request
    }

    fn seal(&mut self, request: RequestId) {
        if self.is_sealed {
            let number = self.matcher.expect_seal(request);
            write_seal(&mut self.out, number);
        }
    }
}

/// The connection was closed before the replies arrived; contains the reason.
pub(super) struct WireClosed(pub(super) Arc<str>);

impl Wire {
    /// Starts reading from `reader` on the current runtime, once the first
    /// request is registered.
    pub(super) fn start(
        reader: SocketReader,
        writer: SocketWriter,
        on_event: OnEvent,
    ) -> Arc<Self> {
        let wire = Arc::new(Self {
            process: HomeProcess::current(),
            state: Mutex::new(WireState::new()),
            writer: Mutex::new(Some(writer)),
            ready: Arc::default(),
            closed: AtomicBool::new(false),
            is_established: AtomicBool::new(false),
            on_close: Notify::new(),
            reply_count: AtomicU64::new(0),
        });
        // Created before the spawn, so that a task that never runs also closes
        // the connection (invariant 4).
        let reading = ReadTask(wire.clone());
        tokio::spawn(async move { reading.read(reader, on_event).await });
        wire
    }

    /// Sends `batch` and waits for the replies.
    pub(super) async fn request(&self, batch: &Batch) -> Result<Vec<Reply>, WireClosed> {
        self.send(|state| state.request(batch)).await
    }

    /// Subscribes or unsubscribes. A confirmation is [`Reply::Nil`], an error
    /// reply is returned as such.
    pub(super) async fn update_subscriptions(
        &self,
        op: SubscribeOp,
        channels: &[Channel],
    ) -> Result<Vec<Reply>, WireClosed> {
        self.send(|state| state.update_subscriptions(op, channels))
            .await
    }

    async fn send(
        &self,
        register: impl FnOnce(&mut WireState) -> RequestId,
    ) -> Result<Vec<Reply>, WireClosed> {
        let (replies, must_write) = {
            let mut state = self.state.lock();
            // If no reply is owed, no other request is on its way, and yielding
            // would only add latency.
            let is_alone = state.matcher.owed() == 0;
            let request = Some(register(&mut state));
            let must_write = !state.reader_will_flush;
            (
                ReplyFuture {
                    wire: self,
                    request,
                },
                must_write.then_some(is_alone),
            )
        };
        if !self.is_established() {
            // Starts the reading task.
            self.ready.0.notify_one();
        }
        match must_write {
            Some(true) => self.flush(),
            Some(false) => {
                let flush = FlushOnDrop(self);
                // Lets other ready tasks add their requests.
                yield_to_tasks().await;
                drop(flush);
            }
            // The reading task flushes before it reads again.
            None => {}
        }
        replies
            .await
            .map_err(|ConnectionClosed| WireClosed(self.close_reason()))
    }

    /// Writes all buffered requests. If another thread is writing, that thread
    /// also writes what was added meanwhile.
    fn flush(&self) {
        let mut state = self.state.lock();
        // The other thread looks at the buffer again before it stops.
        if state.is_writing {
            return;
        }
        state.is_writing = true;
        loop {
            if self.is_closed() || (state.out.is_empty() && !state.is_unflushed) {
                break;
            }
            // We swap buffers and unlock, so that callers can add requests
            // during the system call.
            let spare = mem::take(&mut state.spare);
            let mut bytes = mem::replace(&mut state.out, spare);
            drop(state);
            let (written, outcome) = self.write(&bytes);
            state = self.state.lock();
            bytes.drain(..written);
            if bytes.is_empty() {
                state.spare = bytes;
            } else {
                // The socket took only a part. What was added meanwhile goes
                // behind the rest (invariant 1).
                bytes.extend_from_slice(&state.out);
                state.out = bytes;
            }
            state.is_unflushed = outcome.is_pending();
            match outcome {
                Poll::Ready(Ok(())) => {}
                // The reading task writes the rest (invariant 3).
                Poll::Pending => break,
                // A server that rejects the client sends an error and closes.
                // The reading task returns that error, or finds the end.
                Poll::Ready(Err(_)) if !self.is_established() => break,
                Poll::Ready(Err(error)) => {
                    state.is_writing = false;
                    drop(state);
                    return self.close(&error.to_string());
                }
            }
        }
        state.is_writing = false;
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
        self.state.lock().is_sealed = is_sealed;
        self.is_established.store(true, Ordering::Release);
    }

    fn is_established(&self) -> bool {
        self.is_established.load(Ordering::Acquire)
    }

    /// Returns whether the server has confirmed a subscription to `channel`.
    pub(super) fn is_subscribed(&self, channel: &Channel) -> bool {
        self.state.lock().matcher.is_subscribed(channel)
    }

    /// Returns whether this process may use the socket.
    pub(super) fn is_own(&self) -> bool {
        self.process.is_current()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns how many reads contained accepted replies. It does not change
    /// while the server is silent.
    pub(super) fn reply_count(&self) -> u64 {
        self.reply_count.load(Ordering::Relaxed)
    }

    /// Fails every incomplete request, ends the reading task and closes the
    /// socket. Only the first call has an effect.
    pub(super) fn close(&self, reason: &str) {
        if !self.process.is_current() {
            // The mutexes may be locked by threads that a forked child lacks.
            self.closed.store(true, Ordering::Release);
            return;
        }
        let mut state = self.state.lock();
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        state.close_reason = Some(reason.into());
        // What is not written yet stays unwritten: its callers learn that the
        // outcome is unknown.
        state.out = Vec::new();
        let wakers = state.matcher.close();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        // The reading task drops the other half. The socket must not stay open
        // for as long as a caller keeps the closed connection.
        let writer = self.writer.lock().take();
        drop(writer);
        self.on_close.notify_waiters();
        self.ready.0.notify_one();
    }

    /// Waits until the connection is closed.
    pub(super) async fn closed(&self) {
        loop {
            let mut notified = std::pin::pin!(self.on_close.notified());
            // Enabled before the check: we would otherwise miss a close in
            // between.
            notified.as_mut().enable();
            if self.is_closed() {
                return;
            }
            notified.await;
        }
    }

    pub(super) fn close_reason(&self) -> Arc<str> {
        let state = self.state.lock();
        state
            .close_reason
            .clone()
            .unwrap_or_else(|| "closed".into())
    }
}

fn command_name(op: SubscribeOp, channel: &Channel) -> &'static str {
    match (op, channel) {
        (SubscribeOp::Subscribe, Channel::Sharded(_)) => "SSUBSCRIBE",
        (SubscribeOp::Unsubscribe, Channel::Sharded(_)) => "SUNSUBSCRIBE",
        (SubscribeOp::Subscribe, Channel::Classic(_)) => "SUBSCRIBE",
        (SubscribeOp::Unsubscribe, Channel::Classic(_)) => "UNSUBSCRIBE",
    }
}

/// Waits for a request's replies. Dropping it abandons the request.
struct ReplyFuture<'a> {
    wire: &'a Wire,
    /// `None` once the request is complete.
    request: Option<RequestId>,
}

impl Future for ReplyFuture<'_> {
    type Output = Result<Vec<Reply>, ConnectionClosed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(request) = self.request else {
            return Poll::Ready(Err(ConnectionClosed));
        };
        let outcome = self.wire.state.lock().matcher.poll(request, context);
        if outcome.is_ready() {
            self.request = None;
        }
        outcome
    }
}

impl Drop for ReplyFuture<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request {
            self.wire.state.lock().matcher.abandon(request);
        }
    }
}

/// Flushes when dropped (invariant 2).
struct FlushOnDrop<'a>(&'a Wire);

impl Drop for FlushOnDrop<'_> {
    fn drop(&mut self) {
        self.0.flush();
    }
}

/// The reading task. Dropping it closes the connection (invariant 4).
struct ReadTask(Arc<Wire>);

impl Drop for ReadTask {
    fn drop(&mut self) {
        self.0.close("the runtime of the connection was shut down");
    }
}

impl ReadTask {
    async fn read(self, mut reader: SocketReader, on_event: OnEvent) {
        let wire = &*self.0;
        // Otherwise an error that the server sends at once, such as `max number
        // of clients reached`, would be a reply without a request.
        wire.ready.0.notified().await;
        let mut decoder = Decoder::new(MAX_HELLO_FRAME);
        let (mut buffer, mut start) = (Vec::with_capacity(READ_CHUNK), 0);
        let (mut frames, mut wakers, mut events) = (Vec::new(), Vec::new(), Vec::new());
        while !wire.is_closed() {
            // Keeps the start of an incomplete frame only.
            buffer.drain(..mem::take(&mut start));
            buffer.reserve(READ_CHUNK);
            let read = tokio::select! {
                biased;
                read = reader.read_buf(&mut buffer) => read,
                () = wire.ready.0.notified() => {
                    wire.flush();
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
            let decoded = decode(&mut decoder, &buffer, &mut start, &mut frames)
                .map_err(|malformed| malformed.to_string());
            let handled = wire.handle(&mut frames, &mut wakers, &mut events);
            if let Err(reason) = handled.and(decoded) {
                tracing::warn!(reason, "protocol violation, closing the connection");
                wire.close(&reason);
            }
            // Also after a violation: closing wakes only the callers whose
            // requests had not completed before.
            events.drain(..).for_each(&on_event);
            // A single caller flushes its own next request. For several, one
            // flush after all of them have run saves writes.
            let several = wakers.len() > 1;
            wakers.drain(..).for_each(Waker::wake);
            if several {
                // The woken callers send their next requests, which then leave
                // together.
                tokio::task::yield_now().await;
                wire.state.lock().reader_will_flush = false;
                wire.flush();
            }
        }
    }
}

/// Decodes every complete frame.
fn decode(
    decoder: &mut Decoder,
    bytes: &[u8],
    start: &mut usize,
    frames: &mut Vec<Frame>,
) -> Result<(), Malformed> {
    loop {
        let (used, frame) = decoder.decode(&bytes[*start..])?;
        *start += used;
        match frame {
            Some(frame) => frames.push(frame),
            None => return Ok(()),
        }
    }
}

impl Wire {
    fn handle(
        &self,
        frames: &mut Vec<Frame>,
        wakers: &mut Vec<Waker>,
        events: &mut Vec<PushEvent>,
    ) -> Result<(), String> {
        let mut state = self.state.lock();
        // Only replies count, not pushes: a busy channel must not hide a server
        // that no longer answers.
        let owed = state.matcher.owed();
        for frame in frames.drain(..) {
            let event = state.matcher.handle(frame, wakers);
            events.extend(event.map_err(|violation| violation.to_string())?);
        }
        if state.matcher.owed() < owed {
            self.reply_count.fetch_add(1, Ordering::Relaxed);
        }
        state.reader_will_flush = wakers.len() > 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::backend::ServerError;

    /// The limit of an event that must happen.
    const AMPLE: Duration = Duration::from_secs(60);

    /// Returns a connection before the login, and the server's end of it.
    fn start() -> (Arc<Wire>, DuplexStream) {
        let (client, server) = duplex(1024);
        let (reader, writer) = tokio::io::split(client);
        let wire = Wire::start(Box::pin(reader), Box::pin(writer), Box::new(|_| ()));
        (wire, server)
    }

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    /// Sends a `PING` from a task of its own. The outcome is the reply, or
    /// `None` if the connection was closed.
    fn ping(wire: &Arc<Wire>) -> JoinHandle<Option<Reply>> {
        let wire = wire.clone();
        tokio::spawn(async move { wire.request(&Batch::new("PING")).await.ok()?.pop() })
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
}
