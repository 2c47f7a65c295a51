//! The slot map and redirections, as nodes report them.

use crate::backend::{Reply, RequestError, ServerErrorKind, Slot};

/// The masters, each with the slots that it owns.
pub(super) type SlotMap = Vec<(NodeAddress, Vec<std::ops::RangeInclusive<Slot>>)>;

/// A node's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeAddress {
    /// Empty for the host that sent the address.
    pub(super) host: String,
    pub(super) port: u16,
}

impl NodeAddress {
    /// Replaces an empty host by `sender`, the host that sent the address.
    /// Returns `None` if the sender does not know the host.
    pub(super) fn resolve(self, sender: &str) -> Option<Self> {
        let port = self.port;
        match self.host.as_str() {
            "?" => None,
            "" => Some(Self {
                host: sender.to_owned(),
                port,
            }),
            _ => Some(self),
        }
    }
}

/// Parses the reply of `sender` to `CLUSTER SLOTS`. Omits nodes of unknown
/// address.
pub(super) fn parse(reply: &Reply, sender: &str) -> Result<SlotMap, RequestError> {
    let mut slot_map = SlotMap::new();
    for range in reply.list().unwrap_or_default() {
        let read = || {
            let parts = range.list()?;
            let slot = |index: usize| Slot::try_from(parts.get(index)?.int()?).ok();
            let master = parts.get(2)?.list()?;
            let mut address = NodeAddress {
                host: master.first()?.text().unwrap_or_default().to_owned(),
                port: u16::try_from(master.get(1)?.int()?).ok()?,
            };
            // With `cluster-preferred-endpoint-type hostname`, a node without a
            // hostname reports its IP address in the metadata.
            let ip = master
                .get(3)
                .and_then(|metadata| metadata.field("ip")?.text());
            if let ("?", Some(ip)) = (address.host.as_str(), ip) {
                ip.clone_into(&mut address.host);
            }
            Some((address, slot(0)?..=slot(1)?))
        };
        let malformed = || RequestError::malformed("CLUSTER SLOTS", std::slice::from_ref(range));
        let (address, slots) = read().ok_or_else(malformed)?;
        let Some(address) = address.resolve(sender) else {
            continue;
        };
        match slot_map.iter_mut().find(|(other, _)| *other == address) {
            Some((_, ranges)) => ranges.push(slots),
            None => slot_map.push((address, vec![slots])),
        }
    }
    Ok(slot_map)
}

/// Returns whether a node refused a command because it is cut off from the
/// cluster, or because no node serves the slot. Another node may know better.
pub(super) fn is_cluster_down(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(error) if error.message.starts_with("CLUSTERDOWN"))
}

/// An error reply to a command that another node, or the same one later, will
/// accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// That node owns the slot.
    Moved(Slot, NodeAddress),
    /// The slot is migrating to that node. The keys were migrated already, or
    /// do not exist.
    Ask(NodeAddress),
    /// Only some of the keys were migrated.
    TryAgain,
}

impl Redirect {
    pub(super) fn from_reply(reply: &Reply) -> Option<Self> {
        let Reply::Refused(error) = reply else {
            return None;
        };
        (error.kind == ServerErrorKind::Temporary).then_some(())?;
        let mut words = error.message.split_whitespace();
        let kind = words.next()?;
        match kind {
            "TRYAGAIN" => Some(Self::TryAgain),
            "MOVED" | "ASK" => {
                let slot = words.next()?.parse().ok()?;
                let (host, port) = words.next()?.rsplit_once(':')?;
                let address = NodeAddress {
                    host: host.to_owned(),
                    port: port.parse().ok()?,
                };
                Some(match kind {
                    "MOVED" => Self::Moved(slot, address),
                    _ => Self::Ask(address),
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ServerError;

    fn address(host: &str, port: u16) -> NodeAddress {
        let host = host.to_owned();
        NodeAddress { host, port }
    }

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn slots_are_grouped_by_master() {
        let node = |port| Reply::List(vec![bytes("10.0.0.1"), Reply::Int(port), bytes("id")]);
        let range = |from, to, port| {
            let replica = node(port + 1000);
            Reply::List(vec![Reply::Int(from), Reply::Int(to), node(port), replica])
        };
        let reply = Reply::List(vec![range(0, 9, 1), range(10, 19, 2), range(20, 29, 1)]);
        assert_eq!(
            parse(&reply, "10.0.0.9").unwrap(),
            [
                (address("10.0.0.1", 1), vec![0..=9, 20..=29]),
                (address("10.0.0.1", 2), vec![10..=19]),
            ]
        );
        assert!(parse(&Reply::List(vec![Reply::Int(1)]), "").is_err());
    }

    #[test]
    fn empty_host_is_the_sender() {
        let metadata = |ip: &str| Reply::List(vec![bytes("ip"), bytes(ip)]);
        let node = |slot, host, more| {
            let node = Reply::List(vec![host, Reply::Int(1), bytes("id"), more]);
            Reply::List(vec![Reply::Int(slot), Reply::Int(slot), node])
        };
        let slots = Reply::List(vec![
            node(0, Reply::Nil, Reply::List(Vec::new())),
            node(1, bytes(""), Reply::List(Vec::new())),
            node(2, bytes("?"), metadata("10.0.0.2")),
            node(3, bytes("?"), metadata("")),
            node(4, bytes("?"), Reply::List(Vec::new())),
        ]);
        assert_eq!(
            parse(&slots, "10.0.0.9").unwrap(),
            [
                (address("10.0.0.9", 1), vec![0..=0, 1..=1, 3..=3]),
                (address("10.0.0.2", 1), vec![2..=2]),
            ]
        );
        assert_eq!(address("?", 1).resolve("10.0.0.9"), None);
        let here = address("", 1).resolve("10.0.0.9");
        assert_eq!(here, Some(address("10.0.0.9", 1)));
    }

    #[test]
    fn redirections_are_parsed() {
        let of =
            |code, detail| Redirect::from_reply(&Reply::Refused(ServerError::new(code, detail)));
        assert_eq!(
            of("MOVED", "7 10.0.0.1:80"),
            Some(Redirect::Moved(7, address("10.0.0.1", 80)))
        );
        assert_eq!(
            of("ASK", "7 ::1:80"),
            Some(Redirect::Ask(address("::1", 80)))
        );
        assert_eq!(
            of("MOVED", "7 :80"),
            Some(Redirect::Moved(7, address("", 80)))
        );
        assert_eq!(of("TRYAGAIN", "Multiple keys"), Some(Redirect::TryAgain));
        assert_eq!(of("CLUSTERDOWN", "7 10.0.0.1:80"), None);
        assert_eq!(of("MOVED", "7"), None);
    }
}
