//! The report of a run: a summary for the terminal, a page with charts, and the
//! figures to record.

mod charts;
mod figures;
mod page;
mod summary;

pub(crate) use figures::figures;
pub(crate) use page::page;
pub(crate) use summary::Run;
