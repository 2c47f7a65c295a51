//! Stress: many processes that are killed, paused, isolated and restarted.

mod election;
mod moving;
mod once;

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use testkit::Worker;
use testkit::worker::Remote;

/// The replies of all worker processes, in the order of their arrival, each
/// with the number of its process.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<(usize, String)>>>);

impl Journal {
    fn lines(&self) -> MutexGuard<'_, Vec<(usize, String)>> {
        self.0.lock().unwrap()
    }

    /// Reads the replies of a worker in the background.
    fn read(&self, number: usize, mut worker: Worker) -> Process {
        let remote = worker.remote();
        let journal = self.clone();
        let reader = std::thread::spawn(move || {
            while let Some(reply) = worker.reply_if_alive() {
                journal.lines().push((number, reply));
            }
        });
        Process { remote, reader }
    }
}

/// A worker process whose replies are read.
struct Process {
    remote: Remote,
    reader: JoinHandle<()>,
}

impl Process {
    /// Kills the process, and reads all that it has written.
    fn kill(self) {
        self.remote.kill();
        self.reader.join().unwrap();
    }
}
