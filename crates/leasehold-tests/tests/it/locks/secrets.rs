//! No output contains secrets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Client, Credentials, Error};
use testkit::{Fault, Proxy, ServerExt};

use crate::support::log::{log, log_line, start_log};
use crate::support::{
    AMPLE, PASSWORD, SHORT, connect_at, eventually, key, name, run, server, url_at,
    with_long_timeouts,
};

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

/// What a server without `AUTH` replies: it quotes the password.
const QUOTED: &[u8] = b"-ERR unknown command 'AUTH', with args beginning with: \
                        'leasehold' 'open-sesame-1763'\r\n";

#[test]
fn passwords_of_a_provider_are_never_shown() {
    start_log();
    run(async {
        let quoted = String::from_utf8_lossy(QUOTED);
        assert!(quoted.contains(PASSWORD), "{quoted}");
        let server = server();
        let proxy = Proxy::start(server.port());
        let shown = Arc::<Mutex<String>>::default();
        let show = |thing: &dyn std::fmt::Debug| {
            shown
                .lock()
                .unwrap()
                .push_str(&format!("{thing:?} {thing:#?}"));
        };
        let url = format!("redis://127.0.0.1:{}/", proxy.port());
        let with = |password: String, lifetime: Duration| {
            let seen = shown.clone();
            let connect = with_long_timeouts(Client::connect(&url))
                .observe(move |event| seen.lock().unwrap().push_str(&format!("{event:?}")));
            connect.credentials(move |server| {
                let credentials = Credentials::new("leasehold", &password).valid_for(lifetime);
                tracing::info!(?server, ?credentials, "the provider is asked");
                async { Ok::<_, Error>(credentials) }
            })
        };
        show(&with(PASSWORD.to_owned(), AMPLE));
        // The server refuses these.
        show(&with(format!("{PASSWORD}-old"), AMPLE).await);
        proxy.inject(|request| match request[0].as_slice() {
            b"HELLO" => Fault::ReplaceReply(QUOTED),
            _ => Fault::None,
        });
        show(&with(PASSWORD.to_owned(), AMPLE).await);
        // The connection has logged in, and cannot do so again.
        proxy.inject(|request| match request[0].as_slice() {
            b"AUTH" => Fault::ReplaceReply(QUOTED),
            _ => Fault::None,
        });
        let client = with(PASSWORD.to_owned(), Duration::from_secs(2))
            .await
            .unwrap();
        eventually("a login is refused", || {
            log_line(&["cannot log in again", "refused `AUTH`"]).is_some()
        })
        .await;
        let guard = client.mutex(&name()).lock().await.unwrap();
        show(&guard.release().await);
        show(&server.ask(&["CLIENT", "LIST"]).text());
        let shown = shown.lock().unwrap().clone() + &log();
        for text in ["WRONGPASS", "ConnectionUp", "the provider is asked"] {
            assert!(shown.contains(text), "{text} is not shown");
        }
        assert!(!shown.contains(PASSWORD), "the output contains a secret");
    });
}
