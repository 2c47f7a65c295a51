//! Metrics of locks: on standard output, and over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Instant;

use nix::sys::signal::Signal;
use testkit::tool;

use crate::harness::{Cmd, EVENT_TIMEOUT, Harness, Running, UNTIL_STOPPED, eventually};

/// Parsed metrics.
struct Metrics(String);

impl Metrics {
    /// Returns the value of a series, as in `name{lock="job"}`.
    fn get(&self, series: &str) -> Option<f64> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map(|value| value.parse().unwrap())
    }

    #[track_caller]
    fn assert(&self, series: &str, expected: impl Into<Option<f64>>) {
        assert_eq!(self.get(series), expected.into(), "{series}\n{}", self.0);
    }

    /// Checks the format with Prometheus' own parser and its rules.
    fn check(&self) {
        let Some(mut promtool) = tool("promtool") else {
            return;
        };
        promtool.args(["check", "metrics"]).stdin(Stdio::piped());
        let mut checking = promtool.stderr(Stdio::piped()).spawn().unwrap();
        let mut input = checking.stdin.take().unwrap();
        input.write_all(self.0.as_bytes()).unwrap();
        drop(input);
        let output = checking.wait_with_output().unwrap();
        let problems = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{problems}\n{}", self.0);
        assert_eq!(problems, "", "{}", self.0);
    }
}

fn printed(cmd: Cmd) -> Metrics {
    let metrics = Metrics(cmd.run().expect_code(0).expect_no_stderr().stdout);
    metrics.check();
    metrics.assert("leasehold_export_success", 1.0);
    metrics
}

/// Holds a lock until [`Harness::stop_scripts`].
fn hold(harness: &Harness, args: &str, up: &str) -> Running {
    let script = format!("echo up > {up}; {UNTIL_STOPPED}");
    let run = harness.leasehold(args).script(&script);
    run.start_until_file(harness, up)
}

#[test]
fn export_reports_named_and_other_locks() {
    let harness = Harness::new();
    let holder = hold(&harness, "run --fair job", "job");
    let waiter = harness.leasehold("run --fair job").script("true");
    let waiter = waiter.start_until("it is queued", || harness.waiter_count("job") == 1);
    let one = hold(&harness, "run --permits 3 gate", "one");
    let two = hold(&harness, "run --permits 3 gate", "two");

    let export = "export --lock job --lock idle --lock job";
    let metrics = printed(harness.leasehold(export));
    for (series, expected) in [
        (r#"holders{lock="job"}"#, 1.0),
        (r#"waiters{lock="job"}"#, 1.0),
        (r#"disconnected_holders{lock="job"}"#, 0.0),
        (r#"info{lock="job",kind="fair_mutex"}"#, 1.0),
        (r#"holders{lock="idle"}"#, 0.0),
        (r#"waiters{lock="idle"}"#, 0.0),
        (r#"oldest_hold_seconds{lock="idle"}"#, 0.0),
        (r#"disconnected_holders{lock="idle"}"#, 0.0),
    ] {
        metrics.assert(&format!("leasehold_lock_{series}"), expected);
    }
    let age = |metrics: &Metrics| {
        let age = metrics.get(r#"leasehold_lock_oldest_hold_seconds{lock="job"}"#);
        age.unwrap()
    };
    assert!((0.0..600.0).contains(&age(&metrics)), "{}", metrics.0);
    // A lock counts either by its name or in the sums.
    for (kind, holders, locks) in [
        ("fair_mutex", 0.0, 1.0),
        ("semaphore", 2.0, 1.0),
        ("mutex", 0.0, 0.0),
    ] {
        let others = format!("leasehold_other_lock_holders{{kind=\"{kind}\"}}");
        metrics.assert(&others, holders);
        metrics.assert(&format!("leasehold_locks{{kind=\"{kind}\"}}"), locks);
    }
    assert!(!metrics.0.contains("gate"), "{}", metrics.0);
    eventually("the holder is a second older", || {
        age(&printed(harness.leasehold(export))) > age(&metrics) + 1.0
    });
    let unnamed = printed(harness.leasehold("export"));
    unnamed.assert(r#"leasehold_other_lock_holders{kind="fair_mutex"}"#, 1.0);
    unnamed.assert(r#"leasehold_other_lock_waiters{kind="fair_mutex"}"#, 1.0);
    let oldest = r#"leasehold_other_lock_oldest_hold_seconds{kind="fair_mutex"}"#;
    assert!(unnamed.get(oldest) > Some(1.0), "{}", unnamed.0);

    harness.stop_scripts();
    for run in [holder, waiter, one, two] {
        run.wait().expect_code(0);
    }
    let metrics = printed(harness.leasehold(export));
    metrics.assert(r#"leasehold_lock_holders{lock="job"}"#, 0.0);
    metrics.assert(r#"leasehold_lock_info{lock="job",kind="fair_mutex"}"#, None);
}

#[test]
fn export_counts_killed_holders_as_disconnected() {
    let harness = Harness::new();
    let holder = hold(&harness, "run --lease 1h job", "job");
    let permits = ["one", "two", "three"].map(|up| {
        let run = "run --lease 1h --permits 3 gate";
        hold(&harness, run, up)
    });
    let named = r#"leasehold_lock_disconnected_holders{lock="job"}"#;
    let others = r#"leasehold_other_lock_disconnected_holders{kind="semaphore"}"#;
    let counted = |job: f64, gate: f64| {
        let metrics = printed(harness.leasehold("export --lock job"));
        metrics.assert(r#"leasehold_lock_holders{lock="job"}"#, 1.0);
        metrics.get(named) == Some(job) && metrics.get(others) == Some(gate)
    };
    eventually("all are connected", || counted(0.0, 0.0));
    holder.signal(Signal::SIGKILL);
    eventually("the holder is disconnected", || counted(1.0, 0.0));
    // A scan lists only the first holder of a lock.
    permits[1].signal(Signal::SIGKILL);
    permits[2].signal(Signal::SIGKILL);
    eventually("two permits are disconnected", || counted(1.0, 2.0));
}

#[test]
fn export_omits_what_is_unknown_of_redisson_locks() {
    let harness = Harness::new();
    let id = "a2b1f3c4-0000-4000-8000-123456789abc:1";
    let other = "a2b1f3c4-0000-4000-8000-123456789abc:2";
    let server = &harness.server;
    server.tell(&["HSET", "plain", id, "1"]);
    server.tell(&["HSET", "named", id, "1"]);
    server.tell(&["HSET", "both", "mode", "read", id, "1", other, "2"]);
    server.tell(&["HSET", "fair", id, "1"]);
    server.tell(&["RPUSH", "redisson_lock_queue:{fair}", other]);
    server.tell(&["SET", "data", "of the application"]);
    let export = harness.leasehold("export --lock named");
    let metrics = printed(export.configure(|command| command.args(["--prefix", ""])));
    for (series, expected) in [
        (r#"lock_holders{lock="named"}"#, Some(1.0)),
        (r#"lock_waiters{lock="named"}"#, None),
        (r#"lock_oldest_hold_seconds{lock="named"}"#, None),
        (r#"lock_disconnected_holders{lock="named"}"#, Some(0.0)),
        (r#"lock_info{lock="named",kind="redisson_lock"}"#, Some(1.0)),
        (r#"locks{kind="redisson_lock"}"#, Some(2.0)),
        (r#"other_lock_holders{kind="redisson_lock"}"#, Some(1.0)),
        (r#"other_lock_waiters{kind="redisson_lock"}"#, None),
        (
            r#"other_lock_waiters{kind="redisson_fair_lock"}"#,
            Some(1.0),
        ),
        (
            r#"other_lock_holders{kind="redisson_read_write_lock"}"#,
            Some(2.0),
        ),
        (r#"locks{kind="foreign"}"#, Some(0.0)),
    ] {
        metrics.assert(&format!("leasehold_{series}"), expected);
    }
}

#[test]
fn export_escapes_names_in_labels() {
    const NAME: &str = "a\"b\\c\nd\\n{}, é";
    let harness = Harness::new();
    let key = format!("lock:{NAME}");
    let value = "another library";
    harness.server.tell(&["SET", &key, value, "PX", "3600000"]);
    let export = harness.leasehold("export");
    let metrics = printed(export.configure(|command| command.args(["--lock", NAME])));
    let series = r#"leasehold_lock_holders{lock="a\"b\\c\nd\\n{}, é"}"#;
    metrics.assert(series, 1.0);
}

#[test]
fn failed_export_prints_nothing() {
    let mut harness = Harness::new();
    harness.server.tell(&["RPUSH", "lock:list", "x"]);
    let wrong = harness.leasehold("export --lock list").run();
    let wrong = wrong.expect_code(64).expect_stderr("`list`");
    assert_eq!(wrong.stdout, "");
    let unnamed = harness.leasehold("export --listen 127.0.0.1:0 --lock=");
    unnamed.run().expect_code(64).expect_stderr("--lock");
    let url = format!("redis://unknown:x@127.0.0.1:{}", harness.server.port());
    let denied = harness.leasehold_with_url(&url, "export --listen 127.0.0.1:0");
    denied.run().expect_code(77);
    harness.server.kill();
    let failed = harness.leasehold("export").run().expect_code(69);
    assert_eq!(failed.stdout, "");
}

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
    let content_type = "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
    assert!(header.contains(content_type), "{header}");
    let length = format!("\r\nContent-Length: {}\r\n", body.len());
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
    let head = request(address, "HEAD /metrics HTTP/1.0\n\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    let huge = format!(
        "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(500_000)
    );
    for (text, expected) in [
        ("GET / HTTP/1.1\r\n\r\n", "404 Not Found\r\n"),
        (
            "POST /metrics HTTP/1.1\r\n\r\n",
            "405 Method Not Allowed\r\n",
        ),
        ("\r\n\r\n", "400 Bad Request\r\n"),
        ("\x16\x03\x01 no HTTP\n\n", "400 Bad Request\r\n"),
        (&huge, "431 Request Header Fields Too Large\r\n"),
    ] {
        let response = request(address, text);
        let expected = format!("HTTP/1.1 {expected}");
        assert!(response.starts_with(&expected), "{response}");
        assert!(response.contains("\r\nConnection: close\r\n"), "{response}");
        let allows = response.contains("\r\nAllow: GET, HEAD\r\n");
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
        harness.server.restart();
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
    let mut clients: Vec<_> = (0..40).map(|_| slow(b"GET /metr")).collect();
    assert!(succeeds(address));
    // More connections than the exporter serves at a time.
    clients.extend((0..40).map(|_| slow(b"")));
    for client in &clients {
        // A client that leaves must not end the exporter.
        client.shutdown(Shutdown::Read).unwrap();
    }
    assert!(succeeds(address));
    for mut client in clients {
        let _ = client.write_all(b"ics");
    }
    assert!(succeeds(address));
    exporter.signal(Signal::SIGTERM);
    exporter.wait().expect_code(128 + 15);
}

#[test]
fn scrapes_share_inspections() {
    let harness = Harness::new();
    let (exporter, address) = listen(&harness, "");
    let scans = || {
        let stats = harness.server.ask(&["INFO", "commandstats"]);
        let text = stats.text().to_owned();
        let count = text.split_once("cmdstat_scan:calls=").map(|(_, rest)| {
            let digits = rest.split(',').next();
            digits.unwrap().parse::<u64>().unwrap()
        });
        count.unwrap_or_default()
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..10).for_each(|_| assert!(succeeds(address))));
        }
    });
    // An inspection of an empty server is one call.
    let limit = 1 + start.elapsed().as_secs();
    assert!((1..=limit).contains(&scans()), "{} > {limit}", scans());
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
