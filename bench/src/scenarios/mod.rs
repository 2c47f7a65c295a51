//! The scenarios. Each interleaves the rounds of its contestants.

mod hand;
mod held;
mod hot;
mod kinds;
mod many;
mod measure;
mod pair;
mod waiting;

use testkit::{Server, ServerExt};

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

/// A scenario of ten minutes, measured only by name or for the page.
pub(crate) const LONG: (&str, Scenario) = ("kept", held::kept);

/// Measures what the page also shows for servers with a compare-and-delete
/// command.
pub(crate) fn other_servers(server: &Server) -> Vec<Table> {
    let mut tables = many::many_at_a_time(server, 5, &[64], 16_384);
    for table in &mut tables {
        table.name = format!("{}-{}", table.name, server.name());
        table.title = format!("{}, {}", table.title, server.name());
    }
    tables
}
