//! The bytes of one connection: callers write, one task reads.
//!
//! A caller encodes its request into a buffer that all callers share, and writes the buffer from its own task. Where other
//! requests are on their way it first lets every task that is ready add its own, so that many requests leave in one write
//! without a timer. One task reads on the runtime that owns the connection, and completes requests.
//!
//! # Invariants
//!
//! 1. Requests are written in the order in which they were registered, whole, and each at most once.
//! 2. A request is written by its own task at the latest when that task is next polled or dropped. No request depends on
//!    another caller's task being polled.
//! 3. What the socket does not accept at once is written by the reading task when the socket is ready.
//! 4. When the reading task ends, for any reason, the connection is closed.

use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::Notify;

use super::matching::{ConnectionClosed, Matcher, PushEvent, RequestId, SubscribeOp, write_seal};
use super::resp::{Decoder, Frame, Malformed};
use crate::backend::Channel;
use crate::backend::Reply;
use crate::backend::command::{Batch, Command};

/// How much is read at once; the buffer grows with the largest frame.
const READ: usize = 16 * 1024;

/// The half of a socket that is written to.
pub(super) type SocketWriter = Pin<Box<dyn AsyncWrite + Send>>;

/// The half of a socket that is read from.
pub(super) type SocketReader = Pin<Box<dyn AsyncRead + Send>>;

/// Called on the reading task for every push. It must not block.
pub(super) type OnEvent = Box<dyn Fn(PushEvent) + Send + Sync>;

pub(super) struct Wire {
    state: Mutex<WireState>,
    /// Locked only by the thread that has set `WireState::is_writing`, so no thread waits for it.
    writer: Mutex<SocketWriter>,
    /// Wakes the reading task when the socket accepts more.
    ready: Arc<SocketReady>,
    closed: AtomicBool,
    on_close: Notify,
    /// How often replies were believed.
    reply_count: AtomicU64,
}

#[derive(Default)]
struct WireState {
    matcher: Matcher,
    /// Encoded, not yet written.
    out: Vec<u8>,
    /// An empty buffer to be used again.
    spare: Vec<u8>,
    is_writing: bool,
    /// The reading task is about to write.
    is_reader_awake: bool,
    /// Whether the socket keeps bytes that are to be flushed, as TLS does.
    is_unflushed: bool,
    /// Whether seals are sent: from the end of the handshake on, and not to sentinels, which do not know them.
    is_sealed: bool,
    why_closed: Option<Arc<str>>,
}

impl WireState {
    fn request(&mut self, batch: &Batch) -> RequestId {
        let of = self.matcher.request(batch.len());
        for command in batch.commands() {
            command.write_to(&mut self.out);
            self.matcher.expect_reply(of);
        }
        self.seal(of);
        of
    }

    fn change(&mut self, change: SubscribeOp, channels: &[Channel]) -> RequestId {
        let of = self.matcher.request(channels.len());
        for channel in channels {
            // One command each: those of a cluster must not be named together unless they are of one slot.
            let command = Command::new(verb(change, channel)).arg(channel.name());
            command.write_to(&mut self.out);
            self.matcher.expect_change(of, change, channel.clone());
        }
        self.seal(of);
        of
    }

    fn seal(&mut self, of: RequestId) {
        if self.is_sealed {
            let number = self.matcher.expect_seal(of);
            write_seal(&mut self.out, number);
        }
    }
}

/// Why a request has no replies: the connection was closed first.
pub(super) struct WireClosed(pub(super) Arc<str>);

impl Wire {
    /// Starts to read from `reader` on the current runtime.
    pub(super) fn start(
        reader: SocketReader,
        writer: SocketWriter,
        on_event: OnEvent,
    ) -> Arc<Self> {
        let wire = Arc::new(Self {
            state: Mutex::default(),
            writer: Mutex::new(writer),
            ready: Arc::default(),
            closed: AtomicBool::new(false),
            on_close: Notify::new(),
            reply_count: AtomicU64::new(0),
        });
        // From here on, so that a task that is never run ends the connection too (invariant 4).
        let reading = ReadTask(wire.clone());
        tokio::spawn(async move { reading.read(reader, on_event).await });
        wire
    }

    /// Sends `batch` and waits for its replies.
    pub(super) async fn request(&self, batch: &Batch) -> Result<Vec<Reply>, WireClosed> {
        self.send(|state| state.request(batch)).await
    }

    /// Enters or leaves channels; a confirmation is [`Reply::Nil`], a refusal is itself.
    pub(super) async fn change(
        &self,
        change: SubscribeOp,
        channels: &[Channel],
    ) -> Result<Vec<Reply>, WireClosed> {
        self.send(|state| state.change(change, channels)).await
    }

    async fn send(
        &self,
        register: impl FnOnce(&mut WireState) -> RequestId,
    ) -> Result<Vec<Reply>, WireClosed> {
        let (replies, must_write) = {
            let mut state = self.state.lock();
            let is_alone = state.matcher.owed() == 0;
            let request = Some(register(&mut state));
            let must_write = !state.is_reader_awake;
            (
                ReplyFuture {
                    wire: self,
                    request,
                },
                must_write.then_some(is_alone),
            )
        };
        match must_write {
            Some(true) => self.flush(),
            Some(false) => {
                let flush = FlushOnDrop(self);
                // Every other task that is ready adds its request.
                tokio::task::yield_now().await;
                drop(flush);
            }
            // The reading task writes on its way out.
            None => {}
        }
        replies
            .await
            .map_err(|ConnectionClosed| WireClosed(self.why_closed()))
    }

    /// Writes everything that is there, unless another thread is writing: that thread writes until nothing is left.
    fn flush(&self) {
        let mut state = self.state.lock();
        if state.is_writing {
            return;
        }
        state.is_writing = true;
        loop {
            if self.is_closed() || (state.out.is_empty() && !state.is_unflushed) {
                break;
            }
            let spare = mem::take(&mut state.spare);
            let mut bytes = mem::replace(&mut state.out, spare);
            drop(state);
            let (written, outcome) = self.write(&bytes);
            state = self.state.lock();
            bytes.drain(..written);
            if bytes.is_empty() {
                state.spare = bytes;
            } else {
                bytes.extend_from_slice(&state.out);
                state.out = bytes;
            }
            state.is_unflushed = outcome.is_pending();
            match outcome {
                Poll::Ready(Ok(())) => {}
                // The reading task writes the rest (invariant 3).
                Poll::Pending => break,
                Poll::Ready(Err(error)) => {
                    state.is_writing = false;
                    drop(state);
                    return self.close(&error.to_string());
                }
            }
        }
        state.is_writing = false;
    }

    /// Writes as much of `bytes` as the socket accepts, and flushes what it keeps.
    fn write(&self, bytes: &[u8]) -> (usize, Poll<io::Result<()>>) {
        let waker = Waker::from(self.ready.clone());
        let mut context = Context::from_waker(&waker);
        let mut writer = self.writer.lock();
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

    /// Seals every request from now on.
    pub(super) fn begin_seals(&self) {
        self.state.lock().is_sealed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// How often replies were believed: it stands still while the server is silent.
    pub(super) fn reply_count(&self) -> u64 {
        self.reply_count.load(Ordering::Relaxed)
    }

    /// Ends every request that is not complete, and the reading task. Only the first call has an effect.
    pub(super) fn close(&self, reason: &str) {
        let mut state = self.state.lock();
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        state.why_closed = Some(reason.into());
        state.out = Vec::new();
        let woken = state.matcher.close();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        self.on_close.notify_waiters();
        self.ready.0.notify_one();
    }

    /// Waits until the connection is closed.
    pub(super) async fn closed(&self) {
        loop {
            let mut notified = std::pin::pin!(self.on_close.notified());
            notified.as_mut().enable();
            if self.is_closed() {
                return;
            }
            notified.await;
        }
    }

    fn why_closed(&self) -> Arc<str> {
        let state = self.state.lock();
        state.why_closed.clone().unwrap_or_else(|| "closed".into())
    }
}

fn verb(change: SubscribeOp, channel: &Channel) -> &'static str {
    match (change, channel) {
        (SubscribeOp::Subscribe, Channel::Sharded(_)) => "SSUBSCRIBE",
        (SubscribeOp::Unsubscribe, Channel::Sharded(_)) => "SUNSUBSCRIBE",
        (SubscribeOp::Subscribe, Channel::Classic(_)) => "SUBSCRIBE",
        (SubscribeOp::Unsubscribe, Channel::Classic(_)) => "UNSUBSCRIBE",
    }
}

/// The caller's side of a request on its way. Dropping it leaves the request its place.
struct ReplyFuture<'a> {
    wire: &'a Wire,
    /// `None` once it is complete.
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

/// Writes when it is dropped (invariant 2).
struct FlushOnDrop<'a>(&'a Wire);

impl Drop for FlushOnDrop<'_> {
    fn drop(&mut self) {
        self.0.flush();
    }
}

/// Wakes the reading task, from the socket's side.
#[derive(Default)]
struct SocketReady(Notify);

impl Wake for SocketReady {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// The task that reads. Dropping it closes the connection (invariant 4).
struct ReadTask(Arc<Wire>);

impl Drop for ReadTask {
    fn drop(&mut self) {
        self.0.close("its runtime has ended");
    }
}

impl ReadTask {
    async fn read(self, mut reader: SocketReader, on_event: OnEvent) {
        let wire = &*self.0;
        let mut decoder = Decoder::default();
        let (mut buffer, mut start) = (Vec::with_capacity(READ), 0);
        let (mut frames, mut woken, mut events) = (Vec::new(), Vec::new(), Vec::new());
        while !wire.is_closed() {
            buffer.drain(..mem::take(&mut start));
            buffer.reserve(READ);
            let read = tokio::select! {
                biased;
                read = reader.read_buf(&mut buffer) => read,
                () = wire.ready.0.notified() => {
                    wire.flush();
                    continue;
                }
            };
            match read {
                Ok(0) => return wire.close("the server has closed the connection"),
                Ok(_) => {}
                Err(error) => return wire.close(&error.to_string()),
            }
            let taken = decode(&mut decoder, &buffer, &mut start, &mut frames)
                .map_err(|malformed| malformed.to_string())
                .and_then(|()| wire.take(&mut frames, &mut woken, &mut events));
            if let Err(reason) = taken {
                tracing::warn!(reason, "closing a connection that cannot be trusted");
                return wire.close(&reason);
            }
            events.drain(..).for_each(&on_event);
            let several = woken.len() > 1;
            woken.drain(..).for_each(Waker::wake);
            if several {
                // The callers that were woken send what comes next; all of it leaves together.
                tokio::task::yield_now().await;
                wire.state.lock().is_reader_awake = false;
                wire.flush();
            }
        }
    }
}

/// Decodes every frame that is complete.
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
    fn take(
        &self,
        frames: &mut Vec<Frame>,
        woken: &mut Vec<Waker>,
        events: &mut Vec<PushEvent>,
    ) -> Result<(), String> {
        let mut state = self.state.lock();
        let owed = state.matcher.owed();
        for frame in frames.drain(..) {
            let event = state.matcher.take(frame, woken);
            events.extend(event.map_err(|distrust| distrust.to_string())?);
        }
        if state.matcher.owed() < owed {
            self.reply_count.fetch_add(1, Ordering::Relaxed);
        }
        state.is_reader_awake = woken.len() > 1;
        Ok(())
    }
}
