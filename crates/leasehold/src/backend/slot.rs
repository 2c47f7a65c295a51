//! Hash slots, by which a cluster divides its keys.

/// A hash slot, one of the 16,384 of a cluster. Requests are routed by slot.
pub(crate) type Slot = u16;

/// The number of hash slots.
pub(crate) const SLOTS: usize = 16_384;

/// Returns the cluster slot of the key `start` + `end`: that of its hash tag if
/// it has one, else of the whole key.
pub(crate) fn slot_of(start: &[u8], end: &[u8]) -> Slot {
    let mut crc = crc16::State::<crc16::XMODEM>::new();
    if start.iter().chain(end).any(|byte| *byte == b'{') {
        let key = [start, end].concat();
        crc.update(hash_tag(&key).unwrap_or(&key));
    } else {
        crc.update(start);
        crc.update(end);
    }
    crc.get() % (SLOTS as Slot)
}

/// Returns the text between the first `{` and the next `}`, unless it is empty.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let start = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[start..].iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &key[start..start + length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_cluster_specification() {
        // From the cluster specification and `CLUSTER KEYSLOT`.
        assert_eq!(slot_of(b"123456789", b""), 12739);
        assert_eq!(slot_of(b"foo{bar}zap", b""), slot_of(b"bar", b""));
        assert_eq!(slot_of(b"foo{}{bar}", b""), slot_of(b"foo{}{bar}", b""));
        assert_ne!(slot_of(b"foo{}{bar}", b""), slot_of(b"bar", b""));
    }
}
