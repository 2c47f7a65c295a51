//! No output contains secrets.

use std::time::Duration;

use leasehold::{Client, Error};
use testkit::{Fault, Proxy, ServerExt};

use crate::support::log::{log, log_line, start_log};
use crate::support::{PASSWORD, SHORT, connect_at, eventually, key, name, run, server, url_at};

#[test]
fn passwords_and_owners_are_never_shown() {
    start_log();
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let mut shown = String::new();
        let mut show =
            |thing: &dyn std::fmt::Debug| shown.push_str(&format!("{thing:?} {thing:#?}"));
        let connect = connect_at(proxy.port());
        show(&connect);
        // Longer than a stall, which must end neither the connect nor the
        // lease.
        let long = Duration::from_secs(3);
        let connect = connect.request_timeout(SHORT).connect_timeout(long);
        let client = connect.await.unwrap();
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
