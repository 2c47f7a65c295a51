//! The scenarios. Each interleaves the rounds of its contestants.

mod hand;
mod held;
mod hot;
mod kinds;
mod many;
mod measure;
mod pair;
mod waiting;

use testkit::Server;

use crate::report::Table;

type Scenario = fn(&Server, bool) -> Vec<Table>;

/// The scenarios by name.
pub(crate) const ALL: [(&str, Scenario); 7] = [
    ("pair", pair::pair),
    ("kinds", kinds::kinds),
    ("many", many::many),
    ("hand", hand::hand),
    ("hot", hot::hot),
    ("waiting", waiting::waiting),
    ("held", held::held),
];

/// A scenario of ten minutes, measured only by name or to be recorded.
pub(crate) const LONG: (&str, Scenario) = ("kept", held::kept);

/// The scenarios that the page shows for other servers, too: those with a
/// compare-and-delete command.
pub(crate) const EVERYWHERE: [&str; 2] = ["kinds", "many"];
pub(crate) const OTHER_SERVERS: [&str; 2] = ["redis-8.6", "valkey-9.1"];
