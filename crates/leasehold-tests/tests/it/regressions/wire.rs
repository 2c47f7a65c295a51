//! Bugs of the login, and of how replies are matched to requests.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leasehold::{Client, Error, Quorum};
use testkit::resp::{arguments, frame_length};
use testkit::{Fault, Flavor, Proxy, Reply, ServerExt, Setup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::inspection::wait_for_listeners;
use crate::support::log::{log, log_line, start_log};
use crate::support::{
    AMPLE, LEASE, PASSWORD, SHORT, client, client_at, connect_at, eventually, exists,
    has_subscriber, is_busy, key, name, run, server, with_least_privilege,
};

/// Replies to a request, given its words.
type Answer = Arc<dyn Fn(&[Vec<u8>]) -> Vec<u8> + Send + Sync>;

/// Starts a server that answers every request with `answer`, and returns its
/// port.
async fn fake_server(answer: Answer) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, answer.clone()));
        }
    });
    port
}

async fn serve(mut client: TcpStream, answer: Answer) {
    let mut buffer = Vec::new();
    while matches!(client.read_buf(&mut buffer).await, Ok(1..)) {
        while let Some(length) = frame_length(&buffer) {
            let request: Vec<u8> = buffer.drain(..length).collect();
            if client
                .write_all(&answer(&arguments(&request)))
                .await
                .is_err()
            {
                return;
            }
        }
    }
}

/// Returns everything that an error shows.
fn shown(error: &Error) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(error) = source {
        shown.push_str(&format!(" {error} {error:?}"));
        source = error.source();
    }
    shown
}

/// Connects to one server with the password, and returns what the error shows.
async fn fail_to_connect(port: u16) -> String {
    shown(&connect_at(port).await.unwrap_err())
}

/// Connects with the password in the URLs of all other topologies, which take
/// their whole timeout.
async fn fail_to_connect_to_many(port: u16) -> String {
    let at = format!("leasehold:{PASSWORD}@127.0.0.1:{port}");
    let own = format!("sentinel_username=leasehold&sentinel_password={PASSWORD}");
    let mut errors = String::new();
    for url in [
        format!("redis+sentinel://{at}/group?{own}"),
        format!("redis+cluster://{at}"),
    ] {
        let builder = Client::connect(&url).connect_timeout(SHORT);
        errors.push_str(&shown(&builder.await.unwrap_err()));
    }
    let urls = [(); 3].map(|()| format!("redis://{at}"));
    let quorum = Quorum::connect(urls).connect_timeout(SHORT).await;
    errors.push_str(&shown(&quorum.unwrap_err()));
    errors
}

/// A server that does not know `HELLO` quotes its arguments, and the client
/// showed that reply in errors and in the log.
#[test]
fn password_quoted_by_server_is_never_shown() {
    start_log();
    run(async {
        let quote = |words: &[Vec<u8>]| {
            let words = words.iter().map(|word| String::from_utf8_lossy(word));
            words.map(|word| format!("'{word}' ")).collect::<String>()
        };
        let answers: [Answer; 6] = [
            Arc::new(move |words| {
                format!(
                    "-ERR unknown command, with args beginning with: {}\r\n",
                    quote(words)
                )
                .into_bytes()
            }),
            Arc::new(move |words| format!("-WRONGPASS {}\r\n", quote(words)).into_bytes()),
            Arc::new(move |words| format!("-{}\r\n", quote(words)).into_bytes()),
            Arc::new(move |words| format!("+{}\r\n", quote(words)).into_bytes()),
            Arc::new(move |words| {
                let text = format!("LOADING {}", quote(words));
                format!("!{}\r\n{text}\r\n", text.len()).into_bytes()
            }),
            // Twice: one reply too many.
            Arc::new(move |words| format!("-ERR {}\r\n", quote(words)).repeat(2).into_bytes()),
        ];
        for (number, answer) in answers.into_iter().enumerate() {
            let port = fake_server(answer).await;
            let mut errors = fail_to_connect(port).await;
            if number == 0 {
                errors.push_str(&fail_to_connect_to_many(port).await);
            }
            assert!(!errors.contains(PASSWORD), "answer {number}: {errors}");
        }
        assert!(log_line(&["cannot connect", "does not know `HELLO`"]).is_some());
        assert!(!log().contains(PASSWORD), "the log contains the password");
    });
}

#[test]
fn server_without_hello_is_named_without_password() {
    start_log();
    run(async {
        let setup = Setup::default().without(&["HELLO"]);
        let server = with_least_privilege(setup, &Flavor::one());
        let quoted = server.ask(&["HELLO", "3", "AUTH", "x", PASSWORD]);
        let Reply::Error(quoted) = quoted else {
            panic!("{quoted:?}")
        };
        assert!(quoted.contains(PASSWORD), "{quoted}");
        let error = connect_at(server.port()).await.unwrap_err();
        assert!(!error.is_transient(), "{error:?}");
        let error = shown(&error);
        assert!(error.contains("does not know `HELLO`"), "{error}");
        let wrong = format!("redis://leasehold:{PASSWORD}x@127.0.0.1:{}", server.port());
        let errors = [error, shown(&Client::connect(&wrong).await.unwrap_err())];
        for error in errors {
            assert!(!error.contains(PASSWORD), "{error}");
        }
        assert!(!log().contains(PASSWORD), "the log contains the password");
    });
}

/// The client reported that the connection was reset.
#[test]
fn too_many_clients_are_reported_as_such() {
    run(async {
        let server = server();
        let mut only = server.connect();
        let set = only.ask(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
        assert_eq!(set, Reply::Text("OK".to_owned()));
        for _ in 0..20 {
            let error = connect_at(server.port()).await.unwrap_err();
            assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
            let error = shown(&error);
            assert!(error.contains("maximum number of clients"), "{error}");
        }
    });
}

/// A server, or a proxy, that stays with RESP2 was accepted; the first push
/// then closed the connection, again and again.
#[test]
fn server_with_resp2_is_rejected() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        proxy.inject(|words| match words[0].as_slice() {
            b"HELLO" => Fault::ReplaceReply(b"*4\r\n+version\r\n+7.0.0\r\n+proto\r\n:2\r\n"),
            _ => Fault::None,
        });
        let error = connect_at(proxy.port()).await.unwrap_err();
        assert!(!error.is_transient(), "{error:?}");
        let error = shown(&error);
        assert!(error.contains("does not speak RESP3"), "{error}");
    });
}

/// One key with such a value closed the callers' connection with every read.
#[test]
fn value_that_looks_like_a_seal_is_data() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        server.tell(&["SET", &key(&name), "lh-seal-1"]);
        assert!(is_busy(client.mutex(&name).try_lock()).await);
        assert!(client.mutex(&name).holder().await.unwrap().is_some());
    });
}

/// Both connections numbered their seals from 1, so the client that got the
/// other one's replies held a lock that another client held.
#[test]
fn exchanged_connections_are_noticed() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let (one, two) = (client_at(proxy.port()).await, client_at(proxy.port()).await);
        for client in [&one, &two] {
            let guard = client.mutex(&name()).lock().await.unwrap();
            guard.release().await.unwrap();
        }
        wait_for_listeners(std::slice::from_ref(&server), 2).await;
        let held = name();
        let holder = client(&server).await;
        let _guard = holder.mutex(&held).lock().await.unwrap();
        // `SET`, `INCR` and the seal, of both.
        let left = AtomicI64::new(6);
        proxy.inject(move |words| match words[0].as_slice() {
            b"SET" | b"INCR" | b"ECHO" if left.fetch_sub(1, Ordering::SeqCst) > 0 => {
                Fault::ExchangeReply
            }
            _ => Fault::None,
        });
        let (busy, free) = (one.mutex(&held), two.mutex(&name()));
        let (busy, free) =
            tokio::join!(busy.try_lock().into_future(), free.try_lock().into_future());
        assert!(matches!(busy, Err(Error::OutcomeUnknown(_))), "{busy:?}");
        assert!(matches!(free, Err(Error::OutcomeUnknown(_))), "{free:?}");
    });
}

/// While a script of any client ran, all connections were closed repeatedly,
/// and requests that the server had refused had an unknown outcome.
#[test]
fn busy_server_refuses_without_disconnects() {
    run(async {
        let setup = Setup::default().option("busy-reply-threshold", "10");
        let server = with_least_privilege(setup, &Flavor::one());
        let proxy = Proxy::start(server.port());
        // A stall must not count as silence.
        let client = connect_at(proxy.port())
            .lease(AMPLE)
            .request_timeout(AMPLE / 2);
        let client = client.await.unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        wait_for_listeners(std::slice::from_ref(&server), 1).await;
        let mut script = server.connect();
        let mut control = server.connect();
        // A new connection is no defect: a waiter may need the one for threads.
        let connections = client_ids(&mut control);
        script.send(&["EVAL", "while true do end", "0"]).unwrap();
        let is_busy = |reply| matches!(reply, Reply::Error(error) if error.starts_with("BUSY"));
        eventually("the server is busy", || {
            is_busy(control.ask(&["PING"]).unwrap())
        })
        .await;
        let refused = client.mutex(&name()).try_lock().await;
        let is_refused = matches!(&refused, Err(Error::Unavailable(_)));
        assert!(is_refused, "{refused:?}");
        // The keeper's connection subscribes, or tries to.
        let waited = client.mutex(&name()).lock().timeout(SHORT).await;
        assert!(waited.is_err(), "{waited:?}");
        control.ask(&["SCRIPT", "KILL"]).unwrap();
        let next = client.mutex(&name()).lock().timeout(AMPLE).await.unwrap();
        for guard in [guard, next] {
            guard.release().await.unwrap();
        }
        let after = client_ids(&mut control);
        let closed: Vec<_> = connections.difference(&after).collect();
        assert!(closed.is_empty(), "connections {closed:?} were closed");
    });
}

/// Returns the ids of all connections to the server.
fn client_ids(control: &mut testkit::Connection) -> BTreeSet<u64> {
    let list = control.ask(&["CLIENT", "LIST"]).unwrap();
    let id = |line: &str| {
        line.split_whitespace()
            .next()?
            .strip_prefix("id=")?
            .parse()
            .ok()
    };
    list.text().lines().filter_map(id).collect()
}

/// An error that a proxy makes up after the server has executed the acquire
/// left the lock behind for its whole lease.
#[test]
fn acquire_is_cancelled_after_a_proxy_error() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = client_at(proxy.port()).await;
        let left = AtomicI64::new(1);
        proxy.inject(move |words| match words[0].as_slice() {
            b"SET" if left.fetch_sub(1, Ordering::SeqCst) > 0 => {
                Fault::ReplaceReply(b"-ERR upstream failure\r\n")
            }
            _ => Fault::None,
        });
        let name = name();
        let lease = 10 * AMPLE;
        let outcome = client.mutex(&name).try_lock().lease(lease).await;
        assert!(matches!(outcome, Err(Error::Unexpected(_))), "{outcome:?}");
        eventually("the lock is cancelled", || !exists(&server, &name)).await;
    });
}

/// A channel that was subscribed to before the connection was up was subscribed
/// to again behind it.
#[test]
fn process_channel_is_subscribed_once() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let subscribed = Arc::new(AtomicI64::new(0));
        let count = subscribed.clone();
        proxy.inject(move |words| {
            let is_process = |word: &Vec<u8>| word.starts_with(b"leasehold:process:");
            if words[0] == b"SSUBSCRIBE" && words.iter().any(is_process) {
                count.fetch_add(1, Ordering::SeqCst);
            }
            // The subscription is then requested before the connection is up.
            match words[0].as_slice() {
                b"HELLO" => Fault::Delay(Duration::from_millis(100)),
                _ => Fault::None,
            }
        });
        let client = client_at(proxy.port()).await;
        let name = name();
        server.tell(&["SET", &key(&name), "held"]);
        let waiting = tokio::spawn(client.mutex(&name).lock().into_future());
        // Subscriptions are made in order.
        eventually("the waiter listens", || has_subscriber(&server, &name)).await;
        assert_eq!(subscribed.load(Ordering::SeqCst), 1);
        waiting.abort();
    });
}

/// After a restart, each request in flight sent the source of its script.
#[test]
fn source_of_a_script_is_sent_once() {
    run(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = client_at(proxy.port()).await;
        let mut guards = Vec::new();
        for _ in 0..64 {
            guards.push(client.mutex(&name()).lock().await.unwrap());
        }
        let sources = Arc::new(AtomicI64::new(0));
        let count = sources.clone();
        proxy.inject(move |words| match words[0].as_slice() {
            b"EVAL" => {
                count.fetch_add(1, Ordering::SeqCst);
                // Time for the other requests to find it in flight.
                Fault::Delay(Duration::from_millis(200))
            }
            _ => Fault::None,
        });
        server.tell(&["SCRIPT", "FLUSH"]);
        let mut extending = JoinSet::new();
        for guard in guards {
            extending.spawn(async move { guard.extend(LEASE).await });
        }
        for extended in extending.join_all().await {
            extended.unwrap();
        }
        let sources = sources.load(Ordering::SeqCst);
        assert!((1..=8).contains(&sources), "{sources}");
    });
}
