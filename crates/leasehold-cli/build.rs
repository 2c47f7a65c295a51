//! Rejects systems without process groups and signals with one message,
//! instead of an error for each use of them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_UNIX").is_none() {
        println!(
            "cargo::error=the CLI `leasehold` supports Unix only, because it controls commands \
             with process groups and signals; the library `leasehold` is not limited to Unix"
        );
    }
}
