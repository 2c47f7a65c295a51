//! The web service: locks in handlers, and an exit that holds none.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use rustix::process::Signal;
use testkit::{Flavor, ServerExt};

use crate::page::shows;
use crate::process::{AMPLE, Process, client, eventually, locks, program, start};

/// Sends a request without a body, and returns the whole response.
fn post(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the service listens");
    stream.set_read_timeout(Some(AMPLE)).expect("a timeout");
    let request = format!("POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

fn address(service: &Process) -> String {
    let line = service.prints("listening on ");
    line.trim_start_matches("listening on ").to_owned()
}

#[test]
fn stopped_service_finishes_and_releases() {
    let server = Flavor::one().start();
    let other_instance = client(&server);
    let service = start(program!("axum"), &server, &["127.0.0.1:0"]);
    let address = address(&service);
    eventually("the archiver leads", || locks(&server) == ["lock:archive"]);

    let response = post(&address, "/orders/7/pay");
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
    assert!(response.ends_with("order 7 is paid\n"), "{response}");

    let report = other_instance
        .mutex("report")
        .lock()
        .wait()
        .expect("a lock");
    let response = post(&address, "/report");
    assert!(response.starts_with("HTTP/1.1 409 "), "{response}");
    report.release().wait().expect("still held");
    let response = post(&address, "/report");
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");

    // The signal arrives while a request waits for an order that another
    // instance holds.
    let order = other_instance
        .mutex("order:8")
        .lock()
        .wait()
        .expect("a lock");
    let waiting = {
        let address = address.clone();
        thread::spawn(move || post(&address, "/orders/8/pay"))
    };
    eventually("the request waits", || {
        let waits = server.ask(&["PUBSUB", "SHARDCHANNELS", "*lock:order:8"]);
        !waits.list().is_empty()
    });
    service.signal(Signal::TERM);
    service.prints("stopping");
    eventually("no new connections", || {
        TcpStream::connect(&address).is_err()
    });
    order.release().wait().expect("still held");
    let response = waiting.join().expect("no panic");
    assert!(response.ends_with("order 8 is paid\n"), "{response}");

    let output = service.succeeds();
    assert_eq!(locks(&server), [""; 0], "a lock is held after the exit");
    shows("axum", &[output]);
}

#[test]
fn held_order_is_a_conflict_and_no_outage() {
    let mut server = Flavor::one().start();
    let other_instance = client(&server);
    let service = start(program!("axum"), &server, &["127.0.0.1:0"]);
    let address = address(&service);
    let order = other_instance
        .mutex("order:7")
        .lock()
        .wait()
        .expect("a lock");
    let response = post(&address, "/orders/7/pay");
    assert!(response.starts_with("HTTP/1.1 409 "), "{response}");
    assert!(response.contains("held by process "), "{response}");
    order.release().wait().expect("still held");

    server.kill();
    let response = post(&address, "/report");
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
}
