//! The properties of a server that locks depend on.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Client;
use crate::backend::Slot;
use crate::error::Error;
use crate::info::Messages;
use crate::lease::Pending;
use crate::protocol::{Report, clock, report};

/// The number of round trips that are measured. The shortest one counts.
const SAMPLES: usize = 5;

/// What we know about one server, from
/// [`Client::server_info`](crate::Client::server_info).
///
/// A field is `None` if the server's ACL does not let this user read it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ServerInfo {
    /// The name and version of the server.
    pub version: String,
    /// Whether the server has a native compare-and-delete command, so a release
    /// needs no script.
    pub native_release: bool,
    /// How messages reach waiters: a release, a grant, a revocation.
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error, Messages};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// for server in client.server_info().await? {
    ///     if server.messages == Messages::Polled {
    ///         eprintln!("{}: waiters poll once a second", server.version);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub messages: Messages,
    /// Whether the server is a node of a cluster.
    pub cluster: bool,
    /// The setting `maxmemory-policy`. Every value except `noeviction` can
    /// evict locks.
    pub eviction_policy: Option<String>,
    /// The setting `maxmemory` in bytes; 0 means no limit.
    pub max_memory: Option<u64>,
    /// The number of connected replicas.
    pub replicas: Option<u32>,
    /// The setting `min-replicas-to-write`: how many replicas must be connected
    /// for the server to accept writes.
    pub min_replicas: Option<u32>,
    /// The setting `save`: when the server writes snapshots; empty for never.
    pub snapshots: Option<String>,
    /// The setting `appendfsync` if the append-only file is enabled, as in
    /// `everysec`; otherwise `no`.
    pub append_only: Option<String>,
    /// The time since the server started.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "uptime_ms", serialize_with = "crate::info::millis")
    )]
    pub uptime: Option<Duration>,
    /// The shortest of a few measured round trips.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "round_trip_us", serialize_with = "micros")
    )]
    pub round_trip: Duration,
    /// How far the server's clock is ahead of the local one, in seconds. The
    /// measurement is accurate to half a round trip.
    pub clock_ahead: Option<f64>,
    /// The largest difference between this server's clock and the clock of a
    /// replica, in seconds. `None` without replicas, in a cluster, and if a
    /// replica cannot be reached or the user may not send `ROLE`.
    ///
    /// Replica acknowledgement needs clocks that agree within a hundredth of
    /// the lease and 2 ms: expiries are replicated as absolute times.
    pub replica_clock_difference: Option<f64>,
}

impl Client {
    /// Returns the server properties that locks depend on; in a cluster, those
    /// of every node that owns slots.
    ///
    /// Sends `TIME`, `INFO`, `CONFIG GET` and `ROLE`, and connects to a single
    /// server's replicas to read their clocks. The user needs only permission
    /// for `TIME`; fields that depend on the rest are then `None`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if a server does not
    /// reply.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use leasehold::{Client, Error};
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// for server in client.server_info().await? {
    ///     if server.eviction_policy.as_deref() != Some("noeviction") {
    ///         eprintln!("{} can evict locks", server.version);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn server_info(&self) -> Pending<'_, Vec<ServerInfo>> {
        self.engine.pending(self.server_info_now())
    }

    async fn server_info_now(&self) -> Result<Vec<ServerInfo>, Error> {
        let mut servers = Vec::new();
        for slot in self.engine.shards().await? {
            servers.push(self.server_info_of(slot).await?);
        }
        Ok(servers)
    }

    async fn server_info_of(&self, slot: Slot) -> Result<ServerInfo, Error> {
        let facts = self.engine.facts(slot).await?;
        let report = self.engine.send(slot, "", report()).await?;
        let (mut round_trip, mut clock_ahead) = (Duration::MAX, None);
        for _ in 0..SAMPLES {
            let start = Instant::now();
            let server_micros = self.engine.send(slot, "", clock()).await?;
            let elapsed = start.elapsed();
            if elapsed < round_trip {
                round_trip = elapsed;
                clock_ahead = server_micros.map(|micros| seconds_ahead(micros, elapsed / 2));
            }
        }
        let replica_clock_difference = match clock_ahead {
            Some(ahead) => self.replica_clock_difference(ahead).await,
            None => None,
        };
        let number = |name| report.info(name)?.parse().ok();
        Ok(ServerInfo {
            version: facts.version.clone(),
            native_release: facts.capabilities.delex || facts.capabilities.delifeq,
            messages: facts.capabilities.messages,
            cluster: self.keyspace.divides_slots(),
            eviction_policy: report.info("maxmemory_policy").map(str::to_owned),
            max_memory: number("maxmemory"),
            replicas: number("connected_slaves").and_then(|count| u32::try_from(count).ok()),
            min_replicas: report
                .setting("min-replicas-to-write")
                .and_then(|count| count.parse().ok()),
            snapshots: report.setting("save").map(str::to_owned),
            append_only: append_only(&report),
            uptime: number("uptime_in_seconds").map(Duration::from_secs),
            round_trip,
            clock_ahead,
            replica_clock_difference,
        })
    }

    /// Compares the replicas' clocks with the clock of their master, which is
    /// `master_ahead` seconds ahead of the local clock.
    async fn replica_clock_difference(&self, master_ahead: f64) -> Option<f64> {
        let replicas = self.engine.replicas().await.ok()?;
        let differences = replicas.iter().map(|replica| {
            let ahead = seconds_ahead(replica.server_now(), Duration::ZERO);
            (ahead - master_ahead).abs()
        });
        differences.reduce(f64::max)
    }
}

/// Returns when the append-only file is flushed, or `no` if it is disabled.
fn append_only(report: &Report) -> Option<String> {
    let enabled = report.setting("appendonly").map(|value| value == "yes");
    match enabled.or_else(|| Some(report.info("aof_enabled")? == "1"))? {
        false => Some("no".to_owned()),
        true => Some(report.setting("appendfsync").unwrap_or("yes").to_owned()),
    }
}

/// Returns how far a server's clock is ahead of the local one, in seconds. The
/// server's clock was read `age` ago.
fn seconds_ahead(server_micros: u64, age: Duration) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let local = now.unwrap_or_default().saturating_sub(age).as_secs_f64();
    Duration::from_micros(server_micros).as_secs_f64() - local
}

/// Serializes a duration as whole microseconds.
#[cfg(feature = "serde")]
fn micros<S>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
{
    serializer.serialize_u64(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}
