//! A holder that is paused beyond its lease, in another process: the fence
//! rejects its late write, and without the guard the write is accepted.

use std::time::Duration;

use leasehold::Client;
use leasehold_fence::Fence;
use testkit::Flavor;

use crate::support::store::Store;
use crate::support::worker::{self, Task};
use crate::support::{AMPLE, Folder, mariadb, name, postgres, run};

const LEASE: Duration = Duration::from_secs(1);

/// Pauses a holder between two writes until another process has written.
async fn late_write(store: &str, guarded: bool) {
    let (server, name) = (Flavor::one().start(), name());
    let locks = format!("redis://127.0.0.1:{}", server.port());
    let resource = Store::open(store).await;
    resource.create().await;
    let task = Task {
        locks: locks.clone(),
        store: store.to_owned(),
        lease: LEASE,
        guarded,
    };
    let mut worker = worker::start(&task, 1);
    let older: u64 = worker
        .ask(&format!("lock {name}"))
        .parse()
        .expect("a token");
    assert_eq!(worker.ask("write"), "written");
    worker.pause();
    worker.tell("write");

    let client = Client::connect(&locks).await.unwrap();
    let guard = client.mutex(&name).lock().timeout(AMPLE).await;
    let guard = guard.expect("the lease of the paused holder ends");
    let newer = guard.token().as_u64();
    assert!(newer > older);
    resource
        .write(&Fence::of(&guard), 2, 1, guarded)
        .await
        .unwrap();
    worker.resume();
    let late = worker.answer();

    let journal = resource.journal(guard.lease().key()).await;
    let tokens: Vec<_> = journal.iter().map(|entry| entry.token).collect();
    match guarded {
        true => {
            assert_eq!(late, format!("stale {older} {newer}"));
            assert_eq!(tokens, [older, newer]);
        }
        false => {
            assert_eq!(late, "written");
            assert_eq!(tokens, [older, newer, older], "the control");
        }
    }
    // The successor continues.
    resource
        .write(&Fence::of(&guard), 2, 2, guarded)
        .await
        .unwrap();
}

fn late_writes(store: &str) {
    run(late_write(store, true));
    run(late_write(store, false));
}

#[test]
fn postgres_rejects_late_write() {
    let Some(database) = postgres() else { return };
    late_writes(&database.url());
}

#[test]
fn mariadb_rejects_late_write() {
    let Some(database) = mariadb() else { return };
    late_writes(&database.url());
}

#[test]
fn sqlite_rejects_late_write() {
    late_writes(&Folder::new().sqlite());
}

#[test]
fn redis_rejects_late_write() {
    let server = Flavor::one().start();
    late_writes(&format!("redis:{}", server.port()));
}
