//! Work for one caller that continues whether or not the caller is polled.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use tracing::{Instrument, Span};

use super::slots::{SlotQueue, Step};
use crate::error::Error;
use crate::lease::context::error_of;
use crate::lease::keeper::KeeperRuntime;
use crate::sync::Mutex;

/// Runs `work` on the keeper's runtime and returns its output.
///
/// If the caller does not claim the output in time, it is dropped, and the work
/// starts again once the caller is polled. An error is kept: it holds nothing.
///
/// # Cancel safety
///
/// Dropping the future drops the work, or the output, on the keeper's runtime.
pub(crate) async fn deliver<T, W>(
    keeper: &KeeperRuntime,
    work: impl Fn() -> W + Send + 'static,
) -> Result<T, Error>
where
    T: Send + 'static,
    W: Future<Output = Result<T, Error>> + Send + 'static,
{
    let queue = Arc::<SlotQueue<(), T>>::default();
    let failure = Arc::<Mutex<Option<Error>>>::default();
    let Ok(place) = queue.enqueue(()) else {
        unreachable!("BUG: a new queue is closed");
    };
    let task = serve(CloseQueue(queue), failure.clone(), work);
    keeper.spawn(task.instrument(Span::current()));
    let delivered = poll_fn(|context| place.poll(context)).await;
    // The task must not keep the caller's span and client any longer.
    place.end();
    match failure.lock().take() {
        Some(error) => Err(error),
        None => delivered.map_err(|error| error_of(error, "")),
    }
}

async fn serve<T, W: Future<Output = Result<T, Error>>>(
    queue: CloseQueue<T>,
    failure: Arc<Mutex<Option<Error>>>,
    work: impl Fn() -> W,
) {
    let queue = &queue.0;
    loop {
        match queue.next_step() {
            Step::Seek(_) => {
                let mut working = pin!(work());
                let output = loop {
                    tokio::select! {
                        biased;
                        output = &mut working => break output,
                        () = queue.changed() => {}
                    }
                    // The caller has left.
                    if queue.test_first(|()| ()).is_none() {
                        return;
                    }
                };
                match output {
                    // Refused if the caller has left. Dropping guards releases
                    // their locks.
                    Ok(output) => drop(queue.grant(output, |()| true)),
                    Err(error) => {
                        *failure.lock() = Some(error);
                        return;
                    }
                }
            }
            Step::StandBy => queue.stand_by().await,
            Step::Prepare(_) | Step::End => return,
        }
    }
}

/// Ends the wait of the caller if the keeper ends.
struct CloseQueue<T>(Arc<SlotQueue<(), T>>);

impl<T> Drop for CloseQueue<T> {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}
