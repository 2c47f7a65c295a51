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
    /// The name of its files.
    pub(crate) name: String,
    /// The quantity and its unit.
    pub(crate) title: String,
    /// The row that all rows are divided by, if any.
    pub(crate) baseline: Option<usize>,
    pub(crate) rows: Vec<Row>,
}

/// The median, minimum and maximum.
#[derive(Clone, Copy, Debug)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self {
            median: values[values.len() / 2],
            min: values[0],
            max: values[values.len() - 1],
        }
    }
}

impl Table {
    pub(crate) fn new(
        name: impl Into<String>,
        title: impl Into<String>,
        baseline: Option<usize>,
        rows: Vec<Row>,
    ) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            baseline,
            rows,
        }
    }

    /// Returns the results divided by those of the baseline in the same round.
    fn ratios(&self, row: &Row) -> Option<Spread> {
        let baseline = &self.rows[self.baseline?].rounds;
        Some(Spread::of(
            row.rounds
                .iter()
                .zip(baseline)
                .map(|(one, base)| one / base),
        ))
    }

    pub(crate) fn markdown(&self) -> String {
        let mut lines = vec![format!("### {}\n", self.title)];
        match self.baseline {
            Some(at) => {
                lines.push(format!(
                    "| | median | relative to {} | range |",
                    self.rows[at].name
                ));
                lines.push("|---|---|---|---|".to_owned());
            }
            None => {
                lines.push("| | median | range |".to_owned());
                lines.push("|---|---|---|".to_owned());
            }
        }
        for row in &self.rows {
            let own = Spread::of(row.rounds.iter().copied());
            let median = figure(own.median);
            lines.push(match self.ratios(row) {
                Some(ratio) => format!(
                    "| {} | {median} | **{}** | {} to {} |",
                    row.name,
                    figure(ratio.median),
                    figure(ratio.min),
                    figure(ratio.max)
                ),
                None => {
                    format!(
                        "| {} | {median} | {} to {} |",
                        row.name,
                        figure(own.min),
                        figure(own.max)
                    )
                }
            });
        }
        lines.join("\n") + "\n"
    }

    pub(crate) fn save(&self, folder: &Path) {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| json!({"name": row.name, "rounds": row.rounds}))
            .collect();
        let baseline = self.baseline.map(|at| self.rows[at].name.clone());
        let whole = json!({"title": self.title, "baseline": baseline, "rows": rows});
        let text = serde_json::to_string_pretty(&whole).expect("JSON");
        std::fs::write(folder.join(format!("{}.json", self.name)), text).expect("written");
        self.plot(&folder.join(format!("{}.svg", self.name)))
            .expect("drawn");
    }

    /// Draws a bar per row. The axis is logarithmic, since peers differ by
    /// orders of magnitude.
    pub(crate) fn plot(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let value = |row: &Row| match self.ratios(row) {
            Some(ratio) => ratio.median,
            None => Spread::of(row.rounds.iter().copied()).median,
        };
        let values: Vec<_> = self.rows.iter().map(|row| value(row).max(1e-6)).collect();
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
        let axis = match self.baseline {
            Some(at) => format!("relative to {}", self.rows[at].name),
            None => "as measured".to_owned(),
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_desc(axis)
            .x_labels(6)
            .y_labels(self.rows.len())
            .y_label_formatter(&|at| match at {
                SegmentValue::CenterOf(at) => {
                    let at = usize::try_from(rows - 1 - at).unwrap_or(0);
                    self.rows
                        .get(at)
                        .map(|row| row.name.clone())
                        .unwrap_or_default()
                }
                _ => String::new(),
            })
            .x_label_formatter(&|value| figure(*value))
            .draw()?;
        for (at, (value, row)) in values.iter().zip(&self.rows).enumerate() {
            let at = rows - 1 - i32::try_from(at)?;
            let color = if row.name.starts_with("leasehold") {
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

/// Formats a value with three significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
