//! The promises that every pair checks.
//!
//! A contender waits for the lock all the while. When it is granted the lock,
//! it checks the views of the former holder, and then its own guard. A loss is
//! permanent, so if both are valid, both were valid at the first check. No
//! clock is compared.

use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Loss};
use tokio::task::JoinHandle;

use super::feature::{Feature, Holding, Trace};
use super::scene::{Holder, Scene, Terms, ask, connect, is_waited_for};
use crate::support::contract::Guard;
use crate::support::{AMPLE, eventually, key, loss_of, name};

/// A feature and what an event needs to happen to it.
pub(super) struct Pair {
    pub(super) feature: &'static Feature,
    pub(super) scene: Scene,
    pub(super) other: Client,
}

/// How far a lock is exclusive during an event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Exclusion {
    /// No two guards are valid at the same time.
    Strict,
    /// The former holder notices when the next one holds the lock already, and
    /// only its smaller token keeps it from harm: it was revoked, or the
    /// server's clock stepped.
    ByToken,
}

impl Pair {
    pub(super) async fn new(feature: &'static Feature, scene: Scene) -> Self {
        record_panics();
        let other = connect(scene.port).lease(AMPLE).await.unwrap();
        Self {
            feature,
            scene,
            other,
        }
    }

    pub(super) async fn holder(&self, terms: Terms) -> Arc<Holder> {
        Holder::connect(self.scene.port, self.scene.peer, terms).await
    }

    /// Holds a new lock by the feature. Tries again if it was lost on the way,
    /// which a stalled machine does to a short lease.
    pub(super) async fn hold(&self, holder: &Arc<Holder>) -> (String, Holding) {
        let end = Instant::now() + AMPLE;
        loop {
            let name = name();
            match (self.feature.hold)(holder.clone(), name.clone()).await {
                Ok(holding) if holding.is_valid() => return (name, holding),
                Err(error) if Instant::now() > end => panic!("{error}"),
                _ => assert!(Instant::now() < end, "no lock stays held"),
            }
        }
    }

    /// Starts to contend for a lock that `trace` holds, and waits until the
    /// server has the contender's request.
    pub(super) async fn contend(&self, name: &str, trace: Trace) -> Contest {
        let contest = Contest::start(self, name, trace);
        eventually("the contender waits", || {
            contest.task.is_finished() || is_waited_for(self.scene.port, name)
        })
        .await;
        contest
    }

    /// Checks that a lock without a valid holder becomes free.
    pub(super) async fn expect_free(&self, name: &str, trace: Trace) {
        let contest = Contest::start(self, name, trace);
        let guard = contest.won(Exclusion::Strict).await;
        guard.release().await.unwrap();
    }

    /// Releases a lock that must still be held, and checks that the contender
    /// acquires it then, not before.
    pub(super) async fn release_to(&self, holding: Holding, contest: Contest) {
        assert!(holding.is_valid(), "the lock was lost");
        assert!(contest.is_open(), "the contender has a lock that is held");
        released_by_now_or_soon(holding.release().await);
        let guard = contest.won(Exclusion::Strict).await;
        guard.release().await.unwrap();
    }

    /// Checks the loss of a lock that the contender acquires.
    pub(super) async fn expect_lost(
        &self,
        holding: Holding,
        contest: Contest,
        exclusion: Exclusion,
    ) -> Option<Loss> {
        let name = contest.name.clone();
        let guard = contest.won(exclusion).await;
        let trace = holding.trace();
        let loss = trace.lost().await;
        assert!(!holding.is_valid(), "a lost lease is valid");
        assert!(loss.is_some(), "a loss, not a release");
        assert_eq!(loss_of(holding.release().await), loss);
        // The former holder's release concerns its own lock only.
        guard.check().expect("the contender keeps its lock");
        let third = (self.feature.contend)(&self.other, &name);
        let third = third.timeout(Duration::ZERO).await;
        assert!(matches!(third, Err(Error::Timeout { .. })), "{third:?}");
        guard.release().await.unwrap();
        loss
    }

    /// Shuts a holder down, which must release all it has.
    pub(super) async fn shut_down(&self, holder: &Holder) {
        holder.shut_down().await.unwrap();
    }

    /// Checks what must be true after every event.
    pub(super) async fn conclude(self, port: u16) {
        self.other.shutdown(AMPLE).await.unwrap();
        let mut left = Vec::new();
        let start = Instant::now();
        while start.elapsed() < AMPLE {
            let ports = std::iter::once(port).chain(self.scene.peer);
            left = ports.flat_map(keys).collect();
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(left.is_empty(), "keys are left: {left:?}");
        assert_eq!(*PANICS.lock().unwrap(), Vec::<String>::new());
    }
}

/// Returns the keys that are not token counters.
fn keys(port: u16) -> Vec<String> {
    let keys = ask(port, &["KEYS", "*"]).expect("the server is up");
    let keys = keys.list().iter().map(|key| key.text().to_owned());
    keys.filter(|key| !key.starts_with("leasehold:token:"))
        .collect()
}

/// Checks the release of a lock that was held. After an error it continues in
/// the background.
pub(super) fn released_by_now_or_soon(outcome: Result<(), Error>) {
    match outcome {
        Ok(()) => {}
        Err(Error::Unavailable { .. } | Error::OutcomeUnknown { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// A contender that waits for one lock.
pub(super) struct Contest {
    name: String,
    port: u16,
    trace: Trace,
    task: JoinHandle<Grant>,
}

/// A lock that the contender was granted.
struct Grant {
    guard: Guard,
    /// Whether the former holder was still valid.
    overlaps: bool,
    at: Instant,
}

impl Contest {
    fn start(pair: &Pair, name: &str, trace: Trace) -> Self {
        let client = pair.other.clone();
        let lock = pair.feature.contend;
        let former = trace.clone();
        let wanted = name.to_owned();
        let task = tokio::spawn(async move {
            loop {
                match lock(&client, &wanted).await {
                    Ok(guard) => {
                        let at = Instant::now();
                        let overlaps = former.is_valid() && guard.check().is_ok();
                        return Grant {
                            guard,
                            overlaps,
                            at,
                        };
                    }
                    // The event affects the contender's connection too.
                    Err(Error::Unavailable { .. } | Error::OutcomeUnknown { .. }) => {}
                    Err(error) => panic!("the contender fails: {error}"),
                }
            }
        });
        Self {
            name: name.to_owned(),
            port: pair.scene.port,
            trace,
            task,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.task.is_finished()
    }

    /// Waits until the contender holds the lock.
    pub(super) async fn won(self, exclusion: Exclusion) -> Guard {
        let abort = self.task.abort_handle();
        let Ok(grant) = tokio::time::timeout(AMPLE, self.task).await else {
            abort.abort();
            let key = key(&self.name);
            let value = ask(self.port, &["GET", &key]);
            let left = ask(self.port, &["PTTL", &key]);
            panic!("orphan: after {AMPLE:?} the server has {value:?} for {left:?} ms");
        };
        let grant = grant.expect("the contender does not panic");
        let token = Some(grant.guard.token().as_u64());
        assert!(token > self.trace.token(), "the token did not increase");
        if exclusion == Exclusion::Strict {
            assert!(!grant.overlaps, "two guards are valid");
            let kept_until = self.trace.kept_until.unwrap_or(grant.at);
            assert!(grant.at >= kept_until, "`at_least` is not over");
        }
        grant.guard
    }
}

/// What threads of clients panicked with.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records panics of clients' threads, which no test joins.
fn record_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let message = info.to_string();
            let thread = std::thread::current();
            // Another test's observer panics on purpose.
            if thread.name() == Some("leasehold") && !message.contains("on purpose") {
                PANICS.lock().unwrap().push(message);
            }
            print(info);
        }));
    });
}
