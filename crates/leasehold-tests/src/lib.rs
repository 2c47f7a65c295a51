//! Compiles the examples of the README and of the guide, and programs that must
//! not compile.
//!
//! The pages are not part of a published package, so this package includes
//! them. `scripts/check_links.py` fails if a page with an example is missing
//! here.

#[cfg(doctest)]
mod misuse;

/// Includes Markdown files, by their path below the root of the repository.
macro_rules! pages {
    ($($path:literal)*) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../", $path))]
            const _: () = ();
        )*
    };
}

pages! {
    "README.md"
    "docs/choosing.md"
    "docs/interop.md"
    "docs/losing.md"
    "docs/migrate-redisson.md"
    "docs/migrate-redlock.md"
    "docs/migrate-server.md"
    "docs/migrate-set-nx-px.md"
    "docs/observability.md"
    "docs/progress.md"
    "docs/servers.md"
    "docs/start.md"
}
