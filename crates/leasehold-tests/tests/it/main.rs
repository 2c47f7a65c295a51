//! Tests of the library against real servers and injected faults.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

mod faults;
mod interop;
mod locks;
mod misuse;
mod pairs;
mod programs;
mod regressions;
mod scripts;
mod topology;
mod waiting;
