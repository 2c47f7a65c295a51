//! How many acquires may be in flight on one connection.
//!
//! On a link that is too slow for its clients, every acquire would time out:
//! each waits behind the others, and its cancel takes the place of an acquire
//! that could succeed. So an acquire is not sent while too many are unanswered.
//! The limit grows while replies come soon, and is halved when they come too
//! late, as TCP does with its window.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;

use super::RequestError;
use crate::sync::Mutex;
use crate::time::BootInstant;

/// The first limit. It doubles with each round trip, so a good link is soon
/// without one.
const INITIAL: usize = 16;

/// How much later than usual a reply may be for the limit to grow.
const QUEUEING: Duration = Duration::from_millis(10);

/// For how long a reply is the fastest. The route may become longer, without a
/// reply that is missing.
const REMEMBERED: Duration = Duration::from_secs(10);

/// How long an acquire that waited may take to be polled, before the next one
/// is sent in its place.
const UNPOLLED: Duration = Duration::from_millis(100);

/// See the module's documentation.
pub(crate) struct Admission {
    permits: Arc<Semaphore>,
    limit: Mutex<Limit>,
}

struct Limit {
    /// How many acquires may be in flight.
    acquires: usize,
    /// How many acquires in flight are above the limit. Their permits are
    /// forgotten when they come back.
    excess: usize,
    /// The shortest time to a reply.
    fastest: Duration,
    /// Since when it is measured.
    measured_since: BootInstant,
    /// When the limit was last lowered.
    lowered_at: BootInstant,
}

/// An acquire in flight. Dropping it without [`answered`](Self::answered) says
/// that the caller has given it up.
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    since: BootInstant,
    /// How long a reply may take.
    timeout: Duration,
    is_answered: bool,
}

impl Admission {
    pub(crate) fn new() -> Arc<Self> {
        let limit = Limit {
            acquires: INITIAL,
            excess: 0,
            fastest: Duration::MAX,
            measured_since: BootInstant::now(),
            lowered_at: BootInstant::now(),
        };
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(INITIAL)),
            limit: Mutex::new(limit),
        })
    }

    /// Waits until an acquire may be sent, for up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unreachable`] after `timeout`. Nothing was sent.
    pub(crate) async fn admit(
        self: Arc<Self>,
        timeout: Duration,
    ) -> Result<Admitted, RequestError> {
        match self.permits.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(_) => Box::pin(self.wait(timeout)).await?.forget(),
        }
        Ok(Admitted {
            admission: self,
            since: BootInstant::now(),
            timeout,
            is_answered: false,
        })
    }

    /// Waits for a permit in a task of its own. A caller that is not polled
    /// would keep the permit from others.
    async fn wait(&self, timeout: Duration) -> Result<OwnedSemaphorePermit, RequestError> {
        let end = BootInstant::now() + timeout;
        loop {
            let (sender, offered) = oneshot::channel();
            let permits = self.permits.clone();
            // Dropped with the caller.
            let mut task = JoinSet::new();
            task.spawn(async move {
                let Ok(permit) = permits.acquire_owned().await else {
                    return;
                };
                let offer = Arc::new(Mutex::new(Some(permit)));
                if sender.send(offer.clone()).is_ok() {
                    tokio::time::sleep(UNPOLLED).await;
                    let not_taken = offer.lock().take();
                    drop(not_taken);
                }
            });
            let left = end.since(BootInstant::now());
            let Ok(Ok(offer)) = tokio::time::timeout(left, offered).await else {
                let acquires = self.limit.lock().acquires;
                let why = format!("{acquires} acquires are unanswered, more were not sent");
                return Err(RequestError::Unreachable(why.into()));
            };
            if let Some(permit) = offer.lock().take() {
                return Ok(permit);
            }
        }
    }
}

impl Admitted {
    /// Records that the server has replied.
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let (now, permits) = (BootInstant::now(), &self.admission.permits);
        let elapsed = now.since(self.since);
        let mut limit = self.admission.limit.lock();
        let mut freed = 1;
        if self.is_answered {
            if now.since(limit.measured_since) > REMEMBERED {
                limit.measured_since = now;
                limit.fastest = Duration::MAX;
            }
            limit.fastest = limit.fastest.min(elapsed);
            // Not if requests wait for each other already.
            let is_soon = elapsed <= limit.fastest.saturating_mul(2) + QUEUEING;
            if is_soon && permits.available_permits() == 0 {
                limit.acquires += 1;
                freed += 1;
            }
        }
        // Once for all that were sent together.
        if !self.is_answered && elapsed > self.timeout / 4 && self.since > limit.lowered_at {
            limit.lowered_at = now;
            // Measured again: the route may be another one.
            limit.fastest = Duration::MAX;
            // What is not in use was no reason for the delay.
            let unused = permits.forget_permits(permits.available_permits());
            let in_flight = (limit.acquires + limit.excess).saturating_sub(unused);
            limit.acquires = in_flight.div_ceil(2).max(1);
            limit.excess = in_flight.saturating_sub(limit.acquires);
        }
        let forgotten = limit.excess.min(freed);
        limit.excess -= forgotten;
        // Unlocked, since it wakes acquires that wait.
        drop(limit);
        permits.add_permits(freed - forgotten);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::task::{Context, Wake, Waker};

    use tokio::time::sleep;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);
    const ROUND_TRIP: Duration = Duration::from_millis(5);

    async fn admit(admission: &Arc<Admission>, count: usize) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        for _ in 0..count {
            let next = admission.clone().admit(TIMEOUT).await;
            admitted.push(next.expect("admitted in time"));
        }
        admitted
    }

    /// Returns how many acquires may be in flight, while none is.
    fn limit(admission: &Admission) -> usize {
        let limit = admission.limit.lock().acquires;
        assert_eq!(admission.permits.available_permits(), limit);
        limit
    }

    #[tokio::test(start_paused = true)]
    async fn acquire_above_the_limit_waits_for_a_reply() {
        crate::time::begin();
        let admission = Admission::new();
        let mut admitted = admit(&admission, INITIAL).await;
        let refused = admission.clone().admit(TIMEOUT).await;
        assert!(matches!(refused, Err(RequestError::Unreachable(_))));
        let waiting = tokio::spawn(admission.clone().admit(TIMEOUT));
        sleep(TIMEOUT / 2).await;
        assert!(!waiting.is_finished());
        admitted.pop().expect("the last one").answered();
        assert!(waiting.await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn soon_replies_raise_the_limit() {
        crate::time::begin();
        let admission = Admission::new();
        let tasks: Vec<_> = (0..4 * INITIAL)
            .map(|_| tokio::spawn(admission.clone().admit(TIMEOUT)))
            .collect();
        for task in tasks {
            let admitted = task.await.unwrap().expect("admitted in time");
            sleep(Duration::from_millis(1)).await;
            admitted.answered();
        }
        assert!(limit(&admission) > INITIAL);
    }

    #[tokio::test(start_paused = true)]
    async fn replies_that_wait_for_each_other_keep_the_limit() {
        crate::time::begin();
        let admission = Admission::new();
        let mut admitted = admit(&admission, INITIAL).await;
        admitted.pop().expect("the last one").answered();
        let waiting = tokio::spawn(admission.clone().admit(TIMEOUT));
        tokio::task::yield_now().await;
        sleep(QUEUEING * 2).await;
        admitted.into_iter().for_each(Admitted::answered);
        drop(waiting.await);
        assert_eq!(limit(&admission), INITIAL + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn missing_replies_halve_the_limit_once() {
        crate::time::begin();
        let admission = Admission::new();
        for expected in [8, 4, 2, 1, 1] {
            sleep(ROUND_TRIP).await;
            let in_flight = admission.limit.lock().acquires;
            let admitted = admit(&admission, in_flight).await;
            sleep(TIMEOUT).await;
            drop(admitted);
            assert_eq!(limit(&admission), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unused_part_of_the_limit_is_lost_first() {
        crate::time::begin();
        let admission = Admission::new();
        sleep(ROUND_TRIP).await;
        let admitted = admit(&admission, 6).await;
        sleep(TIMEOUT).await;
        drop(admitted);
        assert_eq!(limit(&admission), 3);
    }

    /// A caller that gives up early says nothing about the server.
    #[tokio::test(start_paused = true)]
    async fn early_drop_keeps_the_limit() {
        crate::time::begin();
        let admission = Admission::new();
        sleep(ROUND_TRIP).await;
        let admitted = admit(&admission, INITIAL).await;
        sleep(TIMEOUT / 5).await;
        drop(admitted);
        assert_eq!(limit(&admission), INITIAL);
    }

    /// Waits for an admission, polled once.
    fn wait_unpolled(
        admission: &Arc<Admission>,
    ) -> Pin<Box<impl Future<Output = Result<Admitted, RequestError>> + use<>>> {
        let mut waiting = Box::pin(admission.clone().admit(TIMEOUT));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        waiting
    }

    /// Each kept what came back for as long as it was not polled: others never
    /// acquired anything.
    #[tokio::test(start_paused = true)]
    async fn waiting_acquires_that_are_not_polled_leave_it_to_others() {
        crate::time::begin();
        let admission = Admission::new();
        let admitted = admit(&admission, INITIAL).await;
        let _unpolled: Vec<_> = (0..4 * INITIAL)
            .map(|_| wait_unpolled(&admission))
            .collect();
        let polled = tokio::spawn(admission.clone().admit(TIMEOUT));
        tokio::task::yield_now().await;
        admitted.into_iter().for_each(Admitted::answered);
        assert!(polled.await.unwrap().is_ok());
        assert!(admission.clone().admit(TIMEOUT).await.is_ok());
    }

    /// A task that looks at the limit while it is woken.
    struct Looks(Arc<Admission>, AtomicBool);

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            let admission = self.0.clone();
            let (sender, receiver) = mpsc::channel();
            std::thread::spawn(move || {
                drop(admission.limit.lock());
                let _ = sender.send(());
            });
            let is_unlocked = receiver.recv_timeout(TIMEOUT).is_ok();
            self.1.store(is_unlocked, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_acquire_is_woken_unlocked() {
        crate::time::begin();
        let admission = Admission::new();
        let mut admitted = admit(&admission, INITIAL).await;
        let looks = Arc::new(Looks(admission.clone(), AtomicBool::new(false)));
        let waker = Waker::from(looks.clone());
        let mut waiting = Box::pin(admission.permits.acquire());
        let polled = waiting.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        admitted.pop().expect("the last one").answered();
        assert!(looks.1.load(Ordering::SeqCst), "woken while locked");
    }

    /// What was the usual time once limited the connection for ever.
    #[tokio::test(start_paused = true)]
    async fn longer_round_trip_becomes_usual() {
        crate::time::begin();
        let admission = Admission::new();
        let first = admit(&admission, 1).await;
        sleep(Duration::from_millis(1)).await;
        first.into_iter().for_each(Admitted::answered);
        for _ in 0..100 {
            let mut admitted = Vec::new();
            while let Ok(permit) = admission.permits.try_acquire() {
                permit.forget();
                admitted.push(Admitted {
                    admission: admission.clone(),
                    since: BootInstant::now(),
                    timeout: TIMEOUT,
                    is_answered: false,
                });
            }
            sleep(Duration::from_millis(200)).await;
            admitted.into_iter().for_each(Admitted::answered);
        }
        assert!(limit(&admission) > INITIAL * 2);
    }
}
