//! How long it takes from one process to another: a lock, and a bare message to compare it with.

use std::time::Duration;

use crate::worker::Worker;

/// Two processes hand a lock to each other, each so many times: from before each release to the moment at
/// which the other side has the lock.
pub(crate) fn hand_overs(
    sides: &mut [Worker; 2],
    kind: &str,
    name: &str,
    count: u64,
) -> Vec<Duration> {
    for side in sides.iter_mut() {
        side.tell(&format!("ping-pong {kind} {name} {count}"));
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

/// From before a script that publishes is sent to the moment at which the other side has heard it.
pub(crate) fn messages(sides: &mut [Worker; 2], channel: &str, count: u64) -> Vec<Duration> {
    let channel = format!("leasehold:{channel}");
    let [one, other] = sides;
    other.tell(&format!("listen {channel} {count}"));
    assert_eq!(other.answer(), "listening");
    one.tell(&format!("publish {channel} {count}"));
    let times = |side: &mut Worker| -> Vec<u64> {
        (0..count).map(|_| side.answer().parse().unwrap()).collect()
    };
    let (sent, heard) = (times(one), times(other));
    let pairs = sent.iter().zip(&heard);
    pairs
        .map(|(sent, heard)| Duration::from_nanos(heard - sent))
        .collect()
}
