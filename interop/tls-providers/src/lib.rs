//! Empty; see `tests`.
