//! Both sides of the tests that share Redisson's objects with a real Redisson.

use std::time::{Duration, Instant};

use leasehold::redisson::{Redisson as Ours, Unfenced};
use leasehold::{Client, Error, Guard, Loss, Reentrant};
use testkit::redisson::Response;
use testkit::{Flavor, Redisson as Java, Server, ServerExt, Setup};

use crate::support::{AMPLE, LEASE, PASSWORD, eventually, url_at};

/// The watchdog of both sides, unless a test sets its own. A Java waiter
/// retries when the holder's lease ends, long after [`AMPLE`]: it acquires the
/// lock in time only if a message wakes it.
pub(crate) const LONG_WATCHDOG: Duration = Duration::from_secs(300);

/// A watchdog that deep tests let expire.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(3);

/// Less than the first poll of either side, a second after it starts to wait.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(600);

/// Returns the ACL rule of `docs/interop.md` for a user that shares all
/// objects.
pub(crate) fn rule() -> String {
    let document = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/interop.md"
    ));
    let rule = document
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER "));
    let rule = rule.expect("the document contains the rule");
    rule.replace("PASSWORD", PASSWORD)
}

/// Starts a server for both sides.
pub(crate) fn server(flavor: &Flavor) -> Server {
    Setup::default().user(&rule()).start(flavor)
}

/// Connects a client of this library.
pub(crate) async fn client(url: &str) -> Client {
    let connect = Client::connect(url).request_timeout(LEASE / 2);
    let client = connect.connect_timeout(LEASE).await;
    client.expect("the server is up")
}

pub(crate) fn redisson_of(client: &Client) -> Ours {
    client.redisson().watchdog(LONG_WATCHDOG)
}

/// Runs a test with the newest Redisson.
pub(crate) fn with_newest(test: impl Fn(&str)) {
    if let Some(newest) = Java::versions().first() {
        test(newest);
    }
}

/// Runs a test with every installed version of Redisson in parallel.
pub(crate) fn with_all_versions(test: impl Fn(&str) + Sync) {
    std::thread::scope(|scope| {
        let test = &test;
        let running: Vec<_> = Java::versions()
            .into_iter()
            .map(|version| (version, scope.spawn(move || test(version))))
            .collect();
        for (version, running) in running {
            assert!(running.join().is_ok(), "failed with Redisson {version}");
        }
    });
}

/// The number of rounds, and the limit of a waiter after the event that it
/// waits for. The limit applies from the second round: the first one loads
/// classes and scripts.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) rounds: u32,
    pub(crate) limit: Duration,
}

/// The pace of the gate, where the event only has to happen.
pub(crate) const ONCE: Pace = Pace {
    rounds: 1,
    limit: AMPLE,
};

/// The pace of tests that measure latency.
pub(crate) const PROMPT: Pace = Pace {
    rounds: 4,
    limit: AT_ONCE,
};

/// Both sides, and the servers between them.
pub(crate) struct Harness<'a> {
    pub(crate) java: &'a Java,
    pub(crate) ours: Ours,
    pub(crate) servers: Vec<&'a Server>,
    pub(crate) pace: Pace,
}

impl<'a> Harness<'a> {
    pub(crate) async fn new(java: &'a Java, server: &'a Server, pace: Pace) -> Self {
        Self {
            java,
            ours: redisson_of(&client(&url_at(server.port())).await),
            servers: vec![server],
            pace,
        }
    }

    /// Waits until a waiter of either side subscribes to a channel of `name`.
    pub(crate) async fn wait_for_subscriber(&self, name: &str) {
        eventually("a waiter is subscribed", || self.listeners(name) > 0).await;
    }

    /// Waits until no waiter subscribes to a channel of `name`.
    pub(crate) async fn wait_for_no_subscriber(&self, name: &str) {
        eventually("no waiter is subscribed", || self.listeners(name) == 0).await;
    }

    /// Waits until a thread of Java blocks on a message.
    pub(crate) async fn wait_until_java_blocks(&self, thread: &str) {
        let probe = format!("probe:{thread}");
        let is_waiting = || self.java.ask(&probe, &format!("waits {thread}")) == "true";
        eventually("the Java thread blocks", is_waiting).await;
    }

    /// Returns the number of subscriptions to channels of `name`.
    pub(crate) fn listeners(&self, name: &str) -> i64 {
        let pattern = format!("*{name}}}*");
        let at = |server: &&Server| {
            let mut all = 0;
            for (list, count) in [("CHANNELS", "NUMSUB"), ("SHARDCHANNELS", "SHARDNUMSUB")] {
                for channel in server.ask(&["PUBSUB", list, &pattern]).list() {
                    all += server.ask(&["PUBSUB", count, channel.text()]).list()[1].int();
                }
            }
            all
        };
        self.servers.iter().map(at).sum()
    }

    /// Makes `thread` of Java wait, and asserts that it replies after `cause`
    /// and not before.
    pub(crate) async fn assert_java_woken(
        &self,
        round: u32,
        (thread, command): (&str, String),
        cause: impl AsyncFnOnce(),
    ) -> Response {
        self.java.tell(thread, &command);
        self.wait_until_java_blocks(thread).await;
        let early = self
            .java
            .response_within(thread, Duration::from_millis(100));
        assert!(early.is_none(), "{command}: {early:?}");
        let start = Instant::now();
        cause().await;
        let said = self.java.response(thread);
        assert!(!said.text.starts_with("error"), "{command}: {said:?}");
        assert!(
            said.text != "false",
            "{command}: the wait ended without the event"
        );
        self.check_latency(round, said.at - start, &command);
        said
    }

    /// Asserts that `waiting`, for `name`, completes after `cause` and not
    /// before.
    pub(crate) async fn assert_rust_woken<T>(
        &self,
        round: u32,
        name: &str,
        waiting: impl Future<Output = T>,
        cause: impl FnOnce(),
    ) -> T {
        self.wait_for_no_subscriber(name).await;
        let mut waiting = std::pin::pin!(waiting);
        let is_waiting = async {
            self.wait_for_subscriber(name).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        tokio::select! {
            _ = &mut waiting => panic!("the wait ended before the event"),
            () = is_waiting => {}
        }
        let start = Instant::now();
        cause();
        let outcome = waiting.await;
        self.check_latency(round, start.elapsed(), name);
        outcome
    }

    pub(crate) fn check_latency(&self, round: u32, took: Duration, what: &str) {
        assert!(round == 0 || took < self.pace.limit, "{what}: {took:?}");
    }
}

/// A guard of any of Redisson's locks.
#[derive(Debug)]
pub(crate) enum Held {
    Fenced(Guard),
    Unfenced(Guard<Unfenced>),
}

/// Acquires a lock of the kind that the harness calls `kind`.
pub(crate) async fn acquire(
    ours: &Ours,
    kind: &str,
    name: &str,
    wait: Duration,
) -> Result<Held, Error> {
    acquire_with_lease(None, ours, kind, name, wait).await
}

/// Like [`acquire`], with a fixed lease if `lease` is set.
pub(crate) async fn acquire_with_lease(
    lease: Option<Duration>,
    ours: &Ours,
    kind: &str,
    name: &str,
    wait: Duration,
) -> Result<Held, Error> {
    macro_rules! acquire {
        ($lock:expr) => {{
            let acquire = $lock.lock().timeout(wait);
            match lease {
                Some(lease) => acquire.fixed_lease(lease).await?,
                None => acquire.await?,
            }
        }};
    }
    let rw = ours.read_write_lock(name);
    Ok(match kind {
        "lock" => Held::Unfenced(acquire!(ours.lock(name))),
        "fair" => Held::Unfenced(acquire!(ours.fair_lock(name))),
        "fenced" => Held::Fenced(acquire!(ours.fenced_lock(name))),
        "read" => Held::Unfenced(acquire!(rw.read_lock())),
        "write" => Held::Unfenced(acquire!(rw.write_lock())),
        other => panic!("{other} is not a lock"),
    })
}

/// Acquires a lock that must be free.
pub(crate) async fn acquire_now(ours: &Ours, kind: &str, name: &str) -> Held {
    let taken = acquire(ours, kind, name, Duration::ZERO).await;
    taken.expect("the lock is free")
}

/// Returns whether another holder excludes this side.
pub(crate) async fn is_refused(ours: &Ours, kind: &str, name: &str) -> bool {
    match acquire(ours, kind, name, Duration::ZERO).await {
        Ok(held) => {
            held.release_held().await;
            false
        }
        Err(Error::Timeout { .. }) => true,
        Err(error) => panic!("{error:?}"),
    }
}

/// Revokes a lock from its holder.
pub(crate) async fn force_unlock(ours: &Ours, kind: &str, name: &str) -> bool {
    let rw = ours.read_write_lock(name);
    let forced = match kind {
        "lock" => ours.lock(name).force_unlock().await,
        "fair" => ours.fair_lock(name).force_unlock().await,
        "fenced" => ours.fenced_lock(name).force_unlock().await,
        "read" => rw.read_lock().force_unlock().await,
        "write" => rw.write_lock().force_unlock().await,
        other => panic!("{other} is not a lock"),
    };
    forced.unwrap()
}

impl Held {
    /// Releases a lock that must still be held.
    pub(crate) async fn release_held(self) {
        self.release().await.unwrap();
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        match self {
            Self::Fenced(guard) => guard.release().await,
            Self::Unfenced(guard) => guard.release().await,
        }
    }

    pub(crate) async fn lost(&self) -> Option<Loss> {
        match self {
            Self::Fenced(guard) => guard.lost().await,
            Self::Unfenced(guard) => guard.lost().await,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Fenced(guard) => guard.check(),
            Self::Unfenced(guard) => guard.check(),
        }
    }
}

/// A reentrant handle and its first guard.
pub(crate) enum ReentrantHold {
    Fenced(Reentrant, Guard),
    Unfenced(Reentrant<Unfenced>, Guard<Unfenced>),
}

/// Acquires a free lock with a reentrant handle.
pub(crate) async fn acquire_reentrant(ours: &Ours, kind: &str, name: &str) -> ReentrantHold {
    let rw = ours.read_write_lock(name);
    let unfenced = match kind {
        "lock" => ours.lock(name).reentrant(),
        "fair" => ours.fair_lock(name).reentrant(),
        "read" => rw.read_lock().reentrant(),
        "write" => rw.write_lock().reentrant(),
        "fenced" => {
            let handle = ours.fenced_lock(name).reentrant();
            let guard = handle.try_lock().await.expect("the lock is free");
            return ReentrantHold::Fenced(handle, guard);
        }
        other => panic!("{other} is not a lock"),
    };
    let guard = unfenced.try_lock().await.expect("the lock is free");
    ReentrantHold::Unfenced(unfenced, guard)
}

impl ReentrantHold {
    pub(crate) async fn reacquire(&self) -> Held {
        match self {
            Self::Fenced(handle, _) => Held::Fenced(handle.lock().await.unwrap()),
            Self::Unfenced(handle, _) => Held::Unfenced(handle.lock().await.unwrap()),
        }
    }

    /// Releases the first guard, as the last one.
    pub(crate) async fn release_held(self) {
        let held = match self {
            Self::Fenced(_, guard) => Held::Fenced(guard),
            Self::Unfenced(_, guard) => Held::Unfenced(guard),
        };
        held.release_held().await;
    }
}
