//! Callers of all kinds, with mixed options, that are polled slowly, left
//! unpolled, or dropped at any time: locks stay exclusive, and nothing is left.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold::{Client, Error, Guard, Loss, MultiGuard, MultiLock, Reentrant, Shared};
use testkit::SeededRng;
use tokio::time::{sleep, timeout};

use crate::support::{
    AMPLE, channels, client, connect_at, eventually, only_counters_left, run, scaled, server,
};

/// What is known of one lock.
#[derive(Default)]
struct Usage {
    /// The weight of its holders.
    used: AtomicU64,
    last_token: AtomicU64,
}

/// The locks, and the callers' luck.
struct Scene {
    clients: Vec<Client>,
    handles: Vec<Reentrant>,
    usages: [Usage; 6],
    acquired: AtomicU64,
    abandoned: AtomicU64,
}

/// A held lock: its usage, its weight, and what to drop.
type Held = (usize, u64, Box<dyn std::any::Any + Send>);

const CAPACITY: u64 = 3;

const SOON: Duration = Duration::from_millis(1);

fn exclusive(scene: &Scene, at: usize, guard: Guard) -> Held {
    let token = guard.token().as_u64();
    let last = scene.usages[at].last_token.swap(token, Ordering::SeqCst);
    assert!(last < token, "lock {at}: {last} before {token}");
    (at, CAPACITY, Box::new(guard))
}

/// A shutdown can end the lease before we check it.
fn multi(guard: MultiGuard) -> Result<Held, Error> {
    guard.check()?;
    Ok((5, CAPACITY, Box::new(guard)))
}

/// Acquires some lock on some terms.
async fn acquire(scene: &Scene, mut rng: SeededRng) -> Result<Held, Error> {
    let which = usize::try_from(rng.below(scene.clients.len() as u64)).unwrap();
    let client = &scene.clients[which];
    let wait = AMPLE / 2;
    let note = format!("{}", rng.below(2));
    let handoff = rng.below(3) > 0;
    match rng.below(8) {
        0 | 1 => {
            let acquire = client.mutex("d0").lock().note(note).local_handoff(handoff);
            let guard = acquire.timeout(wait).await?;
            Ok(exclusive(scene, 0, guard))
        }
        2 => {
            let acquire = client.fair_mutex("d1").lock().local_handoff(handoff);
            let guard = acquire.timeout(wait).await?;
            Ok(exclusive(scene, 1, guard))
        }
        3 => {
            let acquire = client.rw_lock("d2").write().timeout(wait);
            let guard = acquire.await?;
            Ok((2, CAPACITY, Box::new(guard)))
        }
        4 => {
            let guard: Guard<Shared> = client.rw_lock("d2").read().timeout(wait).await?;
            Ok((2, 0, Box::new(guard)))
        }
        5 => {
            let weight = 1 + u32::try_from(rng.below(CAPACITY)).unwrap();
            let semaphore = client.semaphore("d3", CAPACITY.try_into().unwrap());
            let guard = semaphore.acquire_many(weight).timeout(wait).await?;
            Ok((3, weight.into(), Box::new(guard)))
        }
        6 => {
            let guard = scene.handles[which].lock().timeout(wait).await?;
            guard.check()?;
            // Guards of one handle hold together.
            Ok((4, 0, Box::new(guard)))
        }
        _ => {
            let (one, two) = (client.mutex("d5a"), client.fair_mutex("d5b"));
            let parts = MultiLock::new([two.lock(), one.lock()]).timeout(wait);
            multi(parts.await?)
        }
    }
}

fn poll_once<F: Future>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Acquires, or gives up, and polls in its own way.
async fn call(scene: Arc<Scene>, seed: u64) {
    let mut rng = SeededRng::new(seed);
    let mut acquiring = Box::pin(acquire(&scene, SeededRng::new(seed + 1)));
    let acquired = match rng.below(5) {
        // Dropped after a while.
        0 => timeout(SOON * u32::try_from(rng.below(120)).unwrap(), acquiring).await,
        // Polled a few times, and then left alone for a while.
        1 => {
            let polls = rng.below(4);
            for _ in 0..polls {
                if let Some(acquired) = poll_once(&mut acquiring) {
                    return finish(&scene, acquired).await;
                }
                sleep(SOON * 5).await;
            }
            sleep(SOON * 150).await;
            Ok(acquiring.await)
        }
        // Polled slowly.
        2 => loop {
            if let Some(acquired) = poll_once(&mut acquiring) {
                break Ok(acquired);
            }
            sleep(SOON * 70).await;
        },
        _ => Ok(acquiring.await),
    };
    match acquired {
        Ok(acquired) => finish(&scene, acquired).await,
        Err(_) => {
            scene.abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }
}

async fn finish(scene: &Scene, acquired: Result<Held, Error>) {
    let (at, weight, guard) = acquired.expect("no caller fails");
    let usage = &scene.usages[at].used;
    let used = usage.fetch_add(weight, Ordering::SeqCst) + weight;
    assert!(used <= CAPACITY, "lock {at} is used {used} times");
    sleep(SOON / 2).await;
    usage.fetch_sub(weight, Ordering::SeqCst);
    drop(guard);
    scene.acquired.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn disorderly_callers_leave_nothing_behind() {
    run(async {
        let server = server();
        let mut clients = Vec::new();
        for _ in 0..2 {
            let builder = connect_at(server.port()).lease(AMPLE * 10);
            clients.push(builder.await.unwrap());
        }
        let handles = clients.iter().map(|client| client.mutex("d4").reentrant());
        let scene = Arc::new(Scene {
            handles: handles.collect(),
            clients,
            usages: Default::default(),
            acquired: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
        });
        let callers = scaled(600);
        let mut running = tokio::task::JoinSet::new();
        for seed in 0..callers {
            running.spawn(call(scene.clone(), seed * 2));
            if seed % 20 == 0 {
                sleep(SOON * 5).await;
            }
        }
        while let Some(done) = timeout(AMPLE, running.join_next())
            .await
            .expect("one hangs")
        {
            done.unwrap();
        }
        println!(
            "{} acquired, {} abandoned",
            scene.acquired.load(Ordering::SeqCst),
            scene.abandoned.load(Ordering::SeqCst)
        );
        eventually("no subscription is left", || {
            let channels = channels(&server);
            channels.iter().all(|channel| !channel.contains("lock:"))
        })
        .await;
        eventually("only counters are left", || only_counters_left(&server)).await;
    });
}

/// A shutdown in the midst of it ends every call, and leaves nothing.
#[test]
fn shutdown_ends_disorderly_callers() {
    run(async {
        for round in 0..scaled(10) {
            let server = server();
            let ours = connect_at(server.port()).lease(AMPLE * 10);
            let ours = ours.await.unwrap();
            let theirs = client(&server).await;
            let scene = Arc::new(Scene {
                handles: vec![ours.mutex("d4").reentrant()],
                clients: vec![ours.clone()],
                usages: Default::default(),
                acquired: AtomicU64::new(0),
                abandoned: AtomicU64::new(0),
            });
            // Some locks are busy all the time.
            let _held = theirs.fair_mutex("d5b").lock().await.unwrap();
            let _held = theirs.fair_mutex("d1").lock().await.unwrap();
            let is_over = Arc::new(AtomicBool::new(false));
            let mut running = tokio::task::JoinSet::new();
            for seed in 0..100 {
                let (scene, is_over) = (scene.clone(), is_over.clone());
                running.spawn(async move {
                    let seed = (round * 100 + seed) * 2;
                    let mut acquiring = Box::pin(acquire(&scene, SeededRng::new(seed)));
                    // Some are never polled again.
                    if seed % 6 == 0 {
                        for _ in 0..3 {
                            if poll_once(&mut acquiring).is_some() {
                                return;
                            }
                            sleep(SOON * 3).await;
                        }
                        while !is_over.load(Ordering::SeqCst) {
                            sleep(SOON * 5).await;
                        }
                    }
                    match acquiring.await {
                        Ok(held) => drop(held),
                        Err(Error::ShutDown) => {}
                        // It ended between the grant and our check.
                        Err(Error::Lost {
                            loss: Loss::ShutDown,
                            ..
                        }) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                });
            }
            sleep(SOON * 10 * u32::try_from(round).unwrap()).await;
            let outcome = timeout(AMPLE, ours.shutdown(AMPLE)).await.unwrap();
            outcome.unwrap();
            let holders = |name| crate::support::exists(&server, name);
            for name in ["d0", "d2", "d3", "d4", "d5a"] {
                assert!(!holders(name), "{name} is held after a shutdown");
            }
            is_over.store(true, Ordering::SeqCst);
            while let Some(done) = timeout(AMPLE, running.join_next())
                .await
                .expect("one hangs")
            {
                done.unwrap();
            }
        }
    });
}
