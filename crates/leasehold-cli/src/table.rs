//! Text tables with aligned columns and optional colors.

use std::fmt::Display;
use std::io::{self, Write};

use unicode_width::UnicodeWidthStr;

/// A table row.
pub(crate) type Row = Vec<Cell>;

/// A table cell: text and its style.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) right: bool,
    pub(crate) style: Style,
}

/// The style of a cell on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Bold,
    Dim,
    Green,
    Red,
}

impl Style {
    fn escape_sequence(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Green => "\x1b[32m",
            Self::Red => "\x1b[1;31m",
        }
    }
}

impl Cell {
    pub(crate) fn plain(text: impl Display) -> Self {
        Self {
            text: text.to_string(),
            right: false,
            style: Style::Plain,
        }
    }

    pub(crate) fn bold(text: impl Display) -> Self {
        Self {
            style: Style::Bold,
            ..Self::plain(text)
        }
    }

    /// Creates a right-aligned cell.
    pub(crate) fn right(text: impl Display) -> Self {
        Self {
            right: true,
            ..Self::plain(text)
        }
    }

    pub(crate) fn dim(self) -> Self {
        Self {
            style: Style::Dim,
            ..self
        }
    }

    pub(crate) fn green(self) -> Self {
        Self {
            style: Style::Green,
            ..self
        }
    }

    pub(crate) fn red(self) -> Self {
        Self {
            style: Style::Red,
            ..self
        }
    }
}

/// A table that is written page by page.
///
/// A column fits the widest cell written so far.
pub(crate) struct Table {
    header: Row,
    widths: Vec<usize>,
    header_written: bool,
    colors: bool,
}

impl Table {
    pub(crate) fn new(columns: &[&str], colors: bool) -> Self {
        let header: Row = columns.iter().map(|name| Cell::plain(name).dim()).collect();
        Self {
            widths: header.iter().map(width).collect(),
            header,
            header_written: false,
            colors,
        }
    }

    /// Returns whether no row was written yet.
    pub(crate) fn is_empty(&self) -> bool {
        !self.header_written
    }

    /// Writes rows, after the header on the first call.
    pub(crate) fn write(&mut self, mut rows: Vec<Row>, out: &mut impl Write) -> io::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        for row in &rows {
            for (column, cell) in self.widths.iter_mut().zip(row) {
                *column = (*column).max(width(cell));
            }
        }
        if !self.header_written {
            self.header_written = true;
            let mut header = self.header.clone();
            for (title, cell) in header.iter_mut().zip(&rows[0]) {
                title.right = cell.right;
            }
            rows.insert(0, header);
        }
        rows.iter().try_for_each(|row| self.line(row, out))
    }

    /// Returns the table with these rows as text.
    pub(crate) fn into_text(mut self, rows: Vec<Row>) -> String {
        let mut out = Vec::new();
        // Writing to a vector does not fail.
        let _ = self.write(rows, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn line(&self, row: &Row, out: &mut impl Write) -> io::Result<()> {
        let mut line = String::new();
        for (index, (cell, column)) in row.iter().zip(&self.widths).enumerate() {
            let padding = " ".repeat(column.saturating_sub(width(cell)));
            let styled = match self.colors && cell.style != Style::Plain {
                true => format!("{}{}\x1b[0m", cell.style.escape_sequence(), cell.text),
                false => cell.text.clone(),
            };
            if index > 0 {
                line += "  ";
            }
            line += &match cell.right {
                true => padding + &styled,
                false => styled + &padding,
            };
        }
        writeln!(out, "{}", line.trim_end())
    }
}

fn width(cell: &Cell) -> usize {
    cell.text.width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = vec![
            vec![Cell::bold("a"), Cell::right(7), Cell::plain("x")],
            vec![Cell::plain("longer"), Cell::right(12), Cell::plain("")],
        ];
        let text = Table::new(&["NAME", "N", "NOTE"], false).into_text(rows);
        assert_eq!(text, "NAME     N  NOTE\na        7  x\nlonger  12\n");
    }

    #[test]
    fn wide_and_combined_characters_are_aligned() {
        let rows = vec![
            vec![Cell::plain("夜間"), Cell::plain("x")],
            vec![Cell::plain("e\u{301}te\u{301}"), Cell::plain("y")],
        ];
        let text = Table::new(&["NAME", "N"], false).into_text(rows);
        assert_eq!(text, "NAME  N\n夜間  x\ne\u{301}te\u{301}   y\n");
    }
}
