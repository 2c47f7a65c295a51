//! What a pair runs on: a server, a client that holds locks over a faulty
//! network, and a client that contends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::{Client, Connect, Error};
use testkit::{Connection, Flavor, Proxy, Reply, Server, ServerExt, Setup};

use crate::support::{
    AMPLE, SHORT, eventually, key, only_holder, wait_for_replica, with_long_timeouts,
};

/// Far longer than any test: a lock that becomes free was released, and did not
/// expire.
pub(super) const LONG: Duration = Duration::from_secs(3600);

/// The holder's timeouts. They are shorter than outages; where they fail an
/// acquire on a stalled machine, the test tries again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = SHORT;

/// How long a request that is on its way has to take effect.
pub(super) const CHANCE: Duration = Duration::from_millis(300);

/// What a server needs for an event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// Locks that survive a restart.
    Persistence,
    /// A clock that a test can set.
    MovableClock,
}

/// What a server needs for a feature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    None,
    /// A replica, which acknowledges locks.
    Replica,
    /// Another server, to which no event happens.
    Peer,
}

/// A server, with the company that a feature needs.
pub(super) struct Scene {
    /// Locked to restart it.
    pub(super) server: Mutex<Server>,
    pub(super) port: u16,
    _company: Option<Server>,
    /// The port of the peer.
    pub(super) peer: Option<u16>,
}

impl Scene {
    pub(super) async fn start(needs: Needs, company: Company) -> Self {
        let setup = Setup::default().option("repl-diskless-sync-delay", "0");
        let server = match needs {
            Needs::Nothing => setup.start(&Flavor::one()),
            Needs::Persistence => setup
                .option("appendonly", "yes")
                .option("appendfsync", "always")
                .start(&Flavor::one()),
            // Other servers bring their own C library, which the clock shim
            // does not fit.
            Needs::MovableClock => setup.movable_clock().start(&Flavor::all()[0]),
        };
        let port = server.port();
        let second = (company != Company::None).then(|| Flavor::one().start());
        if let (Company::Replica, Some(replica)) = (company, &second) {
            replica.tell(&["REPLICAOF", "127.0.0.1", &port.to_string()]);
            wait_for_replica(&server).await;
        }
        let peer = second.as_ref().filter(|_| company == Company::Peer);
        Self {
            server: Mutex::new(server),
            port,
            peer: peer.map(Server::port),
            _company: second,
        }
    }

    /// Restarts the server, and calls `meanwhile` while it is down.
    pub(super) async fn restart(&self, meanwhile: impl Future<Output = ()>) {
        self.server.lock().unwrap().kill();
        meanwhile.await;
        tokio::task::block_in_place(|| self.server.lock().unwrap().restart().unwrap());
    }
}

/// The terms on which a holder acquires its locks.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) lease: Duration,
    /// How long the feature `at_most` allows a hold to last.
    pub(super) at_most: Duration,
}

impl Terms {
    pub(super) fn with_lease(lease: Duration) -> Self {
        Self {
            lease,
            at_most: lease,
        }
    }
}

/// A client that holds locks. It reaches the server through a proxy of its own.
pub(super) struct Holder {
    pub(super) proxy: Proxy,
    pub(super) client: Client,
    /// A client of the scene's peer, if there is one.
    pub(super) peer: Option<Client>,
    pub(super) terms: Terms,
    /// The port of the server itself, to observe it during faults.
    pub(super) server: u16,
    /// Whether an acquire that takes several steps has a guard already.
    guarded: AtomicBool,
}

impl Holder {
    pub(super) async fn connect(server: u16, peer: Option<u16>, terms: Terms) -> Arc<Self> {
        let proxy = Proxy::start(server);
        let connect = || {
            self::connect(proxy.port())
                .lease(terms.lease)
                .request_timeout(REQUEST_TIMEOUT)
                .connect_timeout(CONNECT_TIMEOUT)
        };
        let end = Instant::now() + AMPLE;
        let client = loop {
            match connect().await {
                Ok(client) => break client,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        };
        let peer = match peer {
            Some(port) => self::connect(port).lease(terms.lease).await.ok(),
            None => None,
        };
        Arc::new(Self {
            proxy,
            client,
            peer,
            terms,
            server,
            guarded: AtomicBool::new(false),
        })
    }

    /// Records whether the future of an acquire has a guard of the lock.
    pub(super) fn has_guard(&self, guarded: bool) {
        self.guarded.store(guarded, Ordering::SeqCst);
    }

    pub(super) fn is_guarded(&self) -> bool {
        self.guarded.load(Ordering::SeqCst)
    }

    /// Shuts the client down. The call must return in time.
    pub(super) async fn shut_down(&self) -> Result<(), Error> {
        let outcome = tokio::time::timeout(AMPLE * 3, self.client.shutdown(AMPLE)).await;
        outcome.expect("`shutdown` returns after its timeout")
    }
}

pub(super) fn connect(port: u16) -> Connect {
    with_long_timeouts(Client::connect(&url(port)))
}

pub(super) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/")
}

/// Returns the reply to a command; `None` while the server is down.
pub(super) fn ask(port: u16, args: &[&str]) -> Option<Reply> {
    Connection::open(port).ok()?.ask(args).ok()
}

/// Returns the owner of a mutex; `None` if it is free.
pub(super) fn owner(port: u16, name: &str) -> Option<String> {
    only_holder(|args| ask(port, args), name)
}

/// Returns whether a client waits for this lock on the server.
pub(super) fn is_waited_for(port: u16, name: &str) -> bool {
    let queues = format!("leasehold:queue:*:{}", key(name));
    let lists = [
        ask(port, &["PUBSUB", "SHARDCHANNELS"]),
        ask(port, &["KEYS", &queues]),
    ];
    let names = |reply: &Reply| {
        let mut names = reply.list().iter();
        names.any(|entry| entry.text().ends_with(&key(name)))
    };
    lists.iter().flatten().any(names)
}

/// Lets requests for a lock that are on their way take effect, if any are.
pub(super) async fn settle(port: u16, name: &str) {
    let end = Instant::now() + CHANCE;
    let exists = || ask(port, &["EXISTS", &key(name)]).is_some_and(|reply| reply.int() == 1);
    while !exists() && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until exactly `clients` clients of this process listen for
/// revocations: one that was shut down earlier does not count.
pub(super) async fn wait_for_listeners(port: u16, clients: i64) {
    let listeners = || {
        let pattern = "leasehold:process:*";
        let channels = ask(port, &["PUBSUB", "SHARDCHANNELS", pattern])?;
        let channel = channels.list().first()?.text().to_owned();
        let counts = ask(port, &["PUBSUB", "SHARDNUMSUB", &channel])?;
        Some(counts.list()[1].int())
    };
    eventually("the clients listen for revocations", || {
        listeners().is_some_and(|count| count == clients)
    })
    .await;
}
