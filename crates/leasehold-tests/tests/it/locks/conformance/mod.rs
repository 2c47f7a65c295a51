//! The contract of a lock, once; each kind enrols with one line.

mod cases;

use std::time::Duration;

use leasehold::{
    Acquire, Client, Error, FairMutex, Guard, Lease, Mutex, Quorum, Reentrant, RwLock, Semaphore,
};

use crate::support::contract::{Exclusive, Pair};
use crate::support::deployment::Deployment;
use crate::support::{AMPLE, LEASE, SHORT};

/// Enrols a kind whose contract is kept by acquisitions made with one method and one that does not wait.
macro_rules! exclusive {
    ($kind:ident: $type:ident, $make:expr, $lock:ident, $try_lock:ident) => {
        keeps_to!(Client: $type, $make, $lock, $try_lock);
        enrol!($kind: $type);
    };
}

/// Says how a kind is had from a client, and acquired.
macro_rules! keeps_to {
    ($client:ident: $type:ident, $make:expr, $lock:ident, $try_lock:ident) => {
        impl Exclusive<$client> for $type {
            type Guard = Guard;

            fn named(client: &$client, name: &str) -> Self {
                let make: fn(&$client, &str) -> Self = $make;
                make(client, name)
            }
            fn request(&self) -> Acquire {
                $type::$lock(self).into()
            }
            async fn acquire(&self, lock: Acquire) -> Result<Guard, Error> {
                lock.await
            }
            async fn try_lock(&self) -> Result<Option<Guard>, Error> {
                Ok($type::$try_lock(self).await?.map(Into::into))
            }
            async fn run<W>(
                &self,
                lock: Acquire,
                work: impl FnOnce(Vec<Lease>) -> W + Send,
            ) -> Result<W::Output, Error>
            where
                W: Future + Send,
                W::Output: Send,
            {
                lock.run(|lease| work(vec![lease])).await
            }
        }
    };
}

macro_rules! enrol {
    ($kind:ident: $type:ident) => {
        mod $kind {
            contract!($type:
                a_wait_is_kept_to
                a_fixed_lease_ends
                at_most_ends_a_renewed_lease
                excludes_others_until_released
                try_lock_answers_none_while_held
                a_timeout_says_who_holds_it
                a_lease_is_renewed
                a_renewal_stays_within_at_most
                a_fixed_lease_can_be_extended
                releasing_what_was_lost_says_so_and_harms_nobody
                dropping_releases
                run_gives_back_on_every_way_out
                at_least_keeps_others_out_after_a_release
                shutdown_releases_all
                tokens_rise
            );

            #[test]
            #[ignore = "deep: measures times, over ten leases"]
            fn the_contract_is_kept_in_time() {
                crate::support::on_every_server(|server| async move {
                    super::untimed::<_, super::$type>(&server, super::IN_TIME).await;
                    super::timed::<_, super::$type>(&server, super::IN_TIME).await;
                });
            }
        }
    };
}

macro_rules! contract {
    ($type:ident: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                crate::support::on_every_server(|server| async move {
                    super::cases::$case::<_, super::$type>(&server, super::GATE).await;
                });
            }
        )*
    };
}

exclusive!(mutex: Mutex, |client, name| client.mutex(name), lock, try_lock);
exclusive!(reentrant: Reentrant, |client, name| client.mutex(name).reentrant(), lock, try_lock);
exclusive!(fair_mutex: FairMutex, |client, name| client.fair_mutex(name), lock, try_lock);
exclusive!(semaphore: Semaphore, |client, name| client.semaphore(name, 1), acquire, try_acquire);
exclusive!(rw_lock: RwLock, |client, name| client.rw_lock(name), write, try_write);
enrol!(multi_lock: Pair);
keeps_to!(Quorum: Mutex, |quorum, name| quorum.mutex(name), lock, try_lock);
keeps_to!(Quorum: Reentrant, |quorum, name| quorum.mutex(name).reentrant(), lock, try_lock);

/// How long the leases of the contract are, and how strictly its times are measured.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// The lease of a holder that the keeper renews.
    lease: Duration,
    /// How many renewals of it are waited for.
    renewals: u32,
    /// A fixed lease that is waited out.
    fixed: Duration,
    /// The limit of a lease that is renewed until then.
    at_most: Duration,
    /// How long a waiter is watched that must not get the lock.
    watched: Duration,
    /// By how much everything may be late.
    excused: Duration,
}

/// For a machine that stalls: leases outlast a stall, and only what is certain by the clock is asserted.
pub(crate) const GATE: Pace = Pace {
    lease: LEASE,
    renewals: 2,
    fixed: Duration::from_secs(3),
    at_most: Duration::from_secs(3),
    watched: SHORT,
    excused: AMPLE,
};

/// For a quiet machine. The margin of a lease of 2 s (22 ms) is above what a small machine's scheduler does to a thread.
pub(crate) const IN_TIME: Pace = Pace {
    lease: Duration::from_secs(2),
    renewals: 30,
    fixed: Duration::from_secs(2),
    at_most: Duration::from_secs(5),
    watched: Duration::from_secs(4),
    excused: Duration::ZERO,
};

/// How late a busy machine may run a task that was told in time.
const SCHEDULING: Duration = Duration::from_millis(100);

/// All of it for one kind, all at once, except what measures time most strictly.
pub(crate) async fn untimed<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    tokio::join!(
        cases::excludes_others_until_released::<D, K>(site, pace),
        cases::try_lock_answers_none_while_held::<D, K>(site, pace),
        cases::a_timeout_says_who_holds_it::<D, K>(site, pace),
        cases::a_lease_is_renewed::<D, K>(site, pace),
        cases::a_renewal_stays_within_at_most::<D, K>(site, pace),
        cases::a_fixed_lease_can_be_extended::<D, K>(site, pace),
        cases::releasing_what_was_lost_says_so_and_harms_nobody::<D, K>(site, pace),
        cases::dropping_releases::<D, K>(site, pace),
        cases::run_gives_back_on_every_way_out::<D, K>(site, pace),
        cases::at_least_keeps_others_out_after_a_release::<D, K>(site, pace),
        cases::shutdown_releases_all::<D, K>(site, pace),
        cases::tokens_rise::<D, K>(site, pace),
    );
}

/// The rest of it.
pub(crate) async fn timed<D: Deployment, K: Exclusive<D::Client>>(site: &D, pace: Pace) {
    cases::a_wait_is_kept_to::<D, K>(site, pace).await;
    tokio::join!(
        cases::a_fixed_lease_ends::<D, K>(site, pace),
        cases::at_most_ends_a_renewed_lease::<D, K>(site, pace),
    );
}
