//! The libraries, each used as its README recommends.

use std::sync::Arc;
use std::time::Duration;

use leasehold::redisson::Unfenced;
use leasehold::{Client, Guard, Shared};
use redis::Script;
use redis::aio::MultiplexedConnection;

const LEASE: Duration = Duration::from_secs(30);

/// A lock implementation.
#[derive(Clone)]
pub(crate) enum Library {
    /// With or without local hand-off.
    Leasehold(Client, bool),
    Fair(Client, bool),
    Semaphore(Client),
    Read(Client),
    Write(Client),
    Shared(leasehold::redisson::Redisson),
    /// `SET NX PX` and `DEL`, which is unsafe.
    Unsafe(MultiplexedConnection),
    /// `SET NX PX` and a compare-and-delete script, the minimum that is safe.
    /// Polls.
    Driver(MultiplexedConnection, Arc<Script>),
    Rslock(rslock::LockManager),
    Rlock(Arc<rlock::async_lock::RLock>),
}

/// A guard of any library.
pub(crate) enum Held {
    Guard(Guard),
    Shared(Guard<Shared>),
    Unfenced(Guard<Unfenced>),
    Unsafe(MultiplexedConnection, String),
    Driver(MultiplexedConnection, Arc<Script>, String),
    Rslock(rslock::LockGuard),
    Rlock(Box<rlock::async_lock::RLockGuard>),
}

impl Library {
    pub(crate) async fn connect(name: &str, port: u16) -> Self {
        let url = format!("redis://127.0.0.1:{port}/");
        let client = || async { Client::connect(&url).await.expect("the server is up") };
        let driver = || async {
            let client = redis::Client::open(url.as_str()).expect("an address");
            let connection = client.get_multiplexed_async_connection().await;
            connection.expect("the server is up")
        };
        match name {
            "leasehold" => Self::Leasehold(client().await, true),
            "leasehold-off" => Self::Leasehold(client().await, false),
            "fair" => Self::Fair(client().await, true),
            "fair-off" => Self::Fair(client().await, false),
            "semaphore" => Self::Semaphore(client().await),
            "read" => Self::Read(client().await),
            "write" => Self::Write(client().await),
            "shared" => Self::Shared(client().await.redisson()),
            "unsafe" => Self::Unsafe(driver().await),
            "driver" => {
                let source = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
                              return 0";
                Self::Driver(driver().await, Arc::new(Script::new(source)))
            }
            "rslock" => {
                let mut manager = rslock::LockManager::new(vec![url]);
                manager.set_retry(u32::MAX, Duration::from_millis(200));
                Self::Rslock(manager)
            }
            "rlock" => {
                let lock = rlock::async_lock::RLock::new(url.as_str()).await;
                Self::Rlock(Arc::new(lock.expect("the server is up")))
            }
            other => panic!("unknown library `{other}`"),
        }
    }

    /// Waits for a lock.
    pub(crate) async fn hold(&self, name: &str) -> Held {
        match self {
            Self::Leasehold(client, handoff) => {
                let lock = client.mutex(name).lock().local_handoff(*handoff);
                Held::Guard(lock.await.expect("the lock"))
            }
            Self::Fair(client, handoff) => {
                let lock = client.fair_mutex(name).lock().local_handoff(*handoff);
                Held::Guard(lock.await.expect("the lock"))
            }
            Self::Semaphore(client) => {
                let permit = client.semaphore(name, 10).acquire();
                Held::Shared(permit.await.expect("the lock"))
            }
            Self::Read(client) => {
                Held::Shared(client.rw_lock(name).read().await.expect("the lock"))
            }
            Self::Write(client) => {
                let guard = client.rw_lock(name).write().await;
                Held::Guard(guard.expect("the lock"))
            }
            Self::Shared(redisson) => {
                Held::Unfenced(redisson.lock(name).lock().await.expect("the lock"))
            }
            Self::Unsafe(connection) => {
                set(connection, name).await;
                Held::Unsafe(connection.clone(), name.to_owned())
            }
            Self::Driver(connection, script) => {
                set(connection, name).await;
                Held::Driver(connection.clone(), script.clone(), name.to_owned())
            }
            Self::Rslock(manager) => {
                Held::Rslock(manager.acquire(name, LEASE).await.expect("the lock"))
            }
            Self::Rlock(lock) => {
                Held::Rlock(Box::new(lock.acquire_mutex(name).await.expect("the lock")))
            }
        }
    }
}

/// Tries to set the key every 50 ms until it succeeds.
async fn set(connection: &MultiplexedConnection, name: &str) {
    loop {
        let set: Option<String> = redis::cmd("SET")
            .arg(name)
            .arg("0123456789abcdef0123456789abcdef01234567")
            .arg(&["NX", "PX", "30000"])
            .query_async(&mut connection.clone())
            .await
            .expect("a reply");
        if set.is_some() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Held {
    pub(crate) async fn release(self) {
        match self {
            Self::Guard(guard) => guard.release().await.expect("released"),
            Self::Shared(guard) => guard.release().await.expect("released"),
            Self::Unfenced(guard) => guard.release().await.expect("released"),
            Self::Unsafe(mut connection, name) => {
                let deleted = redis::cmd("DEL")
                    .arg(name)
                    .query_async::<i64>(&mut connection)
                    .await;
                assert_eq!(deleted.expect("a reply"), 1);
            }
            Self::Driver(mut connection, script, name) => {
                let mut call = script.key(name);
                let call = call.arg("0123456789abcdef0123456789abcdef01234567");
                let deleted = call.invoke_async::<i64>(&mut connection).await;
                assert_eq!(deleted.expect("a reply"), 1);
            }
            Self::Rslock(guard) => guard.release().await,
            Self::Rlock(mut guard) => guard.release().await.expect("released"),
        }
    }

    /// Returns whether the lock is still held, as far as the library reports
    /// it.
    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Self::Guard(guard) => guard.check().is_ok(),
            Self::Shared(guard) => guard.check().is_ok(),
            Self::Unfenced(guard) => guard.check().is_ok(),
            _ => true,
        }
    }
}
