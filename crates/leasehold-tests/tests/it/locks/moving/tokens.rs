//! Tokens that were drawn, reserved or voted for before a larger one was
//! recorded.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};

use leasehold::{Error, Lease, MultiLock};
use testkit::{Fault, Flavor, Proxy, ServerExt, Setup};

use super::{HOUR, Pair, Rising, token_of, waited_for};
use crate::support::contract::{KINDS, any_lock};
use crate::support::deployment::{Deployment, FiveServers, connect_to_quorum};
use crate::support::{
    AMPLE, client, eventually, has_subscriber, name, owners, run, url_at, with_least_privilege,
};

/// Reserved before the larger token was recorded, for local hand-offs of the
/// outer guard.
#[test]
fn outer_guard_hands_off_larger_token() {
    run(async {
        let pair = Pair::start().await;
        let other = client(&pair.old).await;
        let counter = "leasehold:token:{3560}";
        for _ in 0..10 {
            let name = name();
            let held = other.mutex(&name).lock().await.unwrap();
            let issued = held.token().as_u64() + 1000;
            pair.new.tell(&["SET", counter, &issued.to_string()]);
            let rising = Arc::new(Mutex::new(Rising(Some(held.token()))));
            let plain = || {
                let lock = pair.from.mutex(&name).lock();
                let rising = rising.clone();
                tokio::spawn(async move {
                    let guard = lock.await.unwrap();
                    rising.lock().unwrap().see(guard.token(), "old");
                    guard.release().await.unwrap();
                })
            };
            let nested = || {
                let old = pair.from.mutex(&name).reentrant();
                let new = pair.to.mutex(&name).reentrant();
                let rising = rising.clone();
                tokio::spawn(async move {
                    let outer = old.lock().await.unwrap();
                    rising.lock().unwrap().see(outer.token(), "outer");
                    let inner = MultiLock::moving(old.lock(), new.lock()).await.unwrap();
                    let token = token_of(&inner, <Lease>::token);
                    rising.lock().unwrap().see(token, "both");
                    inner.release().await.unwrap();
                    outer.release().await.unwrap();
                })
            };
            let callers = [plain(), nested(), plain(), plain()];
            waited_for(&pair.old, &name).await;
            held.release().await.unwrap();
            for caller in callers {
                tokio::time::timeout(AMPLE, caller).await.unwrap().unwrap();
            }
        }
        pair.becomes_free().await;
    });
}

/// A later holder of the lock that was lost would have a smaller token than
/// this one.
#[test]
fn lock_lost_before_recording_fails_acquire() {
    run(async {
        let pair = Pair::with_clocks_apart(HOUR).await;
        for kind in 0..KINDS {
            let name = name();
            let held = any_lock(&pair.to, &name, kind).await.unwrap();
            let both = tokio::spawn(pair.any(&name, kind).into_future());
            // Not only granted: a lock that is lost while its token is drawn
            // again is waited for again.
            eventually("it waits for the new lock", || {
                has_subscriber(&pair.new, &name) || !owners(&pair.new, "queue", &name).is_empty()
            })
            .await;
            pair.old.tell(&["FLUSHALL"]);
            let next = any_lock(&pair.from, &name, kind).timeout(AMPLE);
            let next = next.await.unwrap();
            held.release().await.unwrap();
            let both = tokio::time::timeout(AMPLE, both).await.unwrap().unwrap();
            let error = both.expect_err("the old lock was lost");
            assert!(matches!(error, Error::Lost { .. }), "{error:?}");
            next.check().unwrap();
            next.release().await.unwrap();
        }
    });
}

/// Votes that another client got before the recording become a majority once
/// the lock is released.
#[test]
fn quorum_records_no_token_beside_other_votes() {
    run(async {
        let flavor = &Flavor::all()[0];
        let movable = Setup::default().movable_clock();
        let old = with_least_privilege(movable.clone(), flavor);
        old.set_clock(30);
        let five = FiveServers::with(&movable, flavor);
        let name = name();
        // The rival's tokens are between those of the two servers.
        five.servers.iter().for_each(|node| node.set_clock(10));
        let proxies = five.servers.iter().map(|node| Proxy::start(node.port()));
        let proxies: Vec<_> = proxies.collect();
        let urls = proxies.iter().map(|proxy| url_at(proxy.port())).collect();
        let rival = connect_to_quorum(urls).await.unwrap();
        let other = rival.mutex("other").lock().await.unwrap();
        other.release().await.unwrap();
        // Two nodes accept its token, and not the old server's.
        for (index, node) in five.servers.iter().enumerate() {
            node.set_clock(if index < 2 { -40 } else { 0 });
        }
        for proxy in &proxies[..3] {
            proxy.inject(|request| {
                // Three keys and three arguments.
                let is_vote = request[0].starts_with(b"EVAL") && request.len() == 9;
                if is_vote { Fault::Hold } else { Fault::None }
            });
        }
        let next = tokio::spawn(rival.mutex(&name).lock().into_future());
        eventually("two nodes vote", || five.count_with_key(&name) == 2).await;
        let (from, to) = (client(&old).await, five.client().await);
        let both = MultiLock::moving(from.mutex(&name).lock(), to.mutex(&name).lock());
        let token = match both.timeout(AMPLE).await {
            Ok(both) => {
                let token = token_of(&both, <Lease>::token);
                both.release().await.unwrap();
                Some(token)
            }
            Err(error) => {
                assert!(matches!(error, Error::NoQuorum(_)), "{error:?}");
                None
            }
        };
        proxies.iter().for_each(Proxy::heal);
        proxies.iter().for_each(Proxy::release_held);
        let next = tokio::time::timeout(AMPLE, next).await.unwrap().unwrap();
        let next = next.unwrap();
        assert!(token < Some(next.token()), "{token:?}, {}", next.token());
        next.release().await.unwrap();
    });
}
