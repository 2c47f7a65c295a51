//! The two halves of a socket, which only the process that connected uses.
//!
//! A forked child has the same socket. If it wrote, the server could not tell
//! the two processes apart. If it closed the socket, it would also close the
//! parent's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::process::HomeProcess;

/// The write half of a socket.
pub(super) type SocketWriter = Pin<Box<dyn AsyncWrite + Send>>;

/// The read half of a socket.
pub(super) type SocketReader = Pin<Box<dyn AsyncRead + Send>>;

/// Boxes both halves of a socket that this process has connected.
pub(super) fn own_halves(
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
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
