//! Examining a server: what it says of itself that locks depend on.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Client;
use crate::backend::Slot;
use crate::error::Error;
use crate::protocol::{Report, clock, report};

/// How often the round trip is measured; the shortest counts.
const ROUNDS: usize = 5;

/// What one server says of itself; `None` for what it does not tell this user.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ServerInfo {
    /// Its name and version.
    pub version: String,
    /// Whether it has a command for giving back what is ours, so that no script is needed.
    pub native_release: bool,
    /// Whether it is part of a cluster.
    pub cluster: bool,
    /// `maxmemory-policy`: anything but `noeviction` may throw away locks.
    pub eviction_policy: Option<String>,
    /// `maxmemory` in bytes; 0 when it has no limit.
    pub max_memory: Option<u64>,
    /// How many replicas are connected.
    pub replicas: Option<u32>,
    /// How many of them it must hear from to take writes.
    pub min_replicas: Option<u32>,
    /// When it writes everything to disk, empty for never: its setting `save`.
    pub snapshots: Option<String>,
    /// Whether it logs every write to disk, and when that is flushed, as in `everysec`.
    pub append_only: Option<String>,
    /// How long it has been up.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "uptime_ms", serialize_with = "crate::info::millis")
    )]
    pub uptime: Option<Duration>,
    /// The shortest of a few round trips.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "round_trip_us", serialize_with = "micros")
    )]
    pub round_trip: Duration,
    /// How far its clock is ahead of ours, in seconds, give or take half a round trip.
    pub clock_ahead: Option<f64>,
}

impl Client {
    /// What the server says of itself that locks depend on; of a cluster, one for each node that has slots.
    ///
    /// Uses `TIME`, and where it may `INFO` and `CONFIG GET`.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    ///
    /// # Errors
    ///
    /// When a server cannot be asked.
    pub async fn server_info(&self) -> Result<Vec<ServerInfo>, Error> {
        let mut servers = Vec::new();
        for slot in self.engine.shards().await? {
            servers.push(self.examine_one(slot).await?);
        }
        Ok(servers)
    }

    async fn examine_one(&self, slot: Slot) -> Result<ServerInfo, Error> {
        let facts = self.engine.facts(slot).await?;
        let report = self.engine.send(slot, "", report()).await?;
        let (mut round_trip, mut clock_ahead) = (Duration::MAX, None);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let theirs = self.engine.send(slot, "", clock()).await?;
            let took = start.elapsed();
            if took < round_trip {
                round_trip = took;
                clock_ahead = theirs.map(|theirs| ahead(theirs, took / 2));
            }
        }
        let number = |name| report.info(name)?.parse().ok();
        Ok(ServerInfo {
            version: facts.version.clone(),
            native_release: facts.capabilities.delex || facts.capabilities.delifeq,
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
        })
    }
}

/// When the log of writes is flushed, `no` where there is none.
fn append_only(report: &Report) -> Option<String> {
    let on = report.setting("appendonly").map(|on| on == "yes");
    match on.or_else(|| Some(report.info("aof_enabled")? == "1"))? {
        false => Some("no".to_owned()),
        true => Some(report.setting("appendfsync").unwrap_or("yes").to_owned()),
    }
}

/// How far a clock that was read `ago` is ahead of ours, in seconds.
fn ahead(theirs_micros: u64, ago: Duration) -> f64 {
    let ours = SystemTime::now().duration_since(UNIX_EPOCH);
    let ours = ours.unwrap_or_default().saturating_sub(ago).as_secs_f64();
    Duration::from_micros(theirs_micros).as_secs_f64() - ours
}

/// Serializes a duration as whole microseconds.
#[cfg(feature = "serde")]
fn micros<S>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
{
    serializer.serialize_u64(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}
