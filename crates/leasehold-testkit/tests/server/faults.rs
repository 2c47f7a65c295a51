//! Faults that tests inject, and how locks see them.

use std::time::Duration;

use leasehold::{Client, Error};
use leasehold_testkit::Server;

use crate::support::{AMPLE, ask};

#[test]
fn killed_server_refuses_connections() {
    let mut server = Server::start().unwrap();
    server.kill();
    assert_eq!(server.pid(), None);
    assert!(ask(&server, "PING", AMPLE).is_err());
}

#[test]
fn restarted_server_is_empty_on_the_same_port() {
    let mut server = Server::start().unwrap();
    let (port, pid) = (server.port(), server.pid());
    assert_eq!(ask(&server, "SET key value", AMPLE).unwrap(), "+OK");
    server.restart().unwrap();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(ask(&server, "DBSIZE", AMPLE).unwrap(), ":0");
}

#[test]
fn restarted_server_keeps_stored_data() {
    let mut server = Server::builder()
        .option("appendonly", "yes")
        .option("appendfsync", "always")
        .start()
        .unwrap();
    assert_eq!(ask(&server, "SET key value", AMPLE).unwrap(), "+OK");
    server.kill();
    server.restart().unwrap();
    assert_eq!(ask(&server, "DBSIZE", AMPLE).unwrap(), ":1");
}

#[test]
fn paused_server_replies_after_the_resume() {
    let server = Server::start().unwrap();
    for _ in 0..20 {
        server.pause();
        server.pause();
        let reply = ask(&server, "PING", Duration::from_millis(20));
        assert!(reply.is_err(), "{reply:?} of a paused server");
        server.resume();
        assert_eq!(ask(&server, "PING", AMPLE).unwrap(), "+PONG");
    }
}

#[test]
fn paused_server_can_be_killed() {
    let mut server = Server::start().unwrap();
    server.pause();
    server.kill();
    server.restart().unwrap();
    assert_eq!(ask(&server, "PING", AMPLE).unwrap(), "+PONG");
}

/// Connects with limits that a stall of the machine does not reach.
async fn connect(server: &Server) -> Client {
    Client::connect(&server.url())
        .connect_timeout(AMPLE)
        .request_timeout(Duration::from_secs(10))
        .await
        .unwrap()
}

#[tokio::test]
async fn paused_server_loses_the_lock() {
    let server = Server::start().unwrap();
    let client = connect(&server).await;
    let lock = client.mutex("job");
    let guard = lock.lock().lease(Duration::from_secs(2)).await.unwrap();
    server.pause();
    let lost = tokio::time::timeout(AMPLE, guard.lost()).await;
    assert!(lost.is_ok(), "the guard is still valid");
    assert!(matches!(guard.check(), Err(Error::Lost { .. })));
    server.resume();
}

#[tokio::test]
async fn restarted_server_has_lost_the_lock() {
    let mut server = Server::start().unwrap();
    let client = connect(&server).await;
    let guard = client.mutex("job").lock().await.unwrap();
    server.restart().unwrap();
    let other = connect(&server).await;
    let second = other.mutex("job").try_lock().await;
    assert!(second.is_ok(), "the lock survived: {second:?}");
    drop(guard);
}
