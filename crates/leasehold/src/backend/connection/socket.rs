//! The two halves of a socket, which only the process that connected uses.
//!
//! A forked child has the same socket. If it wrote, the server could not tell
//! the two processes apart. If it closed the socket, it would also close the
//! parent's.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, tcp};
use tokio::sync::Notify;

use crate::process::HomeProcess;
use crate::sync::Mutex;

/// The write half of a socket.
pub(super) type SocketWriter = Pin<Box<dyn SocketWrite>>;

/// What we need of the write half.
pub(super) trait SocketWrite: AsyncWrite + Disconnect + Send {}

impl<W: AsyncWrite + Disconnect + Send> SocketWrite for W {}

/// The read half of a socket.
pub(super) type SocketReader = Pin<Box<dyn AsyncRead + Send>>;

/// Boxes both halves of a socket that this process has connected.
pub(super) fn own_halves(
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl SocketWrite + Unpin + 'static,
) -> (SocketReader, SocketWriter) {
    let process = HomeProcess::current();
    let reader = OwnHalf {
        half: Some(reader),
        process,
    };
    let writer = OwnHalf {
        half: Some(writer),
        process,
    };
    (Box::pin(reader), Box::pin(writer))
}

/// Ends a connection for both halves at once. Dropping one half does not, and
/// the task that has the other half may be on a runtime that is not driven.
pub(super) trait Disconnect {
    /// If `discards`, the peer receives nothing that it has not received yet.
    fn disconnect(&self, discards: bool);
}

impl Disconnect for TcpStream {
    fn disconnect(&self, discards: bool) {
        let socket = SockRef::from(self);
        // Errors mean that the connection has already ended.
        if !discards {
            let _ = socket.shutdown(Shutdown::Both);
            return;
        }
        // The system would otherwise go on sending for minutes after the close,
        // and the server would execute what we have given up.
        let _ = socket.set_linger(Some(Duration::ZERO));
        // That takes effect when the last copy of the socket is closed, and a
        // forked child may have one. Linux can reset a connection before.
        #[cfg(any(target_os = "android", target_os = "linux"))]
        let _ = rustix::net::connect_unspec(self);
    }
}

impl Disconnect for tcp::OwnedWriteHalf {
    fn disconnect(&self, discards: bool) {
        self.as_ref().disconnect(discards);
    }
}

#[cfg(unix)]
impl Disconnect for tokio::net::unix::OwnedWriteHalf {
    /// Nothing can be discarded: what is written has been received.
    fn disconnect(&self, _: bool) {
        let _ = SockRef::from(self.as_ref()).shutdown(Shutdown::Both);
    }
}

/// One half of a stream whose halves depend on each other, as with TLS. Unlike
/// [`tokio::io::split`], it gives access to the stream.
pub(super) struct SharedHalf<S>(Arc<Mutex<S>>);

/// Splits a stream into two halves.
pub(super) fn shared_halves<S>(stream: S) -> (SharedHalf<S>, SharedHalf<S>) {
    let shared = Arc::new(Mutex::new(stream));
    (SharedHalf(shared.clone()), SharedHalf(shared))
}

impl<S: AsyncRead + Unpin> AsyncRead for SharedHalf<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SharedHalf<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(context)
    }
}

impl<S: Disconnect> Disconnect for SharedHalf<S> {
    fn disconnect(&self, discards: bool) {
        self.0.lock().disconnect(discards);
    }
}

/// One half of a socket. A forked child neither uses nor closes it.
struct OwnHalf<S> {
    /// `Some` until dropped.
    half: Option<S>,
    process: HomeProcess,
}

impl<S: Unpin> OwnHalf<S> {
    fn half(&mut self) -> io::Result<Pin<&mut S>> {
        let half = self.half.as_mut().map(Pin::new);
        half.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn check_process(&self) -> io::Result<()> {
        match self.process.is_current() {
            true => Ok(()),
            false => Err(io::Error::other(self.process.refusal())),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for OwnHalf<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.half()?.poll_read(context, buffer))?;
        // After the read, so that polls which find nothing cost nothing. What
        // a child reads here is not accepted.
        Poll::Ready(self.check_process())
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for OwnHalf<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_process()?;
        self.half()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.half()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_process()?;
        self.half()?.poll_shutdown(context)
    }
}

impl<S: Disconnect> Disconnect for OwnHalf<S> {
    fn disconnect(&self, discards: bool) {
        if let (Some(half), true) = (&self.half, self.process.is_current()) {
            half.disconnect(discards);
        }
    }
}

impl<S> Drop for OwnHalf<S> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // Dropping it would shut the parent's socket down, and remove it
            // from an event queue that the parent's runtime uses, too.
            std::mem::forget(self.half.take());
        }
    }
}

/// The waker that the socket calls when it accepts more bytes.
#[derive(Default)]
pub(super) struct SocketReady(pub(super) Notify);

impl Wake for SocketReady {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}
