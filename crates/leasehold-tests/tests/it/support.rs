//! What the tests share: servers with the least privileged user, clients, names, and waiting.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Lease};
use testkit::{Flavor, Reply, Server, Setup};

/// The password of the user that the library logs in as; no log, error or `Debug` may show it.
pub(crate) const PASSWORD: &str = "open-sesame-1763";

/// The lease of a holder that must keep it: a machine that stalls for two seconds at any moment does not lose it.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// A lease that a test waits out. Nothing asserts that its holder still has it.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

/// The limit of an event that must happen. Only a defect reaches it.
pub(crate) const AMPLE: Duration = Duration::from_secs(60);

/// Starts a server whose user `leasehold` has the rights that the README names, and no more.
pub(crate) fn server() -> Server {
    with_least_privilege(Setup::default(), &Flavor::one())
}

pub(crate) fn with_least_privilege(setup: Setup, flavor: &Flavor) -> Server {
    setup.user(&least_privilege_rule(flavor)).start(flavor)
}

/// The rule for that user on a server of this flavour.
pub(crate) fn least_privilege_rule(flavor: &Flavor) -> String {
    least_privilege(&Server::start(flavor))
}

/// The arguments of `ACL SETUSER` as the README gives them for this server.
fn least_privilege(server: &Server) -> String {
    let readme = include_str!("../../../../README.md");
    let rule = readme
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER "))
        .expect("the README has the rule");
    let mut rule = rule.replace("PASSWORD", PASSWORD);
    for extra in ["delex", "delifeq"] {
        let grant = format!("+{extra}");
        assert!(
            readme.contains(&format!("`{grant}`")),
            "the README names {grant}"
        );
        if server.ask(&["COMMAND", "INFO", extra]).list()[0] != Reply::Nil {
            rule = format!("{rule} {grant}");
        }
    }
    rule
}

/// The address for that user, directly at the server or at a proxy in front of it.
pub(crate) fn url_at(port: u16) -> String {
    format!("redis://leasehold:{PASSWORD}@127.0.0.1:{port}/")
}

pub(crate) fn builder_at(port: u16) -> ClientBuilder {
    patient(Client::builder(&url_at(port)))
}

/// Has a client keep its locks and its connections while the machine stalls.
pub(crate) fn patient(builder: ClientBuilder) -> ClientBuilder {
    builder
        .lease(LEASE)
        .request_timeout(LEASE / 2)
        .connect_timeout(LEASE)
}

pub(crate) async fn client(server: &Server) -> Client {
    client_at(server.port()).await
}

pub(crate) async fn client_at(port: u16) -> Client {
    builder_at(port).connect().await.expect("the server is up")
}

/// A name that no other test uses.
pub(crate) fn name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test:{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// The key of a lock with the default prefix.
pub(crate) fn key(name: &str) -> String {
    format!("lock:{name}")
}

pub(crate) fn exists(server: &Server, name: &str) -> bool {
    server.ask(&["EXISTS", &key(name)]).int() == 1
}

/// The channels in which clients hear of locks. Those in which a process hears of itself, and of a node's slots, are no
/// lock's.
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

/// Whether a client listens for the release of this mutex: it then waits, or is about to try again.
pub(crate) fn is_awaited(server: &Server, name: &str) -> bool {
    let awaited = channels(server);
    awaited.iter().any(|channel| channel.ends_with(&key(name)))
}

/// The text of a Lua file of the library.
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

/// The owners in a sorted set of a lock with a queue, in order: `queue` has the waiters, `holders` the holders. An only
/// holder stands at the lock's own key.
pub(crate) fn owners(server: &Server, set: &str, name: &str) -> Vec<String> {
    if set == "holders"
        && let Some(owner) = only_holder(&server.ask(&["GET", &key(name)]))
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

/// The owner that the value of a lock's own key names.
pub(crate) fn only_holder(value: &Reply) -> Option<String> {
    let Reply::Text(value) = value else {
        return None;
    };
    let mut words = value.split(' ').skip_while(|word| word.len() != 32);
    words.next().map(str::to_owned)
}

/// Ends the lease of a holder of a lock with a queue on the server, as time would.
pub(crate) fn expire(server: &Server, name: &str, owner: &str) {
    let key = key(name);
    let summary = server.ask(&["GET", &key]);
    if !summary.text().starts_with("lh1:queue:") {
        server.tell(&["DEL", &key]);
        return;
    }
    let mut words: Vec<_> = summary.text().split(' ').collect();
    // When the next script settles, and when the only holder's lease ends.
    words[3] = "1";
    if words[6] != "0" {
        words[6] = "1";
    } else {
        let holders = queue_key(server, "holders", name).expect("a holder");
        server.tell(&["ZADD", &holders, "1", owner]);
    }
    server.tell(&["SET", &key, &words.join(" "), "KEEPTTL"]);
}

fn queue_key(server: &Server, set: &str, name: &str) -> Option<String> {
    let keys = server.ask(&["KEYS", &format!("leasehold:{set}:*:{}", key(name))]);
    keys.list().first().map(|key| key.text().to_owned())
}

/// Whether the server has nothing but token counters.
pub(crate) fn nothing_is_left(server: &Server) -> bool {
    let keys = server.ask(&["KEYS", "*"]);
    let mut keys = keys.list().iter();
    keys.all(|key| key.text().starts_with("leasehold:token:"))
}

/// Runs a test on a runtime of its own.
pub(crate) fn run<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(test)
}

/// Runs a test on every server found, at the same time.
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

/// Polls `future` so many times; `None` when it was not ready by then.
pub(crate) async fn poll_times<F: Future>(future: F, mut times: u64) -> Option<F::Output> {
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

/// Waits until `condition` holds; panics when it does not within [`AMPLE`].
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < AMPLE, "not within {AMPLE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the keeper has renewed each of `leases`, which must be held all the while.
pub(crate) async fn until_renewed(leases: &[&Lease]) {
    // The clock is read after what is left: without a renewal no deadline is later than this, even if a stall is between.
    let no_later = |lease: &&Lease| {
        let left = lease.remaining();
        Instant::now() + left
    };
    let before: Vec<_> = leases.iter().map(no_later).collect();
    eventually("renewed", || {
        let mut leases = leases.iter().zip(&before);
        leases.all(|(lease, before)| {
            lease.check().expect("the lock is held");
            lease.deadline() > *before
        })
    })
    .await;
}

/// The clock that all processes of this machine share, in nanoseconds.
pub(crate) fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).expect("a clock after boot")
}

pub(crate) use testkit::scaled;

pub(crate) fn percentile(sorted: &[Duration], of_thousand: usize) -> Duration {
    sorted[(sorted.len() * of_thousand / 1000).min(sorted.len() - 1)]
}
