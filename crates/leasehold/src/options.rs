//! The options of an acquisition: validated values, every default with its reason.

use std::time::Duration;

use crate::error::Error;

/// Long enough that a garbage collection or a short outage costs nothing, short enough that a crashed
/// holder blocks others for half a minute at most; what Redisson's users are used to.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// Longest note: it is stored with every held lock.
pub(crate) const NOTE_LIMIT: usize = 256;

/// Shorter than this, network and timers eat up the lease.
const MIN_LEASE: Duration = Duration::from_millis(20);

/// Far beyond any use, far below what overflows in a server.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(366 * 86_400);

/// How many replicas must have what was written before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Replicas {
    /// So many of them. A failover may still choose one that is not among them.
    AtLeast(u32),
    /// All that the sentinels or the cluster know of, also those that are down; behind a plain address, the
    /// most that this client has seen connected. At least one.
    All,
}

impl From<u32> for Replicas {
    fn from(count: u32) -> Self {
        Self::AtLeast(count)
    }
}

/// What is waited for before something counts, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReplicaAck {
    pub(crate) replicas: Replicas,
    pub(crate) timeout: Duration,
}

/// Under which conditions a lock is taken and kept.
#[derive(Clone, Debug)]
pub(crate) struct AcquireOptions {
    pub(crate) lease: Duration,
    /// How long any lease may be.
    pub(crate) max_lease: Duration,
    /// Whether the keeper renews the lease: not when the caller fixed its length.
    pub(crate) renewed: bool,
    /// How long to wait for the lock; for ever when `None`.
    pub(crate) timeout: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) at_most: Option<Duration>,
    /// What must have the lock besides the server that grants it.
    pub(crate) replica_ack: Option<ReplicaAck>,
    /// Whether a majority of several servers grants it.
    pub(crate) quorum: bool,
    pub(crate) note: String,
    /// Whether tasks of this process may leave the lock to each other.
    pub(crate) local_handoff: bool,
}

impl AcquireOptions {
    pub(crate) fn new(lease: Duration) -> Self {
        Self {
            lease,
            max_lease: MAX_LEASE,
            renewed: true,
            timeout: None,
            at_least: Duration::ZERO,
            at_most: None,
            replica_ack: None,
            quorum: false,
            note: String::new(),
            local_handoff: true,
        }
    }

    /// Whether a lock on these options may be left to another task: not where more was agreed than that it is held
    /// until it is given back.
    pub(crate) fn allows_handoff(&self) -> bool {
        self.local_handoff && self.renewed && self.at_most.is_none() && self.at_least.is_zero()
    }

    /// Refuses what the protocol must not see, before anything is sent.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        validate_lease(self.lease, self.max_lease)?;
        within("at_least", self.at_least, Duration::ZERO, self.max_lease)?;
        if !self.renewed && self.at_least > self.lease {
            let (least, lease) = (self.at_least, self.lease);
            let why = format!("{least:?} is longer than the fixed lease of {lease:?}");
            return Err(Error::invalid("at_least", why));
        }
        if let Some(at_most) = self.at_most {
            within("at_most", at_most, MIN_LEASE, MAX_LEASE)?;
            if at_most < self.at_least {
                return Err(Error::invalid("at_most", "it is shorter than at_least"));
            }
        }
        if let Some(replica_ack) = self.replica_ack {
            within(
                "replicas",
                replica_ack.timeout,
                Duration::from_millis(1),
                MAX_LEASE,
            )?;
            if self.quorum {
                let why = "a majority of servers needs none";
                return Err(Error::invalid("replicas", why));
            }
            if replica_ack.timeout >= self.lease {
                let why = "they may not take as long as the lease";
                return Err(Error::invalid("replicas", why));
            }
        }
        if self.note.len() > NOTE_LIMIT {
            let why = format!("longer than {NOTE_LIMIT} bytes");
            return Err(Error::invalid("note", why));
        }
        Ok(())
    }
}

/// Checks a lease, where none may be longer than `longest`.
pub(crate) fn validate_lease(lease: Duration, max_lease: Duration) -> Result<(), Error> {
    within("lease", lease, MIN_LEASE, max_lease)
}

/// Checks how long something that nobody holds is to be kept.
pub(crate) fn validate_life(life: Duration) -> Result<(), Error> {
    within("life", life, Duration::from_millis(1), MAX_LEASE)
}

/// The part of a lease that is not counted on: clocks run apart, and timers fire late.
pub(crate) fn margin(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// Whole milliseconds, rounded up: the server never keeps a lock shorter than was asked.
pub(crate) fn millis_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn within(
    what: &'static str,
    value: Duration,
    shortest: Duration,
    longest: Duration,
) -> Result<(), Error> {
    if value < shortest {
        Err(Error::invalid(
            what,
            format!("{value:?} is below {shortest:?}"),
        ))
    } else if value > longest {
        Err(Error::invalid(
            what,
            format!("{value:?} is above {longest:?}"),
        ))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_outside_their_range_are_refused() {
        for (lease, fine) in [
            (Duration::ZERO, false),
            (Duration::from_millis(1), false),
            (MIN_LEASE, true),
            (DEFAULT_LEASE, true),
            (MAX_LEASE, true),
            (Duration::MAX, false),
        ] {
            assert_eq!(
                AcquireOptions::new(lease).validate().is_ok(),
                fine,
                "{lease:?}"
            );
        }
    }

    #[test]
    fn a_limit_below_the_least_is_refused() {
        let mut options = AcquireOptions::new(DEFAULT_LEASE);
        options.at_least = Duration::from_secs(2);
        options.at_most = Some(Duration::from_secs(1));
        assert!(options.validate().is_err());
    }

    #[test]
    fn least_above_a_fixed_lease_is_refused() {
        let mut options = AcquireOptions::new(Duration::from_secs(2));
        options.at_least = Duration::from_secs(5);
        assert!(options.validate().is_ok(), "it is renewed until then");
        options.renewed = false;
        let error = options.validate().unwrap_err().to_string();
        assert!(error.contains("5s") && error.contains("2s"), "{error}");
        options.at_least = options.lease;
        assert!(options.validate().is_ok());
    }

    #[test]
    fn milliseconds_are_rounded_up() {
        assert_eq!(millis_up(Duration::from_micros(20_001)), 21);
        assert_eq!(millis_up(Duration::from_millis(20)), 20);
    }
}
