//! Bugs of connecting: addresses, seeds and sentinels that don't answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use leasehold::Client;
use testkit::sentinel_group::GROUP;
use testkit::{Flavor, SilentAddress, Worker};

use crate::support::deployment::{cluster, connect_to_sentinels, group};
use crate::support::{AMPLE, LEASE, PASSWORD, exists, name, run};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A connect timeout that only a defect waits for.
const ENDLESS: Duration = AMPLE.saturating_mul(20);

/// Connects with [`ENDLESS`], and fails after [`AMPLE`].
async fn connect_soon(connect: leasehold::Connect) {
    let connecting = connect.connect_timeout(ENDLESS).into_future();
    let client = tokio::time::timeout(AMPLE, connecting).await;
    let client = client.expect("another address is up").unwrap();
    let guard = client.mutex(&name()).lock().await.unwrap();
    guard.release().await.unwrap();
}

/// The seeds were connected to one after the other, each until its timeout.
#[test]
fn silent_seeds_delay_connecting_little() {
    run(async {
        let cluster = cluster(&Flavor::one());
        let silent = [0, 0].map(|port| SilentAddress::start(LOOPBACK, port));
        let [one, two] = silent.each_ref().map(SilentAddress::address);
        let up = cluster.server(0).port();
        let url = format!("redis+cluster://leasehold:{PASSWORD}@{one},{two},127.0.0.1:{up}");
        connect_soon(Client::connect(&url)).await;
    });
}

/// The sentinels were asked one after the other, each until its timeout.
#[test]
fn silent_sentinels_delay_connecting_little() {
    run(async {
        let group = group(&Flavor::one());
        let silent = [0, 0].map(|port| SilentAddress::start(LOOPBACK, port));
        let [one, two] = silent.each_ref().map(SilentAddress::address);
        let sentinels = format!("{one},{},{two}", group.sentinel(0));
        // The client starts with a random one.
        for _ in 0..6 {
            connect_soon(connect_to_sentinels(&sentinels, GROUP)).await;
        }
    });
}

/// A hosts file with the addresses of `redis.test`.
struct Hosts(std::path::PathBuf);

impl Hosts {
    fn new(addresses: &[IpAddr]) -> Self {
        let file = format!("leasehold-hosts-{}-{}", std::process::id(), name());
        let hosts = Self(std::env::temp_dir().join(file.replace(':', "-")));
        hosts.set(addresses);
        hosts
    }

    /// Replaces the addresses. Workers see it, since the file stays the same.
    fn set(&self, addresses: &[IpAddr]) {
        let lines = addresses.iter().map(|ip| format!("{ip} redis.test\n"));
        std::fs::write(&self.0, lines.collect::<String>()).unwrap();
    }

    /// Starts a process that connects to `redis.test` at this port.
    fn connect(&self, port: u16) -> Worker {
        let task = format!("redis://redis.test:{port} {} false", LEASE.as_millis());
        Worker::spawn_with_hosts(&task, &self.0)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The first address had all of the time, and a name never connected while it
/// dropped packets.
#[test]
#[ignore = "deep: measures, and needs root for a hosts file of its own"]
fn name_with_silent_address_connects_in_a_second() {
    let server = Flavor::one().start();
    // The system prefers IPv6.
    let silent = SilentAddress::start(Ipv6Addr::LOCALHOST.into(), server.port());
    let hosts = Hosts::new(&[silent.address().ip(), LOOPBACK]);
    for _ in 0..10 {
        let start = Instant::now();
        let mut worker = hosts.connect(server.port());
        worker.ask(&format!("lock {}", name()));
        let took = start.elapsed();
        println!("a new process holds a lock after {took:?}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}

/// A managed service gives its name another address after a failover.
#[test]
#[ignore = "deep: needs root for a hosts file of its own"]
fn name_is_resolved_for_every_connection() {
    run(async {
        let (mut before, after) = (Flavor::one().start(), Flavor::one().start());
        let port = before.port();
        let moved: IpAddr = Ipv4Addr::new(127, 0, 0, 2).into();
        let listener = tokio::net::TcpListener::bind((moved, port)).await.unwrap();
        let upstream = after.port();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = tokio::net::TcpStream::connect((LOOPBACK, upstream)).await;
                let mut server = server.unwrap();
                tokio::spawn(async move {
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        let hosts = Hosts::new(&[LOOPBACK]);
        let mut worker = hosts.connect(port);
        worker.ask(&format!("lock {}", name()));
        before.kill();
        hosts.set(&[moved]);
        let name = name();
        let found = name.clone();
        // Blocks: the forwarding needs this runtime.
        let asking = tokio::task::spawn_blocking(move || {
            worker.ask(&format!("lock {found}"));
            worker
        });
        let _worker = asking.await.unwrap();
        assert!(exists(&after, &name));
    });
}
