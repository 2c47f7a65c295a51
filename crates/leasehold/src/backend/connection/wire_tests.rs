//! Tests of [`Wire`].

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::resp::MAX_HELLO_FRAME;
use super::wire::Wire;
use crate::backend::{Batch, Command, Reply, ServerError};

/// The limit of an event that must happen.
const AMPLE: Duration = Duration::from_secs(60);

/// Returns a connection before its login, and the server's end of it.
fn start() -> (Arc<Wire>, DuplexStream) {
    let (client, server) = duplex(1024);
    let (reader, writer) = tokio::io::split(client);
    let wire = Wire::start(Box::pin(reader), Box::pin(writer), Box::new(|_| ()));
    (wire, server)
}

fn text(text: &str) -> Reply {
    Reply::Bytes(text.as_bytes().to_vec())
}

/// Sends a `PING` from a task of its own. Its outcome is the reply, or `None`
/// if the connection was closed.
fn ping(wire: &Arc<Wire>) -> JoinHandle<Option<Reply>> {
    let wire = wire.clone();
    tokio::spawn(async move {
        let batch: Batch = [Command::new("PING")].into_iter().collect();
        wire.request(&batch).await.ok()?.pop()
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

/// The caller of a reply that was accepted just before a violation was never
/// woken.
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
