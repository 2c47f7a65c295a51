//! The page of results, generated from `page.md`.
//!
//! A line `@TABLE` is replaced by a table and its plot. A line `=TABLE` is
//! replaced by the table alone, whose rows have different units.

use std::path::Path;

use crate::report::Table;

/// Writes `docs/benchmarks.md` and its plots.
///
/// # Panics
///
/// If a table of the page was not measured.
pub(crate) fn write(server: &str, tables: &[Table]) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = here.join("../docs");
    let plots = docs.join("benchmarks");
    std::fs::create_dir_all(&plots).expect("a folder for the plots");
    let template = std::fs::read_to_string(here.join("page.md")).expect("the page");
    let find = |name: &str| {
        let table = tables.iter().find(|table| table.name == name);
        table.unwrap_or_else(|| panic!("{name} was not measured"))
    };
    let filled = template.lines().map(|line| match line.split_at_checked(1) {
        Some(("=", name)) => find(name).markdown(),
        Some(("@", name)) => {
            let table = find(name);
            table
                .plot(&plots.join(format!("{name}.svg")))
                .expect("drawn");
            format!(
                "{}\n![{}](benchmarks/{name}.svg)\n",
                table.markdown(),
                table.title
            )
        }
        _ => line.replace("SERVER", server),
    });
    let page = filled.collect::<Vec<_>>().join("\n") + "\n";
    std::fs::write(docs.join("benchmarks.md"), page).expect("written");
}
