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

use std::time::Duration;

use leasehold::redisson::{Redisson as Ours, Reentrant, WriteGuard};
use leasehold::{Client, Error, Guard, Loss, Release, Unfenced};
use testkit::machine;
use testkit::redisson::Fleet;
use testkit::{Flavor, Redisson as Java, Server, Setup};

use crate::support::{PASSWORD, alone};

/// The watchdog of both sides.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(3);

/// Less than any poll of either side, the first of which is a second after it began to wait, and more than a small machine's processors
/// are taken away for.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(600);

/// A wait that only fails when nothing comes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

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
    Client::connect(url).await.expect("the server is up")
}

pub(crate) fn of(client: &Client) -> Ours {
    client.redisson().watchdog(WATCHDOG)
}

/// Runs a test that measures time with the newest Redisson, and nothing beside it.
pub(crate) fn alone_with_newest(test: impl Fn(&str)) {
    if let Some(newest) = Java::versions().first() {
        alone(|| test(newest));
    }
}

/// Runs a test with the newest Redisson, beside others.
pub(crate) fn with_newest(test: impl Fn(&str)) {
    if let Some(newest) = Java::versions().first() {
        let _place = machine::beside_others();
        test(newest);
    }
}

/// Runs a test with every Redisson that was built, beside others.
pub(crate) fn with_every_version(test: impl Fn(&str)) {
    for version in Java::versions() {
        let _place = machine::beside_others();
        test(version);
    }
}

pub(crate) fn fleet(server: &Server) -> Fleet {
    Fleet {
        watchdog: WATCHDOG,
        ..Fleet::at(server.port())
    }
}

/// What is held, whichever lock it is of.
#[derive(Debug)]
pub(crate) enum Held {
    Fenced(Guard),
    Unfenced(Guard<Unfenced>),
    Writing(WriteGuard),
}

/// Waits for a lock of ours, by the name that the harness has for its kind.
pub(crate) async fn take(
    ours: &Ours,
    kind: &str,
    name: &str,
    wait: Duration,
) -> Result<Held, Error> {
    let rw = ours.read_write_lock(name);
    Ok(match kind {
        "lock" => Held::Unfenced(ours.lock(name).lock().wait(wait).await?),
        "fair" => Held::Unfenced(ours.fair_lock(name).lock().wait(wait).await?),
        "fenced" => Held::Fenced(ours.fenced_lock(name).lock().wait(wait).await?),
        "read" => Held::Unfenced(rw.read_lock().lock().wait(wait).await?),
        "write" => Held::Writing(rw.write_lock().lock().wait(wait).await?),
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
        assert_eq!(self.release().await, Release::Released);
    }

    pub(crate) async fn release(self) -> Release {
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
    Unfenced(Reentrant, Guard<Unfenced>),
    Writing(Reentrant<WriteGuard>, WriteGuard),
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
