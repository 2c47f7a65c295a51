//! The load of many clients on a server: while they are idle, and when all of
//! them reconnect.
//!
//! The results are in `docs/scale.md`. They are processor time of the servers,
//! which other programs on the same machine hardly affect, unlike wall-clock
//! time. Each client is complete, with its keeper thread and its connections,
//! in this process.

use std::time::{Duration, Instant};

use leasehold::{Client, Connect, Guard, Quorum};
use testkit::{Flavor, Server, ServerExt, Setup};

use crate::support::deployment::{cluster, cluster_url, connect_to_group, group, rule_with_grants};
use crate::support::{AMPLE, run, url_at, with_long_timeouts};
use testkit::sentinel_group::GROUP;

/// The number of idle clients.
const IDLE: usize = 200;

/// How long to measure the servers, with and without clients.
const MEASURED: Duration = Duration::from_secs(30);

/// How long a killed server stays down.
const DOWNTIME: Duration = Duration::from_secs(2);

/// How often to count the reconnected clients.
const TICK: Duration = Duration::from_millis(100);

/// Returns the number of clients that reconnect, which `LEASEHOLD_FLEET` sets.
fn fleet_size() -> usize {
    let fleet_size = std::env::var("LEASEHOLD_FLEET").ok();
    fleet_size
        .and_then(|fleet_size| fleet_size.parse().ok())
        .unwrap_or(1000)
}

/// The work of processes since they started.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    commands: f64,
    connections: f64,
    cpu_time: Duration,
}

impl Load {
    fn of(servers: &[Server]) -> Self {
        let commands = |server: &Server| server.info("total_commands_processed");
        let connections = |server: &Server| server.info("total_connections_received");
        Self {
            commands: servers.iter().map(commands).sum(),
            connections: servers.iter().map(connections).sum(),
            cpu_time: servers
                .iter()
                .map(|one| cpu_time(one.pid().expect("the server is up")))
                .sum(),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            commands: self.commands - before.commands,
            connections: self.connections - before.connections,
            cpu_time: self.cpu_time.saturating_sub(before.cpu_time),
        }
    }
}

/// Returns the processor time of all live threads of a process.
fn cpu_time(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process is running");
    let nanos = threads.filter_map(|thread| {
        let times = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        times.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Prints the cost of idle clients, without that of the servers alone.
async fn report_idle<C>(
    what: &str,
    load: impl Fn() -> Load,
    connect: impl AsyncFn() -> C,
) -> (f64, f64) {
    let watch = async || {
        let before = load();
        tokio::time::sleep(MEASURED).await;
        load().since(before)
    };
    let alone = watch().await;
    let mut clients = Vec::new();
    for _ in 0..IDLE {
        clients.push(connect().await);
    }
    // Connecting is over.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let with = watch().await;
    let each = IDLE as f64 * MEASURED.as_secs_f64();
    let commands = (with.commands - alone.commands) / each;
    let micros = (with.cpu_time.as_secs_f64() - alone.cpu_time.as_secs_f64()) * 1e6 / each;
    println!(
        "{what}: {IDLE} idle clients, each {commands:.3} commands and {micros:.2} us of CPU time a second \
         (servers alone: {:.0} us a second)",
        alone.cpu_time.as_secs_f64() * 1e6 / MEASURED.as_secs_f64(),
    );
    (commands, micros)
}

#[test]
#[ignore = "deep: measures what idle clients cost, for minutes"]
fn idle_clients_cost_servers_little() {
    run(async {
        let flavor = Flavor::one();
        let server = [crate::support::server()];
        let url = url_at(server[0].port());
        let connect = async || with_long_timeouts(Client::connect(&url)).await.unwrap();
        let (commands, _) = report_idle("one server", || Load::of(&server), connect).await;
        assert!(commands < 0.1, "{commands}");
        drop(server);

        let group = group(&flavor);
        let load = || {
            let mut load = Load::of(group.servers());
            for (pid, commands) in group.sentinel_command_counts() {
                load.commands += commands as f64;
                load.cpu_time += cpu_time(pid);
            }
            load
        };
        let connect = async || connect_to_group(&group, GROUP).await.unwrap();
        let (commands, _) = report_idle("Sentinel", load, connect).await;
        assert!(commands < 2.0, "{commands}");
        drop(group);

        let cluster = cluster(&flavor);
        let url = cluster_url(&cluster);
        let connect = async || with_long_timeouts(Client::connect(&url)).await.unwrap();
        let load = || Load::of(cluster.servers());
        let (commands, _) = report_idle("Cluster, three masters", load, connect).await;
        assert!(commands < 1.0, "{commands}");
        drop(cluster);

        let rule = rule_with_grants(&flavor, &["+info"]);
        let setup = Setup::default().user(&rule);
        let three: Vec<_> = (0..3).map(|_| setup.clone().start(&flavor)).collect();
        let urls: Vec<_> = three.iter().map(|one| url_at(one.port())).collect();
        Quorum::connect(urls.clone()).bootstrap().await.unwrap();
        let connect = async || Quorum::connect(urls.clone()).await.unwrap();
        let load = || Load::of(&three);
        let (commands, _) = report_idle("Quorum of three", load, connect).await;
        assert!(commands < 1.0, "{commands}");
    });
}

#[test]
#[ignore = "deep: measures how a thousand clients reconnect"]
fn clients_reconnect_after_restart() {
    run(async {
        let server = persistent_setup().start(&Flavor::one());
        let url = url_at(server.port());
        reconnect_all("without TLS", server, || Client::connect(&url)).await;
    });
}

#[test]
#[ignore = "deep: measures how a thousand clients reconnect over TLS"]
fn clients_reconnect_after_restart_over_tls() {
    run(async {
        let server = persistent_setup().tls().start(&Flavor::one());
        let authority = server.ca_certificate().to_owned();
        let url = url_at(server.tls_port()).replace("redis://", "rediss://");
        let builder = || Client::connect(&url).root_certificate(authority.as_str());
        reconnect_all("with TLS", server, builder).await;
    });
}

/// A server that keeps its locks across a restart.
fn persistent_setup() -> Setup {
    let rule = rule_with_grants(&Flavor::one(), &[]);
    let setup = Setup::default().user(&rule).option("appendonly", "yes");
    setup.option("maxclients", "15000")
}

/// Every other client holds a lock, and the next one waits for it.
async fn reconnect_all(what: &str, mut server: Server, builder: impl Fn() -> Connect) {
    let (mut clients, mut guards, mut waiters) = (Vec::new(), Vec::<Guard>::new(), Vec::new());
    for number in 0..fleet_size() {
        let client = builder().await.unwrap();
        let mutex = client.mutex(&format!("fleet:{}", number / 2));
        if number % 2 == 0 {
            guards.push(mutex.lock().fixed_lease(AMPLE * 5).await.unwrap());
        } else {
            waiters.push(tokio::spawn(async move {
                mutex.lock().timeout(AMPLE * 10).await
            }));
        }
        clients.push(client);
    }
    wait_for_reconnect(&server, what, "connected", Load::default()).await;

    let before = Load::of(std::slice::from_ref(&server));
    server.tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    wait_for_reconnect(&server, what, "CLIENT KILL", before).await;

    server.kill();
    tokio::time::sleep(DOWNTIME).await;
    server.restart().unwrap();
    wait_for_reconnect(&server, what, "killed and restarted", Load::default()).await;

    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    let valid = guards.iter().filter(|guard| guard.check().is_ok()).count();
    assert_eq!(valid, guards.len(), "a lease was lost");
}

/// Waits until every client subscribes again, and prints the cost.
async fn wait_for_reconnect(server: &Server, what: &str, after: &str, before: Load) {
    let start = Instant::now();
    let mut control = server.connect();
    let mut ask = move |words: &[&str]| control.ask(words).expect("the server is up");
    let mut accepted = vec![(start, before.connections)];
    let listening = loop {
        accepted.push((Instant::now(), server.info("total_connections_received")));
        let channels = ask(&["PUBSUB", "SHARDCHANNELS", "leasehold:process:*"]);
        let listening = channels.list().first().map_or(0, |channel| {
            let count = ask(&["PUBSUB", "SHARDNUMSUB", channel.text()]);
            count.list()[1].int()
        });
        if listening as usize >= fleet_size() || start.elapsed() > AMPLE {
            break listening;
        }
        tokio::time::sleep(TICK).await;
    };
    let took = start.elapsed();
    // Waiters and requests open their connections a moment later.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let peak = peak(&accepted);
    let load = Load::of(std::slice::from_ref(server)).since(before);
    println!(
        "{what}, {after}: {listening} clients reconnected in {:.2} s; at most {peak:.0} connections a second; \
         CPU time of the server {:.2} s, {:.0} us for each client",
        took.as_secs_f64(),
        load.cpu_time.as_secs_f64(),
        load.cpu_time.as_secs_f64() * 1e6 / fleet_size() as f64,
    );
    assert_eq!(listening as usize, fleet_size());
}

/// Returns the most connections accepted within one second.
fn peak(accepted: &[(Instant, f64)]) -> f64 {
    let within = |(at, count): &(Instant, f64)| {
        let later = accepted.iter().filter(|(then, _)| *then >= *at);
        let later = later.take_while(|(then, _)| *then - *at <= Duration::from_secs(1));
        later.last().map_or(0.0, |(_, last)| last - count)
    };
    accepted.iter().map(within).fold(0.0, f64::max)
}
