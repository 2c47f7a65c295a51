//! A store that refuses tokens smaller than one it has seen accepts no stale sale, loses none that it accepted, and counts each once.

use std::collections::HashSet;

use super::Verdict;
use crate::coupons::{Books, seller};
use crate::history::{Event, What};

pub(crate) fn check(histories: &[Vec<Event>], books: &[Books]) -> Verdict {
    let mut verdict = Verdict::new("the fenced store accepts nothing stale and loses nothing");
    let mut kept = HashSet::new();
    for (lock, books) in (0..).zip(books) {
        let (mut token, mut sold) = (0, 0);
        for entry in &books.fenced {
            kept.insert((lock, entry.seller.clone()));
            if entry.token < token {
                verdict
                    .wrong(|| format!("lock {lock}: {} was accepted after {token}", entry.token));
            }
            if entry.sold != sold + 1 {
                verdict.wrong(|| {
                    format!(
                        "lock {lock}: {} sold after {sold}, so one is lost",
                        entry.sold
                    )
                });
            }
            (token, sold) = (entry.token, entry.sold);
        }
    }
    for (process, events) in histories.iter().enumerate() {
        for event in events {
            let What::Sold { accepted, .. } = event.what else {
                continue;
            };
            verdict.looked_at += 1;
            let by = (event.lock, seller(process, event.holding));
            if accepted == Some(true) && !kept.contains(&by) {
                verdict.wrong(|| format!("lock {}: the sale of {} is lost", by.0, by.1));
            }
        }
    }
    verdict
}

/// How many sales the store without fencing forgot.
pub(crate) fn lost_without_fencing(books: &[Books]) -> u64 {
    let lost = books.iter().map(|books| books.unfenced);
    lost.map(|(accepted, believed)| accepted.saturating_sub(believed))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coupons::Entry;

    fn wrong(sales: &[(u64, u64, &str)]) -> u64 {
        let sold = |holding: u64, token: u64| Event {
            lock: 0,
            holding,
            at: 0,
            what: What::Sold {
                token,
                accepted: Some(true),
            },
        };
        let entry = |(token, sold, by): &(u64, u64, &str)| Entry {
            token: *token,
            sold: *sold,
            seller: (*by).to_owned(),
        };
        let books = Books {
            fenced: sales.iter().map(entry).collect(),
            unfenced: (0, 0),
        };
        check(&[vec![sold(1, 5), sold(2, 6)]], &[books]).wrong
    }

    #[test]
    fn stale_and_lost_sales_are_found() {
        assert_eq!(wrong(&[(5, 1, "0-1"), (6, 2, "0-2")]), 0);
        assert_eq!(wrong(&[(6, 1, "0-2"), (5, 2, "0-1")]), 1, "stale");
        assert_eq!(wrong(&[(5, 1, "0-1"), (6, 1, "0-2")]), 1, "counted once");
        assert_eq!(wrong(&[(5, 1, "0-1")]), 1, "forgotten");
    }

    #[test]
    fn the_control_counts_what_it_forgot() {
        let books = Books {
            fenced: Vec::new(),
            unfenced: (7, 5),
        };
        assert_eq!(lost_without_fencing(&[books]), 2);
    }
}
