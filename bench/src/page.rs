//! The page of results, `docs/benchmarks.md`.
//!
//! A table stands between the lines `<!-- table NAME -->` and `<!-- end -->`.
//! We replace what we have measured, and leave everything else as it is.
//! `<!-- plot NAME -->` also draws the table's last column.

use std::path::Path;

use crate::report::Table;

/// Replaces the tables that are on the page, and prints the names of tables
/// that did not change.
pub(crate) fn write(tables: &[Table]) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let page = docs.join("benchmarks.md");
    let old = std::fs::read_to_string(&page).expect("the page");
    let mut lines = Vec::new();
    let mut rest = old.lines();
    while let Some(line) = rest.next() {
        lines.push(line.to_owned());
        let Some((name, has_plot)) = marker(line) else {
            continue;
        };
        let body: Vec<_> = rest.by_ref().take_while(|line| *line != END).collect();
        match tables.iter().find(|table| table.name == name) {
            Some(table) => lines.push(filled(table, has_plot, &docs.join("benchmarks"))),
            None => {
                println!("not measured, left as it was: {name}");
                lines.extend(body.into_iter().map(str::to_owned));
            }
        }
        lines.push(END.to_owned());
    }
    std::fs::write(page, lines.join("\n") + "\n").expect("written");
}

const END: &str = "<!-- end -->";

/// Returns the table that starts at a line, and whether it has a plot.
fn marker(line: &str) -> Option<(&str, bool)> {
    let inner = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    let (kind, name) = inner.split_once(' ')?;
    match kind {
        "table" => Some((name, false)),
        "plot" => Some((name, true)),
        _ => None,
    }
}

fn filled(table: &Table, has_plot: bool, plots: &Path) -> String {
    let markdown = table.markdown();
    if !has_plot {
        return format!("\n{markdown}");
    }
    let name = &table.name;
    std::fs::create_dir_all(plots).expect("a folder for the plots");
    let plot = table.plot(&plots.join(format!("{name}.svg")));
    plot.expect("drawn");
    format!("\n{markdown}\n![{}](benchmarks/{name}.svg)\n", table.title)
}
