//! Bugs of clients that several runtimes use.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use leasehold::{Client, Mutex};
use testkit::{Flavor, Server, ServerExt};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::support::deployment::{Deployment, FiveServers, cluster, connect_to_group, group};
use crate::support::with_long_timeouts;
use crate::support::{
    AMPLE, LEASE, client, command_calls, connect_at, eventually, name, poll_at_most, run, server,
};

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// Acquires and releases. Nothing may fail, or wait for another runtime.
async fn acquire(mutex: &Mutex) {
    let acquired = timeout(AMPLE, mutex.try_lock().into_future()).await;
    let guard = acquired.expect("no other runtime is needed").unwrap();
    let released = timeout(AMPLE, guard.release()).await;
    released.expect("no other runtime is needed").unwrap();
}

/// Starts an acquire, drives it for a moment, and then no longer. Returns the
/// runtime, on which a task may still connect.
fn stall(mutex: &Mutex, yields: usize) -> Runtime {
    let runtime = runtime();
    runtime.block_on(async {
        let mut acquiring = pin!(mutex.try_lock().into_future());
        let mut polls = 0;
        poll_fn(|context| {
            polls += 1;
            match acquiring.as_mut().poll(context) {
                Poll::Pending if polls <= yields => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    });
    runtime
}

/// Checks that a runtime that is not driven delays no other. `mutex` returns
/// one of a client that has connected on a runtime that ended.
fn check_independence(mutex: impl Fn() -> Mutex) {
    // Each stops at another step of connecting.
    let stalled: Vec<_> = (0..8)
        .map(|step| {
            let stalled = stall(&mutex(), (1 << step) - 1);
            runtime().block_on(acquire(&mutex()));
            stalled
        })
        .collect();
    let pair = [runtime(), runtime()];
    for _ in 0..5 {
        pair.iter()
            .for_each(|runtime| runtime.block_on(acquire(&mutex())));
    }
    for runtime in stalled {
        runtime.block_on(acquire(&mutex()));
    }
}

/// A runtime that began to connect, and was not driven any more, blocked the
/// callers on all other runtimes. Two that took turns lost a reply each time.
#[test]
fn idle_runtime_delays_no_other() {
    let server = server();
    let client = run(client(&server));
    check_independence(|| client.mutex(&name()));
}

#[test]
fn idle_runtime_delays_no_other_of_a_cluster() {
    let cluster = cluster(&Flavor::one());
    let client = run(cluster.client());
    check_independence(|| client.mutex(&name()));
}

/// The runtime held the connection to the sentinels.
#[test]
fn idle_runtime_delays_no_other_of_a_group() {
    let group = group(&Flavor::one());
    let client = run(group.client());
    check_independence(|| client.mutex(&name()));
}

/// Connections that wait for replicas were shared, too.
#[test]
fn idle_runtime_delays_no_other_with_replicas() {
    let group = group(&Flavor::one());
    let builder = connect_to_group(&group, testkit::sentinel_group::GROUP);
    let builder = with_long_timeouts(builder).replicas(1, LEASE / 2);
    let client = run(builder.into_future()).unwrap();
    check_independence(|| client.mutex(&name()));
}

#[test]
fn idle_runtime_delays_no_other_of_a_quorum() {
    let servers = FiveServers::start(&Flavor::one());
    let client = run(servers.client());
    check_independence(|| client.mutex(&name()));
}

/// The votes waited for tasks of the caller's runtime. The cancel overtook
/// them, and the lock stayed held without a holder.
#[test]
fn dropped_acquire_of_a_quorum_leaves_no_lock() {
    let five = FiveServers::start(&Flavor::one());
    runtime().block_on(async {
        let builder = five.quorum().max_lease(AMPLE * 4);
        let quorum = builder.lease(AMPLE * 4).await.unwrap();
        acquire(&quorum.mutex(&name())).await;
        let before: Vec<_> = five
            .servers
            .iter()
            .map(|server| command_calls(server, "evalsha"))
            .collect();
        let name = name();
        let acquiring = quorum.mutex(&name).try_lock().into_future();
        assert!(poll_at_most(acquiring, 1).await.is_none());
        // Blocks the runtime, so that only the keeper works.
        let start = Instant::now();
        let is_idle =
            |(server, before): &(&Server, &u64)| command_calls(server, "evalsha") == **before;
        while five.servers.iter().zip(&before).filter(is_idle).count() > 2 {
            assert!(start.elapsed() < AMPLE, "no request arrives");
        }
        // Sooner than the lease of a lock without a holder would end.
        let guard = quorum.mutex(&name).lock().timeout(AMPLE).await.unwrap();
        guard.release().await.unwrap();
    });
}

/// Returns how many connections for requests the server has.
fn request_connections(server: &Server) -> usize {
    let clients = server.ask(&["CLIENT", "LIST"]);
    clients.text().matches("name=leasehold-requests").count()
}

/// The socket stayed open until another runtime connected.
#[test]
fn ended_runtime_closes_its_connection() {
    let server = server();
    let client: Client = run(connect_at(server.port()).into_future()).unwrap();
    let mutex = client.mutex(&name());
    for _ in 0..50 {
        runtime().block_on(acquire(&mutex));
    }
    run(eventually("all connections are closed", || {
        request_connections(&server) == 0
    }));
}
