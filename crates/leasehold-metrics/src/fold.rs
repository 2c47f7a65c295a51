//! The default label of a lock: its name without ids.

/// The length from which a run of hexadecimal digits is an id.
const HEX_ID: usize = 8;

/// The lengths of the groups of a UUID.
const UUID: [usize; 5] = [8, 4, 4, 4, 12];

/// Appends `name` to `label`, with `*` in place of each UUID, each run of eight
/// or more hexadecimal digits, and each other run of decimal digits.
pub(crate) fn fold(name: &str, label: &mut String) {
    let bytes = name.as_bytes();
    let (mut at, mut copied) = (0, 0);
    while at < bytes.len() {
        let run = hex_run(&bytes[at..]);
        let id = match run {
            0 => {
                at += 1;
                continue;
            }
            HEX_ID.. => uuid_length(&bytes[at..]).max(run),
            _ => digit_run(&bytes[at..]),
        };
        if id > 0 {
            label.push_str(&name[copied..at]);
            label.push('*');
            at += id;
            copied = at;
        } else {
            // Letters such as those of `face`, up to the next digit.
            let letters = bytes[at..at + run].iter();
            at += letters.take_while(|byte| !byte.is_ascii_digit()).count();
        }
    }
    label.push_str(&name[copied..]);
}

/// Returns the length of the UUID that `text` starts with; 0 if it starts with
/// none.
fn uuid_length(text: &[u8]) -> usize {
    let mut length = 0;
    for (at, group) in UUID.into_iter().enumerate() {
        if at > 0 {
            if text.get(length) != Some(&b'-') {
                return 0;
            }
            length += 1;
        }
        if hex_run(&text[length..]) != group {
            return 0;
        }
        length += group;
    }
    length
}

/// Returns the number of hexadecimal digits that `text` starts with.
fn hex_run(text: &[u8]) -> usize {
    let end = text.iter().position(|byte| !byte.is_ascii_hexdigit());
    end.unwrap_or(text.len())
}

/// Returns the number of decimal digits that `text` starts with.
fn digit_run(text: &[u8]) -> usize {
    let end = text.iter().position(|byte| !byte.is_ascii_digit());
    end.unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use testkit::check_property;

    use super::*;

    /// Returns whether `name` contains no id.
    fn is_plain(name: &str) -> bool {
        let runs = name.split(|char: char| !char.is_ascii_hexdigit());
        runs.into_iter().all(|run| run.len() < HEX_ID)
            && !name.contains(|c: char| c.is_ascii_digit())
    }

    fn folded(name: &str) -> String {
        let mut label = String::new();
        fold(name, &mut label);
        label
    }

    #[test]
    fn ids_fold_and_words_stay() {
        for (name, label) in [
            ("nightly-report", "nightly-report"),
            ("order:42", "order:*"),
            ("order:42:item:7", "order:*:item:*"),
            ("shard7of16", "shard*of*"),
            ("face:decade", "face:decade"),
            ("abcdefg", "abcdefg"),
            ("abcdefgh", "abcdefgh"),
            ("file:deadbeef", "file:*"),
            ("file:DEADBEEF00:x", "file:*:x"),
            ("ab12cd", "ab*cd"),
            ("cart:550e8400-e29b-41d4-a716-446655440000", "cart:*"),
            ("550E8400-E29B-41D4-A716-446655440000:x", "*:x"),
            // Too short for a UUID: the groups fold one by one.
            ("550e8400-e29b", "*-e*b"),
            ("größe:3:日本", "größe:*:日本"),
            ("", ""),
        ] {
            assert_eq!(folded(name), label, "{name}");
        }
    }

    #[test]
    fn folded_label_has_no_id() {
        check_property(2000, &"[a-h0-9A-F:é-]{0,60}", |name: String| {
            let label = folded(&name);
            assert!(is_plain(&label), "{name}: {label}");
            assert_eq!(folded(&label), label, "{name}");
            assert!(label.len() <= name.len());
            assert_eq!(is_plain(&name), label == name, "{name}: {label}");
        });
    }

    #[test]
    fn names_that_differ_in_ids_share_a_label() {
        let ids = || {
            prop_oneof![
                "[0-9]{1,20}",
                "[0-9a-f]{8,40}",
                "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            ]
        };
        check_property(
            1000,
            &("[g-z]{1,10}", ids(), ids()),
            |(word, one, other)| {
                let label = format!("{word}:*:{word}");
                for id in [one, other] {
                    assert_eq!(folded(&format!("{word}:{id}:{word}")), label, "{id}");
                }
            },
        );
    }
}
