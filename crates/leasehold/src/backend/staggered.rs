//! Attempts that overlap: the next one starts after a short delay, or as soon
//! as one fails. The first success wins, and the others are dropped.
//!
//! A name has several addresses, a URL several seeds or sentinels. If we tried
//! them in turn, an address that drops packets would use up the timeout.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// How long the newest attempt has before the next one starts. It exceeds most
/// round trips, so where the first candidate is up we seldom try a second one.
const DELAY: Duration = Duration::from_millis(250);

/// Returns the first success, or the errors of all attempts in the order in
/// which they failed.
///
/// All attempts have started after half of `timeout`, however many there are.
/// They end by themselves: nothing is cancelled because of it.
pub(crate) async fn first_success<F, T, E>(attempts: Vec<F>, timeout: Duration) -> Result<T, Vec<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = attempts.into_iter();
    let count = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
    let delay = DELAY.min(timeout / 2 / count.max(1));
    let mut running = Vec::new();
    let mut errors = Vec::new();
    loop {
        match waiting.next() {
            Some(attempt) => running.push(Box::pin(attempt)),
            None if running.is_empty() => return Err(errors),
            None => {}
        }
        tokio::select! {
            biased;
            outcome = next_outcome(&mut running) => match outcome {
                Ok(value) => return Ok(value),
                Err(error) => errors.push(error),
            },
            () = tokio::time::sleep(delay), if waiting.len() > 0 => {}
        }
    }
}

/// Waits until one of the `running` attempts ends, and removes it.
async fn next_outcome<F: Future>(running: &mut Vec<Pin<Box<F>>>) -> F::Output {
    poll_fn(|context| {
        for index in 0..running.len() {
            if let Poll::Ready(outcome) = running[index].as_mut().poll(context) {
                drop(running.remove(index));
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{Instant, sleep};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// An attempt that takes this many milliseconds, and succeeds if `is_ok`.
    async fn attempt((millis, is_ok): (u64, bool)) -> Result<u64, u64> {
        sleep(ms(millis)).await;
        if is_ok { Ok(millis) } else { Err(millis) }
    }

    /// Returns the outcome, and after how many milliseconds.
    async fn outcome(attempts: &[(u64, bool)]) -> (Result<u64, Vec<u64>>, u128) {
        let start = Instant::now();
        let attempts = attempts.iter().copied().map(attempt).collect();
        let outcome = first_success(attempts, TIMEOUT).await;
        (outcome, start.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_candidate_delays_the_next_one_once() {
        let silent = (1_000_000, true);
        assert_eq!(outcome(&[silent, (10, true)]).await, (Ok(10), 260));
        let three = [silent, silent, (10, true)];
        assert_eq!(outcome(&three).await, (Ok(10), 510));
    }

    #[tokio::test(start_paused = true)]
    async fn failure_starts_the_next_one_at_once() {
        let attempts = [(5, false), (10, true)];
        assert_eq!(outcome(&attempts).await, (Ok(10), 15));
        let attempts = [(5, false), (400, false), (10, false)];
        assert_eq!(outcome(&attempts).await, (Err(vec![5, 10, 400]), 405));
        assert_eq!(outcome(&[]).await, (Err(vec![]), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_candidate_can_still_win() {
        let attempts = [(300, true), (100, true)];
        assert_eq!(outcome(&attempts).await, (Ok(300), 300));
    }

    #[tokio::test(start_paused = true)]
    async fn many_candidates_share_the_timeout() {
        let mut attempts = vec![(1_000_000, true); 19];
        attempts.push((10, true));
        assert_eq!(outcome(&attempts).await, (Ok(10), 960));
    }

    #[tokio::test(start_paused = true)]
    async fn success_starts_no_further_attempt() {
        let started = AtomicUsize::new(0);
        let attempt = |_| async {
            started.fetch_add(1, Ordering::Relaxed);
            Ok::<_, ()>(())
        };
        let attempts = (0..3).map(attempt).collect();
        first_success(attempts, TIMEOUT).await.unwrap();
        assert_eq!(started.load(Ordering::Relaxed), 1);
    }
}
