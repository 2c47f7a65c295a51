//! Five small programs, as users write them: for tasks on any executor, and for
//! threads.
//!
//! | program | shows |
//! |---|---|
//! | `report` | a lock that is free, busy, waited for with a limit, and lost |
//! | `pages` | work that ends with its lock |
//! | `catalogue` | readers, writers and permits |
//! | `nightly` | an election, a job per tick, and a hand-over |
//! | `transfer` | several locks at once |

mod executor;
mod tasks;
mod threads;

use std::time::Duration;

use leasehold::{Client, Error, Guard, Shared};
use testkit::Server;

use crate::support::inspection::allow_inspection;
use crate::support::{AMPLE, connect_at, eventually, has_subscriber, run, server};
use executor::block_on;

/// A wait that is too short for a lock that is held.
const BRIEFLY: Duration = Duration::from_millis(100);

/// A period that no test outlasts.
const DAY: Duration = Duration::from_secs(86_400);

/// Starts a server with a user that may revoke locks.
fn server_for_programs() -> Server {
    let server = server();
    allow_inspection(&server);
    server
}

/// Releases `guard` from a thread as soon as another caller waits for the lock.
fn release_when_waited_for(
    client: &Client,
    guard: Guard<Shared>,
) -> std::thread::JoinHandle<Result<(), Error>> {
    let client = client.clone();
    std::thread::spawn(move || {
        while client
            .inspect(guard.name())
            .wait()?
            .is_none_or(|lock| lock.waiter_count != Some(1))
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        guard.release().wait()
    })
}

#[test]
fn programs_of_tasks_run_on_tokio() {
    let server = server_for_programs();
    run(tasks::all(connect_at(server.port()))).unwrap();
}

#[test]
fn programs_of_tasks_run_on_one_thread() {
    let server = server_for_programs();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let programs = tasks::all(connect_at(server.port()));
    runtime.block_on(programs).unwrap();
}

#[test]
fn programs_of_tasks_run_without_tokio() {
    let server = server_for_programs();
    block_on(tasks::all(connect_at(server.port()))).unwrap();
}

#[test]
fn programs_of_threads_run_without_a_runtime() {
    let server = server_for_programs();
    threads::all(connect_at(server.port())).unwrap();
}

/// A task and a thread of one client exclude each other.
#[test]
fn tasks_and_threads_share_a_client() {
    let server = server_for_programs();
    run(async {
        let client = connect_at(server.port()).await.unwrap();
        let held = client.mutex("shared").lock().await.unwrap();
        let mutex = client.mutex("shared");
        let thread = std::thread::spawn(move || {
            let busy = mutex.try_lock().wait().unwrap_err();
            assert!(matches!(busy, Error::Busy { .. }), "{busy:?}");
            let guard = mutex.lock().timeout(AMPLE).wait().unwrap();
            guard.release().wait().unwrap();
        });
        eventually("the thread waits", || has_subscriber(&server, "shared")).await;
        held.release().await.unwrap();
        let joined = tokio::task::spawn_blocking(|| thread.join()).await;
        joined.unwrap().unwrap();
        client.shutdown(AMPLE).await.unwrap();
    });
}

/// Blocks the only thread of the runtime that connected the client.
#[test]
fn wait_completes_inside_of_a_task() {
    let server = server_for_programs();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(async {
        let client = connect_at(server.port()).await.unwrap();
        client
            .mutex("x")
            .lock()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        for _ in 0..20 {
            let guard = client.mutex("x").lock().wait().unwrap();
            guard.release().wait().unwrap();
        }
        let other = client.clone();
        let task = tokio::spawn(async move {
            let guard = other.mutex("y").lock().wait().unwrap();
            guard.release().await
        });
        task.await.unwrap().unwrap();
        client.shutdown(AMPLE).await.unwrap();
    });
}
