//! The service serves the metrics of its locks to a scraper.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use testkit::Flavor;

/// Longer than any event takes. Only a defect reaches it.
const AMPLE: Duration = Duration::from_secs(60);

/// A process that is killed when the value is dropped.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn scrape(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let request = "GET /metrics HTTP/1.1\r\nHost: service\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}

#[test]
fn scrape_has_the_locks_and_their_losses() {
    let server = Flavor::one().start();
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("an address").to_string();
    drop(free);
    let mut command = Command::new(env!("CARGO_BIN_EXE_metrics-service"));
    let url = format!("redis://127.0.0.1:{}", server.port());
    command.arg(&address).env("REDIS_URL", url);
    let _service = Service(command.spawn().expect("the example starts"));

    let wanted = [
        r#"leasehold_acquire_duration_seconds_count{lock="order:*",kind="mutex""#,
        r#"leasehold_lost_total{lock="overrun",kind="mutex",cause="at_most"}"#,
        r#"leasehold_held{lock="shard-owner",kind="mutex"} 1"#,
        "leasehold_renewals_total",
    ];
    let end = Instant::now() + AMPLE;
    loop {
        let response = scrape(&address).unwrap_or_default();
        let missing: Vec<_> = wanted
            .into_iter()
            .filter(|series| !response.contains(series))
            .collect();
        if missing.is_empty() {
            for line in response.lines().filter(|line| {
                let is_shown = |series: &&str| line.starts_with(*series);
                wanted.iter().any(is_shown)
            }) {
                println!("{line}");
            }
            return;
        }
        assert!(Instant::now() < end, "no {missing:?} in\n{response}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
