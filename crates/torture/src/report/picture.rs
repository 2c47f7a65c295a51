//! The pictures of a page: throughput beneath the faults of the whole run, and who held what in a few seconds of it.

use std::fmt::Write;

use super::Run;
use crate::attempt::Attempt;
use crate::history::Moment;

const WIDTH: f64 = 940.0;
const MARGIN: f64 = 190.0;
const ROW: f64 = 18.0;
const AXIS: f64 = 22.0;

/// How long the close view is, and how many locks it shows.
const CLOSE: u64 = 6_000_000_000;
const LOCKS: u32 = 16;

const COLOURS: [&str; 8] = [
    "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#17becf", "#bcbd22", "#e377c2", "#ff9f1c",
];

/// A span of time, drawn from left to right.
#[derive(Clone, Copy)]
struct Scale {
    from: Moment,
    until: Moment,
}

impl Scale {
    fn x(self, moment: Moment) -> f64 {
        let moment = moment.clamp(self.from, self.until);
        MARGIN + (moment - self.from) as f64 / (self.until - self.from) as f64 * WIDTH
    }

    /// A bar at least one dot wide.
    fn bar(self, (from, until): (Moment, Moment), y: f64, height: f64, look: &str) -> String {
        let (left, right) = (self.x(from), self.x(until));
        let width = (right - left).max(1.0);
        format!("<rect x={left:.1} y={y:.1} width={width:.1} height={height:.1} {look} />")
    }

    fn shows(self, (from, until): (Moment, Moment)) -> bool {
        from < self.until && until > self.from
    }

    /// Seconds since the run began, at the bottom.
    fn axis(self, run: &Run<'_>, y: f64) -> String {
        let mut axis = String::new();
        for part in 0..=6_u64 {
            let moment = self.from + (self.until - self.from) * part / 6;
            let seconds = (moment.saturating_sub(run.from)) as f64 / 1e9;
            let x = self.x(moment);
            let _ = write!(
                axis,
                "<line x1={x:.1} y1=0 x2={x:.1} y2={y:.1} stroke=#ddd /><text x={x:.1} y={:.1} text-anchor=middle fill=#666>{seconds:.1} s</text>",
                y + 15.0
            );
        }
        axis
    }
}

fn svg(title: &str, height: f64, content: &str) -> String {
    format!(
        "<h2>{title}</h2><svg viewBox='0 0 {} {height:.0}' width=100% font-size=12 font-family='system-ui,sans-serif'>{content}</svg>",
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

/// One row for each fault that falls into the span.
fn faults(run: &Run<'_>, scale: Scale) -> (String, f64) {
    let mut rows = String::new();
    let mut y = 0.0;
    for (word, _) in run.faults() {
        let deeds = run.deeds.iter().filter(|deed| deed.fault.word() == word);
        let spans = deeds.map(|deed| (deed.from, deed.until));
        let spans: Vec<_> = spans.filter(|span| scale.shows(*span)).collect();
        if spans.is_empty() {
            continue;
        }
        rows += &label(word, y);
        for span in spans {
            rows += &scale.bar(span, y + 2.0, ROW - 4.0, "fill=#d9534f opacity=.75");
        }
        y += ROW;
    }
    (rows, y)
}

/// Acquisitions over the whole run, with the faults above them.
pub(super) fn throughput(run: &Run<'_>) -> String {
    const PARTS: usize = 235;
    const HEIGHT: f64 = 160.0;
    let scale = Scale {
        from: run.from,
        until: run.until,
    };
    let mut counts = [0_u64; PARTS];
    let length = (run.until - run.from).max(1);
    for holding in run.attempts.iter().filter_map(Attempt::holding) {
        let at = u128::from(holding.got.saturating_sub(run.from)) * PARTS as u128;
        let part = usize::try_from(at / u128::from(length)).unwrap_or(PARTS);
        // Those at the end, when everything is whole again, are not shown.
        if let Some(count) = counts.get_mut(part) {
            *count += 1;
        }
    }
    let most = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
    let (rows, top) = faults(run, scale);
    let mut content = scale.axis(run, top + HEIGHT) + &rows;
    let a_second = most * PARTS as f64 / (length as f64 / 1e9);
    content += &label("acquisitions a second,", top + 4.0);
    content += &label(&format!("at most {a_second:.0}"), top + 4.0 + ROW);
    for (part, count) in counts.iter().enumerate() {
        let tall = *count as f64 / most * (HEIGHT - 8.0);
        let moment = |part: usize| run.from + length / PARTS as u64 * part as u64;
        let span = (moment(part), moment(part + 1));
        content += &scale.bar(span, top + HEIGHT - tall, tall, "fill=#3b7dd8");
    }
    svg("Faults and throughput", top + HEIGHT + AXIS, &content)
}

/// Who held what, in the seconds with the most faults.
pub(super) fn holds(run: &Run<'_>) -> String {
    let from = busiest(run);
    let scale = Scale {
        from,
        until: (from + CLOSE).min(run.until.max(from + 1)),
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
        let Some(holding) = attempt.holding() else {
            continue;
        };
        let span = (holding.got, holding.until);
        if scale.shows(span) {
            let look = format!(
                "fill={} opacity=.85",
                COLOURS[attempt.process % COLOURS.len()]
            );
            let y = top + 8.0 + f64::from(attempt.lock) * ROW;
            content += &scale.bar(span, y + 2.0, ROW - 4.0, &look);
        }
    }
    svg(
        "Who held what, in the six busiest seconds (one colour for each process)",
        bottom + AXIS,
        &content,
    )
}

/// When the seconds begin that have the most faults.
fn busiest(run: &Run<'_>) -> Moment {
    let starts = run.deeds.iter().map(|deed| deed.from);
    let busiest = starts.max_by_key(|from| {
        let inside = |from: &Moment, other: Moment| other >= *from && other < from + CLOSE;
        let deeds = run.deeds.iter();
        deeds.filter(|deed| inside(from, deed.from)).count()
    });
    busiest.unwrap_or(run.from)
}
