//! The report of a run: a summary for the terminal, and a page with charts.

mod charts;
mod page;
mod summary;

pub(crate) use page::page;
pub(crate) use summary::Run;
