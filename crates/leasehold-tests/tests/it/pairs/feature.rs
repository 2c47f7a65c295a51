//! The features: each is a function that acquires a lock in its way.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Acquire, Client, Error, Loss, MultiGuard, MultiLock};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::scene::{Company, Holder, is_waited_for, owner};
use crate::support;
use crate::support::callers::on_thread;
use crate::support::contract::{self, Guard, Lease};
use crate::support::{AMPLE, SHORT, eventually, poll_at_most};

/// How long `at_least` keeps others out.
const AT_LEAST: Duration = Duration::from_millis(200);

/// How long a handed-over lock waits for its adopter.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(2);

/// How long replicas may take to acknowledge a lock.
const REPLICAS_WITHIN: Duration = Duration::from_secs(2);

/// More acquires than a new connection sends at once.
const CROWD: usize = 100;

/// A way to hold a lock.
pub(super) struct Feature {
    pub(super) name: &'static str,
    pub(super) hold: fn(Arc<Holder>, String) -> Acquiring,
    /// How a contender asks for the same lock.
    pub(super) contend: fn(&Client, &str) -> contract::Acquire,
    /// Whether the lease ends by itself, after [`Terms::at_most`].
    ///
    /// [`Terms::at_most`]: super::scene::Terms::at_most
    pub(super) ends_itself: bool,
    pub(super) company: Company,
}

/// The future of an acquire. An event may drop it, or stop polling it.
pub(super) type Acquiring = Pin<Box<dyn Future<Output = Result<Holding, Error>> + Send>>;

/// Returns a feature of a mutex without other properties.
const fn mutex(name: &'static str, hold: fn(Arc<Holder>, String) -> Acquiring) -> Feature {
    Feature {
        name,
        hold,
        contend: |client, name| client.mutex(name).lock().into(),
        ends_itself: false,
        company: Company::None,
    }
}

pub(super) const FEATURES: [Feature; 16] = [
    Feature {
        ends_itself: true,
        ..mutex("at_most", |holder, name| Box::pin(at_most(holder, name)))
    },
    mutex("at_least", |holder, name| Box::pin(at_least(holder, name))),
    mutex("extend", |holder, name| Box::pin(extend(holder, name))),
    mutex("fixed_lease", |holder, name| {
        Box::pin(fixed_lease(holder, name))
    }),
    Feature {
        company: Company::Replica,
        ..mutex("replicas", |holder, name| Box::pin(replicas(holder, name)))
    },
    mutex("reentrant", |holder, name| {
        Box::pin(reentrant(holder, name))
    }),
    mutex("crowded", |holder, name| Box::pin(crowded(holder, name))),
    mutex("local_handoff", |holder, name| {
        Box::pin(local_handoff(holder, name))
    }),
    mutex("hand_over", |holder, name| {
        Box::pin(hand_over(holder, name))
    }),
    mutex("run", |holder, name| Box::pin(run(holder, name))),
    mutex("threads", |holder, name| Box::pin(threads(holder, name))),
    mutex("stuck", |holder, name| Box::pin(stuck(holder, name))),
    Feature {
        company: Company::Replica,
        ..mutex("stuck_replicas", |holder, name| {
            Box::pin(stuck_replicas(holder, name))
        })
    },
    Feature {
        contend: |client, name| client.rw_lock(name).write().into(),
        ..mutex("downgrade", |holder, name| {
            Box::pin(downgrade(holder, name))
        })
    },
    Feature {
        company: Company::Peer,
        ..mutex("moving_from", |holder, name| {
            Box::pin(moving_from(holder, name))
        })
    },
    Feature {
        company: Company::Peer,
        ..mutex("moving_to", |holder, name| {
            Box::pin(moving_to(holder, name))
        })
    },
];

impl Feature {
    pub(super) fn named(name: &str) -> &'static Self {
        let mut features = FEATURES.iter();
        features
            .find(|feature| feature.name == name)
            .expect("a feature")
    }
}

/// A held lock.
pub(super) struct Holding {
    views: Vec<Lease>,
    /// Until when `at_least` keeps others out, at the earliest.
    kept_until: Option<Instant>,
    /// Whether the lock was handed off locally, not by way of the server.
    pub(super) handed_off: bool,
    grip: Grip,
}

/// What must be released or dropped to end a holding.
enum Grip {
    Guard(Guard),
    Nested { outer: Guard, inner: Guard },
    Thread(Guard),
    Both(MultiGuard),
    Work(Work),
}

/// A `run` whose work ends on request. Dropping it drops the future of `run`.
struct Work {
    stop: oneshot::Sender<()>,
    task: AbortOnDrop,
}

struct AbortOnDrop(JoinHandle<Result<(), Error>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Holding {
    fn of(guard: impl Into<Guard>) -> Self {
        let guard = guard.into();
        Self::new(vec![guard.lease()], Grip::Guard(guard))
    }

    fn new(views: Vec<Lease>, grip: Grip) -> Self {
        Self {
            views,
            kept_until: None,
            handed_off: false,
            grip,
        }
    }

    /// Returns what remains of the holding when it is released or dropped.
    pub(super) fn trace(&self) -> Trace {
        Trace {
            views: self.views.clone(),
            kept_until: self.kept_until,
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.trace().is_valid()
    }

    pub(super) async fn release(self) -> Result<(), Error> {
        match self.grip {
            Grip::Guard(guard) => guard.release().await,
            Grip::Nested { outer, inner } => {
                inner.release().await?;
                if outer.check().is_err() {
                    let loss = outer.lost().await;
                    assert!(loss.is_some(), "the inner guard released the lock");
                }
                outer.release().await
            }
            Grip::Both(guards) => guards.release().await,
            Grip::Thread(guard) => on_thread(|| guard.release().wait()).await,
            Grip::Work(mut work) => {
                let _ = work.stop.send(());
                (&mut work.task.0).await.expect("the work does not panic")
            }
        }
    }
}

/// The views of a holding, which outlive it.
#[derive(Clone, Default)]
pub(super) struct Trace {
    views: Vec<Lease>,
    pub(super) kept_until: Option<Instant>,
}

impl Trace {
    pub(super) fn is_valid(&self) -> bool {
        self.views.iter().any(|view| view.check().is_ok())
    }

    pub(super) fn token(&self) -> Option<u64> {
        let tokens = self.views.iter().map(|view| view.token().as_u64());
        tokens.max()
    }

    /// Waits until every view reports its loss.
    pub(super) async fn lost(&self) -> Option<Loss> {
        let mut loss = None;
        for view in &self.views {
            let lost = tokio::time::timeout(AMPLE, view.lost()).await;
            loss = lost.expect("the loss is announced");
        }
        loss
    }
}

/// Limited to [`Terms::at_most`](super::scene::Terms::at_most), which no
/// renewal can exceed.
async fn at_most(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let limit = holder.terms.at_most;
    let lock = lock(&holder, &name).at_most(limit);
    Ok(Holding::of(lock.await?))
}

async fn at_least(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let asked = Instant::now();
    let guard = lock(&holder, &name).at_least(AT_LEAST).await?;
    Ok(Holding {
        kept_until: Some(asked + AT_LEAST),
        ..Holding::of(guard)
    })
}

/// A short lease, extended to the lease of the terms.
async fn extend(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let guard = lock(&holder, &name).lease(SHORT).await?;
    holder.has_guard(true);
    guard.extend(holder.terms.lease).await?;
    Ok(Holding::of(guard))
}

async fn fixed_lease(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let lock = lock(&holder, &name).fixed_lease(holder.terms.lease);
    Ok(Holding::of(lock.await?))
}

async fn replicas(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    // A dead connection is noticed only when replicas may no longer answer.
    let within = (holder.terms.lease / 2).min(REPLICAS_WITHIN);
    let lock = lock(&holder, &name).replicas(1, within);
    Ok(Holding::of(lock.await?))
}

/// Two guards of one handle.
async fn reentrant(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let handle = holder.client.mutex(&name).reentrant();
    let outer: Guard = handle.lock().await?.into();
    holder.has_guard(true);
    let inner: Guard = handle.lock().await?.into();
    let views = vec![outer.lease(), inner.lease()];
    Ok(Holding::new(views, Grip::Nested { outer, inner }))
}

/// Acquired behind many other acquires of the connection, some of which wait to
/// be sent. None of them is polled again.
async fn crowded(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        let mut acquire = lock(&holder, &support::name()).into_future();
        let polled = poll_at_most(&mut acquire, 1).await;
        crowd.push((acquire, polled));
    }
    let guard = lock(&holder, &name).await;
    drop(crowd);
    Ok(Holding::of(guard?))
}

/// Handed off by another waiter of the client. One future polls all of them,
/// so an event can stop it between any two.
async fn local_handoff(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let held = lock(&holder, &name).await?;
    holder.has_guard(true);
    let mut early = lock(&holder, &name).into_future();
    let is_waited_for = || is_waited_for(holder.server, &name);
    tokio::select! {
        () = eventually("the first waiter waits", is_waited_for) => {}
        // It failed, or the first lease is lost.
        ended = &mut early => return Ok(Holding::of(ended?)),
    }
    // A poll enqueues the second waiter behind the first.
    let mut late = lock(&holder, &name).into_future();
    if let Some(ended) = poll_at_most(&mut late, 1).await {
        return Ok(Holding::of(ended?));
    }
    holder.has_guard(false);
    let give = async {
        held.release().await?;
        let guard = early.await?;
        let owner = owner(holder.server, &name);
        guard.release().await?;
        Ok::<_, Error>(owner)
    };
    let mut give = std::pin::pin!(give);
    let mut given = None;
    // The second waiter overtakes the first if that one was not polled.
    let taken = loop {
        tokio::select! {
            taken = &mut late => break taken?,
            owner = &mut give, if given.is_none() => given = Some(owner?),
        }
    };
    let handed_off = given.is_some_and(|given| given == owner(holder.server, &name));
    Ok(Holding {
        handed_off,
        ..Holding::of(taken)
    })
}

/// Handed over, and adopted by the same client.
async fn hand_over(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let guard = lock(&holder, &name).await?;
    holder.has_guard(true);
    let ticket = guard.hand_over(HAND_OVER_WITHIN).await?;
    holder.has_guard(false);
    Ok(Holding::of(holder.client.adopt(&ticket).await?))
}

/// Held by the future of `run`, which is spawned once the work has started.
async fn run(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let (begin, begun) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let request = lock(&holder, &name);
    let mut work = Box::pin(request.run(move |lease| {
        holder.has_guard(true);
        let _ = begin.send(lease);
        async move {
            let _ = stopped.await;
        }
    }));
    let lease = tokio::select! {
        Ok(lease) = begun => lease,
        ended = &mut work => {
            ended?;
            panic!("the work has ended by itself");
        }
    };
    let task = AbortOnDrop(tokio::spawn(work));
    let grip = Grip::Work(Work { stop, task });
    Ok(Holding::new(vec![lease.into()], grip))
}

async fn threads(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let lock = lock(&holder, &name);
    let guard: Guard = on_thread(|| lock.wait()).await?.into();
    Ok(Holding::new(vec![guard.lease()], Grip::Thread(guard)))
}

/// A holder that reports no progress, so the keeper does not renew its lease.
/// It extended the lease to that of the terms.
async fn stuck(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    hang(&holder, lock(&holder, &name)).await
}

/// Stuck, and acknowledged by a replica.
async fn stuck_replicas(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let acks = lock(&holder, &name).replicas(1, SHORT / 2);
    hang(&holder, acks).await
}

async fn hang(holder: &Holder, lock: Acquire) -> Result<Holding, Error> {
    let limit = Duration::from_millis(1);
    let guard = lock.lease(SHORT).progress_within(limit).await?;
    holder.has_guard(true);
    let lease = guard.lease();
    let is_stuck = || lease.is_stuck() || lease.check().is_err();
    eventually("the holder is stuck", is_stuck).await;
    guard.extend(holder.terms.lease).await?;
    Ok(Holding::of(guard))
}

/// A reader that was a writer.
async fn downgrade(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let writer = holder.client.rw_lock(&name).write().await?;
    holder.has_guard(true);
    Ok(Holding::of(writer.downgrade().await?))
}

/// Held on two servers. The events happen to the one that the client leaves.
async fn moving_from(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let guards = MultiLock::moving(lock(&holder, &name), on_peer(&holder, &name)).await?;
    Ok(on_both(guards, 0))
}

/// Held on two servers. The events happen to the one that the client moves to.
async fn moving_to(holder: Arc<Holder>, name: String) -> Result<Holding, Error> {
    let guards = MultiLock::moving(on_peer(&holder, &name), lock(&holder, &name)).await?;
    Ok(on_both(guards, 1))
}

/// Holds a lock on two servers. Only the lease at `at` is affected by events.
fn on_both(guards: MultiGuard, at: usize) -> Holding {
    let view = guards.leases().nth(at).expect("two leases").clone();
    Holding::new(vec![view.into()], Grip::Both(guards))
}

fn on_peer(holder: &Holder, name: &str) -> Acquire {
    holder.peer.as_ref().expect("a peer").mutex(name).lock()
}

fn lock(holder: &Holder, name: &str) -> Acquire {
    holder.client.mutex(name).lock()
}
