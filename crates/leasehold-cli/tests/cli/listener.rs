//! Metrics of locks over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testkit::{ServerExt, tool};

use crate::export::{Metrics, hold, printed};
use crate::harness::{EVENT_TIMEOUT, Harness, Running, eventually};

/// Starts `export --listen`, and returns its address.
fn listen(harness: &Harness, args: &str) -> (Running, SocketAddr) {
    let args = format!("export --listen 127.0.0.1:0 {args}");
    let exporter = harness.leasehold(&args).start();
    let text = exporter.wait_for_stderr("/metrics\n");
    let (_, address) = text.split_once("http://").unwrap();
    let (address, _) = address.split_once("/metrics").unwrap();
    (exporter, address.parse().unwrap())
}

/// Sends a request, and returns the response.
fn request(address: SocketAddr, request: impl AsRef<[u8]>) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
    stream.write_all(request.as_ref()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn scrape(address: SocketAddr) -> Metrics {
    let get = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let response = request(address, get);
    let (header, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(header.starts_with("HTTP/1.1 200 OK\r\n"), "{header}");
    let header = format!("{}\r\n", header.to_lowercase());
    let content_type = "\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\n";
    assert!(header.contains(content_type), "{header}");
    let length = format!("\r\ncontent-length: {}\r\n", body.len());
    assert!(header.contains(&length), "{header}");
    Metrics(body.to_owned())
}

fn succeeds(address: SocketAddr) -> bool {
    scrape(address).get("leasehold_export_success") == Some(1.0)
}

#[test]
fn listener_answers_requests() {
    let harness = Harness::new();
    let holder = hold(&harness, "run job", "job");
    let (exporter, address) = listen(&harness, "--lock job");
    let metrics = scrape(address);
    metrics.check();
    metrics.assert(r#"leasehold_lock_holders{lock="job"}"#, 1.0);
    let head = request(address, "HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    let huge = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(9000));
    for (text, expected) in [
        ("GET http://a/metrics HTTP/1.1\r\n\r\n", "200 OK\r\n"),
        ("GET /metrics?name[]=x HTTP/1.1\r\n\r\n", "200 OK\r\n"),
        ("GET / HTTP/1.1\r\n\r\n", "404 Not Found\r\n"),
        ("GET /metricsx HTTP/1.1\r\n\r\n", "404 Not Found\r\n"),
        (
            "POST /metrics HTTP/1.1\r\n\r\n",
            "405 Method Not Allowed\r\n",
        ),
        ("\x16\x03\x01 no HTTP\n\n", "400 Bad Request\r\n"),
        (&huge, "431 Request Header Fields Too Large\r\n"),
    ] {
        let response = request(address, text);
        let expected = format!("HTTP/1.1 {expected}");
        assert!(response.starts_with(&expected), "{response}");
        let allows = response.contains("\r\nallow: GET, HEAD\r\n");
        assert_eq!(allows, response.contains(" 405 "), "{response}");
    }
    let taken = harness.leasehold(&format!("export --listen {address}"));
    let taken = taken.run().expect_code(64);
    taken.expect_stderr("cannot listen on");
    harness.stop_scripts();
    holder.wait().expect_code(0);
    eventually("the lock is free", || {
        scrape(address).get(r#"leasehold_lock_holders{lock="job"}"#) == Some(0.0)
    });
    exporter.signal(Signal::SIGTERM);
    exporter.wait().expect_code(128 + 15);
}

#[test]
fn listener_survives_an_outage_of_the_server() {
    let mut harness = Harness::new();
    harness.server.kill();
    let (exporter, address) = listen(&harness, "--lock job");
    for _ in 0..2 {
        eventually("the inspection fails", || !succeeds(address));
        let failed = scrape(address);
        failed.check();
        failed.assert("leasehold_export_success", 0.0);
        failed.assert(r#"leasehold_lock_holders{lock="job"}"#, None);
        harness.server.restart().unwrap();
        eventually("the inspection succeeds", || succeeds(address));
        harness.server.kill();
    }
    exporter.signal(Signal::SIGINT);
    let exporter = exporter.wait().expect_code(128 + 2);
    let messages = exporter.stderr;
    assert_eq!(messages.matches("cannot inspect").count(), 2, "{messages}");
    assert_eq!(messages.matches("again").count(), 2, "{messages}");
}

#[test]
fn faulty_clients_do_not_block_scrapes() {
    let harness = Harness::new();
    let (exporter, address) = listen(&harness, "");
    let slow = |text: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(text).unwrap();
        stream
    };
    let mut clients: Vec<_> = (0..100).map(|_| slow(b"GET /metr")).collect();
    // More connections than the exporter keeps: a scrape replaces the oldest.
    assert!(succeeds(address));
    clients.extend((0..100).map(|_| slow(b"")));
    assert!(succeeds(address));
    for client in &clients {
        // A client that leaves must not end the exporter, which has closed the
        // oldest connections.
        let _ = client.shutdown(Shutdown::Read);
    }
    assert!(succeeds(address));
    for mut client in clients {
        let _ = client.write_all(b"ics");
    }
    assert!(succeeds(address));
    exporter.signal(Signal::SIGTERM);
    exporter.wait().expect_code(128 + 15);
}

/// Scrapes waited for the time limits of all clients that were earlier: 15 s.
#[test]
#[ignore = "deep: measures a scrape"]
fn half_open_clients_do_not_delay_scrapes() {
    let harness = Harness::new();
    let (exporter, address) = listen(&harness, "");
    let clients: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metr").unwrap();
            stream
        })
        .collect();
    let start = Instant::now();
    assert!(succeeds(address));
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    drop(clients);
    exporter.signal(Signal::SIGTERM);
    exporter.wait().expect_code(128 + 15);
}

#[test]
fn named_export_reads_no_other_key() {
    let harness = Harness::new();
    harness
        .leasehold("run job")
        .script("true")
        .run()
        .expect_code(0);
    printed(harness.leasehold("export --lock job"));
    let (exporter, address) = listen(&harness, "--lock job");
    assert!(succeeds(address));
    assert_eq!(scans(&harness), 0);
    printed(harness.leasehold("export"));
    assert!(scans(&harness) > 0);
    exporter.signal(Signal::SIGTERM);
    exporter.wait().expect_code(128 + 15);
}

#[test]
fn unreadable_lock_does_not_fail_the_export() {
    let harness = Harness::new();
    let holder = hold(&harness, "run job", "job");
    harness.server.tell(&["RPUSH", "lock:list", "data"]);
    let export = "--lock job --lock list";
    let printed = harness.leasehold(&format!("export {export}")).run();
    let printed = printed
        .expect_code(0)
        .expect_stderr("cannot inspect `list`: ");
    let (exporter, address) = listen(&harness, export);
    for metrics in [Metrics(printed.stdout), scrape(address)] {
        metrics.check();
        metrics.assert("leasehold_export_success", 1.0);
        metrics.assert(r#"leasehold_lock_export_success{lock="job"}"#, 1.0);
        metrics.assert(r#"leasehold_lock_export_success{lock="list"}"#, 0.0);
        metrics.assert(r#"leasehold_lock_holders{lock="job"}"#, 1.0);
        metrics.assert(r#"leasehold_lock_holders{lock="list"}"#, None);
    }
    let all = harness.leasehold("export").run().expect_code(0);
    Metrics(all.stdout).assert(r#"leasehold_locks{kind="mutex"}"#, 1.0);
    harness.stop_scripts();
    holder.wait().expect_code(0);
    exporter.signal(Signal::SIGTERM);
    let messages = exporter.wait().expect_code(128 + 15).stderr;
    assert_eq!(messages.matches("cannot inspect").count(), 1, "{messages}");
}

/// Returns the number of `SCAN` calls that the server has executed.
fn scans(harness: &Harness) -> u64 {
    let stats = harness.server.ask(&["INFO", "commandstats"]);
    let text = stats.text().to_owned();
    let count = text.split_once("cmdstat_scan:calls=").map(|(_, rest)| {
        let digits = rest.split(',').next();
        digits.unwrap().parse::<u64>().unwrap()
    });
    count.unwrap_or_default()
}

#[test]
fn scrapes_share_inspections() {
    let harness = Harness::new();
    let (exporter, address) = listen(&harness, "");
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..10).for_each(|_| assert!(succeeds(address))));
        }
    });
    // An inspection of an empty server is one call.
    let limit = 1 + start.elapsed().as_secs();
    let scans = scans(&harness);
    assert!((1..=limit).contains(&scans), "{scans} > {limit}");
    exporter.signal(Signal::SIGTERM);
    exporter.wait().expect_code(128 + 15);
}

#[test]
fn prometheus_scrapes_the_listener() {
    let Some(mut prometheus) = tool("prometheus") else {
        return;
    };
    let harness = Harness::new();
    let (exporter, address) = listen(&harness, "--lock job");
    let target = format!("{{job_name: locks, static_configs: [{{targets: ['{address}']}}]}}");
    let file = format!("global: {{scrape_interval: 1s}}\nscrape_configs: [{target}]\n");
    std::fs::write(harness.path("prometheus.yml"), file).unwrap();
    let mut prometheus = prometheus
        .arg("--config.file=prometheus.yml")
        .args([
            "--storage.tsdb.path=data",
            "--web.listen-address=127.0.0.1:0",
        ])
        .current_dir(harness.path(""))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(prometheus.stderr.take().unwrap()).lines();
    let api: SocketAddr = log
        .find_map(|line| {
            let line = line.unwrap();
            let (_, address) = line.split_once(r#""Listening on" address="#)?;
            Some(address.parse().unwrap())
        })
        .unwrap();
    std::thread::spawn(move || log.for_each(drop));
    let query = |series: &str| {
        let get = format!("GET /api/v1/query?query={series} HTTP/1.0\r\n\r\n");
        request(api, get)
    };
    for series in ["up", "leasehold_export_success"] {
        let value = || query(series).contains(r#","1"]"#);
        eventually(series, value);
    }
    let holders = query("leasehold_lock_holders");
    assert!(holders.contains(r#""lock":"job""#), "{holders}");
    assert!(holders.contains(r#","0"]"#), "{holders}");
    prometheus.kill().unwrap();
    prometheus.wait().unwrap();
    exporter.signal(Signal::SIGTERM);
    exporter.wait().expect_code(128 + 15);
}
