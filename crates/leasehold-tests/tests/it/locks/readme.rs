//! The README's first example runs as printed, and no output contains secrets.

use std::net::TcpListener;
use std::time::Duration;

use leasehold::{Client, Error};
use testkit::{Fault, Flavor, Proxy, Setup};

use crate::support::log::{log, log_line, start_log};
use crate::support::{PASSWORD, SHORT, builder_at, eventually, key, name, run, server, url_at};

const README: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));

const EXAMPLE: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../leasehold/examples/coupon.rs"
));

#[test]
fn readme_example_is_the_short_coupon_program() {
    let block = README.split("```rust").nth(1).expect("a Rust example");
    let block = block
        .split_once('\n')
        .expect("lines")
        .1
        .split("```")
        .next()
        .expect("an end");
    let program: Vec<_> = EXAMPLE
        .lines()
        .filter(|line| !line.starts_with("//!"))
        .collect();
    assert_eq!(block.trim(), program.join("\n").trim());
    assert!(
        block.trim().lines().count() < 15,
        "{} lines",
        block.trim().lines().count()
    );
}

#[test]
fn readme_example_runs_against_local_server() {
    run(async {
        // A server that already listens on the default port will do.
        let ours = TcpListener::bind("127.0.0.1:6379").is_ok();
        let _server = ours.then(|| Setup::default().port(6379).start(&Flavor::one()));
        let output = example("coupon").output().expect("the example runs");
        assert!(output.status.success(), "{output:?}");
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("token"),
            "{output:?}"
        );
    });
}

/// Returns the command of an example, which may already be built.
fn example(name: &str) -> std::process::Command {
    let program = std::env::current_exe().expect("this program");
    let built = program
        .ancestors()
        .nth(2)
        .expect("a folder")
        .join("examples");
    if built.join(name).exists() {
        return std::process::Command::new(built.join(name));
    }
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args([
        "run",
        "--quiet",
        "--package",
        "leasehold",
        "--example",
        name,
    ]);
    cargo
}

#[test]
fn passwords_and_owners_are_never_shown() {
    start_log();
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let mut shown = String::new();
        let mut show =
            |thing: &dyn std::fmt::Debug| shown.push_str(&format!("{thing:?} {thing:#?}"));
        let builder = builder_at(proxy.port());
        show(&builder);
        // Longer than a stall, which must end neither the connect nor the
        // lease.
        let long = Duration::from_secs(3);
        let builder = builder.request_timeout(SHORT).connect_timeout(long);
        let client = builder.connect().await.unwrap();
        let mutex = client.mutex(&name());
        show(&(
            &client,
            &mutex,
            mutex.lock(),
            mutex.try_lock(),
            mutex.reentrant(),
        ));
        let lock = mutex.lock().fixed_lease(long).note("a note");
        let guard = lock.await.unwrap();
        let value = server.ask(&["GET", &key(mutex.name())]).text().to_owned();
        let owner = value.split(' ').nth(1).expect("an owner").to_owned();
        show(&(&guard, guard.lease(), mutex.holder().await));
        show(&mutex.lock().timeout(Duration::ZERO).await);
        show(&Client::connect(&url_at(1)).await);
        show(&Client::connect(&format!("redis://u:{PASSWORD}@")).await);
        show(&Client::connect(&format!("redis://u:{PASSWORD}@127.0.0.1:{}", server.port())).await);
        proxy.inject(|request| match request[0].as_slice() {
            b"SET" | b"EVALSHA" | b"EVAL" => Fault::DropReplies,
            _ => Fault::None,
        });
        show(&client.mutex("unknown").try_lock().await);
        proxy.black_hole(true);
        show(&guard.lost().await);
        show(&guard.check());
        show(&client.mutex("away").lock().timeout(SHORT).await);
        show(&guard.release().await);
        eventually("the keeper gives up on the release", || {
            let name = format!("{:?}", mutex.name());
            log_line(&["release failed", &name]).is_some()
        })
        .await;
        let error: Result<(), Error> = Err(Error::ShutDown);
        show(&error);
        // The logs of other tests of this process are searched as well.
        shown.push_str(&log());
        assert!(shown.contains("lease lost"), "the log is empty");
        assert_eq!(owner.len(), 32);
        for secret in [PASSWORD, &owner] {
            assert!(!shown.contains(secret), "the output contains a secret");
        }
    });
}
