//! The contract that every exclusive lock fulfils. Each lock type is registered
//! with one line.

mod cases;

use std::time::Duration;

use leasehold::{Client, Error, FairMutex, Mutex, Pending, Quorum, Reentrant, RwLock, Semaphore};

use crate::support::contract::{Acquire, ExclusiveLock, Guard, Lease, LockOf, LockPair};
use crate::support::deployment::{Deployment, OnThreads};
use crate::support::{AMPLE, LEASE, SHORT};

/// Implements [`ExclusiveLock`] for a type, and registers its tests.
macro_rules! conforms {
    ($kind:ident: $type:ident, $make:expr, $lock:ident, $try_lock:ident) => {
        impl_exclusive_lock!($type, $lock, $try_lock);
        impl_lock_of!(Client: $type, $make);
        register!($kind: $type);
    };
}

/// Implements [`ExclusiveLock`] by the type's own methods.
macro_rules! impl_exclusive_lock {
    ($type:ident, $lock:ident, $try_lock:ident) => {
        impl ExclusiveLock for $type {
            type Guard = Guard;

            fn request(&self) -> Acquire {
                $type::$lock(self).into()
            }
            fn acquire(&self, lock: Acquire) -> Pending<'static, Guard> {
                lock.into_future()
            }
            fn try_lock(&self) -> Pending<'static, Guard> {
                Acquire::from($type::$try_lock(self)).into_future()
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
            fn run_blocking<T>(
                &self,
                lock: Acquire,
                work: impl FnOnce(Vec<Lease>) -> T,
            ) -> Result<T, Error> {
                lock.run_blocking(|lease| work(vec![lease.clone()]))
            }
        }
    };
}

macro_rules! impl_lock_of {
    ($client:ident: $type:ident, $make:expr) => {
        impl LockOf<$client> for $type {
            fn with_name(client: &$client, name: &str) -> Self {
                let make: fn(&$client, &str) -> Self = $make;
                make(client, name)
            }
        }
    };
}

macro_rules! register {
    ($kind:ident: $type:ident) => {
        mod $kind {
            use super::*;

            register_cases!($type:
                timeout_is_respected
                fixed_lease_expires
                at_most_ends_renewed_lease
                lock_excludes_others_until_released
                try_lock_while_held_is_busy
                timeout_names_the_holder
                lease_is_renewed
                lease_option_sets_renewed_length
                renewal_stays_within_at_most
                fixed_lease_is_extended
                release_after_loss_fails
                dropped_guard_releases
                run_releases_on_every_exit
                at_least_excludes_others_after_release
                shutdown_releases_all_locks
                tokens_increase
            );

            #[test]
            #[ignore = "deep: measures times, over ten leases"]
            fn contract_holds_under_strict_timing() {
                crate::support::on_every_server(|server| async move {
                    check_cases::<_, $type>(&server, STRICT).await;
                    check_strict_cases::<_, $type>(&server, STRICT).await;
                });
            }

            #[test]
            fn contract_holds_for_threads() {
                crate::support::on_every_server(|server| async move {
                    check_cases::<_, $type>(&OnThreads(&server), GATE).await;
                    check_strict_cases::<_, $type>(&OnThreads(&server), GATE).await;
                });
            }

            #[test]
            #[ignore = "deep: measures times, over ten leases"]
            fn contract_holds_for_threads_under_strict_timing() {
                crate::support::on_every_server(|server| async move {
                    check_cases::<_, $type>(&OnThreads(&server), STRICT).await;
                    check_strict_cases::<_, $type>(&OnThreads(&server), STRICT).await;
                });
            }
        }
    };
}

macro_rules! register_cases {
    ($type:ident: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                crate::support::on_every_server(|server| async move {
                    cases::$case::<_, $type>(&server, GATE).await;
                });
            }
        )*
    };
}

conforms!(mutex: Mutex, |client, name| client.mutex(name), lock, try_lock);
conforms!(reentrant: Reentrant, |client, name| client.mutex(name).reentrant(), lock, try_lock);
conforms!(fair_mutex: FairMutex, |client, name| client.fair_mutex(name), lock, try_lock);
conforms!(semaphore: Semaphore, |client, name| client.semaphore(name, 1), acquire, try_acquire);
conforms!(rw_lock: RwLock, |client, name| client.rw_lock(name), write, try_write);
register!(multi_lock: LockPair);
impl_lock_of!(Quorum: Mutex, |quorum, name| quorum.mutex(name));
impl_lock_of!(Quorum: Reentrant, |quorum, name| quorum.mutex(name).reentrant());

/// The leases of the contract, and how strictly it measures times.
#[derive(Clone, Copy)]
pub(crate) struct Timing {
    /// The lease of a holder that the keeper renews.
    lease: Duration,
    /// The number of renewals to wait for.
    renewals: u32,
    /// A fixed lease that expires.
    fixed: Duration,
    /// The `at_most` of a renewed lease.
    at_most: Duration,
    /// How long to observe a waiter that must not acquire the lock.
    observed: Duration,
    /// How late any event may be.
    tolerance: Duration,
}

/// For a machine that stalls: leases survive a stall, and the cases assert only
/// what the clock proves.
pub(crate) const GATE: Timing = Timing {
    lease: LEASE,
    renewals: 2,
    fixed: Duration::from_secs(3),
    at_most: Duration::from_secs(3),
    observed: SHORT,
    tolerance: AMPLE,
};

/// For a quiet machine. The margin of a lease of 2 s (22 ms) is above the
/// scheduling delay of a small machine.
pub(crate) const STRICT: Timing = Timing {
    lease: Duration::from_secs(2),
    renewals: 30,
    fixed: Duration::from_secs(2),
    at_most: Duration::from_secs(5),
    observed: Duration::from_secs(4),
    tolerance: Duration::ZERO,
};

/// How late a busy machine may run a task that was woken in time.
const SCHEDULING: Duration = Duration::from_millis(100);

/// Runs all cases for one lock type concurrently, except those with the
/// strictest timing.
pub(crate) async fn check_cases<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    tokio::join!(
        cases::lock_excludes_others_until_released::<D, K>(deployment, timing),
        cases::try_lock_while_held_is_busy::<D, K>(deployment, timing),
        cases::timeout_names_the_holder::<D, K>(deployment, timing),
        cases::lease_is_renewed::<D, K>(deployment, timing),
        cases::lease_option_sets_renewed_length::<D, K>(deployment, timing),
        cases::renewal_stays_within_at_most::<D, K>(deployment, timing),
        cases::fixed_lease_is_extended::<D, K>(deployment, timing),
        cases::release_after_loss_fails::<D, K>(deployment, timing),
        cases::dropped_guard_releases::<D, K>(deployment, timing),
        cases::run_releases_on_every_exit::<D, K>(deployment, timing),
        cases::at_least_excludes_others_after_release::<D, K>(deployment, timing),
        cases::shutdown_releases_all_locks::<D, K>(deployment, timing),
        cases::tokens_increase::<D, K>(deployment, timing),
    );
}

/// Runs the remaining cases.
pub(crate) async fn check_strict_cases<D: Deployment, K: LockOf<D::Client>>(
    deployment: &D,
    timing: Timing,
) {
    cases::timeout_is_respected::<D, K>(deployment, timing).await;
    tokio::join!(
        cases::fixed_lease_expires::<D, K>(deployment, timing),
        cases::at_most_ends_renewed_lease::<D, K>(deployment, timing),
    );
}
