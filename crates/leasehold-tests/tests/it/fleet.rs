//! What a fleet of clients costs a server: while they do nothing, and when all of them come back.
//!
//! The figures are those of `docs/scale.md`. They are processor time of the servers, which other programs on the same
//! machine change little; times on the clock they do change. Every client is a real one, with its keeper's thread and
//! its connections, in this process.

use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Guard, Quorum};
use testkit::{Flavor, Server, Setup};

use crate::deployment::{cluster, cluster_url, group, rule_with, sentinel_builder};
use crate::support::{AMPLE, patient, run, url_at};
use testkit::sentinel_group::GROUP;

/// Clients that do nothing.
const IDLE: usize = 200;

/// How long they are watched, and the servers without them.
const WATCHED: Duration = Duration::from_secs(30);

/// How long a server that was killed is away.
const AWAY: Duration = Duration::from_secs(2);

/// How often the server is asked who is back.
const TICK: Duration = Duration::from_millis(100);

/// Clients that come back; `LEASEHOLD_FLEET` overrides it.
fn fleet() -> usize {
    let fleet = std::env::var("LEASEHOLD_FLEET").ok();
    fleet.and_then(|fleet| fleet.parse().ok()).unwrap_or(1000)
}

/// What processes have done since they were started.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    commands: f64,
    connections: f64,
    processor: Duration,
}

impl Load {
    fn of(servers: &[Server]) -> Self {
        let commands = |server: &Server| server.info("total_commands_processed");
        let connections = |server: &Server| server.info("total_connections_received");
        Self {
            commands: servers.iter().map(commands).sum(),
            connections: servers.iter().map(connections).sum(),
            processor: servers.iter().map(|one| processor(one.pid())).sum(),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            commands: self.commands - before.commands,
            connections: self.connections - before.connections,
            processor: self.processor.saturating_sub(before.processor),
        }
    }
}

/// The processor time of a process, of all its threads that live.
fn processor(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let nanos = threads.filter_map(|thread| {
        let times = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        times.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Prints what idle clients cost, less what the servers do without any.
async fn report_idle<C>(
    what: &str,
    load: impl Fn() -> Load,
    connect: impl AsyncFn() -> C,
) -> (f64, f64) {
    let watch = async || {
        let before = load();
        tokio::time::sleep(WATCHED).await;
        load().since(before)
    };
    let alone = watch().await;
    let mut clients = Vec::new();
    for _ in 0..IDLE {
        clients.push(connect().await);
    }
    // What belongs to connecting is over.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let with = watch().await;
    let each = IDLE as f64 * WATCHED.as_secs_f64();
    let commands = (with.commands - alone.commands) / each;
    let micros = (with.processor.as_secs_f64() - alone.processor.as_secs_f64()) * 1e6 / each;
    println!(
        "{what}: {IDLE} idle clients, each {commands:.3} commands and {micros:.2} us of processor a second \
         (servers alone: {:.0} us a second)",
        alone.processor.as_secs_f64() * 1e6 / WATCHED.as_secs_f64(),
    );
    (commands, micros)
}

#[test]
#[ignore = "deep: measures what idle clients cost, for minutes"]
fn idle_fleet_costs_servers_little() {
    run(async {
        let flavor = Flavor::one();
        let server = [crate::support::server()];
        let url = url_at(server[0].port());
        let connect = async || patient(Client::builder(&url)).connect().await.unwrap();
        let (commands, _) = report_idle("one server", || Load::of(&server), connect).await;
        assert!(commands < 0.1, "{commands}");
        drop(server);

        let group = group(&flavor);
        let load = || {
            let mut load = Load::of(group.servers());
            for (pid, commands) in group.sentinel_command_counts() {
                load.commands += commands as f64;
                load.processor += processor(pid);
            }
            load
        };
        let connect = async || sentinel_builder(&group, GROUP).connect().await.unwrap();
        let (commands, _) = report_idle("Sentinel", load, connect).await;
        assert!(commands < 2.0, "{commands}");
        drop(group);

        let cluster = cluster(&flavor);
        let url = cluster_url(&cluster);
        let connect = async || patient(Client::builder(&url)).connect().await.unwrap();
        let load = || Load::of(cluster.servers());
        let (commands, _) = report_idle("Cluster, three masters", load, connect).await;
        assert!(commands < 1.0, "{commands}");
        drop(cluster);

        let rule = rule_with(&flavor, &["+info"]);
        let setup = Setup::default().user(&rule);
        let three: Vec<_> = (0..3).map(|_| setup.clone().start(&flavor)).collect();
        let urls: Vec<_> = three.iter().map(|one| url_at(one.port())).collect();
        Quorum::builder(urls.clone()).bootstrap().await.unwrap();
        let connect = async || Quorum::connect(urls.clone()).await.unwrap();
        let load = || Load::of(&three);
        let (commands, _) = report_idle("Quorum of three", load, connect).await;
        assert!(commands < 1.0, "{commands}");
    });
}

#[test]
#[ignore = "deep: measures how a thousand clients come back"]
fn herd_comes_back() {
    run(async {
        let server = herd_setup().start(&Flavor::one());
        let url = url_at(server.port());
        come_back("without TLS", server, || Client::builder(&url)).await;
    });
}

#[test]
#[ignore = "deep: measures how a thousand clients come back by TLS"]
fn herd_comes_back_by_tls() {
    run(async {
        let server = herd_setup().tls().start(&Flavor::one());
        let authority = server.ca_certificate().to_owned();
        let url = url_at(server.tls_port()).replace("redis://", "rediss://");
        let builder = || Client::builder(&url).root_certificate(authority.as_str());
        come_back("with TLS", server, builder).await;
    });
}

/// A server that has its locks again when it is started anew.
fn herd_setup() -> Setup {
    let rule = rule_with(&Flavor::one(), &[]);
    let setup = Setup::default().user(&rule).option("appendonly", "yes");
    setup.option("maxclients", "15000")
}

/// Every second client holds a lock, and every other waits for that lock.
async fn come_back(what: &str, mut server: Server, builder: impl Fn() -> ClientBuilder) {
    let (mut clients, mut guards, mut waiters) = (Vec::new(), Vec::<Guard>::new(), Vec::new());
    for number in 0..fleet() {
        let client = builder().connect().await.unwrap();
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
    until_all_are_back(&server, what, "connected", Load::default()).await;

    let before = Load::of(std::slice::from_ref(&server));
    server.tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    until_all_are_back(&server, what, "CLIENT KILL", before).await;

    server.kill();
    tokio::time::sleep(AWAY).await;
    server.restart();
    until_all_are_back(&server, what, "killed and restarted", Load::default()).await;

    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    let valid = guards.iter().filter(|guard| guard.check().is_ok()).count();
    assert_eq!(valid, guards.len(), "locks that are still held");
}

/// Waits until every client listens again, and prints what that took.
async fn until_all_are_back(server: &Server, what: &str, after: &str, before: Load) {
    let start = Instant::now();
    let mut control = server.connect();
    let mut ask = move |words: &[&str]| control.ask(words).expect("a server that is up");
    let mut accepted = vec![(start, before.connections)];
    let listening = loop {
        accepted.push((Instant::now(), server.info("total_connections_received")));
        let channels = ask(&["PUBSUB", "SHARDCHANNELS", "leasehold:process:*"]);
        let listening = channels.list().first().map_or(0, |channel| {
            let count = ask(&["PUBSUB", "SHARDNUMSUB", channel.text()]);
            count.list()[1].int()
        });
        if listening as usize >= fleet() || start.elapsed() > AMPLE {
            break listening;
        }
        tokio::time::sleep(TICK).await;
    };
    let took = start.elapsed();
    // Waiters and requests have a connection too, a moment later.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let peak = peak(&accepted);
    let load = Load::of(std::slice::from_ref(server)).since(before);
    println!(
        "{what}, {after}: {listening} clients back in {:.2} s; at most {peak:.0} connections a second; \
         processor of the server {:.2} s, {:.0} us for each client",
        took.as_secs_f64(),
        load.processor.as_secs_f64(),
        load.processor.as_secs_f64() * 1e6 / fleet() as f64,
    );
    assert_eq!(listening as usize, fleet());
}

/// The most connections that were accepted within a second, or in all if that took less.
fn peak(accepted: &[(Instant, f64)]) -> f64 {
    let within = |(at, count): &(Instant, f64)| {
        let later = accepted.iter().filter(|(then, _)| *then >= *at);
        let later = later.take_while(|(then, _)| *then - *at <= Duration::from_secs(1));
        later.last().map_or(0.0, |(_, last)| last - count)
    };
    accepted.iter().map(within).fold(0.0, f64::max)
}
