//! Tables of text: columns that fit what is in them, and colours where they can be seen.

use std::fmt::Display;
use std::io::{self, Write};

/// A line of a table.
pub(crate) type Row = Vec<Cell>;

/// One piece of text in a table, and how it looks.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) right: bool,
    pub(crate) look: Look,
}

/// How a cell looks on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Plain,
    Bold,
    Dim,
    Green,
    Red,
}

impl Look {
    fn code(self) -> &'static str {
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
            look: Look::Plain,
        }
    }

    pub(crate) fn bold(text: impl Display) -> Self {
        Self {
            look: Look::Bold,
            ..Self::plain(text)
        }
    }

    /// A number, which ends where its column ends.
    pub(crate) fn right(text: impl Display) -> Self {
        Self {
            right: true,
            ..Self::plain(text)
        }
    }

    pub(crate) fn dim(self) -> Self {
        Self {
            look: Look::Dim,
            ..self
        }
    }

    pub(crate) fn green(self) -> Self {
        Self {
            look: Look::Green,
            ..self
        }
    }

    pub(crate) fn red(self) -> Self {
        Self {
            look: Look::Red,
            ..self
        }
    }
}

/// Writes rows under a head; the first rows say how wide the columns are.
pub(crate) struct Table {
    head: Row,
    widths: Vec<usize>,
    begun: bool,
    colours: bool,
}

impl Table {
    pub(crate) fn new(columns: &[&str], colours: bool) -> Self {
        let head: Row = columns.iter().map(|name| Cell::plain(name).dim()).collect();
        Self {
            widths: head.iter().map(width).collect(),
            head,
            begun: false,
            colours,
        }
    }

    /// Whether nothing was written yet.
    pub(crate) fn is_empty(&self) -> bool {
        !self.begun
    }

    /// Writes more rows. Columns only ever grow: what is long does not cut off what comes after it.
    pub(crate) fn write(&mut self, mut rows: Vec<Row>, out: &mut impl Write) -> io::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        for row in &rows {
            for (column, cell) in self.widths.iter_mut().zip(row) {
                *column = (*column).max(width(cell));
            }
        }
        if !self.begun {
            self.begun = true;
            let mut head = self.head.clone();
            for (title, cell) in head.iter_mut().zip(&rows[0]) {
                title.right = cell.right;
            }
            rows.insert(0, head);
        }
        rows.iter().try_for_each(|row| self.line(row, out))
    }

    /// All of it as text.
    pub(crate) fn text(mut self, rows: Vec<Row>) -> String {
        let mut out = Vec::new();
        // Writing to memory does not fail.
        let _ = self.write(rows, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn line(&self, row: &Row, out: &mut impl Write) -> io::Result<()> {
        let mut line = String::new();
        for (at, (cell, column)) in row.iter().zip(&self.widths).enumerate() {
            let space = " ".repeat(column.saturating_sub(width(cell)));
            let painted = match self.colours && cell.look != Look::Plain {
                true => format!("{}{}\x1b[0m", cell.look.code(), cell.text),
                false => cell.text.clone(),
            };
            if at > 0 {
                line += "  ";
            }
            line += &match cell.right {
                true => space + &painted,
                false => painted + &space,
            };
        }
        writeln!(out, "{}", line.trim_end())
    }
}

fn width(cell: &Cell) -> usize {
    cell.text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_and_numbers_end_together() {
        let rows = vec![
            vec![Cell::bold("a"), Cell::right(7), Cell::plain("x")],
            vec![Cell::plain("longer"), Cell::right(12), Cell::plain("")],
        ];
        let text = Table::new(&["NAME", "N", "NOTE"], false).text(rows);
        assert_eq!(text, "NAME     N  NOTE\na        7  x\nlonger  12\n");
    }
}
