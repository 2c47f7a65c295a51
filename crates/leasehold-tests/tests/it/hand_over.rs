//! How long it takes to hand a lock from one process to another.
//!
//! Where the server is far away, that is a whole number of journeys, whatever else a machine is busy with.

use std::time::Duration;

use testkit::Proxy;

use crate::support::{name, percentile, scaled, server};
use crate::worker::Worker;

/// How far away the server is; messages of the server arrive at once.
pub(crate) const FAR: Duration = Duration::from_millis(50);

/// Longer than any test.
const LEASE: Duration = Duration::from_secs(30);

/// Two processes hand a lock to each other, each so many times: from before each release to the moment at
/// which the other side has the lock.
pub(crate) fn hand_overs(
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
            let Some((taken, released)) = answer.split_once(' ') else {
                break;
            };
            times.push((taken.parse().unwrap(), released.parse().unwrap(), number));
        }
    }
    times.sort_unstable();
    let pairs = times.windows(2);
    pairs
        .filter(|pair| pair[0].2 != pair[1].2)
        .map(|pair| Duration::from_nanos(pair[1].0 - pair[0].1))
        .collect()
}

/// What it usually takes from a server that is [`FAR`] away.
pub(crate) fn from_afar(kind: &str) -> Duration {
    let server = server();
    let network = Proxy::start(server.port());
    network.latency(FAR);
    let mut sides = [(); 2].map(|()| Worker::start(network.port(), LEASE));
    // Until the other side has asked, and nothing of one's own is on its way.
    let mut times = hand_overs(&mut sides, kind, FAR * 3, scaled(10));
    assert!(times.len() >= 10, "too few hand-overs: {}", times.len());
    times.sort_unstable();
    let usual = percentile(&times, 500);
    println!("{kind}: {usual:?}");
    usual
}
