//! What can be done to the sentinels of a group. Clients reconnect meanwhile, and so ask them.

use super::Servers;

/// How many sentinels a group has.
pub(crate) const SENTINELS: usize = 3;

impl Servers {
    /// Has a sentinel forget the group; false where there is none.
    pub(crate) fn forget_sentinel(&self, at: usize) -> bool {
        let Self::Group(group) = self else {
            return false;
        };
        group.remove_group(at);
        self.disconnect_clients();
        true
    }

    /// Has it watch the group again.
    pub(crate) fn remind_sentinel(&self, at: usize) {
        if let Self::Group(group) = self {
            group.restore_group(at);
        }
    }

    /// Stops a sentinel; false where there is none.
    pub(crate) fn pause_sentinel(&self, at: usize) -> bool {
        let Self::Group(group) = self else {
            return false;
        };
        group.pause_sentinel(at);
        self.disconnect_clients();
        true
    }

    /// Lets it go on.
    pub(crate) fn resume_sentinel(&self, at: usize) {
        if let Self::Group(group) = self {
            group.resume_sentinel(at);
        }
    }

    fn disconnect_clients(&self) {
        for node in 0..self.all().len() {
            self.tell(node, "CLIENT KILL TYPE normal SKIPME yes");
            self.tell(node, "CLIENT KILL TYPE pubsub");
        }
    }
}
