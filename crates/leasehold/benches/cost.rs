//! What an uncontended lock and release cost: the server's processor time, and the caller's time.
//!
//! `cargo bench -p leasehold --bench cost` prints one table per server found. All ways are driven by
//! this process in interleaved rounds; only ratios within one table mean anything. The server's cost is
//! its own processor time over many locks in flight on one connection, so that system calls do not drown
//! it; latency is of one pair at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::Client;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Script, Value};
use testkit::{Flavor, Server};
use tokio::runtime::Runtime;

/// Pairs per round; a knob, since small machines are noisy.
fn pairs() -> u64 {
    std::env::var("LEASEHOLD_PAIRS")
        .ok()
        .and_then(|pairs| pairs.parse().ok())
        .unwrap_or(20_000)
}

const ROUNDS: usize = 15;
const TASKS: u64 = 64;
const LEASE_MS: u64 = 30_000;

fn main() {
    // One thread: all tasks ask before anything is written, so every way fills its pipelines alike.
    let crowd = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // Two threads, as an application has.
    let single = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    for flavor in Flavor::all() {
        measure(&flavor, &crowd, &single);
    }
}

/// One way to take and release a lock of that name.
#[derive(Clone)]
enum Way {
    Leasehold(Client),
    /// Our lock that has a line.
    Fair(Client),
    /// The same commands from the bare driver.
    Driver(MultiplexedConnection, Arc<Release>),
    /// `SET NX PX` and a compare-and-delete script: the least that is safe.
    Plain(MultiplexedConnection, Arc<Script>),
    /// What Redisson's lock and unlock run, written anew from its description.
    Redisson(MultiplexedConnection, Arc<(Script, Script)>),
}

/// How the server releases best.
enum Release {
    Delex,
    Delifeq,
    Script(Script),
}

impl Way {
    fn name(&self) -> &'static str {
        match self {
            Self::Leasehold(_) => "leasehold, Mutex",
            Self::Fair(_) => "leasehold, FairMutex",
            Self::Driver(..) => "bare driver, same commands",
            Self::Plain(..) => "SET NX PX + compare-and-delete",
            Self::Redisson(..) => "Redisson's scripts",
        }
    }

    async fn pair(&mut self, name: &str) {
        match self {
            Self::Leasehold(client) => {
                let guard = client.mutex(name).lock().await.expect("the lock");
                let _ = guard.release().await.expect("released");
            }
            Self::Fair(client) => {
                let guard = client.fair_mutex(name).lock().await.expect("the lock");
                let _ = guard.release().await.expect("released");
            }
            Self::Driver(connection, release) => driver_pair(connection, release, name).await,
            Self::Plain(connection, script) => {
                let mut set = redis::cmd("SET");
                set.arg(name).arg(VALUE).arg("NX").arg("PX").arg(LEASE_MS);
                let _: Value = set.query_async(connection).await.expect("set");
                let _: Value = script
                    .key(name)
                    .arg(VALUE)
                    .invoke_async(connection)
                    .await
                    .expect("deleted");
            }
            Self::Redisson(connection, scripts) => {
                let (lock, unlock) = &**scripts;
                let mut call = lock.key(name);
                let _: Value = call
                    .arg(LEASE_MS)
                    .arg(OWNER)
                    .invoke_async(connection)
                    .await
                    .expect("locked");
                let mut call = unlock.key(name);
                call.key(format!("redisson_lock__channel:{{{name}}}"));
                call.key(format!(
                    "redisson_unlock_latch:{{{name}}}:{:032x}",
                    LATCHES.fetch_add(1, Ordering::Relaxed)
                ));
                call.arg(0)
                    .arg(LEASE_MS)
                    .arg(OWNER)
                    .arg("SPUBLISH")
                    .arg(16_000);
                let _: Value = call.invoke_async(connection).await.expect("unlocked");
            }
        }
    }
}

/// Redisson names a latch anew for each unlock.
static LATCHES: AtomicU64 = AtomicU64::new(0);

/// As long as a value of ours.
const VALUE: &str = "lh1 0123456789abcdef0123456789abcdef 1763000000000 12345 some-host-name ";
const OWNER: &str = "5f0c3a52-7d0f-4a86-9d4e-1f2a3b4c5d6e:42";

async fn driver_pair(connection: &mut MultiplexedConnection, release: &Release, name: &str) {
    let mut take = Pipeline::new();
    take.cmd("SET")
        .arg(name)
        .arg(VALUE)
        .arg("NX")
        .arg("GET")
        .arg("PX")
        .arg(LEASE_MS);
    take.cmd("INCR").arg("counter");
    let _: Value = take.query_async(connection).await.expect("set");
    let channel = format!("leasehold:wake:{{12345}}:{name}");
    let mut give = Pipeline::new();
    match release {
        Release::Delex => give.cmd("DELEX").arg(name).arg("IFEQ").arg(VALUE),
        Release::Delifeq => give.cmd("DELIFEQ").arg(name).arg(VALUE),
        Release::Script(script) => {
            let _: Value = script
                .key(name)
                .arg(VALUE)
                .arg(channel)
                .invoke_async(connection)
                .await
                .expect("released");
            return;
        }
    };
    give.cmd("SPUBLISH").arg(channel).arg("");
    let _: Value = give.query_async(connection).await.expect("released");
}

/// What one round of one way showed, per pair.
#[derive(Clone, Copy)]
struct Sample {
    server_micros: f64,
    latency_micros: f64,
    commands: f64,
    reads: f64,
}

fn measure(flavor: &Flavor, crowd: &Runtime, single: &Runtime) {
    let server = Server::start(flavor);
    let of_crowd = crowd.block_on(ways(&server));
    let of_single = single.block_on(ways(&server));
    for way in &of_crowd {
        crowd.block_on(in_flight(way, 2_000));
    }
    let mut samples = vec![Vec::new(); of_crowd.len()];
    for round in 0..ROUNDS {
        for number in 0..of_crowd.len() {
            let at = (number + round) % of_crowd.len();
            let server_micros = crowd.block_on(server_cost(&server, &of_crowd[at]));
            let mut sample = single.block_on(latency(&server, &of_single[at]));
            sample.server_micros = server_micros;
            samples[at].push(sample);
            // What Redisson leaves behind must not cost the others.
            server.tell(&["EVAL", SWEEP, "0"]);
        }
    }
    print_table(&server, &of_crowd, &samples);
}

/// The server's processor time per pair, with many in flight.
async fn server_cost(server: &Server, way: &Way) -> f64 {
    let cpu = || server.info("used_cpu_user") + server.info("used_cpu_sys");
    let before = cpu();
    in_flight(way, pairs()).await;
    (cpu() - before) / pairs() as f64 * 1e6
}

/// What a pair takes and makes of requests, one at a time.
async fn latency(server: &Server, way: &Way) -> Sample {
    let few = pairs() / 10;
    let counters = || {
        let commands = server.info("total_commands_processed");
        (commands, server.info("total_reads_processed"))
    };
    let before = counters();
    let latency = one_by_one(way.clone(), few).await;
    let after = counters();
    // Asking for the counters is two commands and reads itself.
    Sample {
        server_micros: 0.0,
        latency_micros: latency.as_secs_f64() * 1e6,
        commands: (after.0 - before.0 - 2.0) / few as f64,
        reads: (after.1 - before.1 - 2.0) / few as f64,
    }
}

/// Removes the latch keys of the Redisson rounds.
const SWEEP: &str = "for _, key in ipairs(redis.call('KEYS', 'redisson_unlock_latch*')) do \
                     redis.call('UNLINK', key) end";

async fn ways(server: &Server) -> Vec<Way> {
    let url = format!("redis://127.0.0.1:{}", server.port());
    let has =
        |command: &str| server.ask(&["COMMAND", "INFO", command]).list()[0] != testkit::Answer::Nil;
    let release = if has("delex") {
        Release::Delex
    } else if has("delifeq") {
        Release::Delifeq
    } else {
        Release::Script(Script::new(include_str!("../lua/lean/release.lua")))
    };
    let driver = redis::Client::open(url.as_str()).expect("an address");
    let connect = || async {
        driver
            .get_multiplexed_async_connection()
            .await
            .expect("a connection")
    };
    let delete = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    vec![
        Way::Leasehold(Client::connect(&url).await.expect("a client")),
        Way::Fair(Client::connect(&url).await.expect("a client")),
        Way::Driver(connect().await, Arc::new(release)),
        Way::Plain(connect().await, Arc::new(Script::new(delete))),
        Way::Redisson(
            connect().await,
            Arc::new((Script::new(REDISSON_LOCK), Script::new(REDISSON_UNLOCK))),
        ),
    ]
}

/// Many pairs at once over one connection, each task on locks of its own.
async fn in_flight(way: &Way, pairs: u64) {
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let mut way = way.clone();
            tokio::spawn(async move {
                for number in 0..pairs / TASKS {
                    way.pair(&format!("bench:{task}:{}", number % 16)).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

/// The median latency of pairs, one at a time.
async fn one_by_one(mut way: Way, pairs: u64) -> Duration {
    let latencies = tokio::spawn(async move {
        let mut latencies = Vec::new();
        for number in 0..pairs {
            let name = format!("bench:single:{}", number % 16);
            let start = Instant::now();
            way.pair(&name).await;
            latencies.push(start.elapsed());
        }
        latencies
    });
    let mut latencies = latencies.await.expect("no panic");
    latencies.sort_unstable();
    latencies[latencies.len() / 2]
}

/// Ratios are taken within a round, where the machine was the same, and then the median of those.
fn print_table(server: &Server, ways: &[Way], samples: &[Vec<Sample>]) {
    println!(
        "\n{}: one uncontended lock and release, medians of {ROUNDS} rounds",
        server.name()
    );
    println!(
        "{:<32} {:>10} {:>6} {:>11} {:>6} {:>9} {:>6}",
        "", "server µs", "ratio", "latency µs", "ratio", "commands", "reads"
    );
    for (way, samples_of_way) in ways.iter().zip(samples) {
        let of = |field: fn(&Sample) -> f64| median(samples_of_way.iter().map(field).collect());
        let ratio = |field: fn(&Sample) -> f64| {
            let ours = samples[0].iter().map(field);
            median(
                ours.zip(samples_of_way.iter().map(field))
                    .map(|(ours, theirs)| ours / theirs)
                    .collect(),
            )
        };
        println!(
            "{:<32} {:>10.2} {:>6.2} {:>11.1} {:>6.2} {:>9.2} {:>6.2}",
            way.name(),
            of(|sample| sample.server_micros),
            ratio(|sample| sample.server_micros),
            of(|sample| sample.latency_micros),
            ratio(|sample| sample.latency_micros),
            of(|sample| sample.commands),
            of(|sample| sample.reads),
        );
    }
    println!("ratio: Mutex divided by that row; commands count those inside scripts");
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

const REDISSON_LOCK: &str = r"
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])
";

const REDISSON_UNLOCK: &str = r"
local earlier = redis.call('get', KEYS[3])
if earlier ~= false then
  return tonumber(earlier)
end
if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then
  return nil
end
local count = redis.call('hincrby', KEYS[1], ARGV[3], -1)
if count > 0 then
  redis.call('pexpire', KEYS[1], ARGV[2])
  redis.call('set', KEYS[3], 0, 'px', ARGV[5])
  return 0
end
redis.call('del', KEYS[1])
redis.call(ARGV[4], KEYS[2], ARGV[1])
redis.call('set', KEYS[3], 1, 'px', ARGV[5])
return 1
";
