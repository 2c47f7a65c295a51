//! Tables of results, as Markdown, JSON and plots.

use std::path::Path;

use plotters::prelude::*;
use serde_json::json;

/// The results of one contestant, by round.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) rounds: Vec<f64>,
}

/// The results of one measurement.
#[derive(Debug)]
pub(crate) struct Table {
    /// The name of its files, and of its place on the page.
    pub(crate) name: String,
    pub(crate) title: String,
    rows: Vec<String>,
    columns: Vec<Column>,
}

/// One quantity of every row.
#[derive(Debug)]
pub(crate) struct Column {
    title: String,
    /// The values of each row, by round.
    rows: Vec<Vec<f64>>,
    /// Whether the smallest and largest value are shown as well.
    has_range: bool,
}

impl Column {
    /// Shows the median only.
    pub(crate) fn medians(title: impl Into<String>, rows: Vec<Vec<f64>>) -> Self {
        Self {
            title: title.into(),
            rows,
            has_range: false,
        }
    }

    /// Shows the median, the smallest and the largest value.
    pub(crate) fn ranges(title: impl Into<String>, rows: Vec<Vec<f64>>) -> Self {
        Self {
            has_range: true,
            ..Self::medians(title, rows)
        }
    }

    /// Returns the median, or the median, the minimum and the maximum.
    fn values(&self, row: usize) -> Vec<f64> {
        let spread = Spread::of(&self.rows[row]);
        let mut values = vec![spread.median];
        if self.has_range && self.rows[row].len() > 1 {
            values.extend([spread.min, spread.max]);
        }
        values
    }

    fn cell(&self, row: usize) -> String {
        let figures: Vec<_> = self.values(row).into_iter().map(figure).collect();
        match figures.as_slice() {
            [median, min, max] => format!("**{median}** ({min} to {max})"),
            others => others.concat(),
        }
    }
}

/// Divides the values of two rows, round by round.
pub(crate) fn ratios(values: &[f64], baseline: &[f64]) -> Vec<f64> {
    let pairs = values.iter().zip(baseline);
    pairs.map(|(value, base)| value / base).collect()
}

/// The median, minimum and maximum.
#[derive(Clone, Copy, Debug)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        Self {
            median: values[values.len() / 2],
            min: values[0],
            max: values[values.len() - 1],
        }
    }
}

impl Table {
    /// Returns a table with one quantity, which is the title, relative to one
    /// of the rows.
    pub(crate) fn new(
        name: impl Into<String>,
        title: impl Into<String>,
        baseline: Option<usize>,
        rows: Vec<Row>,
    ) -> Self {
        let (names, values): (Vec<_>, Vec<_>) =
            rows.into_iter().map(|row| (row.name, row.rounds)).unzip();
        let columns = match baseline {
            Some(at) => {
                let relative = values.iter().map(|row| ratios(row, &values[at]));
                let relative = relative.collect();
                let title = format!("relative to {}", names[at]);
                vec![
                    Column::medians("median", values),
                    Column::ranges(title, relative),
                ]
            }
            None => vec![Column::ranges("median", values)],
        };
        Self::with_columns(name, title, names, columns)
    }

    pub(crate) fn with_columns(
        name: impl Into<String>,
        title: impl Into<String>,
        rows: Vec<String>,
        columns: Vec<Column>,
    ) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            rows,
            columns,
        }
    }

    pub(crate) fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let titles = self.columns.iter().map(|column| column.title.clone());
        let mut lines = vec![
            format!("### {}\n", self.title),
            format!("| {}", line(titles.collect())),
            "|---".repeat(1 + self.columns.len()) + "|",
        ];
        for (at, row) in self.rows.iter().enumerate() {
            let cells = self.columns.iter().map(|column| column.cell(at));
            lines.push(line(std::iter::once(row.clone()).chain(cells).collect()));
        }
        lines.join("\n") + "\n"
    }

    /// Writes the figures as `scripts/results.py` records them, and a plot.
    pub(crate) fn save(&self, folder: &Path) {
        let columns: Vec<_> = self.columns.iter().map(|column| &column.title).collect();
        let rows = self.rows.iter().enumerate().map(|(at, row)| {
            let cells = self.columns.iter().map(|column| {
                let values = column.values(at).into_iter();
                values.map(rounded).collect::<Vec<_>>().into()
            });
            let row = std::iter::once(row.as_str().into());
            row.chain(cells).collect::<Vec<serde_json::Value>>()
        });
        let rows: Vec<_> = rows.collect();
        let table = json!({"title": self.title, "columns": columns, "rows": rows});
        let run = json!({"kind": "bench", "name": self.name, "table": table});
        let text = serde_json::to_string_pretty(&run).expect("JSON");
        std::fs::write(folder.join(format!("{}.json", self.name)), text).expect("written");
        self.plot(&folder.join(format!("{}.svg", self.name)))
            .expect("drawn");
    }

    /// Draws the last column, with a bar per row. The axis is logarithmic,
    /// since peers differ by orders of magnitude.
    pub(crate) fn plot(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let column = self.columns.last().expect("a column");
        let medians = column.rows.iter().map(|row| Spread::of(row).median);
        let values: Vec<_> = medians.map(|median| median.max(1e-6)).collect();
        let max = values.iter().copied().fold(f64::MIN, f64::max) * 1.6;
        let min = values.iter().copied().fold(f64::MAX, f64::min) / 1.6;
        let height = 90 + 30 * u32::try_from(self.rows.len())?;
        let root = SVGBackend::new(path, (860, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let rows = i32::try_from(self.rows.len())?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 17))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(230)
            .build_cartesian_2d((min..max).log_scale(), (0..rows - 1).into_segmented())?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_desc(&column.title)
            .x_labels(6)
            .y_labels(self.rows.len())
            .y_label_formatter(&|at| match at {
                SegmentValue::CenterOf(at) => {
                    let at = usize::try_from(rows - 1 - at).unwrap_or(0);
                    self.rows.get(at).cloned().unwrap_or_default()
                }
                _ => String::new(),
            })
            .x_label_formatter(&|value| figure(*value))
            .draw()?;
        for (at, (value, row)) in values.iter().zip(&self.rows).enumerate() {
            let at = rows - 1 - i32::try_from(at)?;
            let color = if row.starts_with("leasehold") {
                RGBColor(31, 110, 178)
            } else {
                RGBColor(160, 160, 160)
            };
            let corners = [
                (min, SegmentValue::Exact(at)),
                (*value, SegmentValue::Exact(at + 1)),
            ];
            let mut bar = Rectangle::new(corners, color.filled());
            bar.set_margin(5, 5, 0, 0);
            chart.draw_series([bar])?;
            let label = Text::new(
                figure(*value),
                (*value * 1.03, SegmentValue::CenterOf(at)),
                ("sans-serif", 13),
            );
            chart.draw_series([label])?;
        }
        root.present()?;
        Ok(())
    }
}

/// Rounds a value to the digits that a table shows.
fn rounded(value: f64) -> f64 {
    figure(value).parse().expect("a number")
}

/// Formats a value with three significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
