//! The faults of a run: what was injected, and when.

use crate::history::Timestamp;
use crate::plan::Fault;

/// A fault that was injected and repaired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InjectedFault {
    pub(crate) fault: Fault,
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

/// A period without faults.
pub(crate) type Calm = (Timestamp, Timestamp);

/// All faults of a run, and the periods without any.
#[derive(Default)]
pub(crate) struct FaultLog {
    pub(crate) faults: Vec<InjectedFault>,
    pub(crate) calms: Vec<Calm>,
}
