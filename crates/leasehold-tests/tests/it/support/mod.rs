//! Servers, clients, lock names and waiting, shared by all tests.

pub(crate) mod callers;
pub(crate) mod contract;
pub(crate) mod deployment;
pub(crate) mod hand_over;
pub(crate) mod inspection;
pub(crate) mod log;
pub(crate) mod redisson;
pub(crate) mod vault;
pub(crate) mod worker;

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold::{Client, Connect, Error, Guard, Lease, Loss};
use testkit::{Fault, Flavor, Proxy, Reply, Server, ServerExt, Setup};

/// The password of the user that the library logs in as. No log, error or
/// `Debug` output may contain it.
pub(crate) const PASSWORD: &str = "open-sesame-1763";

/// The page of the guide that lists the permissions of a user.
pub(crate) const SERVERS: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/servers.md"
));

/// The lease of a holder that must keep its lock. It survives a two-second
/// stall of the machine at any moment.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// A lease that a test lets expire. No test asserts that its holder still has
/// the lock.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

/// The limit of an event that must happen. Only a defect reaches it.
pub(crate) const AMPLE: Duration = Duration::from_secs(60);

/// Starts a server whose user `leasehold` has exactly the permissions that the
/// guide lists.
pub(crate) fn server() -> Server {
    with_least_privilege(Setup::default(), &Flavor::one())
}

pub(crate) fn with_least_privilege(setup: Setup, flavor: &Flavor) -> Server {
    setup.user(&least_privilege_rule(flavor)).start(flavor)
}

/// Returns the ACL rule of that user for servers of this flavor.
pub(crate) fn least_privilege_rule(flavor: &Flavor) -> String {
    least_privilege(&flavor.start())
}

/// Returns the arguments of `ACL SETUSER` that the guide lists for this
/// server.
fn least_privilege(server: &Server) -> String {
    let rule = SERVERS
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER "))
        .expect("the guide contains the rule");
    let mut rule = rule.replace("PASSWORD", PASSWORD);
    for extra in ["delex", "delifeq"] {
        let grant = format!("+{extra}");
        assert!(
            SERVERS.contains(&format!("`{grant}`")),
            "the guide names {grant}"
        );
        if server.ask(&["COMMAND", "INFO", extra]).list()[0] != Reply::Nil {
            rule = format!("{rule} {grant}");
        }
    }
    rule
}

/// Returns the URL for that user, at the server itself or at a proxy in front
/// of it.
pub(crate) fn url_at(port: u16) -> String {
    format!("redis://leasehold:{PASSWORD}@127.0.0.1:{port}/")
}

/// Returns the settings of a client of that server or proxy, not yet connected.
pub(crate) fn connect_at(port: u16) -> Connect {
    with_long_timeouts(Client::connect(&url_at(port)))
}

/// Sets a lease and timeouts that survive a stall of the machine.
pub(crate) fn with_long_timeouts<C>(connect: Connect<C>) -> Connect<C> {
    connect
        .lease(LEASE)
        .request_timeout(LEASE / 2)
        .connect_timeout(LEASE)
}

pub(crate) async fn client(server: &Server) -> Client {
    client_at(server.port()).await
}

pub(crate) async fn client_at(port: u16) -> Client {
    connect_at(port).await.expect("the server is up")
}

/// Waits until a replica of `master` has all its data.
pub(crate) async fn wait_for_replica(master: &Server) {
    eventually("a replica is in sync", || {
        let role = master.ask(&["INFO", "replication"]);
        role.text().contains("state=online")
    })
    .await;
}

/// Returns a lock name that no other test uses.
pub(crate) fn name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test:{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Returns the key of a lock with the default prefix.
pub(crate) fn key(name: &str) -> String {
    format!("lock:{name}")
}

pub(crate) fn exists(server: &Server, name: &str) -> bool {
    server.ask(&["EXISTS", &key(name)]).int() == 1
}

/// Returns the channels on which clients wait for locks, without the channels
/// of processes and of cluster nodes.
pub(crate) fn channels(server: &Server) -> Vec<String> {
    let channels = server.ask(&["PUBSUB", "SHARDCHANNELS"]);
    let channels = channels
        .list()
        .iter()
        .map(|channel| channel.text().to_owned());
    let others = ["leasehold:process:", "leasehold:watch:"];
    let is_other = |channel: &String| others.iter().any(|other| channel.starts_with(other));
    channels.filter(|channel| !is_other(channel)).collect()
}

/// Returns whether a client subscribes to the release of this mutex. It is then
/// waiting, or about to retry.
pub(crate) fn has_subscriber(server: &Server, name: &str) -> bool {
    let awaited = channels(server);
    awaited.iter().any(|channel| channel.ends_with(&key(name)))
}

/// Includes a Lua file of the library.
macro_rules! lua {
    ($path:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../leasehold/lua/",
            $path,
            ".lua"
        ))
    };
}
pub(crate) use lua;

/// Returns the owners in a sorted set of a queued lock, in order: `queue`
/// contains the waiters, `holders` the holders. Without a queue, the value of
/// the lock's own key names the holder.
pub(crate) fn owners(server: &Server, set: &str, name: &str) -> Vec<String> {
    if set == "holders"
        && let Some(owner) = owner_in(&server.ask(&["GET", &key(name)]))
    {
        return vec![owner];
    }
    let Some(key) = queue_key(server, set, name) else {
        return Vec::new();
    };
    let owners = server.ask(&["ZRANGE", &key, "0", "-1"]);
    let owners = owners.list().iter();
    owners.map(|owner| owner.text().to_owned()).collect()
}

/// Returns a waiter for a queued lock, and when its heartbeat expires.
pub(crate) fn heartbeat(server: &Server, name: &str) -> Option<(String, String)> {
    let key = queue_key(server, "heartbeats", name)?;
    match server.ask(&["ZRANGE", &key, "0", "0", "WITHSCORES"]).list() {
        [owner, end] => Some((owner.text().to_owned(), end.text().to_owned())),
        _ => None,
    }
}

/// Returns the owner that holds a lock; `None` if it is free or `ask` fails.
pub(crate) fn only_holder(
    mut ask: impl FnMut(&[&str]) -> Option<Reply>,
    name: &str,
) -> Option<String> {
    let value = ask(&["GET", &key(name)])?;
    if let Some(owner) = owner_in(&value) {
        return Some(owner);
    }
    let keys = ask(&["KEYS", &format!("leasehold:holders:*:{}", key(name))])?;
    let holders = keys.list().first()?.text();
    let owners = ask(&["ZRANGE", holders, "0", "0"])?;
    Some(owners.list().first()?.text().to_owned())
}

/// Returns the owner in the value of a lock; `None` if it is a queue's summary.
fn owner_in(value: &Reply) -> Option<String> {
    let Reply::Text(value) = value else {
        return None;
    };
    let mut words = value.split(' ').skip_while(|word| word.len() != 32);
    words.next().map(str::to_owned)
}

/// Expires the lease of a holder of a queued lock on the server.
pub(crate) fn expire(server: &Server, name: &str, owner: &str) {
    let key = key(name);
    let summary = server.ask(&["GET", &key]);
    if !summary.text().starts_with("lh1:queue:") {
        server.tell(&["DEL", &key]);
        return;
    }
    let mut words: Vec<_> = summary.text().split(' ').collect();
    // When a lease or a heartbeat ends next.
    words[3] = "1";
    let holders = queue_key(server, "holders", name).expect("the lock has a holder");
    server.tell(&["ZADD", &holders, "1", owner]);
    server.tell(&["SET", &key, &words.join(" "), "KEEPTTL"]);
}

fn queue_key(server: &Server, set: &str, name: &str) -> Option<String> {
    let keys = server.ask(&["KEYS", &format!("leasehold:{set}:*:{}", key(name))]);
    keys.list().first().map(|key| key.text().to_owned())
}

/// Returns whether the server contains only token counters.
pub(crate) fn only_counters_left(server: &Server) -> bool {
    let keys = server.ask(&["KEYS", "*"]);
    let mut keys = keys.list().iter();
    keys.all(|key| key.text().starts_with("leasehold:token:"))
}

/// Applies `fault` to the first request from now on that runs `script`. Returns
/// whether it has.
pub(crate) fn fault_at(
    server: &Server,
    proxy: &Proxy,
    script: &str,
    fault: Fault,
) -> Arc<AtomicBool> {
    let sha = server.ask(&["SCRIPT", "LOAD", script]);
    let sha = sha.text().as_bytes().to_vec();
    let reached = Arc::new(AtomicBool::new(false));
    let seen = reached.clone();
    proxy.inject(move |request| {
        let is_wanted = request.get(1) == Some(&sha);
        match is_wanted && !seen.swap(true, Ordering::SeqCst) {
            true => fault,
            false => Fault::None,
        }
    });
    reached
}

/// Returns how often the server has executed this command.
pub(crate) fn command_calls(server: &Server, command: &str) -> u64 {
    let stats = server.ask(&["INFO", "commandstats"]);
    let prefix = format!("cmdstat_{command}:calls=");
    let mut lines = stats.text().lines();
    let line = lines.find_map(|line| line.strip_prefix(&prefix));
    let calls = line.and_then(|line| line.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// Runs a test on its own runtime.
pub(crate) fn run<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the runtime starts")
        .block_on(test)
}

/// Runs a test on all installed servers in parallel.
pub(crate) fn on_every_server<F: Future>(test: impl Fn(Server) -> F + Sync) {
    std::thread::scope(|scope| {
        let test = &test;
        let running: Vec<_> = Flavor::all()
            .into_iter()
            .map(|flavor| {
                let name = flavor.name.clone();
                let body = move || run(test(with_least_privilege(Setup::default(), &flavor)));
                (name, scope.spawn(move || drop(body())))
            })
            .collect();
        for (name, running) in running {
            assert!(running.join().is_ok(), "failed on {name}");
        }
    });
}

/// Polls `future` at most `times` times. Returns `None` if it is still pending.
pub(crate) async fn poll_at_most<F: Future>(future: F, mut times: u64) -> Option<F::Output> {
    let mut future: Pin<Box<F>> = Box::pin(future);
    poll_fn(|context| {
        if times == 0 {
            return Poll::Ready(None);
        }
        times -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if times == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Waits until `condition` holds. Panics if it does not within [`AMPLE`].
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < AMPLE, "not within {AMPLE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns whether another owner holds the lock that `request` tries to
/// acquire. A lock that was free is released again.
pub(crate) async fn is_busy<M>(request: impl IntoFuture<Output = Result<Guard<M>, Error>>) -> bool {
    match request.await {
        Ok(_) => false,
        Err(Error::Busy { .. }) => true,
        Err(error) => panic!("{error:?}"),
    }
}

/// Returns how a lock was lost before this release; `None` if it was held.
pub(crate) fn loss_of(release: Result<(), Error>) -> Option<Loss> {
    match release {
        Ok(()) => None,
        Err(Error::Lost { loss, .. }) => Some(loss),
        Err(error) => panic!("{error:?}"),
    }
}

/// Waits until the keeper has renewed each of `leases`, which must stay valid.
pub(crate) async fn wait_for_renewal<M>(leases: &[&Lease<M>]) {
    // Read the clock after the remaining time. Without a renewal no deadline is
    // later than the sum, even if the machine stalls in between.
    let latest_without_renewal = |lease: &&Lease<M>| {
        let remaining = lease.remaining();
        Instant::now() + remaining
    };
    let before: Vec<_> = leases.iter().map(latest_without_renewal).collect();
    eventually("the leases are renewed", || {
        let mut leases = leases.iter().zip(&before);
        leases.all(|(lease, before)| {
            lease.check().expect("the lock is held");
            lease.deadline() > *before
        })
    })
    .await;
}

/// Returns the boot-time clock, which all processes share, in nanoseconds.
pub(crate) fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).expect("the boot clock is positive")
}

pub(crate) use testkit::scaled;

pub(crate) fn percentile(sorted: &[Duration], of_thousand: usize) -> Duration {
    sorted[(sorted.len() * of_thousand / 1000).min(sorted.len() - 1)]
}
