//! The latency of a hand-over between two processes.
//!
//! Over a slow link it is a whole number of link delays, however busy the
//! machine is.

use std::time::Duration;

use testkit::{Proxy, Worker};

use crate::support::worker;
use crate::support::{name, percentile, scaled, server};

/// The one-way delay of the link. Messages of the server arrive at once.
pub(crate) const ONE_WAY: Duration = Duration::from_millis(50);

/// Longer than any test.
const LEASE: Duration = Duration::from_secs(30);

/// Makes two processes hand a lock to each other, `count` times each. Returns
/// the times from each release to the other side's acquisition.
pub(crate) fn measure_handovers(
    sides: &mut [Worker; 2],
    kind: &str,
    hold: Duration,
    count: u64,
) -> Vec<Duration> {
    let (name, hold) = (name(), hold.as_millis());
    for side in sides.iter_mut() {
        side.tell(&format!("ping-pong {kind} {name} {hold} {count}"));
    }
    let mut times: Vec<(u64, u64, usize)> = Vec::new();
    for (number, side) in sides.iter_mut().enumerate() {
        loop {
            let answer = side.answer();
            let Some((acquired, released)) = answer.split_once(' ') else {
                break;
            };
            times.push((acquired.parse().unwrap(), released.parse().unwrap(), number));
        }
    }
    times.sort_unstable();
    let pairs = times.windows(2);
    pairs
        .filter(|pair| pair[0].2 != pair[1].2)
        .map(|pair| Duration::from_nanos(pair[1].0 - pair[0].1))
        .collect()
}

/// Returns the median hand-over from a server that is [`ONE_WAY`] away.
pub(crate) fn median_over_slow_link(kind: &str) -> Duration {
    let server = server();
    let network = Proxy::start(server.port());
    network.latency(ONE_WAY);
    let mut sides = [(); 2].map(|()| worker::start(network.port(), LEASE));
    // Long enough for the other side to queue, with no own request in flight.
    let mut times = measure_handovers(&mut sides, kind, ONE_WAY * 3, scaled(10));
    assert!(times.len() >= 10, "too few hand-overs: {}", times.len());
    times.sort_unstable();
    let median = percentile(&times, 500);
    println!("{kind}: {median:?}");
    median
}
