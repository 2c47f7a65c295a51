//! The charts of a page: throughput and faults over the whole run, and the
//! holds of a few seconds of it.

use std::fmt::Write;

use super::summary::Run;
use crate::attempt::Attempt;
use crate::history::Timestamp;

const WIDTH: f64 = 940.0;
const MARGIN: f64 = 190.0;
const ROW: f64 = 18.0;
const AXIS: f64 = 22.0;

/// The length of the close-up in nanoseconds, and the number of locks it shows.
const CLOSE_UP: u64 = 6_000_000_000;
const LOCKS: u32 = 16;

const COLORS: [&str; 8] = [
    "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#17becf", "#bcbd22", "#e377c2", "#ff9f1c",
];

/// A time axis, from left to right.
#[derive(Clone, Copy)]
struct Scale {
    from: Timestamp,
    until: Timestamp,
}

impl Scale {
    fn x(self, time: Timestamp) -> f64 {
        let time = time.clamp(self.from, self.until);
        MARGIN + (time - self.from) as f64 / (self.until - self.from) as f64 * WIDTH
    }

    /// Draws a bar that is at least one unit wide.
    fn bar(
        self,
        (from, until): (Timestamp, Timestamp),
        y: f64,
        height: f64,
        style: &str,
    ) -> String {
        let (left, right) = (self.x(from), self.x(until));
        let width = (right - left).max(1.0);
        format!("<rect x={left:.1} y={y:.1} width={width:.1} height={height:.1} {style} />")
    }

    fn shows(self, (from, until): (Timestamp, Timestamp)) -> bool {
        from < self.until && until > self.from
    }

    /// Draws the axis, labelled in seconds since the start of the run.
    fn axis(self, run: &Run<'_>, y: f64) -> String {
        let mut axis = String::new();
        for part in 0..=6_u64 {
            let time = self.from + (self.until - self.from) * part / 6;
            let seconds = time.saturating_sub(run.from) as f64 / 1e9;
            let x = self.x(time);
            let _ = write!(
                axis,
                "<line x1={x:.1} y1=0 x2={x:.1} y2={y:.1} stroke=#ddd />\
                 <text x={x:.1} y={:.1} text-anchor=middle fill=#666>{seconds:.1} s</text>",
                y + 15.0
            );
        }
        axis
    }
}

fn svg(title: &str, height: f64, content: &str) -> String {
    format!(
        "<h2>{title}</h2><svg viewBox='0 0 {} {height:.0}' width=100% font-size=12 \
         font-family='system-ui,sans-serif'>{content}</svg>",
        MARGIN + WIDTH + 30.0
    )
}

fn label(text: &str, y: f64) -> String {
    format!(
        "<text x={:.1} y={:.1} text-anchor=end>{text}</text>",
        MARGIN - 8.0,
        y + 12.0
    )
}

/// Draws one row per fault that is active in the time shown.
fn faults(run: &Run<'_>, scale: Scale) -> (String, f64) {
    let mut rows = String::new();
    let mut y = 0.0;
    for (label_text, _) in run.fault_counts() {
        let spans: Vec<_> = run
            .faults
            .iter()
            .filter(|injected| injected.fault.label() == label_text)
            .map(|injected| (injected.from, injected.until))
            .filter(|span| scale.shows(*span))
            .collect();
        if spans.is_empty() {
            continue;
        }
        rows += &label(label_text, y);
        for span in spans {
            rows += &scale.bar(span, y + 2.0, ROW - 4.0, "fill=#d9534f opacity=.75");
        }
        y += ROW;
    }
    (rows, y)
}

/// Draws the acquisitions of the whole run below its faults.
pub(super) fn throughput(run: &Run<'_>) -> String {
    const PARTS: usize = 235;
    const HEIGHT: f64 = 160.0;
    let scale = Scale {
        from: run.from,
        until: run.until,
    };
    let mut counts = [0_u64; PARTS];
    let length = (run.until - run.from).max(1);
    for hold in run.attempts.iter().filter_map(Attempt::hold) {
        let at = u128::from(hold.acquired.saturating_sub(run.from)) * PARTS as u128;
        let part = usize::try_from(at / u128::from(length)).unwrap_or(PARTS);
        // Acquisitions after the last fault are not shown.
        if let Some(count) = counts.get_mut(part) {
            *count += 1;
        }
    }
    let max = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
    let (rows, top) = faults(run, scale);
    let mut content = scale.axis(run, top + HEIGHT) + &rows;
    let per_second = max * PARTS as f64 / (length as f64 / 1e9);
    content += &label("acquisitions per second,", top + 4.0);
    content += &label(&format!("maximum {per_second:.0}"), top + 4.0 + ROW);
    for (part, count) in counts.iter().enumerate() {
        let tall = *count as f64 / max * (HEIGHT - 8.0);
        let time = |part: usize| run.from + length / PARTS as u64 * part as u64;
        let span = (time(part), time(part + 1));
        content += &scale.bar(span, top + HEIGHT - tall, tall, "fill=#3b7dd8");
    }
    svg("Faults and throughput", top + HEIGHT + AXIS, &content)
}

/// Draws the holds during the seconds with the most faults.
pub(super) fn holds(run: &Run<'_>) -> String {
    let from = busiest(run);
    let scale = Scale {
        from,
        until: (from + CLOSE_UP).min(run.until.max(from + 1)),
    };
    let (rows, top) = faults(run, scale);
    let locks = run.plan.locks.min(LOCKS);
    let bottom = top + 8.0 + f64::from(locks) * ROW;
    let mut content = scale.axis(run, bottom) + &rows;
    for lock in 0..locks {
        let kind = format!("{:?} {lock}", run.plan.kind(lock));
        content += &label(&kind, top + 8.0 + f64::from(lock) * ROW);
    }
    let shown = run.attempts.iter().filter(|attempt| attempt.lock < locks);
    for attempt in shown {
        let Some(hold) = attempt.hold() else {
            continue;
        };
        let span = (hold.acquired, hold.until);
        if scale.shows(span) {
            let style = format!(
                "fill={} opacity=.85",
                COLORS[attempt.process % COLORS.len()]
            );
            let y = top + 8.0 + f64::from(attempt.lock) * ROW;
            content += &scale.bar(span, y + 2.0, ROW - 4.0, &style);
        }
    }
    svg(
        "Holds during the six seconds with the most faults (one color per process)",
        bottom + AXIS,
        &content,
    )
}

/// Returns the start of the close-up: the time with the most faults.
fn busiest(run: &Run<'_>) -> Timestamp {
    let starts = run.faults.iter().map(|injected| injected.from);
    let busiest = starts.max_by_key(|from| {
        let is_inside = |other: Timestamp| other >= *from && other < from + CLOSE_UP;
        let faults = run.faults.iter();
        faults.filter(|injected| is_inside(injected.from)).count()
    });
    busiest.unwrap_or(run.from)
}
