//! How `top` looks.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};

use super::state::{Mode, State};
use crate::args::SortKey;
use crate::inspect::{row, waiter_rows};
use crate::output::printable;
use crate::table::{Cell as Piece, Look};

const COLUMNS: [(&str, Constraint); 8] = [
    ("NAME", Constraint::Fill(3)),
    ("KIND", Constraint::Length(14)),
    ("HOLDER", Constraint::Fill(2)),
    ("FOR", Constraint::Length(7)),
    ("LEASE", Constraint::Length(6)),
    ("THERE", Constraint::Length(5)),
    ("WAIT", Constraint::Length(5)),
    ("NOTE", Constraint::Fill(2)),
];

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let detail = match state.mode {
        Mode::Detail => Constraint::Percentage(45),
        _ => Constraint::Length(0),
    };
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        detail,
        Constraint::Length(1),
    ]);
    let [head, list, below, foot] = areas.areas(frame.area());
    frame.render_widget(summary(state), head);
    draw_list(frame, state, list);
    if state.mode == Mode::Detail {
        draw_detail(frame, state, below);
    }
    frame.render_widget(footer(state), foot);
    if let Mode::Confirm(name) = &state.mode {
        draw_question(frame, name);
    }
}

fn summary(state: &State) -> Line<'static> {
    let found = &state.found;
    let mut parts = vec![
        Span::from(" leasehold ").bold().reversed(),
        Span::from(format!("  {} held", found.held)).bold(),
        Span::from(format!("  {} waiting", found.waiting)),
    ];
    if found.gone > 0 {
        let holders = if found.gone == 1 { "holder" } else { "holders" };
        let gone = format!("  {} {holders} gone", found.gone);
        parts.push(Span::from(gone).bold().red());
    }
    let sorted = match state.sort {
        SortKey::Waiters => "most waited for first",
        SortKey::Held => "longest held first",
        SortKey::Name => "by name",
    };
    let took = format!("  · {sorted} · seen in {} ms", found.took.as_millis());
    parts.push(Span::from(took).dim());
    Line::from(parts)
}

fn draw_list(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let rows = state.found.locks.iter().map(|seen| painted(row(seen)));
    let head = COLUMNS.map(|(title, _)| match title {
        "FOR" | "LEASE" | "WAIT" => Line::from(title).right_aligned(),
        _ => Line::from(title),
    });
    let head = Row::new(head).style(Style::new().dim());
    let table = Table::new(rows, COLUMNS.map(|(_, width)| width))
        .header(head)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut at = TableState::new();
    if !state.found.locks.is_empty() {
        at.select(Some(state.chosen));
    }
    frame.render_stateful_widget(table, area, &mut at);
}

fn draw_detail(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let Some(seen) = state.found.detail.as_ref().or(state.chosen()) else {
        return;
    };
    let block = Block::bordered().title(format!(" {} · {} ", printable(&seen.name), seen.kind));
    let mut lines: Vec<Line<'_>> = seen
        .holders
        .iter()
        .map(|holder| Line::from(format!("held by {holder}")))
        .collect();
    match (seen.waiters.is_empty(), seen.waiter_count) {
        (false, _) => lines.push(Line::from("in line:").dim()),
        (true, Some(0)) => lines.push(Line::from("nobody waits").dim()),
        (true, Some(count)) => lines.push(Line::from(format!("{count} wait, in no order"))),
        (true, None) => lines.push(Line::from("who waits cannot be seen").dim()),
    }
    for waiter in waiter_rows(&seen.waiters) {
        let pieces = waiter.into_iter().map(|piece| {
            let text = format!("{:<6}", piece.text);
            Span::styled(text + " ", style(piece.look))
        });
        lines.push(Line::from_iter(pieces));
    }
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_question(frame: &mut Frame<'_>, name: &str) {
    let screen = frame.area();
    let width = screen.width.min(76);
    let area = Rect {
        x: (screen.width - width) / 2,
        y: screen.height / 3,
        width,
        height: 6.min(screen.height),
    };
    let text = vec![
        Line::from(format!("Take `{}` away from its holder?", printable(name))).bold(),
        Line::from("It is told, and may go on until it has stopped: two may work at once."),
        Line::default(),
        Line::from("y  take it away      any other key  leave it").dim(),
    ];
    frame.render_widget(Clear, area);
    let block = Block::bordered().border_style(Style::new().fg(Color::Red));
    frame.render_widget(Paragraph::new(text).block(block), area);
}

fn footer(state: &State) -> Line<'static> {
    if state.mode == Mode::Filter {
        return Line::from(vec![
            Span::from("names with: ").bold(),
            Span::from(state.filter.clone()),
            Span::from("▏"),
            Span::from("  Enter keep  Esc all").dim(),
        ]);
    }
    if let Some(message) = &state.message {
        return Line::from(printable(message)).yellow();
    }
    let mut keys = "q quit  ↑↓ choose  Enter details  s sort  / filter".to_owned();
    if state.allow_release {
        keys += "  r take away";
    }
    if !state.filter.is_empty() {
        keys += &format!("  · only names with `{}`, Esc for all", state.filter);
    }
    Line::from(keys).dim()
}

fn painted(row: Vec<Piece>) -> Row<'static> {
    let cells = row.into_iter().map(|piece| {
        let line = Line::styled(piece.text, style(piece.look));
        Cell::from(match piece.right {
            true => line.right_aligned(),
            false => line,
        })
    });
    Row::new(cells.collect::<Vec<_>>())
}

fn style(look: Look) -> Style {
    match look {
        Look::Plain => Style::new(),
        Look::Bold => Style::new().bold(),
        Look::Dim => Style::new().dim(),
        Look::Green => Style::new().green(),
        Look::Red => Style::new().red().bold(),
    }
}
