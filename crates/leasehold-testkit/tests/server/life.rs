//! The start and the end of servers.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::thread;

use leasehold_testkit::{Port, Server, StartError};

use crate::support::{AMPLE, ask, assert_gone, is_alive, transcript, worker};

#[test]
fn parallel_starts_have_their_own_servers() {
    let start = || {
        let server = Server::start().unwrap();
        let own = format!("SET owner {}", server.pid().unwrap());
        assert_eq!(ask(&server, &own, AMPLE).unwrap(), "+OK");
        server
    };
    let servers: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..12).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let ports: HashSet<_> = servers.iter().map(Server::port).collect();
    assert_eq!(ports.len(), servers.len());
    for server in &servers {
        let length = server.pid().unwrap().to_string().len();
        assert_eq!(
            ask(server, "GET owner", AMPLE).unwrap(),
            format!("${length}")
        );
        assert_eq!(ask(server, "DBSIZE", AMPLE).unwrap(), ":1");
    }
}

#[test]
fn reserved_ports_are_distinct() {
    let reserve = || (0..50).map(|_| Port::reserve().unwrap()).collect();
    let ports: Vec<Vec<Port>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(reserve)).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let numbers: HashSet<_> = ports.iter().flatten().map(Port::number).collect();
    assert_eq!(numbers.len(), 8 * 50);
}

#[test]
fn reserved_port_survives_the_kill_of_its_server() {
    let mut server = Server::start().unwrap();
    server.kill();
    let marker = std::net::UdpSocket::bind(("127.0.0.1", server.port()));
    assert!(marker.is_err(), "another process can reserve the port");
}

#[test]
fn drop_ends_the_process_and_its_folder() {
    let server = Server::start().unwrap();
    let (pid, folder) = (server.pid().unwrap(), server.folder().to_owned());
    assert!(folder.exists());
    drop(server);
    // The process is reaped, so nothing is left to wait for.
    assert!(!is_alive(pid));
    assert!(!folder.exists());
}

#[test]
fn crashed_test_process_leaves_no_server() {
    let (mut process, pid, folder) = worker::start();
    assert!(!process.finish());
    assert_gone(pid, Path::new(&folder));
}

#[test]
fn killed_test_process_leaves_no_paused_server() {
    let (mut process, pid, folder) = worker::start();
    let paused = std::process::Command::new("sh")
        .args(["-c", &format!("kill -STOP {pid}")])
        .status();
    assert!(paused.unwrap().success());
    process.kill();
    assert_gone(pid, Path::new(&folder));
}

#[test]
fn missing_program_is_named() {
    let program = PathBuf::from("/no/such/redis-server");
    let error = Server::builder().program(&program).start().unwrap_err();
    assert!(matches!(&error, StartError::NoProgram { program: it, .. } if *it == program));
    assert!(
        error.to_string().contains("/no/such/redis-server"),
        "{error}"
    );
}

#[test]
fn unknown_option_is_reported_with_the_log() {
    let server = Server::builder().option("no-such-option", "1");
    let error = server.start().unwrap_err();
    assert!(matches!(error, StartError::Exited { .. }), "{error:?}");
    assert!(error.to_string().contains("no-such-option"), "{error}");
}

#[test]
fn fixed_port_in_use_is_an_error() {
    let server = Server::start().unwrap();
    let error = Server::builder().port(server.port()).start().unwrap_err();
    assert!(
        error.to_string().contains("Address already in use"),
        "{error}"
    );
    assert_eq!(ask(&server, "PING", AMPLE).unwrap(), "+PONG");
}

/// A program that finds its port in use at its first start.
const LATE: &str = r#"#!/bin/sh
if mkdir first 2>/dev/null; then echo "bind: Address already in use"; exit 1; fi
exec redis-server "$@"
"#;

#[test]
fn reserved_port_in_use_is_replaced() {
    let folder = Server::start().unwrap();
    let program = folder.folder().join("late");
    std::fs::write(&program, LATE).unwrap();
    let chmod = std::process::Command::new("chmod")
        .arg("+x")
        .arg(&program)
        .status();
    assert!(chmod.unwrap().success());
    let server = Server::builder().program(&program).start().unwrap();
    assert!(server.folder().join("first").exists());
    assert_eq!(ask(&server, "PING", AMPLE).unwrap(), "+PONG");
}

#[test]
fn options_files_and_password_are_used() {
    let server = Server::builder()
        .option("requirepass", "secret")
        .option("include", "more.conf")
        .file("more.conf", "maxmemory-policy allkeys-lru\n")
        .start()
        .unwrap();
    let refused = ask(&server, "PING", AMPLE).unwrap();
    assert!(refused.starts_with("-NOAUTH"), "{refused}");
    let replies = transcript(&server, "AUTH secret\r\nCONFIG GET maxmemory-policy");
    assert!(replies.contains("allkeys-lru"), "{replies}");
    assert!(server.log().contains("eady to accept connections"));
}
