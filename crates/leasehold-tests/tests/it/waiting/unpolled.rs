//! Futures that are kept, but not polled: others get the lock all the same.
//!
//! Every case leaves a future unpolled that has been granted the lock, or is
//! about to be, and measures how long another caller waits for a lock that no
//! caller uses. The gate checks that this ends long before the lease does, and
//! the deep tier how long it takes.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, MultiLock};
use testkit::Server;
use tokio::time::timeout;

use crate::support::{
    AMPLE, connect_at, eventually, exists, has_subscriber, name, owners, poll_at_most, run, server,
};

/// A future of any acquire. Its guard is dropped.
type Acquiring = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// The others wait no longer than this, in the deep tier.
const MAX_GAP: Duration = Duration::from_millis(150);

/// Who waits for the lock.
#[derive(Clone, Copy, Debug)]
enum Other {
    SameProcess,
    OtherProcess,
}

struct Scene {
    server: Server,
    ours: Client,
    theirs: Client,
    request: Duration,
}

impl Scene {
    async fn new(lease: Duration, request: Duration) -> Self {
        let server = server();
        let connect = async || {
            let builder = connect_at(server.port()).lease(lease);
            builder.request_timeout(request).await.unwrap()
        };
        Self {
            ours: connect().await,
            theirs: connect().await,
            request,
            server,
        }
    }

    fn other(&self, other: Other) -> &Client {
        match other {
            Other::SameProcess => &self.ours,
            Other::OtherProcess => &self.theirs,
        }
    }

    fn is_waited_for(&self, kind: &str, name: &str) -> bool {
        match kind {
            "mutex" => has_subscriber(&self.server, name),
            _ => !owners(&self.server, "queue", name).is_empty(),
        }
    }

    /// Polls `acquiring` until the client waits on the server.
    async fn begin_wait(&self, acquiring: &mut Acquiring, kind: &str, name: &str) {
        while !self.is_waited_for(kind, name) {
            let polled = timeout(Duration::from_millis(5), &mut *acquiring).await;
            assert!(polled.is_err(), "the lock is held");
        }
    }
}

fn acquire(client: &Client, kind: &str, name: &str) -> Acquiring {
    let (client, name) = (client.clone(), name.to_owned());
    match kind {
        "mutex" => Box::pin(async move { client.mutex(&name).lock().await.map(drop) }),
        "fair" => Box::pin(async move { client.fair_mutex(&name).lock().await.map(drop) }),
        "write" => Box::pin(async move { client.rw_lock(&name).write().await.map(drop) }),
        "read" => Box::pin(async move { client.rw_lock(&name).read().await.map(drop) }),
        "semaphore" => {
            Box::pin(async move { client.semaphore(&name, 1).acquire().await.map(drop) })
        }
        other => unreachable!("{other}"),
    }
}

/// Returns how long `acquiring` takes.
async fn timed(acquiring: Acquiring) -> Duration {
    let start = Instant::now();
    let acquired = timeout(AMPLE, acquiring).await;
    acquired
        .expect("blocked by a future that is not polled")
        .unwrap();
    start.elapsed()
}

/// Lets `next` wait, drops the guard `held`, and returns how long `next` waits
/// from then on.
async fn gap_after<G>(held: G, next: Acquiring) -> Duration {
    let next = tokio::spawn(timed(next));
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(held);
    let released = Instant::now();
    next.await.unwrap();
    released.elapsed()
}

/// The only waiter of its process is not polled when the lock is released.
async fn first_waiter(scene: &Scene, kind: &str, other: Other) -> Duration {
    let name = name();
    let held = exclusive(&scene.theirs, kind, &name).await;
    let mut unpolled = acquire(&scene.ours, kind, &name);
    scene.begin_wait(&mut unpolled, kind, &name).await;
    let gap = gap_after(held, acquire(scene.other(other), kind, &name)).await;
    finish(unpolled).await;
    gap
}

/// A lock is handed off to a future that is not polled.
async fn handed_off(scene: &Scene, kind: &'static str, other: Other) -> Duration {
    let name = name();
    let held = exclusive(&scene.ours, kind, &name).await;
    let first = scene.ours.clone();
    let first_name = name.clone();
    // It holds the lock for less than the hand-off window.
    let first = tokio::spawn(async move {
        drop(exclusive(&first, kind, &first_name).await);
        Instant::now()
    });
    eventually("it waits", || scene.is_waited_for(kind, &name)).await;
    let mut unpolled = acquire(&scene.ours, kind, &name);
    let waits = timeout(Duration::from_millis(100), &mut unpolled).await;
    assert!(waits.is_err(), "the lock is held");
    let next = tokio::spawn(timed(acquire(scene.other(other), kind, &name)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(held);
    let released = first.await.unwrap();
    next.await.unwrap();
    let gap = released.elapsed();
    finish(unpolled).await;
    gap
}

/// A task waits on a runtime whose only thread is blocked.
async fn blocked_task(scene: &Scene, kind: &'static str, other: Other) -> Duration {
    let name = name();
    let held = exclusive(&scene.theirs, kind, &name).await;
    let (ours, blocked_name) = (scene.ours.clone(), name.clone());
    let (go_on, block) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        runtime.block_on(async {
            let waiting = tokio::spawn(acquire(&ours, kind, &blocked_name));
            tokio::time::sleep(Duration::from_millis(100)).await;
            begin.send(()).unwrap();
            block.recv().unwrap();
            waiting.await.unwrap().unwrap();
        });
    });
    begun.await.unwrap();
    eventually("it waits", || scene.is_waited_for(kind, &name)).await;
    let gap = gap_after(held, acquire(scene.other(other), kind, &name)).await;
    go_on.send(()).unwrap();
    tokio::task::spawn_blocking(|| thread.join().unwrap())
        .await
        .unwrap();
    gap
}

/// A first attempt acquires a free lock, and its future is polled once only.
async fn first_attempt(scene: &Scene, kind: &str, other: Other) -> Duration {
    let (name, unpolled) = loop {
        let name = name();
        let mut unpolled = acquire(&scene.ours, kind, &name);
        // Sends the request, unless the client has to connect first. The reply
        // can be so fast that this acquires the lock.
        let mut context = Context::from_waker(Waker::noop());
        let is_pending = unpolled.as_mut().poll(&mut context).is_pending();
        tokio::time::sleep(Duration::from_millis(20)).await;
        if is_pending && exists(&scene.server, &name) {
            break (name, unpolled);
        }
    };
    let next = acquire(scene.other(other), kind, &name);
    let gap = timed(next).await.saturating_sub(scene.request);
    finish(unpolled).await;
    gap
}

/// One of two tasks of a reentrant handle is not polled while it acquires.
async fn reentrant(scene: &Scene, _kind: &str, other: Other) -> Duration {
    let name = name();
    let held = scene.theirs.mutex(&name).lock().await.unwrap();
    let handle = scene.ours.mutex(&name).reentrant();
    let enter = |handle: &leasehold::Reentrant| -> Acquiring {
        let handle = handle.clone();
        Box::pin(async move { handle.lock().await.map(drop) })
    };
    let mut unpolled = enter(&handle);
    scene.begin_wait(&mut unpolled, "mutex", &name).await;
    let next = match other {
        Other::SameProcess => enter(&handle),
        Other::OtherProcess => acquire(&scene.theirs, "mutex", &name),
    };
    let gap = gap_after(held, next).await;
    finish(unpolled).await;
    gap
}

/// A multi-lock waits for its second lock, and is not polled when it gets it.
async fn multi_lock(scene: &Scene, _kind: &str, other: Other) -> Duration {
    let name = name();
    let (first, second) = (format!("{name}:1"), format!("{name}:2"));
    let held = scene.theirs.mutex(&second).lock().await.unwrap();
    let (one, two) = (scene.ours.mutex(&first), scene.ours.mutex(&second));
    let mut unpolled: Acquiring = Box::pin(async move {
        let both = MultiLock::new([one.lock(), two.lock()]);
        both.await.map(drop)
    });
    scene.begin_wait(&mut unpolled, "mutex", &second).await;
    let gap = gap_after(held, acquire(scene.other(other), "mutex", &first)).await;
    finish(unpolled).await;
    gap
}

/// Holds a lock of this kind, exclusively.
async fn exclusive(client: &Client, kind: &str, name: &str) -> Box<dyn std::any::Any + Send> {
    match kind {
        "mutex" => Box::new(client.mutex(name).lock().await.unwrap()),
        "fair" => Box::new(client.fair_mutex(name).lock().await.unwrap()),
        "write" | "read" => Box::new(client.rw_lock(name).write().await.unwrap()),
        "semaphore" => Box::new(client.semaphore(name, 1).acquire().await.unwrap()),
        other => unreachable!("{other}"),
    }
}

/// The future that was not polled acquires the lock after all.
async fn finish(unpolled: Acquiring) {
    timeout(AMPLE, unpolled).await.expect("it hangs").unwrap();
}

type Case =
    for<'a> fn(&'a Scene, &'static str, Other) -> Pin<Box<dyn Future<Output = Duration> + 'a>>;

const CASES: [(&str, &[&str], Case); 6] = [
    (
        "first waiter",
        &["mutex", "fair", "write", "read", "semaphore"],
        |scene, kind, other| Box::pin(first_waiter(scene, kind, other)),
    ),
    ("handed off", &["mutex", "fair"], |scene, kind, other| {
        Box::pin(handed_off(scene, kind, other))
    }),
    (
        "blocked task",
        &["mutex", "fair", "semaphore"],
        |scene, kind, other| Box::pin(blocked_task(scene, kind, other)),
    ),
    (
        "first attempt",
        &["mutex", "fair", "semaphore"],
        |scene, kind, other| Box::pin(first_attempt(scene, kind, other)),
    ),
    ("reentrant handle", &["mutex"], |scene, kind, other| {
        Box::pin(reentrant(scene, kind, other))
    }),
    ("multi-lock", &["mutex"], |scene, kind, other| {
        Box::pin(multi_lock(scene, kind, other))
    }),
];

/// Plays every case whose name begins so, and returns the longest gap.
async fn play(scene: &Scene, case: &str) -> Duration {
    let mut longest = Duration::ZERO;
    for (name, kinds, play) in CASES.iter().filter(|(name, ..)| name.starts_with(case)) {
        for kind in *kinds {
            for other in [Other::SameProcess, Other::OtherProcess] {
                let gap = play(scene, kind, other).await;
                println!("{name}, {kind}, {other:?}: {gap:.1?}");
                longest = longest.max(gap);
            }
        }
    }
    longest
}

/// The lease outlasts the test, so a lock that is kept for a lease fails it.
fn check(case: &str) {
    run(async {
        let scene = Scene::new(AMPLE * 10, Duration::from_secs(5)).await;
        play(&scene, case).await;
    });
}

#[test]
fn unpolled_first_waiter_blocks_nobody() {
    check("first waiter");
}

#[test]
fn unpolled_successor_blocks_nobody() {
    check("handed off");
}

#[test]
fn blocked_task_blocks_nobody() {
    check("blocked task");
}

#[test]
fn unpolled_first_attempt_blocks_nobody() {
    check("first attempt");
}

#[test]
fn unpolled_reentrant_handle_blocks_nobody() {
    check("reentrant");
}

#[test]
fn unpolled_multi_lock_blocks_nobody() {
    check("multi-lock");
}

#[test]
#[ignore = "deep: measures how long an unpolled future keeps others out"]
fn unpolled_futures_delay_others_briefly() {
    run(async {
        let scene = Scene::new(Duration::from_secs(30), Duration::from_secs(2)).await;
        let longest = play(&scene, "").await;
        assert!(longest <= MAX_GAP, "{longest:?}");
    });
}

/// A future that is dropped after it was not polled leaves nothing behind.
#[test]
fn dropped_after_a_grant_leaves_the_lock_free() {
    run(async {
        let scene = Scene::new(AMPLE * 10, Duration::from_secs(5)).await;
        for kind in ["mutex", "fair", "write", "semaphore"] {
            let name = name();
            let held = exclusive(&scene.theirs, kind, &name).await;
            let mut unpolled = acquire(&scene.ours, kind, &name);
            scene.begin_wait(&mut unpolled, kind, &name).await;
            drop(held);
            // Granted, taken back or neither.
            tokio::time::sleep(Duration::from_millis(40)).await;
            assert!(poll_at_most(&mut unpolled, 0).await.is_none());
            drop(unpolled);
            timed(acquire(&scene.theirs, kind, &name)).await;
        }
    });
}
