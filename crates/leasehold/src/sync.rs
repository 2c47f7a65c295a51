//! The mutex of this crate: `parking_lot`'s, or one that the shuttle scheduler
//! can interrupt, under `cfg(shuttle)`.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use scheduled::ScheduledMutex as Mutex;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::MutexGuard;

#[cfg(shuttle)]
mod scheduled {
    /// A mutex without poisoning, at which the scheduler can switch tasks.
    #[derive(Debug, Default)]
    pub(crate) struct ScheduledMutex<T>(shuttle::sync::Mutex<T>);

    impl<T> ScheduledMutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().expect("BUG: a scheduled task panicked")
        }
    }
}
