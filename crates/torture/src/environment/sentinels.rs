//! Faults of the sentinels. Clients reconnect after each, and so query the
//! sentinels.

use super::servers::Servers;

/// The number of sentinels of a group.
pub(crate) const SENTINELS: usize = 3;

/// What happens to a sentinel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SentinelFault {
    /// It no longer monitors the group.
    Reset,
    Pause,
}

impl Servers {
    /// Breaks a sentinel and disconnects all clients. Returns false if the
    /// topology has no sentinels.
    pub(crate) fn break_sentinel(&self, index: usize, fault: SentinelFault) -> bool {
        let Self::Group(group) = self else {
            return false;
        };
        match fault {
            SentinelFault::Reset => group.remove_group(index),
            SentinelFault::Pause => group.pause_sentinel(index),
        }
        for node in 0..self.all().len() {
            self.try_command(node, "CLIENT KILL TYPE normal SKIPME yes");
            self.try_command(node, "CLIENT KILL TYPE pubsub");
        }
        true
    }

    /// Repairs a sentinel.
    pub(crate) fn repair_sentinel(&self, index: usize, fault: SentinelFault) {
        if let Self::Group(group) = self {
            match fault {
                SentinelFault::Reset => group.restore_group(index),
                SentinelFault::Pause => group.resume_sentinel(index),
            }
        }
    }
}
