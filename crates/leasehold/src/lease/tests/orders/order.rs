//! One order of events, on the real queue.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::runtime::Runtime;

use super::ledger::{CALLERS, Ledger, Lock, Queue, Seat, Wish};
use super::task::serve;
use crate::backend::RequestError;
use crate::lease::attempt::PATIENCE;
use crate::lease::wait::slots::Place;
use crate::sync::Mutex;
use crate::time::BootInstant;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    Arrive(usize),
    Poll(usize),
    Leave(usize),
    Release(usize),
    /// The waiting task runs to the next point at which others may run.
    Work,
    /// The server grants the attempt of the waiting task.
    Acquired,
    /// The server refuses that attempt for good.
    Refused,
    /// The lease of the lock ends.
    Revoke,
    /// A caller's patience passes.
    Elapse,
    /// An outage has lasted too long for callers that arrived before the clock
    /// last moved.
    Outage,
    ShutDown,
}

/// Notes that the task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Woken {
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[derive(Default)]
struct Caller {
    place: Option<Place<Wish, Lock>>,
    holds: Option<Lock>,
    /// Also set until the first poll.
    woken: Arc<Woken>,
}

/// One order of events, so far.
pub(super) struct Order<'a> {
    clock: &'a Runtime,
    ledger: Arc<Mutex<Ledger>>,
    callers: [Caller; CALLERS],
    task: Option<Pin<Box<dyn Future<Output = ()>>>>,
    task_woken: Arc<Woken>,
    events: Vec<Event>,
}

impl Drop for Order<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after {:?}", self.events);
        }
        // No caller gets what is left.
        let mut ledger = self.ledger.lock();
        ledger.seats = [Seat::Done; CALLERS];
        for lease in &mut ledger.leases {
            lease.is_valid = false;
            lease.queue = None;
        }
        ledger.registry = None;
    }
}

impl<'a> Order<'a> {
    pub(super) fn new(clock: &'a Runtime, wishes: [bool; CALLERS], events: &[Event]) -> Self {
        let mut order = Self {
            clock,
            ledger: Arc::new(Mutex::new(Ledger::new(wishes))),
            callers: std::array::from_fn(|_| Caller::default()),
            task: None,
            task_woken: Arc::default(),
            events: Vec::new(),
        };
        for event in events {
            order.happen(*event);
        }
        order
    }

    pub(super) fn seat(&self, caller: usize) -> Seat {
        self.ledger.lock().seats[caller]
    }

    fn advance(&self, by: Duration) {
        self.clock.block_on(tokio::time::advance(by));
    }

    /// Returns the events that can happen next.
    pub(super) fn next(&self) -> Vec<Event> {
        let ledger = self.ledger.lock();
        let mut next = Vec::new();
        let newest = ledger.seats.iter().position(|seat| *seat == Seat::Absent);
        next.extend(newest.map(Event::Arrive));
        for (caller, seat) in ledger.seats.iter().enumerate() {
            match seat {
                Seat::Waiting | Seat::Granted(_) | Seat::Dormant => {
                    next.extend([Event::Poll(caller), Event::Leave(caller)]);
                }
                Seat::Failed => next.push(Event::Poll(caller)),
                Seat::Holding => next.push(Event::Release(caller)),
                Seat::Absent | Seat::Done => {}
            }
        }
        if self.task.is_some() {
            if self.task_woken.get() {
                next.push(Event::Work);
            }
            next.push(Event::ShutDown);
        }
        if ledger.task_at == "seeks" && ledger.reply.is_none() {
            if ledger.server.is_none() {
                next.push(Event::Acquired);
            }
            next.push(Event::Refused);
        }
        if ledger.server.is_some() {
            next.push(Event::Revoke);
        }
        if ledger
            .seats
            .iter()
            .any(|seat| matches!(seat, Seat::Granted(_)))
        {
            next.push(Event::Elapse);
        }
        if ledger.now > 0 && ledger.task_at == "seeks" {
            next.push(Event::Outage);
        }
        next
    }

    pub(super) fn happen(&mut self, event: Event) {
        self.events.push(event);
        let kind = match event {
            Event::Arrive(_) => 0,
            Event::Poll(_) => 1,
            Event::Leave(_) => 2,
            Event::Release(_) => 3,
            Event::Work => 4,
            Event::Revoke => 5,
            Event::Elapse => 6,
            _ => 7,
        };
        self.ledger.lock().since_wait |= 1 << kind;
        match event {
            Event::Arrive(caller) => self.arrive(caller),
            Event::Poll(caller) => self.poll(caller),
            Event::Leave(caller) => {
                self.ledger.lock().seats[caller] = Seat::Done;
                self.callers[caller].place = None;
            }
            Event::Release(caller) => {
                self.ledger.lock().seats[caller] = Seat::Done;
                self.callers[caller].holds = None;
            }
            Event::Work => self.work(),
            Event::Acquired => {
                let lock = Lock::acquire(&self.ledger);
                self.reply(Ok(lock));
            }
            Event::Refused => self.reply(Err(failure())),
            Event::Revoke => {
                let mut ledger = self.ledger.lock();
                let lease = ledger.server.expect("the server has a lease");
                let queue = ledger.end(lease);
                drop(ledger);
                if let Some(queue) = queue {
                    queue.set_here(false);
                }
            }
            Event::Elapse => {
                self.advance(PATIENCE + Duration::from_millis(1));
                self.ledger.lock().now += 1;
            }
            Event::Outage => self.outage(),
            Event::ShutDown => self.shut_down(),
        }
    }

    /// Adds a slot, and starts the waiting task with the first one.
    fn arrive(&mut self, caller: usize) {
        // Two callers never arrive at the same instant.
        self.advance(Duration::from_nanos(1));
        let mut ledger = self.ledger.lock();
        let handoff = ledger.wishes[caller];
        ledger.seats[caller] = Seat::Waiting;
        ledger.arrived[caller] = BootInstant::now();
        let queue = ledger.registry.clone();
        drop(ledger);
        self.callers[caller].woken.0.store(true, Ordering::SeqCst);
        let wish = Wish { caller, handoff };
        if let Some(queue) = queue {
            let Ok(place) = queue.enqueue(wish) else {
                panic!("the queue of a task that runs is closed");
            };
            self.callers[caller].place = Some(place);
            return;
        }
        let queue = Arc::<Queue>::default();
        self.callers[caller].place = queue.enqueue(wish).ok();
        self.ledger.lock().registry = Some(queue.clone());
        self.task = Some(Box::pin(serve(self.ledger.clone(), queue)));
        self.task_woken.0.store(true, Ordering::SeqCst);
    }

    fn poll(&mut self, caller: usize) {
        let Caller {
            place: Some(place),
            woken,
            ..
        } = &self.callers[caller]
        else {
            panic!("polled after its end");
        };
        woken.take();
        let waker = Waker::from(woken.clone());
        let context = Context::from_waker(&waker);
        loop {
            let seat = self.ledger.lock().seats[caller];
            match (place.poll(&context), seat) {
                (Poll::Pending, Seat::Waiting | Seat::Dormant) => {
                    self.ledger.lock().seats[caller] = Seat::Waiting;
                    return;
                }
                (Poll::Ready(Err(_)), Seat::Failed) => {
                    self.ledger.lock().seats[caller] = Seat::Done;
                    break;
                }
                (Poll::Ready(Ok(lock)), Seat::Granted(id)) if id == lock.id => {
                    if !self.ledger.lock().is_valid(id) {
                        self.ledger.lock().seats[caller] = Seat::Waiting;
                        assert!(place.wait_again(), "its task has ended");
                        drop(lock);
                        continue;
                    }
                    self.hold(caller, lock);
                    break;
                }
                (poll, _) => panic!("{caller} is {seat:?}, and sees {:?}", poll.map(|_| ())),
            }
        }
        self.callers[caller].place = None;
    }

    fn hold(&mut self, caller: usize, lock: Lock) {
        let mut ledger = self.ledger.lock();
        for other in self.callers.iter().filter_map(|other| other.holds.as_ref()) {
            assert!(!ledger.is_valid(other.id), "two holders");
        }
        ledger.seats[caller] = Seat::Holding;
        drop(ledger);
        self.callers[caller].holds = Some(lock);
    }

    fn work(&mut self) {
        assert!(self.task_woken.take());
        let waker = Waker::from(self.task_woken.clone());
        let task = self.task.as_mut().expect("a task runs");
        if task
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
        {
            self.task = None;
        }
    }

    fn reply(&self, reply: Result<Lock, RequestError>) {
        self.ledger.lock().reply = Some(reply);
        self.task_woken.0.store(true, Ordering::SeqCst);
    }

    /// Fails the callers that arrived before the clock last moved.
    fn outage(&self) {
        let limit = PATIENCE / 2;
        let mut ledger = self.ledger.lock();
        let Ledger { seats, arrived, .. } = &mut *ledger;
        for (seat, arrived) in seats.iter_mut().zip(arrived) {
            let is_overdue = BootInstant::now().since(*arrived) > limit;
            if is_overdue && matches!(seat, Seat::Waiting | Seat::Dormant) {
                *seat = Seat::Failed;
            }
        }
        let queue = ledger.registry.clone();
        drop(ledger);
        let queue = queue.expect("a task runs");
        queue.fail_overdue(BootInstant::from_nanos(0), limit, &failure());
    }

    /// Ends the waiting task, as a shutdown does.
    fn shut_down(&mut self) {
        self.task = None;
        let mut ledger = self.ledger.lock();
        for seat in ledger.seats.iter_mut().filter(|seat| Ledger::is_live(seat)) {
            *seat = Seat::Failed;
        }
        ledger.task_at = "shut down";
        let (queue, reply) = (ledger.registry.take(), ledger.reply.take());
        drop(ledger);
        drop(reply);
        drop(queue.map(|queue| queue.close()));
    }

    /// Runs until nothing happens by itself any more. One caller is not polled.
    pub(super) fn run_out(&mut self, kept: Option<usize>) {
        let mut quiet = 0;
        while quiet < 3 {
            assert!(self.events.len() < 500, "it does not end");
            let next = self.next().into_iter().find(|event| match event {
                Event::Work | Event::Acquired => true,
                Event::Release(caller) => kept != Some(*caller),
                Event::Poll(caller) => kept != Some(*caller) && self.callers[*caller].woken.get(),
                _ => false,
            });
            quiet = next.map_or(quiet + 1, |_| 0);
            self.happen(next.unwrap_or(Event::Elapse));
        }
    }

    /// Asserts that all callers but one are served.
    pub(super) fn assert_served(&self, kept: Option<usize>) {
        for caller in (0..CALLERS).filter(|caller| kept != Some(*caller)) {
            let seat = self.seat(caller);
            let is_over = matches!(seat, Seat::Absent | Seat::Done);
            assert!(is_over, "{caller} is forgotten: {seat:?}");
        }
    }

    pub(super) fn assert_nothing_left(&self) {
        let ledger = self.ledger.lock();
        assert!(self.task.is_none(), "the task does not end");
        assert!(ledger.server.is_none(), "a lease is left");
        assert_eq!(ledger.locks, 0, "a lock is left");
    }

    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.ledger.lock().hash(&mut hasher);
        self.task_woken.get().hash(&mut hasher);
        for caller in &self.callers {
            caller.woken.get().hash(&mut hasher);
            if let Some(lock) = &caller.holds {
                self.ledger.lock().is_valid(lock.id).hash(&mut hasher);
            }
        }
        // What the queue knows, and the ledger does not.
        self.events.last().hash(&mut hasher);
        hasher.finish()
    }
}

fn failure() -> RequestError {
    RequestError::Unknown("refused".into())
}
