//! Locks that are held on two servers, while a fleet moves.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::observe::Event;
use leasehold::{Client, Error, Guard, Lease, Loss, MultiGuard, MultiLock, Token};
use testkit::{Flavor, Server, ServerExt, Setup};

use crate::support::callers::on_thread;
use crate::support::contract::{self, KINDS, any_lock};
use crate::support::{
    AMPLE, SHORT, client, connect_at, eventually, exists, has_subscriber, key, loss_of, name,
    only_counters_left, run, server, with_least_privilege,
};

mod deployments;
mod outages;
mod tokens;

const HOUR: i64 = 3600;

/// Two servers, with a client of each.
struct Pair {
    old: Server,
    new: Server,
    from: Client,
    to: Client,
}

impl Pair {
    async fn start() -> Self {
        Self::of(server(), server()).await
    }

    /// Starts two servers. The new one's clock is ahead by `seconds`.
    async fn with_clocks_apart(seconds: i64) -> Self {
        let flavor = &Flavor::all()[0];
        let start = || with_least_privilege(Setup::default().movable_clock(), flavor);
        let (old, new) = (start(), start());
        new.set_clock(seconds);
        Self::of(old, new).await
    }

    async fn of(old: Server, new: Server) -> Self {
        let (from, to) = (client(&old).await, client(&new).await);
        Self { old, new, from, to }
    }

    fn mutex(&self, name: &str) -> MultiLock {
        MultiLock::moving(self.from.mutex(name).lock(), self.to.mutex(name).lock())
    }

    fn any(&self, name: &str, kind: u64) -> contract::MultiLock {
        let lock = |client| any_lock(client, name, kind);
        MultiLock::moving(lock(&self.from), lock(&self.to))
    }

    async fn becomes_free(&self) {
        eventually("only counters are left", || {
            only_counters_left(&self.old) && only_counters_left(&self.new)
        })
        .await;
    }
}

/// Returns the token that both leases have.
fn token_of<M: 'static>(guard: &MultiGuard<M>, token: fn(&Lease<M>) -> Token) -> Token {
    let tokens: Vec<_> = guard.leases().map(token).collect();
    assert_eq!(tokens.len(), 2);
    assert_eq!(tokens[0], tokens[1]);
    tokens[0]
}

/// Checks that each token is larger than the one before.
struct Rising(Option<Token>);

impl Rising {
    fn see(&mut self, token: Token, who: &str) {
        assert!(self.0 < Some(token), "{who}: {token} after {:?}", self.0);
        self.0 = Some(token);
    }
}

/// Holds a lock by turns with clients that know the old server, both, and the
/// new server.
async fn roll(pair: &Pair, name: &str, kind: u64) {
    let mut rising = Rising(None);
    let alone = async |rising: &mut Rising, client: &Client, who: &str| {
        let guard = any_lock(client, name, kind).timeout(AMPLE).await.unwrap();
        rising.see(guard.token(), who);
        guard.release().await.unwrap();
    };
    let both = async |rising: &mut Rising| {
        let guard = pair.any(name, kind).timeout(AMPLE).await.unwrap();
        rising.see(token_of(&guard, contract::Lease::token), "both");
        guard.release().await.unwrap();
    };
    for other in [&pair.from, &pair.to] {
        for _ in 0..3 {
            alone(&mut rising, other, "one").await;
            both(&mut rising).await;
            both(&mut rising).await;
        }
    }
    alone(&mut rising, &pair.to, "new").await;
}

#[test]
fn tokens_rise_through_every_step() {
    run(async {
        for ahead in [0, HOUR, -HOUR] {
            let pair = Pair::with_clocks_apart(ahead).await;
            for kind in 0..KINDS {
                roll(&pair, &name(), kind).await;
            }
            pair.becomes_free().await;
        }
    });
}

#[test]
fn tokens_rise_for_writers_after_shared_holders() {
    run(async {
        for ahead in [HOUR, -HOUR] {
            let pair = Pair::with_clocks_apart(ahead).await;
            let (name, mut rising) = (name(), Rising(None));
            let readers = [&pair.from, &pair.to].map(|client| client.rw_lock(&name).read());
            let [old, new] = readers;
            let reader = MultiLock::moving(old, new).await.unwrap();
            rising.see(token_of(&reader, contract::Lease::token), "reader");
            reader.release().await.unwrap();
            for client in [&pair.from, &pair.to] {
                let writer = client.rw_lock(&name).write().await.unwrap();
                assert!(rising.0 < Some(writer.token()));
            }
            let permits = [&pair.from, &pair.to].map(|client| client.semaphore("s", 2).acquire());
            let [old, new] = permits;
            let permit = MultiLock::moving(old, new).await.unwrap();
            // The other permit of each server is free.
            for client in [&pair.from, &pair.to] {
                let other = client.semaphore("s", 2).try_acquire().await.unwrap();
                other.release().await.unwrap();
            }
            permit.release().await.unwrap();
        }
    });
}

/// Tokens that the old server had reserved for local hand-offs would be smaller
/// than one from a server with a later clock.
#[test]
fn local_waiter_gets_larger_token() {
    run(async {
        let pair = Pair::with_clocks_apart(HOUR).await;
        let (name, mut rising) = (name(), Rising(None));
        let mut held = pair.mutex(&name).await.unwrap();
        for _ in 0..3 {
            rising.see(token_of(&held, <Lease>::token), "both");
            let next = pair.mutex(&name);
            let next = tokio::spawn(next.into_future());
            waited_for(&pair.old, &name).await;
            let plain = tokio::spawn(pair.from.mutex(&name).lock().into_future());
            tokio::task::yield_now().await;
            held.release().await.unwrap();
            let plain = async {
                let plain: Guard = plain.await.unwrap().unwrap();
                (plain.token(), plain.release().await.unwrap())
            };
            let mut plain = std::pin::pin!(plain);
            let mut next = std::pin::pin!(next);
            // In either order.
            held = tokio::select! {
                (token, ()) = &mut plain => {
                    rising.see(token, "old");
                    next.await.unwrap().unwrap()
                }
                held = &mut next => {
                    let held = held.unwrap().unwrap();
                    rising.see(token_of(&held, <Lease>::token), "both");
                    held.release().await.unwrap();
                    let (token, ()) = plain.await;
                    rising.see(token, "old");
                    pair.mutex(&name).await.unwrap()
                }
            };
        }
        held.release().await.unwrap();
    });
}

/// The tokens of local hand-offs are reserved before the other server's token
/// is known.
#[test]
fn moving_lock_is_not_handed_off() {
    run(async {
        // The old server's tokens are the larger ones, so it records none. A
        // recorded token alone prevents hand-offs.
        let mut pair = Pair::with_clocks_apart(-HOUR).await;
        let blocker = client(&pair.old).await;
        let handoffs = Arc::<AtomicU64>::default();
        let count = handoffs.clone();
        let from = connect_at(pair.old.port()).observe(move |event| {
            let is_handoff = matches!(event, Event::HandedOff { .. });
            count.fetch_add(u64::from(is_handoff), Ordering::SeqCst);
        });
        pair.from = from.await.unwrap();
        let contend = async |name: &str, lock: &dyn Fn() -> Acquiring| {
            let held = blocker.mutex(name).lock().await.unwrap();
            let waiting: Vec<_> = (0..4).map(|_| tokio::spawn(lock())).collect();
            waited_for(&pair.old, name).await;
            held.release().await.unwrap();
            for waiting in waiting {
                let ended = tokio::time::timeout(AMPLE, waiting).await;
                ended.expect("no deadlock").unwrap().unwrap();
            }
        };
        for _ in 0..5 {
            let name = name();
            let both = || -> Acquiring {
                let lock = pair.mutex(&name);
                Box::pin(async { lock.await?.release().await })
            };
            contend(&name, &both).await;
        }
        assert_eq!(handoffs.load(Ordering::SeqCst), 0);
        // The control. A stalled machine can miss the window of a hand-off.
        let end = Instant::now() + AMPLE;
        while handoffs.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < end, "no lock is handed off");
            let name = name();
            let alone = || -> Acquiring {
                let lock = pair.from.mutex(&name).lock();
                Box::pin(async { lock.await?.release().await })
            };
            contend(&name, &alone).await;
        }
    });
}

/// An acquire and the release.
type Acquiring = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

async fn waited_for(server: &Server, name: &str) {
    eventually("a client waits", || has_subscriber(server, name)).await;
}

#[test]
fn old_server_comes_first() {
    run(async {
        let pair = Pair::start().await;
        let name = name();
        let held = pair.from.mutex(&name).lock().await.unwrap();
        let both = tokio::spawn(pair.mutex(&name).into_future());
        waited_for(&pair.old, &name).await;
        let free = pair.to.mutex(&name).try_lock().await.unwrap();
        free.release().await.unwrap();
        held.release().await.unwrap();
        let both = both.await.unwrap().unwrap();
        assert!(exists(&pair.old, &name) && exists(&pair.new, &name));
        both.release().await.unwrap();
        pair.becomes_free().await;
    });
}

#[test]
fn loss_on_either_server_loses_both() {
    run(async {
        let pair = Pair::start().await;
        for (server, client) in [(&pair.old, &pair.from), (&pair.new, &pair.to)] {
            for kind in 0..KINDS {
                let name = name();
                let held = pair.any(&name, kind).await.unwrap();
                server.tell(&["DEL", &key(&name)]);
                let loss = tokio::time::timeout(AMPLE, held.lost()).await;
                assert_eq!(loss.expect("a loss"), Some(Loss::Revoked));
                assert!(matches!(held.check(), Err(Error::Lost { .. })));
                assert_eq!(loss_of(held.release().await), Some(Loss::Revoked));
                let next = any_lock(client, &name, kind).timeout(AMPLE).await;
                next.unwrap().release().await.unwrap();
            }
            let name = name();
            let work = pair.mutex(&name).run(|_| async {
                server.tell(&["DEL", &key(&name)]);
                std::future::pending::<()>().await;
            });
            let outcome = tokio::time::timeout(AMPLE, work).await;
            let error = outcome.expect("the work is dropped").unwrap_err();
            assert!(matches!(error, Error::Lost { .. }), "{error:?}");
        }
        pair.becomes_free().await;
    });
}

#[test]
fn timeout_on_new_server_frees_old_one() {
    run(async {
        let pair = Pair::start().await;
        for kind in 0..KINDS {
            let name = name();
            let held = any_lock(&pair.to, &name, kind).await.unwrap();
            let error = pair.any(&name, kind).timeout(SHORT).await.unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
            let free = any_lock(&pair.from, &name, kind).timeout(AMPLE).await;
            free.unwrap().release().await.unwrap();
            let busy = MultiLock::moving(
                pair.from.mutex(&name).try_lock(),
                pair.to.mutex(&name).try_lock(),
            );
            if kind == 0 {
                let error = busy.await.unwrap_err();
                assert!(matches!(error, Error::Busy { .. }), "{error:?}");
            } else {
                drop(busy);
            }
            held.release().await.unwrap();
        }
        pair.becomes_free().await;
    });
}

#[test]
fn mismatched_locks_are_refused() {
    run(async {
        let pair = Pair::start().await;
        let (old, new) = (&pair.from, &pair.to);
        let other = connect_at(pair.new.port()).prefix("other:").await.unwrap();
        let redisson = |client: &Client| client.redisson().fenced_lock("n").lock();
        for (what, one, two) in [
            ("same client", old.mutex("n").lock(), old.mutex("n").lock()),
            ("keys", old.mutex("n").lock(), new.mutex("m").lock()),
            ("keys", old.mutex("n").lock(), other.mutex("n").lock()),
            ("kinds", old.mutex("n").lock(), new.fair_mutex("n").lock()),
            ("redisson", redisson(old), redisson(new)),
            ("name", old.mutex("").lock(), new.mutex("").lock()),
        ] {
            let refused = MultiLock::moving(one, two).await.unwrap_err();
            assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
            assert!(refused.to_string().contains(what), "{refused}");
        }
        let (permits, other) = (old.semaphore("n", 2), new.semaphore("n", 3));
        for (one, two) in [
            (permits.acquire(), other.acquire()),
            (old.rw_lock("n").read(), new.rw_lock("n").write().into()),
        ] {
            let refused = MultiLock::moving(one, two).await.unwrap_err();
            assert!(refused.to_string().contains("kinds"), "{refused}");
        }
        assert!(only_counters_left(&pair.old) && only_counters_left(&pair.new));
    });
}

#[test]
fn threads_and_runtimes_hold_both() {
    let servers = run(async {
        let pair = Pair::start().await;
        let held = pair.mutex("n").await.unwrap();
        // Released by a thread, and by another runtime.
        on_thread(move || held.release().wait()).await.unwrap();
        let lock = pair.mutex("n");
        let token = on_thread(move || lock.run_blocking(|leases| leases[0].token()));
        let token = token.await.unwrap();
        let lock = pair.mutex("n");
        let held = on_thread(move || lock.wait()).await.unwrap();
        assert!(token < token_of(&held, <Lease>::token));
        (pair, held)
    });
    let (pair, held) = servers;
    run(async {
        held.check().unwrap();
        held.release().await.unwrap();
        pair.mutex("n").await.unwrap().release().await.unwrap();
        pair.becomes_free().await;
    });
}

#[test]
fn reentrant_handles_share_both() {
    run(async {
        let pair = Pair::with_clocks_apart(HOUR).await;
        let name = name();
        let old = pair.from.mutex(&name).reentrant();
        let new = pair.to.mutex(&name).reentrant();
        let both = || MultiLock::moving(old.lock(), new.lock());
        let outer = both().await.unwrap();
        let inner = both().await.unwrap();
        let token = |guard: &MultiGuard| token_of(guard, <Lease>::token);
        assert_eq!(token(&outer), token(&inner));
        let alone = old.lock().await.unwrap();
        assert_eq!(alone.token(), token(&outer));
        alone.release().await.unwrap();
        assert_eq!((old.guards(), new.guards()), (2, 2));
        inner.release().await.unwrap();
        outer.check().unwrap();
        let last = token(&outer);
        outer.release().await.unwrap();
        for client in [&pair.from, &pair.to] {
            assert!(client.mutex(&name).lock().await.unwrap().token() > last);
        }
    });
}

#[test]
fn options_of_each_part_apply() {
    run(async {
        let pair = Pair::start().await;
        let name = name();
        let parts = |option: fn(leasehold::Acquire) -> leasehold::Acquire| {
            let [old, new] = [&pair.from, &pair.to].map(|client| client.mutex(&name).lock());
            MultiLock::moving(old, option(new))
        };
        let limited = parts(|new| new.at_most(SHORT)).await.unwrap();
        let loss = tokio::time::timeout(AMPLE, limited.lost()).await;
        assert_eq!(loss.unwrap(), Some(Loss::AtMost));
        drop(limited);
        let fixed = parts(|new| new.fixed_lease(SHORT)).await.unwrap();
        let loss = tokio::time::timeout(AMPLE, fixed.lost()).await;
        assert_eq!(loss.unwrap(), Some(Loss::Expired));
        drop(fixed);
        // The wait for the new server is longer than the limit.
        let held = pair.to.mutex(&name).lock().await.unwrap();
        let limit = Duration::from_millis(50);
        let old = pair.from.mutex(&name).lock().progress_within(limit);
        let waiting = MultiLock::moving(old.lease(SHORT), pair.to.mutex(&name).lock());
        let waiting = tokio::spawn(waiting.into_future());
        waited_for(&pair.new, &name).await;
        tokio::time::sleep(SHORT * 2).await;
        held.release().await.unwrap();
        match waiting.await.unwrap() {
            Ok(both) => {
                let loss = tokio::time::timeout(AMPLE, both.lost()).await;
                assert_eq!(loss.unwrap(), Some(Loss::Stuck));
            }
            // A machine that stalls loses the short lease.
            Err(Error::Lost { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    });
}
