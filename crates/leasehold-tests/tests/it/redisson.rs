//! Redisson's objects, shared with a real Redisson: both exclude, wake and outlive each other.

/// Where the wire format allows it, ours does better.
mod better;
/// Requests that go wrong.
mod faults;
/// Holding, waiting, crashing, on both sides.
mod meeting;
/// Readers, permits and latches.
mod sharing;
/// Many at once, some of them killed.
mod storm;
/// What both write is the same, byte for byte.
mod wire;

use std::time::{Duration, Instant};

use leasehold::redisson::Redisson as Ours;
use leasehold::{Client, Error, Guard, Loss, Reentrant, ReleaseOutcome, Unfenced, WriteGuard};
use testkit::redisson::Response;
use testkit::{Flavor, Redisson as Java, Server, Setup};

use crate::support::{AMPLE, LEASE, PASSWORD, eventually, url_at};

/// The watchdog of both sides, unless a test says otherwise. A Java waiter asks again when the holder's lease ends,
/// which is long after [`AMPLE`]: only a message lets it have the lock in time.
pub(crate) const ENDLESS: Duration = Duration::from_secs(300);

/// A watchdog that deep tests wait out.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(3);

/// Less than the first poll of either side, which is a second after it began to wait.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(600);

/// The rule of `docs/interop.md` for a user that shares all objects.
pub(crate) fn rule() -> String {
    let document = include_str!("../../../../docs/interop.md");
    let rule = document
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER "));
    let rule = rule.expect("the document has the rule");
    rule.replace("PASSWORD", PASSWORD)
}

/// A server for both sides.
pub(crate) fn server(flavor: &Flavor) -> Server {
    Setup::default().user(&rule()).start(flavor)
}

/// A client of ours.
pub(crate) async fn client(url: &str) -> Client {
    let builder = Client::builder(url).request_timeout(LEASE / 2);
    let connecting = builder.connect_timeout(LEASE).connect();
    connecting.await.expect("the server is up")
}

pub(crate) fn of(client: &Client) -> Ours {
    client.redisson().watchdog(ENDLESS)
}

/// Runs a test with the newest Redisson.
pub(crate) fn with_newest(test: impl Fn(&str)) {
    if let Some(newest) = Java::versions().first() {
        test(newest);
    }
}

/// Runs a test with every Redisson that was built, at the same time.
pub(crate) fn with_every_version(test: impl Fn(&str) + Sync) {
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

/// How often a scene is played, and how long a waiter of the later rounds may take after the event that it waits for:
/// the first round loads classes and scripts.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    rounds: u32,
    limit: Duration,
}

/// The pace of the gate: the event must happen.
pub(crate) const ONCE: Pace = Pace {
    rounds: 1,
    limit: AMPLE,
};

/// The pace of tests that measure.
pub(crate) const PROMPT: Pace = Pace {
    rounds: 4,
    limit: AT_ONCE,
};

/// Both sides, and the servers between them.
pub(crate) struct Stage<'a> {
    java: &'a Java,
    ours: Ours,
    servers: Vec<&'a Server>,
    pace: Pace,
}

impl<'a> Stage<'a> {
    async fn new(java: &'a Java, server: &'a Server, pace: Pace) -> Self {
        Self {
            java,
            ours: of(&client(&url_at(server.port())).await),
            servers: vec![server],
            pace,
        }
    }

    /// Waits until a waiter of either side is subscribed to a channel of `name`.
    async fn until_heard(&self, name: &str) {
        eventually("a waiter is subscribed", || self.listeners(name) > 0).await;
    }

    /// Waits until no waiter is subscribed to a channel of `name` any more.
    async fn until_quiet(&self, name: &str) {
        eventually("no waiter is subscribed", || self.listeners(name) == 0).await;
    }

    /// Waits until a thread of Java sleeps until a message comes.
    async fn java_waits(&self, thread: &str) {
        let probe = format!("probe:{thread}");
        let waits = || self.java.ask(&probe, &format!("waits {thread}")) == "true";
        eventually("Java's thread waits", waits).await;
    }

    /// How many connections are subscribed to channels of `name`.
    fn listeners(&self, name: &str) -> i64 {
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

    /// Has `thread` of Java wait, and asserts that it is answered after `cause`, and not before.
    async fn java_is_woken(
        &self,
        round: u32,
        (thread, order): (&str, String),
        cause: impl AsyncFnOnce(),
    ) -> Response {
        self.java.tell(thread, &order);
        self.java_waits(thread).await;
        let early = self
            .java
            .response_within(thread, Duration::from_millis(100));
        assert!(early.is_none(), "{order}: {early:?}");
        let start = Instant::now();
        cause().await;
        let said = self.java.response(thread);
        assert!(!said.text.starts_with("error"), "{order}: {said:?}");
        assert!(
            said.text != "false",
            "{order}: the wait ended without the event"
        );
        self.check_pace(round, said.at - start, &order);
        said
    }

    /// Asserts that `waiting`, for `name`, is over after `cause`, and not before.
    async fn we_are_woken<T>(
        &self,
        round: u32,
        name: &str,
        waiting: impl Future<Output = T>,
        cause: impl FnOnce(),
    ) -> T {
        self.until_quiet(name).await;
        let mut waiting = std::pin::pin!(waiting);
        let waits = async {
            self.until_heard(name).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        tokio::select! {
            _ = &mut waiting => panic!("too early"),
            () = waits => {}
        }
        let start = Instant::now();
        cause();
        let outcome = waiting.await;
        self.check_pace(round, start.elapsed(), name);
        outcome
    }

    fn check_pace(&self, round: u32, took: Duration, what: &str) {
        assert!(round == 0 || took < self.pace.limit, "{what}: {took:?}");
    }
}

/// What is held, whichever lock it is of.
#[derive(Debug)]
pub(crate) enum Held {
    Fenced(Guard),
    Unfenced(Guard<Unfenced>),
    Writing(WriteGuard<Unfenced>),
}

/// Waits for a lock of ours, by the name that the harness has for its kind.
pub(crate) async fn take(
    ours: &Ours,
    kind: &str,
    name: &str,
    wait: Duration,
) -> Result<Held, Error> {
    take_for(None, ours, kind, name, wait).await
}

/// The same, for a fixed lease if there is one.
pub(crate) async fn take_for(
    lease: Option<Duration>,
    ours: &Ours,
    kind: &str,
    name: &str,
    wait: Duration,
) -> Result<Held, Error> {
    macro_rules! take {
        ($lock:expr) => {{
            let taking = $lock.lock().timeout(wait);
            match lease {
                Some(lease) => taking.fixed_lease(lease).await?,
                None => taking.await?,
            }
        }};
    }
    let rw = ours.read_write_lock(name);
    Ok(match kind {
        "lock" => Held::Unfenced(take!(ours.lock(name))),
        "fair" => Held::Unfenced(take!(ours.fair_lock(name))),
        "fenced" => Held::Fenced(take!(ours.fenced_lock(name))),
        "read" => Held::Unfenced(take!(rw.read_lock())),
        "write" => Held::Writing(take!(rw.write_lock())),
        other => panic!("{other} is no lock"),
    })
}

/// Takes a lock of ours that must be free.
pub(crate) async fn take_now(ours: &Ours, kind: &str, name: &str) -> Held {
    let taken = take(ours, kind, name, Duration::ZERO).await;
    taken.expect("it is free")
}

/// Whether a lock is refused to us.
pub(crate) async fn is_refused(ours: &Ours, kind: &str, name: &str) -> bool {
    match take(ours, kind, name, Duration::ZERO).await {
        Ok(held) => {
            held.give_back().await;
            false
        }
        Err(Error::Timeout { .. }) => true,
        Err(error) => panic!("{error:?}"),
    }
}

/// Takes it away from whoever holds it.
pub(crate) async fn force(ours: &Ours, kind: &str, name: &str) -> bool {
    let rw = ours.read_write_lock(name);
    let forced = match kind {
        "lock" => ours.lock(name).force_unlock().await,
        "fair" => ours.fair_lock(name).force_unlock().await,
        "fenced" => ours.fenced_lock(name).force_unlock().await,
        "read" => rw.read_lock().force_unlock().await,
        "write" => rw.write_lock().force_unlock().await,
        other => panic!("{other} is no lock"),
    };
    forced.unwrap()
}

impl Held {
    /// Releases what must still be held.
    pub(crate) async fn give_back(self) {
        assert_eq!(self.release().await, ReleaseOutcome::Released);
    }

    pub(crate) async fn release(self) -> ReleaseOutcome {
        let released = match self {
            Self::Fenced(guard) => guard.release().await,
            Self::Unfenced(guard) => guard.release().await,
            Self::Writing(guard) => guard.release().await,
        };
        released.unwrap()
    }

    pub(crate) async fn lost(&self) -> Option<Loss> {
        match self {
            Self::Fenced(guard) => guard.lost().await,
            Self::Unfenced(guard) => guard.lost().await,
            Self::Writing(guard) => guard.lost().await,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Fenced(guard) => guard.check(),
            Self::Unfenced(guard) => guard.check(),
            Self::Writing(guard) => guard.check(),
        }
    }
}

/// What was entered, and can be again.
pub(crate) enum Entered {
    Fenced(Reentrant<Guard>, Guard),
    Unfenced(Reentrant<Guard<Unfenced>>, Guard<Unfenced>),
    Writing(Reentrant<WriteGuard<Unfenced>>, WriteGuard<Unfenced>),
}

/// Enters a lock of ours that must be free.
pub(crate) async fn enter(ours: &Ours, kind: &str, name: &str) -> Entered {
    let rw = ours.read_write_lock(name);
    let unfenced = match kind {
        "lock" => ours.lock(name).reentrant(),
        "fair" => ours.fair_lock(name).reentrant(),
        "read" => rw.read_lock().reentrant(),
        "fenced" => {
            let handle = ours.fenced_lock(name).reentrant();
            let guard = handle.try_lock().await.unwrap().expect("it is free");
            return Entered::Fenced(handle, guard);
        }
        "write" => {
            let handle = rw.write_lock().reentrant();
            let guard = handle.try_lock().await.unwrap().expect("it is free");
            return Entered::Writing(handle, guard);
        }
        other => panic!("{other} is no lock"),
    };
    let guard = unfenced.try_lock().await.unwrap().expect("it is free");
    Entered::Unfenced(unfenced, guard)
}

impl Entered {
    pub(crate) async fn again(&self) -> Held {
        match self {
            Self::Fenced(handle, _) => Held::Fenced(handle.lock().await.unwrap()),
            Self::Unfenced(handle, _) => Held::Unfenced(handle.lock().await.unwrap()),
            Self::Writing(handle, _) => Held::Writing(handle.lock().await.unwrap()),
        }
    }

    /// Leaves for the last time.
    pub(crate) async fn give_back(self) {
        let held = match self {
            Self::Fenced(_, guard) => Held::Fenced(guard),
            Self::Unfenced(_, guard) => Held::Unfenced(guard),
            Self::Writing(_, guard) => Held::Writing(guard),
        };
        held.give_back().await;
    }
}
