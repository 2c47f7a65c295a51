//! Other lock libraries that tests run next to; see `interop`.

/// Reports that a test is skipped because `peer` is not installed.
///
/// # Panics
///
/// If `LEASEHOLD_PEERS` requires it.
pub fn skip(peer: &str) {
    let required = std::env::var("LEASEHOLD_PEERS").unwrap_or_default();
    let required = required.split_whitespace().any(|name| name == peer);
    assert!(
        !required,
        "{peer} is required but not installed; see interop/README.md"
    );
    println!("skipped: {peer} is not installed; see interop/README.md");
}
