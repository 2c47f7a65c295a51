//! Which node of a cluster has which slot, as the nodes tell it.

use crate::backend::{Reply, RequestError, ServerErrorKind, Slot};

/// The nodes that take writes, each with the slots that it has.
pub(crate) type SlotMap = Vec<(Address, Vec<std::ops::RangeInclusive<Slot>>)>;

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    /// Empty for the host that was asked.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    /// The same address, as `host` gave it; `None` where that node does not know the host itself.
    pub(crate) fn given_by(self, host: &str) -> Option<Self> {
        let port = self.port;
        match self.host.as_str() {
            "?" => None,
            "" => Some(Self {
                host: host.to_owned(),
                port,
            }),
            _ => Some(self),
        }
    }
}

/// Reads the reply of `host` to `CLUSTER SLOTS`. A node whose address is not known is left out.
pub(crate) fn layout(reply: &Reply, host: &str) -> Result<SlotMap, RequestError> {
    let mut layout = SlotMap::new();
    for range in reply.list().unwrap_or_default() {
        let read = || {
            let parts = range.list()?;
            let slot = |at: usize| Slot::try_from(parts.get(at)?.int()?).ok();
            let master = parts.get(2)?.list()?;
            let mut address = Address {
                host: master.first()?.text().unwrap_or_default().to_owned(),
                port: u16::try_from(master.get(1)?.int()?).ok()?,
            };
            // Where names are preferred and a node has none, its number stands beside.
            let number = master.get(3).and_then(|more| more.field("ip")?.text());
            if let ("?", Some(number)) = (address.host.as_str(), number) {
                number.clone_into(&mut address.host);
            }
            Some((address, slot(0)?..=slot(1)?))
        };
        let malformed = || RequestError::malformed("CLUSTER SLOTS", std::slice::from_ref(range));
        let (address, slots) = read().ok_or_else(malformed)?;
        let Some(address) = address.given_by(host) else {
            continue;
        };
        match layout.iter_mut().find(|(at, _)| *at == address) {
            Some((_, ranges)) => ranges.push(slots),
            None => layout.push((address, vec![slots])),
        }
    }
    Ok(layout)
}

/// Why a node refused a command that another one, or the same a little later, will take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The slot is that node's.
    Moved(Slot, Address),
    /// The slot is on its way to that node, and what is asked for is there already, or is new.
    Ask(Address),
    /// Some of what is asked for is here and some there.
    Again,
}

impl Redirect {
    pub(crate) fn of(reply: &Reply) -> Option<Self> {
        let Reply::Refused(error) = reply else {
            return None;
        };
        (error.kind == ServerErrorKind::Temporary).then_some(())?;
        let mut words = error.message.split_whitespace();
        let kind = words.next()?;
        match kind {
            "TRYAGAIN" => Some(Self::Again),
            "MOVED" | "ASK" => {
                let slot = words.next()?.parse().ok()?;
                let (host, port) = words.next()?.rsplit_once(':')?;
                let address = Address {
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

    fn address(host: &str, port: u16) -> Address {
        let host = host.to_owned();
        Address { host, port }
    }

    fn bytes(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn slots_are_gathered_by_their_master() {
        let node = |port| Reply::List(vec![bytes("10.0.0.1"), Reply::Int(port), bytes("id")]);
        let range = |from, to, port| {
            let replica = node(port + 1000);
            Reply::List(vec![Reply::Int(from), Reply::Int(to), node(port), replica])
        };
        let told = Reply::List(vec![range(0, 9, 1), range(10, 19, 2), range(20, 29, 1)]);
        assert_eq!(
            layout(&told, "10.0.0.9").unwrap(),
            [
                (address("10.0.0.1", 1), vec![0..=9, 20..=29]),
                (address("10.0.0.1", 2), vec![10..=19]),
            ]
        );
        assert!(layout(&Reply::List(vec![Reply::Int(1)]), "").is_err());
    }

    #[test]
    fn hosts_that_are_left_out_are_those_that_reply() {
        let number = |ip: &str| Reply::List(vec![bytes("ip"), bytes(ip)]);
        let node = |slot, host, more| {
            let node = Reply::List(vec![host, Reply::Int(1), bytes("id"), more]);
            Reply::List(vec![Reply::Int(slot), Reply::Int(slot), node])
        };
        let slots = Reply::List(vec![
            node(0, Reply::Nil, Reply::List(Vec::new())),
            node(1, bytes(""), Reply::List(Vec::new())),
            node(2, bytes("?"), number("10.0.0.2")),
            node(3, bytes("?"), number("")),
            node(4, bytes("?"), Reply::List(Vec::new())),
        ]);
        assert_eq!(
            layout(&slots, "10.0.0.9").unwrap(),
            [
                (address("10.0.0.9", 1), vec![0..=0, 1..=1, 3..=3]),
                (address("10.0.0.2", 1), vec![2..=2]),
            ]
        );
        assert_eq!(address("?", 1).given_by("10.0.0.9"), None);
        let here = address("", 1).given_by("10.0.0.9");
        assert_eq!(here, Some(address("10.0.0.9", 1)));
    }

    #[test]
    fn redirections_are_read_from_refusals() {
        let of = |code, detail| Redirect::of(&Reply::Refused(ServerError::new(code, detail)));
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
        assert_eq!(of("TRYAGAIN", "Multiple keys"), Some(Redirect::Again));
        assert_eq!(of("CLUSTERDOWN", "7 10.0.0.1:80"), None);
        assert_eq!(of("MOVED", "7"), None);
    }
}
