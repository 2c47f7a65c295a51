//! The drawing of `top`.

use leasehold::Holder;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};

use super::state::{Mode, State};
use crate::args::SortKey;
use crate::inspect::{held_until, lock_row, process_name, unlisted_waiters, waiter_rows};
use crate::output::printable;
use crate::table;

const COLUMNS: [(&str, Constraint); 8] = [
    ("NAME", Constraint::Fill(3)),
    ("KIND", Constraint::Length(14)),
    ("HOLDER", Constraint::Fill(2)),
    ("HELD", Constraint::Length(7)),
    ("LEASE", Constraint::Length(6)),
    (CONNECTED, Constraint::Length(9)),
    ("WAITERS", Constraint::Length(7)),
    ("NOTE", Constraint::Fill(2)),
];

/// The title of the column that also shows `held until …`.
const CONNECTED: &str = "CONNECTED";

/// The widths of `held until 14:03:20Z` and `handed over until 14:03:20Z`.
const HELD_UNTIL: Constraint = Constraint::Length(20);
const HANDED_OVER_UNTIL: Constraint = Constraint::Length(27);

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let detail_height = match state.mode {
        Mode::Detail => Constraint::Percentage(45),
        _ => Constraint::Length(0),
    };
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        detail_height,
        Constraint::Length(1),
    ]);
    let [header, list, detail, footer] = areas.areas(frame.area());
    frame.render_widget(summary(state), header);
    draw_list(frame, state, list);
    if state.mode == Mode::Detail {
        draw_detail(frame, state, detail);
    }
    frame.render_widget(footer_line(state), footer);
    if let Mode::Confirm(name) = &state.mode {
        draw_confirmation(frame, name);
    }
}

fn summary(state: &State) -> Line<'static> {
    let snapshot = &state.snapshot;
    let waiters = match snapshot.waiters {
        1 => "  1 waiter".to_owned(),
        count => format!("  {count} waiters"),
    };
    let mut parts = vec![
        Span::from(" leasehold ").bold().reversed(),
        Span::from(format!("  {} held", snapshot.held)).bold(),
        Span::from(waiters),
    ];
    if snapshot.disconnected > 0 {
        let text = match snapshot.disconnected {
            1 => "  1 disconnected holder".to_owned(),
            count => format!("  {count} disconnected holders"),
        };
        parts.push(Span::from(text).bold().red());
    }
    let order = match state.sort {
        SortKey::Waiters => "by waiters",
        SortKey::Held => "by time held",
        SortKey::Name => "by name",
    };
    let scan_millis = snapshot.scan_time.as_millis();
    let scan = format!("  · sorted {order} · scanned in {scan_millis} ms");
    parts.push(Span::from(scan).dim());
    Line::from(parts)
}

fn draw_list(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let locks = &state.snapshot.locks;
    let any = |is: fn(&Holder) -> bool| locks.iter().any(|lock| lock.holders.iter().any(is));
    let any_released = any(|holder| holder.released);
    let any_handed_over = any(|holder| holder.handed_over);
    let widths = COLUMNS.map(|(title, width)| match title {
        CONNECTED if any_handed_over => HANDED_OVER_UNTIL,
        CONNECTED if any_released => HELD_UNTIL,
        _ => width,
    });
    let titles = COLUMNS.map(|(title, _)| match title {
        "HELD" | "LEASE" | "WAITERS" => Line::from(title).right_aligned(),
        _ => Line::from(title),
    });
    let table = Table::new(locks.iter().map(|lock| styled_row(lock_row(lock))), widths)
        .header(Row::new(titles).style(Style::new().dim()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selection = TableState::new();
    if !locks.is_empty() {
        selection.select(Some(state.selection));
    }
    frame.render_stateful_widget(table, area, &mut selection);
}

fn draw_detail(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let Some(lock) = state.snapshot.detail.as_ref().or(state.selected()) else {
        return;
    };
    let title = format!(" {} · {} ", printable(&lock.name), lock.kind);
    let mut lines: Vec<Line<'_>> = lock
        .holders
        .iter()
        .map(|holder| Line::from(describe(holder)))
        .collect();
    match lock.waiters.is_empty() {
        true => lines.push(Line::from(unlisted_waiters(lock)).dim()),
        false => lines.push(Line::from("queue:").dim()),
    }
    for row in waiter_rows(&lock.waiters) {
        let spans = row.into_iter().map(|cell| {
            let text = format!("{:<6} ", cell.text);
            Span::styled(text, style(cell.style))
        });
        lines.push(Line::from_iter(spans));
    }
    let block = Block::bordered().title(title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn describe(holder: &Holder) -> String {
    match held_until(holder) {
        Some(until) => format!("{until}, last by {}", process_name(&holder.process)),
        None => format!("held by {holder}"),
    }
}

fn draw_confirmation(frame: &mut Frame<'_>, name: &str) {
    let screen = frame.area();
    let width = screen.width.min(76);
    let area = Rect {
        x: (screen.width - width) / 2,
        y: screen.height / 3,
        width,
        height: 6.min(screen.height),
    };
    let question = format!("Revoke `{}` from its holder?", printable(name));
    let text = vec![
        Line::from(question).bold(),
        Line::from("The holder is notified. It may continue to work until it has stopped."),
        Line::default(),
        Line::from("y  revoke      any other key  cancel").dim(),
    ];
    frame.render_widget(Clear, area);
    let block = Block::bordered().border_style(Style::new().fg(Color::Red));
    frame.render_widget(Paragraph::new(text).block(block), area);
}

fn footer_line(state: &State) -> Line<'static> {
    if state.mode == Mode::Filter {
        return Line::from(vec![
            Span::from("filter names: ").bold(),
            Span::from(state.filter.clone()),
            Span::from("▏"),
            Span::from("  Enter apply  Esc clear").dim(),
        ]);
    }
    if let Some(message) = &state.message {
        return Line::from(printable(message)).yellow();
    }
    let mut keys = "q quit  ↑↓ select  Enter details  s sort  / filter".to_owned();
    if state.allow_release {
        keys += "  r revoke";
    }
    if !state.filter.is_empty() {
        keys += &format!("  · names with `{}`, Esc to clear", state.filter);
    }
    Line::from(keys).dim()
}

fn styled_row(row: table::Row) -> Row<'static> {
    let cells = row.into_iter().map(|cell| {
        let line = Line::from(Span::styled(cell.text, style(cell.style)));
        Cell::from(match cell.right {
            true => line.right_aligned(),
            false => line,
        })
    });
    Row::new(cells.collect::<Vec<_>>())
}

fn style(style: table::Style) -> Style {
    match style {
        table::Style::Plain => Style::new(),
        table::Style::Bold => Style::new().bold(),
        table::Style::Dim => Style::new().dim(),
        table::Style::Green => Style::new().green(),
        table::Style::Red => Style::new().red().bold(),
    }
}
