//! Work under locks that are lost, done by tasks or by threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use leasehold::{Client, Error, Lost};
use tokio::task::JoinHandle;

use crate::support::callers::{Caller, Tasks, Threads};
use crate::support::contract::{KINDS, Lease, MultiLock, any_lock};
use crate::support::{clock, connect_at};

/// Long enough that its margin (42 ms) is above the scheduling delay of a small
/// machine, which reached 25 ms.
pub(super) const LONG: Duration = Duration::from_secs(4);

/// Work under a lock, which tracks the deadline until it is dropped. All times
/// are on the clock that the library reads.
pub(super) struct Work {
    pub(super) name: String,
    /// The latest deadline observed. The true one is not earlier.
    pub(super) deadline: AtomicU64,
    pub(super) dropped: mpsc::Sender<Hold>,
}

/// How a hold ended.
pub(super) struct Hold {
    pub(super) name: String,
    pub(super) deadline: u64,
    pub(super) dropped: u64,
}

impl Work {
    async fn follow(self, lease: Lease) {
        loop {
            self.observe(&lease);
            tokio::time::sleep(LONG / 40).await;
        }
    }

    fn follow_on_thread(self, lease: &Lease, mut lost: Lost) {
        while !lost.wait_timeout(LONG / 40) {
            self.observe(lease);
        }
    }

    fn observe(&self, lease: &Lease) {
        // In this order, a stall in between makes the deadline seem earlier,
        // never later.
        let now = clock();
        let left = u64::try_from(lease.remaining().as_nanos()).unwrap();
        // With no time remaining, the deadline was before this moment.
        if left > 0 {
            self.deadline.fetch_max(now + left, Ordering::Relaxed);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = self.dropped.send(Hold {
            name: self.name.clone(),
            deadline: self.deadline.load(Ordering::Relaxed),
            dropped: clock(),
        });
    }
}

/// Connects a client that loses its server. It releases the other part of a
/// multi-lock during the outage.
pub(super) async fn connect<U: Caller>(port: u16) -> Client {
    let connect = connect_at(port)
        .lease(LONG)
        .request_timeout(LONG / 4)
        .connect_timeout(LONG * 3 / 4);
    U::complete(connect.into_future()).await.unwrap()
}

/// The holders: tasks or threads.
pub(super) trait Holders: Caller {
    /// Starts to work under a lock, which `begin` announces.
    fn hold(
        client: &Client,
        number: u64,
        work: Work,
        begin: tokio::sync::mpsc::UnboundedSender<()>,
    ) -> JoinHandle<Result<(), Error>>;
}

/// Returns whether the holder `number` has a second lock.
fn has_two_locks(number: u64) -> bool {
    number / KINDS % 4 == 3
}

impl Holders for Tasks {
    fn hold(
        client: &Client,
        number: u64,
        work: Work,
        begin: tokio::sync::mpsc::UnboundedSender<()>,
    ) -> JoinHandle<Result<(), Error>> {
        let lock = any_lock(client, &work.name, number);
        let beside = client.mutex(&format!("beside {}", work.name));
        let work = move |leases: Vec<Lease>| {
            let mut leases = leases.into_iter();
            let lease = leases.find(|lease| lease.name() == work.name);
            begin.send(()).expect("the test waits");
            work.follow(lease.expect("the named lock has a lease"))
        };
        tokio::spawn(async move {
            match has_two_locks(number) {
                true => {
                    let locks = [lock, beside.lock().into()];
                    MultiLock::new(locks).run(work).await
                }
                false => lock.run(|lease| work(vec![lease])).await,
            }
        })
    }
}

impl Holders for Threads {
    fn hold(
        client: &Client,
        number: u64,
        work: Work,
        begin: tokio::sync::mpsc::UnboundedSender<()>,
    ) -> JoinHandle<Result<(), Error>> {
        let lock = any_lock(client, &work.name, number);
        let beside = client.mutex(&format!("beside {}", work.name));
        let beside = has_two_locks(number).then(|| beside.lock().into());
        tokio::task::spawn_blocking(move || {
            let guard = MultiLock::new([lock].into_iter().chain(beside)).wait()?;
            let mut leases = guard.leases();
            let lease = leases.find(|lease| lease.name() == work.name);
            begin.send(()).expect("the test waits");
            let lease = lease.expect("the named lock has a lease");
            work.follow_on_thread(lease, guard.lost());
            guard.check()
        })
    }
}
