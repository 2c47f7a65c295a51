//! The options of an acquire: their defaults, limits and validation.

use std::panic::Location;
use std::time::Duration;

use crate::error::Error;
use crate::trace_parent::TraceParentSource;

/// Long enough to survive a pause or a short outage, short enough that a
/// crashed holder blocks other clients for half a minute at most. Redisson's
/// default is the same.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// Limits the note, which is stored with every held lock, in bytes.
pub(crate) const MAX_NOTE_LEN: usize = 256;

/// Below this, network latency and timers consume the lease.
const MIN_LEASE: Duration = Duration::from_millis(20);

/// Far beyond any use, and far below an overflow on the server or of an
/// instant.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(366 * 86_400);

/// The shortest timeout, and the shortest lifetime that the server can
/// represent.
pub(crate) const ONE_MILLISECOND: Duration = Duration::from_millis(1);

/// How many replicas must acknowledge a lock; see
/// [`Acquire::replicas`](crate::Acquire::replicas).
///
/// A number converts into [`AtLeast`](Self::AtLeast).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Replicas {
    /// At least this many replicas. A failover can still promote a replica that
    /// did not acknowledge the lock.
    AtLeast(u32),
    /// All replicas, and at least one.
    ///
    /// These are all that the sentinels or the cluster know of, including those
    /// that are down. Behind a plain address, the number is the largest that
    /// this client has seen connected. Their clocks must agree with the
    /// master's; see [`guarantees`](crate::guarantees).
    All,
}

impl From<u32> for Replicas {
    fn from(count: u32) -> Self {
        Self::AtLeast(count)
    }
}

/// Which replicas must acknowledge a write, and within which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReplicaAck {
    pub(crate) replicas: Replicas,
    pub(crate) timeout: Duration,
}

/// The options of one acquire.
#[derive(Clone, Debug)]
pub(crate) struct AcquireOptions {
    pub(crate) lease: Duration,
    /// The longest lease that this client can request.
    pub(crate) max_lease: Duration,
    /// Whether the lock expires at all. Without it, `lease` is the longest.
    pub(crate) expires: bool,
    /// Whether the keeper renews the lease; false for a fixed lease.
    pub(crate) renewed: bool,
    /// Whether to wait for a lock that is busy.
    pub(crate) waits: bool,
    /// How long the acquire can take; without a limit when `None`.
    pub(crate) timeout: Option<Duration>,
    pub(crate) at_least: Duration,
    /// Whether the caller gets the lock only together with others.
    pub(crate) is_part: bool,
    pub(crate) at_most: Option<Duration>,
    /// After how long without progress the keeper stops renewing.
    pub(crate) progress_within: Option<Duration>,
    /// The acknowledgement required besides the master's reply.
    pub(crate) replica_ack: Option<ReplicaAck>,
    /// Whether a majority of several servers grants the lock.
    pub(crate) quorum: bool,
    pub(crate) note: String,
    /// Whether tasks of this client may hand the lock off to each other.
    pub(crate) local_handoff: bool,
    /// After which time a hold is reported as slow.
    pub(crate) slow_hold: Option<Duration>,
    pub(crate) trace_parent: Option<TraceParentSource>,
    /// The trace of the task that asked for the lock.
    pub(crate) trace: Option<String>,
    /// Where the caller asked for the lock.
    pub(crate) caller: &'static Location<'static>,
}

impl AcquireOptions {
    #[track_caller]
    pub(crate) fn new(lease: Duration) -> Self {
        Self {
            lease,
            max_lease: MAX_LEASE,
            expires: true,
            renewed: true,
            waits: true,
            timeout: None,
            at_least: Duration::ZERO,
            is_part: false,
            at_most: None,
            progress_within: None,
            replica_ack: None,
            quorum: false,
            note: String::new(),
            local_handoff: true,
            slow_hold: None,
            trace_parent: None,
            trace: None,
            caller: Location::caller(),
        }
    }

    /// Adds the trace of the current task, once: the acquire may continue on
    /// the keeper's runtime, which is not the caller's task.
    pub(crate) fn add_trace_parent(&mut self) {
        if let Some(source) = self.trace_parent.take() {
            self.trace = source.current();
        }
    }

    /// Returns whether an acquire with the other options results in the same
    /// lease, so that either caller can have it.
    pub(crate) fn acquire_same_lease(&self, other: &Self) -> bool {
        let lease = |options: &Self| (options.lease, options.max_lease, options.renewed);
        let limits = |options: &Self| (options.at_least, options.at_most, options.slow_hold);
        let rest = |options: &Self| (options.replica_ack, options.quorum, options.local_handoff);
        lease(self) == lease(other)
            && limits(self) == limits(other)
            && rest(self) == rest(other)
            && (&self.note, &self.trace) == (&other.note, &other.trace)
    }

    /// Returns whether the lock may be handed off to another task.
    ///
    /// A fixed lease, `at_least` and `at_most` belong to one holder: they would
    /// not hold for the next task.
    pub(crate) fn allows_handoff(&self) -> bool {
        self.local_handoff && self.renewed && self.at_most.is_none() && self.at_least.is_zero()
    }

    /// Returns the lease to acquire with: `at_most` limits the first one too.
    pub(crate) fn first_lease(&self) -> Duration {
        let longest = self.at_most.unwrap_or(Duration::MAX);
        self.lease.min(longest)
    }

    /// Rejects invalid options before a request is sent.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        check_range("max_lease", self.max_lease, MIN_LEASE, MAX_LEASE)?;
        validate_lease(self.lease, self.max_lease)?;
        check_range("at_least", self.at_least, Duration::ZERO, self.max_lease)?;
        let limits_lease = self.renewed || self.lease < MAX_LEASE || self.at_most.is_some();
        if !self.expires && (limits_lease || !self.at_least.is_zero()) {
            let why = "these permits do not expire: they have no lease to limit or renew";
            return Err(Error::invalid("lease", why));
        }
        if !self.renewed && self.at_least > self.lease {
            let (at_least, lease) = (self.at_least, self.lease);
            let why = format!("{at_least:?} is longer than the fixed lease of {lease:?}");
            return Err(Error::invalid("at_least", why));
        }
        if let Some(at_most) = self.at_most {
            check_range("at_most", at_most, MIN_LEASE, MAX_LEASE)?;
            if at_most < self.at_least {
                let at_least = self.at_least;
                let why = format!("{at_most:?} is shorter than the `at_least` of {at_least:?}");
                return Err(Error::invalid("at_most", why));
            }
        }
        if let Some(limit) = self.progress_within {
            check_range("progress_within", limit, ONE_MILLISECOND, MAX_LEASE)?;
            if !self.renewed {
                let why = "a fixed lease is not renewed, with or without progress";
                return Err(Error::invalid("progress_within", why));
            }
        }
        if let Some(replica_ack) = self.replica_ack {
            if !self.expires {
                let why = "these permits are not renewed, so no replica can acknowledge them";
                return Err(Error::invalid("replicas", why));
            }
            self.validate_replica_ack(replica_ack)?;
        }
        check_len("note", &self.note, MAX_NOTE_LEN)
    }

    fn validate_replica_ack(&self, replica_ack: ReplicaAck) -> Result<(), Error> {
        let (timeout, lease) = (replica_ack.timeout, self.first_lease());
        check_range("replicas", timeout, ONE_MILLISECOND, MAX_LEASE)?;
        if self.quorum {
            let why = "a quorum does not wait for replicas";
            return Err(Error::invalid("replicas", why));
        }
        if timeout >= lease {
            let why =
                format!("the timeout of {timeout:?} is not shorter than the lease of {lease:?}");
            return Err(Error::invalid("replicas", why));
        }
        Ok(())
    }
}

/// Checks a lease's length.
pub(crate) fn validate_lease(lease: Duration, max_lease: Duration) -> Result<(), Error> {
    check_range("lease", lease, MIN_LEASE, max_lease)
}

/// Checks how long a lock waits to be adopted.
pub(crate) fn validate_within(within: Duration) -> Result<(), Error> {
    check_range("within", within, MIN_LEASE, MAX_LEASE)
}

/// Checks the lifetime of a latch.
pub(crate) fn validate_life(life: Duration) -> Result<(), Error> {
    check_range("life", life, ONE_MILLISECOND, MAX_LEASE)
}

/// Checks the limit for a request or a connection. `what` names the setting.
pub(crate) fn validate_timeout(what: &'static str, limit: Duration) -> Result<(), Error> {
    check_range(what, limit, ONE_MILLISECOND, MAX_LEASE)
}

/// Checks the length of a text in bytes.
pub(crate) fn check_len(what: &'static str, text: &str, max: usize) -> Result<(), Error> {
    let len = text.len();
    if len > max {
        let why = format!("{len} bytes is above the maximum of {max}");
        return Err(Error::invalid(what, why));
    }
    Ok(())
}

/// Returns the part of a lease that is not relied on, because clocks drift and
/// timers fire late.
pub(crate) fn margin(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// Returns whole milliseconds, rounded up, so the server never holds a lock for
/// less than was requested.
pub(crate) fn millis_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn check_range(
    what: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
) -> Result<(), Error> {
    let why = if value < min {
        format!("{value:?} is below the minimum of {min:?}")
    } else if value > max {
        format!("{value:?} is above the maximum of {max:?}")
    } else {
        return Ok(());
    };
    Err(Error::invalid(what, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_out_of_range_is_rejected() {
        for (lease, valid) in [
            (Duration::ZERO, false),
            (Duration::from_millis(1), false),
            (MIN_LEASE, true),
            (DEFAULT_LEASE, true),
            (MAX_LEASE, true),
            (Duration::MAX, false),
        ] {
            assert_eq!(
                AcquireOptions::new(lease).validate().is_ok(),
                valid,
                "{lease:?}"
            );
        }
    }

    #[test]
    fn error_names_value_and_limit() {
        let options = AcquireOptions::new(Duration::from_millis(1));
        let error = options.validate().unwrap_err().to_string();
        let expected = "invalid `lease`: 1ms is below the minimum of 20ms";
        assert_eq!(error, expected);
    }

    #[test]
    fn at_most_below_at_least_is_rejected() {
        let mut options = AcquireOptions::new(DEFAULT_LEASE);
        options.at_least = Duration::from_secs(2);
        options.at_most = Some(Duration::from_secs(1));
        let error = options.validate().unwrap_err().to_string();
        let expected = "invalid `at_most`: 1s is shorter than the `at_least` of 2s";
        assert_eq!(error, expected);
    }

    #[test]
    fn at_least_above_fixed_lease_is_rejected() {
        let mut options = AcquireOptions::new(Duration::from_secs(2));
        options.at_least = Duration::from_secs(5);
        assert!(options.validate().is_ok(), "a renewed lease reaches it");
        options.renewed = false;
        let error = options.validate().unwrap_err().to_string();
        assert!(error.contains("5s") && error.contains("2s"), "{error}");
        options.at_least = options.lease;
        assert!(options.validate().is_ok());
    }

    #[test]
    fn replicas_slower_than_the_first_lease_are_rejected() {
        let mut options = AcquireOptions::new(Duration::from_secs(30));
        options.replica_ack = Some(ReplicaAck {
            replicas: Replicas::All,
            timeout: Duration::from_secs(2),
        });
        assert!(options.validate().is_ok());
        options.at_most = Some(Duration::from_secs(1));
        let error = options.validate().unwrap_err().to_string();
        assert!(error.contains("2s") && error.contains("1s"), "{error}");
    }

    #[test]
    fn progress_limit_needs_a_renewed_lease() {
        let mut options = AcquireOptions::new(DEFAULT_LEASE);
        for (limit, valid) in [
            (Duration::ZERO, false),
            (ONE_MILLISECOND, true),
            (DEFAULT_LEASE * 100, true),
            (Duration::MAX, false),
        ] {
            options.progress_within = Some(limit);
            assert_eq!(options.validate().is_ok(), valid, "{limit:?}");
        }
        options.progress_within = Some(DEFAULT_LEASE);
        options.renewed = false;
        let error = options.validate().unwrap_err().to_string();
        assert!(error.contains("`progress_within`"), "{error}");
    }

    #[test]
    fn milliseconds_round_up() {
        assert_eq!(millis_up(Duration::from_micros(20_001)), 21);
        assert_eq!(millis_up(Duration::from_millis(20)), 20);
    }
}
