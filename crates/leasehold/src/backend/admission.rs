//! How many acquires may be in flight on one connection.
//!
//! On a link that is too slow for its clients, every acquire would time out:
//! each waits behind the others, and its cancel takes the place of an acquire
//! that could succeed. So an acquire is not sent while too many are unanswered.
//! The limit grows while replies come soon, and is halved when they come too
//! late, as TCP does with its window.
//!
//! An acquire is in flight until the server has replied, even if its caller has
//! given up: it takes its place on the link for as long.

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use super::RequestError;
use crate::process::HomeProcess;
use crate::sync::Mutex;
use crate::time::BootInstant;

/// The first limit. It doubles with each round trip, so a good link is soon
/// without one.
const INITIAL: usize = 64;

/// The lowest limit. One acquire whose reply is lost must not be all that may
/// be in flight.
const LOWEST: usize = 4;

/// How much later than usual a reply may be for the limit to grow.
const QUEUEING: Duration = Duration::from_millis(10);

/// How long the fastest reply counts, and a lowered limit without acquires. The
/// route may become longer without losing a reply.
const REMEMBERED: Duration = Duration::from_secs(10);

/// How often a waiting acquire checks the limit itself. The caller that was
/// woken for a free place may not be polled.
const LOOK: Duration = Duration::from_millis(100);

/// See the module's documentation.
pub(crate) struct Admission {
    process: HomeProcess,
    limit: Mutex<Limit>,
    /// Wakes an acquire that waits.
    freed: Notify,
}

struct Limit {
    /// How many acquires may be in flight.
    acquires: usize,
    /// How many are. More than may be after the limit was lowered.
    in_flight: usize,
    /// How many wait until they may be.
    waiting: usize,
    /// The shortest time to a reply.
    fastest: Duration,
    /// Since when it is measured.
    measured_since: BootInstant,
    /// When the limit was last lowered.
    lowered_at: BootInstant,
    /// Whether the connection accepts no new requests, so that waiting for it
    /// is in vain.
    has_ended: bool,
}

/// An acquire in flight, until this is dropped.
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    since: BootInstant,
    is_answered: bool,
    is_late: bool,
}

impl Admission {
    pub(crate) fn new() -> Arc<Self> {
        let limit = Limit {
            acquires: INITIAL,
            in_flight: 0,
            waiting: 0,
            fastest: Duration::MAX,
            measured_since: BootInstant::now(),
            lowered_at: BootInstant::now(),
            has_ended: false,
        };
        Arc::new(Self {
            process: HomeProcess::current(),
            limit: Mutex::new(limit),
            freed: Notify::new(),
        })
    }

    /// Waits until an acquire may be sent, for up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unreachable`] after `timeout`. Nothing was sent.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        timeout: Duration,
    ) -> Result<Admitted, RequestError> {
        // A caller whose acquire has just completed would overtake the waiting
        // ones, unless there is room for them too: some may not be polled.
        let has_room_for_all = |limit: &Limit| limit.in_flight + limit.waiting < limit.acquires;
        match self.try_admit(has_room_for_all) {
            Some(admitted) => Ok(admitted),
            None => Box::pin(self.wait(timeout)).await,
        }
    }

    /// Sends the waiting acquires to another connection.
    pub(crate) fn end(&self) {
        // A thread that a forked child lacks may have locked it.
        if !self.process.is_current() {
            return;
        }
        self.limit.lock().has_ended = true;
        self.freed.notify_waiters();
    }

    fn try_admit(self: &Arc<Self>, test: impl Fn(&Limit) -> bool) -> Option<Admitted> {
        let mut limit = self.limit.lock();
        limit.recover();
        let has_room = limit.in_flight < limit.acquires && test(&limit);
        if !has_room && !limit.has_ended {
            return None;
        }
        limit.in_flight += 1;
        drop(limit);
        Some(Admitted {
            admission: self.clone(),
            since: BootInstant::now(),
            is_answered: false,
            is_late: false,
        })
    }

    async fn wait(self: &Arc<Self>, timeout: Duration) -> Result<Admitted, RequestError> {
        let end = BootInstant::now() + timeout;
        let _waiting = Waiting::begin(self);
        // Acquires that are already woken take their places first.
        yield_once().await;
        let mut freed = std::pin::pin!(self.freed.notified());
        loop {
            // Before the look, or what is freed in between would be missed.
            freed.as_mut().enable();
            if let Some(admitted) = self.try_admit(|_| true) {
                return Ok(admitted);
            }
            let left = end.since(BootInstant::now());
            if left.is_zero() {
                let unanswered = self.limit.lock().in_flight;
                let why = format!("{unanswered} acquires are unanswered, more were not sent");
                return Err(RequestError::Unreachable(why.into()));
            }
            // Keeps its place if it was not woken.
            if tokio::time::timeout(left.min(LOOK), freed.as_mut())
                .await
                .is_ok()
            {
                freed.set(self.freed.notified());
            }
        }
    }
}

/// Lets other tasks run. Not tokio's function: on a worker thread that blocks
/// in `wait`, it wakes the caller only when the worker is free again.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| match mem::replace(&mut has_yielded, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// Counts an acquire that waits.
struct Waiting<'a>(&'a Admission);

impl<'a> Waiting<'a> {
    fn begin(admission: &'a Admission) -> Self {
        admission.limit.lock().waiting += 1;
        Self(admission)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // A thread that a forked child lacks may have locked it.
        if self.0.process.is_current() {
            self.0.limit.lock().waiting -= 1;
        }
    }
}

impl Admitted {
    /// Records that the server has replied. The limit may grow.
    pub(crate) fn set_answered(&mut self) {
        self.is_answered = true;
    }

    /// Records that the reply is late. Leaves half of what is in flight, once
    /// for all acquires that were sent together.
    pub(crate) fn set_late(&mut self) {
        self.is_late = true;
        let mut limit = self.admission.limit.lock();
        // What is not in use was no reason for the delay.
        let used = limit.acquires.min(limit.in_flight);
        if self.since > limit.lowered_at && used > LOWEST {
            limit.lowered_at = BootInstant::now();
            // Measured again: the route may be another one.
            limit.fastest = Duration::MAX;
            limit.acquires = (used / 2).max(LOWEST);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut limit = self.admission.limit.lock();
        let has_grown = self.is_answered && !self.is_late && limit.measure(self.since);
        limit.in_flight -= 1;
        let room = limit.acquires.saturating_sub(limit.in_flight);
        let freed = room.min(1 + usize::from(has_grown));
        // Unlocked, since it wakes acquires that wait.
        drop(limit);
        for _ in 0..freed {
            self.admission.freed.notify_one();
        }
    }
}

impl Limit {
    /// Forgets, while there are no acquires, that replies were late long ago.
    /// Only acquires that wait raise a low limit, and many that then begin at
    /// once would not all leave in time.
    fn recover(&mut self) {
        let is_idle = self.in_flight + self.waiting == 0;
        if is_idle
            && self.acquires < INITIAL
            && BootInstant::now().since(self.lowered_at) >= REMEMBERED
        {
            self.acquires = INITIAL;
        }
    }

    /// Takes account of a reply to an acquire that was sent at `since`. Returns
    /// whether the limit has grown.
    fn measure(&mut self, since: BootInstant) -> bool {
        let now = BootInstant::now();
        if now.since(self.measured_since) > REMEMBERED {
            self.measured_since = now;
            self.fastest = Duration::MAX;
        }
        let elapsed = now.since(since);
        self.fastest = self.fastest.min(elapsed);
        // Not if requests wait for each other already.
        let is_soon = elapsed <= self.fastest.saturating_mul(2) + QUEUEING;
        let grows = is_soon && self.waiting > 0;
        self.acquires += usize::from(grows);
        grows
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::task::{Context, Wake, Waker};

    use tokio::task::{JoinHandle, JoinSet};
    use tokio::time::sleep;

    use super::*;
    use crate::park::Parker;

    const TIMEOUT: Duration = Duration::from_secs(1);
    const ROUND_TRIP: Duration = Duration::from_millis(5);

    async fn admit(admission: &Arc<Admission>, count: usize) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        for _ in 0..count {
            let next = admission.admit(TIMEOUT).await;
            admitted.push(next.expect("admitted in time"));
        }
        admitted
    }

    fn spawn(admission: &Arc<Admission>) -> JoinHandle<Result<Admitted, RequestError>> {
        let admission = admission.clone();
        tokio::spawn(async move { admission.admit(TIMEOUT).await })
    }

    fn answer(mut admitted: Admitted) {
        admitted.set_answered();
    }

    /// Returns the admission of a connection whose replies were late.
    async fn with_lowest_limit() -> Arc<Admission> {
        let admission = Admission::new();
        sleep(ROUND_TRIP).await;
        let mut admitted = admit(&admission, LOWEST * 2).await;
        sleep(TIMEOUT).await;
        admitted.iter_mut().for_each(Admitted::set_late);
        admission
    }

    /// Returns how many acquires may be in flight, while none is.
    fn limit(admission: &Admission) -> usize {
        let limit = admission.limit.lock();
        assert_eq!(limit.in_flight, 0);
        limit.acquires
    }

    #[tokio::test(start_paused = true)]
    async fn acquire_above_the_limit_waits_for_a_reply() {
        crate::time::begin();
        let admission = Admission::new();
        let mut admitted = admit(&admission, INITIAL).await;
        let refused = admission.admit(TIMEOUT).await;
        assert!(matches!(refused, Err(RequestError::Unreachable(_))));
        let waiting = spawn(&admission);
        sleep(TIMEOUT / 2).await;
        assert!(!waiting.is_finished());
        answer(admitted.pop().expect("the last one"));
        assert!(waiting.await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn soon_replies_raise_the_limit() {
        crate::time::begin();
        let admission = Admission::new();
        let acquires: JoinSet<()> = (0..4 * INITIAL)
            .map(|_| {
                let admission = admission.clone();
                async move {
                    let admitted = admission.admit(TIMEOUT).await;
                    sleep(Duration::from_millis(1)).await;
                    answer(admitted.expect("admitted in time"));
                }
            })
            .collect();
        acquires.join_all().await;
        assert!(limit(&admission) >= INITIAL * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn replies_that_wait_for_each_other_keep_the_limit() {
        crate::time::begin();
        let admission = Admission::new();
        let mut admitted = admit(&admission, INITIAL).await;
        answer(admitted.pop().expect("the last one"));
        let waiting = [(); 2].map(|()| spawn(&admission));
        tokio::task::yield_now().await;
        sleep(QUEUEING * 2).await;
        admitted.into_iter().for_each(answer);
        for waiting in waiting {
            assert!(waiting.await.unwrap().is_ok());
        }
        assert_eq!(limit(&admission), INITIAL);
    }

    #[tokio::test(start_paused = true)]
    async fn late_replies_halve_the_limit_once() {
        crate::time::begin();
        let admission = Admission::new();
        for expected in [INITIAL / 2, INITIAL / 4, INITIAL / 8] {
            sleep(ROUND_TRIP).await;
            let in_flight = admission.limit.lock().acquires;
            let mut admitted = admit(&admission, in_flight).await;
            sleep(TIMEOUT).await;
            admitted.iter_mut().for_each(Admitted::set_late);
            // They are in flight until their replies arrive.
            assert!(admission.admit(TIMEOUT).await.is_err());
            admitted.into_iter().for_each(answer);
            assert_eq!(limit(&admission), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unused_part_of_the_limit_is_lost_first() {
        crate::time::begin();
        let admission = Admission::new();
        for (count, expected) in [(20, 10), (1, 10), (6, LOWEST), (LOWEST, LOWEST)] {
            sleep(ROUND_TRIP).await;
            let mut admitted = admit(&admission, count).await;
            sleep(TIMEOUT).await;
            admitted.iter_mut().for_each(Admitted::set_late);
            drop(admitted);
            assert_eq!(limit(&admission), expected);
        }
    }

    /// A connection that ends says nothing about the link.
    #[tokio::test(start_paused = true)]
    async fn drop_without_reply_keeps_the_limit() {
        crate::time::begin();
        let admission = Admission::new();
        sleep(ROUND_TRIP).await;
        drop(admit(&admission, INITIAL).await);
        assert_eq!(limit(&admission), INITIAL);
    }

    /// A task that asked again at once overtook every waiting acquire.
    #[tokio::test(start_paused = true)]
    async fn acquire_that_follows_another_waits_behind_others() {
        crate::time::begin();
        let admission = Admission::new();
        let mut admitted = admit(&admission, INITIAL).await;
        let waiting = spawn(&admission);
        tokio::task::yield_now().await;
        // Too late for the limit to grow.
        sleep(QUEUEING * 2).await;
        drop(admitted.pop());
        let again = admission.admit(TIMEOUT).await;
        assert!(again.is_err(), "overtook the one that waited");
        assert!(waiting.await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn end_lets_those_go_that_wait() {
        crate::time::begin();
        let admission = Admission::new();
        let _admitted = admit(&admission, INITIAL).await;
        let waiting = [(); 9].map(|()| spawn(&admission));
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let start = BootInstant::now();
        admission.end();
        for waiting in waiting {
            assert!(waiting.await.unwrap().is_ok());
        }
        assert_eq!(BootInstant::now().since(start), Duration::ZERO);
    }

    /// Waits for an admission, polled once.
    fn wait_unpolled(
        admission: &Arc<Admission>,
    ) -> Pin<Box<impl Future<Output = Result<Admitted, RequestError>>>> {
        let mut waiting = Box::pin(admission.admit(TIMEOUT));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        waiting
    }

    /// Each kept a free place for as long as it was not polled: others never
    /// acquired anything.
    #[tokio::test(start_paused = true)]
    async fn waiting_acquires_that_are_not_polled_leave_it_to_others() {
        crate::time::begin();
        let admission = Admission::new();
        let admitted = admit(&admission, INITIAL).await;
        let _unpolled: Vec<_> = (0..4 * INITIAL)
            .map(|_| wait_unpolled(&admission))
            .collect();
        let polled = spawn(&admission);
        tokio::task::yield_now().await;
        admitted.into_iter().for_each(answer);
        assert!(polled.await.unwrap().is_ok());
        assert!(admission.admit(TIMEOUT).await.is_ok());
    }

    /// An unpolled acquire blocked all later ones, although the connection was
    /// idle.
    #[tokio::test(start_paused = true)]
    async fn unpolled_acquire_delays_no_other_with_room() {
        crate::time::begin();
        let admission = Admission::new();
        let admitted = admit(&admission, INITIAL).await;
        let _unpolled = wait_unpolled(&admission);
        admitted.into_iter().for_each(answer);
        let mut next = Box::pin(admission.admit(TIMEOUT));
        let mut context = Context::from_waker(Waker::noop());
        assert!(next.as_mut().poll(&mut context).is_ready());
    }

    /// A thread of a runtime that waited was woken only after a second, too
    /// late to be admitted.
    #[tokio::test]
    async fn blocked_worker_is_admitted_when_there_is_room() {
        let admission = Admission::new();
        let admitted = admit(&admission, INITIAL).await;
        let answers = std::thread::spawn(move || {
            std::thread::sleep(TIMEOUT / 10);
            admitted.into_iter().for_each(answer);
        });
        let mut waiting = Box::pin(admission.admit(TIMEOUT * 60));
        let (parker, waker) = Parker::current();
        let end = BootInstant::now() + TIMEOUT * 20;
        let mut context = Context::from_waker(&waker);
        while waiting.as_mut().poll(&mut context).is_pending() {
            parker.park(Duration::ZERO, TIMEOUT * 30);
            assert!(BootInstant::now() < end, "it was not woken");
        }
        answers.join().expect("no panic");
    }

    /// A connection that was slow once, with few acquires, sent few at once
    /// ever after.
    #[tokio::test(start_paused = true)]
    async fn low_limit_is_forgotten_while_nothing_is_in_flight() {
        crate::time::begin();
        let admission = with_lowest_limit().await;
        assert_eq!(limit(&admission), LOWEST);
        sleep(REMEMBERED).await;
        let start = BootInstant::now();
        admit(&admission, INITIAL).await;
        assert_eq!(BootInstant::now().since(start), Duration::ZERO);
    }

    /// When all replies came at once, a slow link was taken for one without
    /// acquires, and all that waited left together.
    #[tokio::test(start_paused = true)]
    async fn low_limit_is_kept_while_acquires_wait() {
        crate::time::begin();
        let admission = with_lowest_limit().await;
        sleep(REMEMBERED - TIMEOUT / 2).await;
        let admitted = admit(&admission, LOWEST).await;
        let waiting = [(); INITIAL].map(|()| spawn(&admission));
        sleep(TIMEOUT / 2).await;
        drop(admitted);
        sleep(LOOK * 2).await;
        let left = waiting.iter().filter(|acquire| acquire.is_finished());
        assert_eq!(left.count(), LOWEST);
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
        let mut waiting = Box::pin(admission.admit(TIMEOUT));
        // The first poll only yields.
        for _ in 0..2 {
            let polled = waiting.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        answer(admitted.pop().expect("the last one"));
        assert!(looks.1.load(Ordering::SeqCst), "woken while locked");
    }

    /// What was the usual time once limited the connection without end.
    #[tokio::test(start_paused = true)]
    async fn longer_round_trip_becomes_usual() {
        crate::time::begin();
        let admission = Admission::new();
        let first = admit(&admission, 1).await;
        sleep(Duration::from_millis(1)).await;
        first.into_iter().for_each(answer);
        let start = BootInstant::now();
        while limit(&admission) < INITIAL * 4 {
            assert!(BootInstant::now().since(start) < 2 * REMEMBERED);
            let admitted: Vec<_> = std::iter::from_fn(|| admission.try_admit(|_| true)).collect();
            let _waiting = wait_unpolled(&admission);
            sleep(Duration::from_millis(200)).await;
            admitted.into_iter().for_each(answer);
        }
    }
}
