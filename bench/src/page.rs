//! The page of results: `page.md` with each line `@TABLE` replaced by that table and its plot.

use std::path::Path;

use crate::report::Table;

/// Writes `docs/benchmarks.md`, and the plots beside it.
///
/// # Panics
///
/// When a table that the page names was not measured.
pub(crate) fn write(server: &str, tables: &[Table]) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = here.join("../docs");
    let plots = docs.join("benchmarks");
    std::fs::create_dir_all(&plots).expect("a folder for the plots");
    let template = std::fs::read_to_string(here.join("page.md")).expect("the page");
    let filled = template.lines().map(|line| match line.strip_prefix('@') {
        Some(name) => {
            let table = tables.iter().find(|table| table.name == name);
            let table = table.unwrap_or_else(|| panic!("{name} was not measured"));
            table
                .plot(&plots.join(format!("{name}.svg")))
                .expect("drawn");
            format!(
                "{}\n![{}](benchmarks/{name}.svg)\n",
                table.markdown(),
                table.title
            )
        }
        None => line.replace("SERVER", server),
    });
    let page = filled.collect::<Vec<_>>().join("\n") + "\n";
    std::fs::write(docs.join("benchmarks.md"), page).expect("written");
}
