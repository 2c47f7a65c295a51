//! Compiles the examples of the README and of the guide.
//!
//! They are not part of the library, because a published crate does not contain
//! the documents of the repository.

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles the examples of the interoperability guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/interop.md")]
struct Interop;
