//! The ticket of a hand-over: the secret that authorizes another process to
//! adopt a lock.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::owner::Owner;
use crate::plain::plain;

/// A ticket's first word: the version.
const VERSION: &str = "lht1";

/// The number of hex digits of an owner.
const OWNER_DIGITS: usize = 32;

/// A lock that was handed over with [`Guard::hand_over`], for
/// [`Client::adopt`].
///
/// **A ticket is a secret.** Every process that knows it and reaches the server
/// can adopt the lock. Transfer it over a channel that you trust, and do not
/// log it. [`Display`](fmt::Display) writes the secret; `Debug` does not.
///
/// A ticket can be adopted once. It expires after the time that was passed to
/// [`hand_over`], and the lock is then free. Dropping a ticket does not release
/// the lock earlier.
///
/// The text consists of letters, digits and dots, and needs no escaping in a
/// URL, a header or a shell. Only parsing it with [`FromStr`] is stable.
///
/// # Examples
///
/// ```
/// # fn example(ticket: leasehold::Ticket) -> Result<(), leasehold::Error> {
/// let text = ticket.to_string();
/// let same: leasehold::Ticket = text.parse()?;
/// assert_eq!(same.to_string(), text);
/// assert!(!format!("{same:?}").contains(&text));
/// # Ok(()) }
/// ```
///
/// [`Guard::hand_over`]: crate::Guard::hand_over
/// [`hand_over`]: crate::Guard::hand_over
/// [`Client::adopt`]: crate::Client::adopt
#[derive(PartialEq, Eq)]
#[must_use = "the lock is held until the ticket is adopted or expires"]
pub struct Ticket {
    pub(crate) kind: TicketKind,
    /// The lock's own key: prefix and name.
    pub(crate) key: String,
    /// The owner that the server stores until the lock is adopted.
    pub(crate) owner: Owner,
}

/// The kinds of locks that can be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketKind {
    Mutex,
    FairMutex,
}

impl TicketKind {
    const ALL: [Self; 2] = [Self::Mutex, Self::FairMutex];

    fn word(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::FairMutex => "fair",
        }
    }
}

impl fmt::Display for Ticket {
    /// Writes the secret: `VERSION.KIND.OWNER.KEY`, the key in hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, key, owner } = self;
        write!(f, "{VERSION}.{}.{owner}.", kind.word())?;
        key.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(\"")?;
        write!(f, "{}", plain(&self.key))?;
        f.write_str("\", ..)")
    }
}

impl FromStr for Ticket {
    type Err = Error;

    /// Parses the text that [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for any other text. The error does not contain the
    /// text.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|why| Error::invalid("ticket", why))
    }
}

fn parse(text: &str) -> Result<Ticket, &'static str> {
    let mut words = text.split('.');
    if words.next() != Some(VERSION) {
        return Err("it does not begin with a version that this client knows");
    }
    let kind = words.next();
    let kind = TicketKind::ALL
        .into_iter()
        .find(|known| kind == Some(known.word()));
    let owner = words
        .next()
        .filter(|owner| owner.len() == OWNER_DIGITS && owner.bytes().all(is_digit))
        .and_then(|owner| owner.parse().ok());
    let key = words.next().and_then(read_key);
    match (kind, owner, key, words.next()) {
        (Some(kind), Some(owner), Some(key), None) => Ok(Ticket { kind, key, owner }),
        (None, ..) => Err("it is for a kind of lock that this client does not know"),
        _ => Err("it is incomplete or was changed"),
    }
}

fn read_key(digits: &str) -> Option<String> {
    if digits.is_empty() || !digits.bytes().all(is_digit) || digits.len() % 2 == 1 {
        return None;
    }
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    String::from_utf8(bytes?).ok()
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(kind: TicketKind) -> Ticket {
        Ticket {
            kind,
            key: "lock:a b\n.ü".to_owned(),
            owner: Owner::random(),
        }
    }

    #[test]
    fn ticket_is_parsed_back() {
        for kind in TicketKind::ALL {
            let ticket = ticket(kind);
            let text = ticket.to_string();
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
            assert!(text.bytes().all(is_plain), "{text}");
            assert_eq!(text.parse::<Ticket>().unwrap(), ticket);
        }
    }

    #[test]
    fn garbage_is_rejected_without_repeating_it() {
        let whole = ticket(TicketKind::Mutex).to_string();
        let owner = whole.split('.').nth(2).unwrap();
        let mut wrong = vec![
            String::new(),
            "x".to_owned(),
            whole.replace("lht1", "lht2"),
            whole.replace("mutex", "rw"),
            whole.replace(owner, &owner[1..]),
            whole.replace(owner, &format!("+{}", &owner[1..])),
            whole.to_uppercase(),
            format!("{whole}f"),
            format!("{whole}.00"),
            format!("{whole} "),
            format!("lht1.mutex.{owner}.ff"),
            format!("lht1.mutex.{owner}."),
        ];
        // Cut inside the key, a ticket is one of another lock.
        let start_of_key = whole.rfind('.').unwrap() + 1;
        wrong.extend((0..=start_of_key).map(|end| whole[..end].to_owned()));
        wrong.push(whole[..whole.len() - 1].to_owned());
        for text in wrong {
            match text.parse::<Ticket>() {
                Err(error @ Error::Invalid { what: "ticket", .. }) => {
                    assert!(!error.to_string().contains(owner));
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn debug_hides_the_secret() {
        let ticket = ticket(TicketKind::FairMutex);
        let shown = format!("{ticket:?}");
        assert!(!shown.contains(&ticket.owner.to_string()));
        assert_eq!(shown, r#"Ticket("lock:a b\n.ü", ..)"#);
    }
}
