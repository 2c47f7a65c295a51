//! Nothing of its own: see `tests`.
