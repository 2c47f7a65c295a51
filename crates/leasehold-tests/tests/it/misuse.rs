//! Programs that would work without the lock, and that the compiler accepts:
//! each fails, or the log names its line. `src/misuse.rs` has the others.

use std::time::Duration;

use leasehold::{Client, Error, MultiLock, Mutex};
use testkit::Server;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::support::inspection::allow_inspection;
use crate::support::log::{log_line, start_log};
use crate::support::{LEASE, SHORT, client, connect_at, name, run, server};

/// What the log says about an acquire that was never started.
const UNSTARTED: &str = "nothing was acquired";

/// Returns the location of the next line, as the log shows it.
macro_rules! caller_below {
    () => {
        format!("{}:{}:", file!(), line!() + 1)
    };
}

fn assert_logged(name: &str, caller: &str) {
    let line = log_line(&[UNSTARTED, name, caller]);
    assert!(line.is_some(), "no warning about {name} at {caller}");
}

/// Returns a client that may revoke locks, and its server.
async fn revoker() -> (Server, Client) {
    let server = server();
    allow_inspection(&server);
    let client = client(&server).await;
    (server, client)
}

#[test]
fn unstarted_acquire_logs_its_line() {
    start_log();
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let mutex = client.mutex(&name);
        let caller = caller_below!();
        let guard = mutex.lock();
        // The work of the program.
        drop(guard);
        assert_logged(&name, &caller);

        let caller = caller_below!();
        let _ = mutex.try_lock().timeout(LEASE).note("job");
        assert_logged(&name, &caller);

        let caller = caller_below!();
        let _ = client.fair_mutex(&name).lock();
        assert_logged(&name, &caller);

        let caller = caller_below!();
        let _ = client.semaphore(&name, 3).acquire();
        assert_logged(&name, &caller);

        let caller = caller_below!();
        let _ = client.rw_lock(&name).write();
        assert_logged(&name, &caller);

        let caller = caller_below!();
        let _ = mutex.reentrant().lock();
        assert_logged(&name, &caller);

        let caller = caller_below!();
        let _ = MultiLock::new([client.mutex(&name).lock()]);
        assert_logged(&name, &caller);
    });
}

/// Without these, the warning could be there all the time.
#[test]
fn started_acquire_logs_no_line() {
    start_log();
    run(async {
        let server = server();
        let client = client(&server).await;
        let name = name();
        let mutex = client.mutex(&name);
        let guard = mutex.lock().await.unwrap();
        mutex.try_lock().await.unwrap_err();
        // Started, although it was given up.
        let waiting = mutex.lock().into_future();
        assert!(tokio::time::timeout(LEASE / 100, waiting).await.is_err());
        drop(mutex.lock().into_future());
        guard.release().await.unwrap();
        let both = MultiLock::new([mutex.lock().into(), client.semaphore("other", 1).acquire()]);
        both.await.unwrap().release().await.unwrap();
        let handle = mutex.reentrant();
        handle.lock().run(async |_| ()).await.unwrap();
        let line = log_line(&[UNSTARTED, &name]);
        assert_eq!(line, None);
    });
}

/// A program that forgets that the lock can be busy.
async fn report(client: &Client, name: &str, works: &mut bool) -> Result<(), Error> {
    let _guard = client.mutex(name).try_lock().await?;
    *works = true;
    Ok(())
}

fn report_on_thread(client: &Client, name: &str, works: &mut bool) -> Result<(), Error> {
    let _guard = client.mutex(name).try_lock().wait()?;
    *works = true;
    Ok(())
}

#[test]
fn busy_lock_ends_the_program() {
    run(async {
        let server = server();
        let ours = client(&server).await;
        let theirs = client(&server).await;
        let name = name();
        let lock = theirs.mutex(&name).lock().note("the other job");
        let held = lock.await.unwrap();
        let mut works = false;
        let by_task = report(&ours, &name, &mut works).await;
        let by_thread = tokio::task::block_in_place(|| report_on_thread(&ours, &name, &mut works));
        for ended in [by_task, by_thread] {
            let Err(Error::Busy { name: busy, holder }) = &ended else {
                panic!("{ended:?}");
            };
            assert_eq!(*busy, name);
            let holder = holder.as_ref().expect("the holder is known");
            assert_eq!(holder.process.note.as_deref(), Some("the other job"));
        }
        assert!(!works, "the program worked without the lock");
        held.release().await.unwrap();
        report(&ours, &name, &mut works).await.unwrap();
        assert!(works);
    });
}

/// Nothing can end a task that `run` does not know. It must check its lease.
#[test]
fn task_that_outlives_run_finds_its_lease_lost() {
    run(async {
        let (_server, client) = revoker().await;
        let name = name();
        let (started, spawned) = oneshot::channel();
        let work = client.mutex(&name).lock().run(|lease| {
            let pages = async move {
                lease.check().unwrap();
                lease.lost().await;
                lease.check()
            };
            let task = tokio::spawn(pages);
            started.send(task).unwrap();
            std::future::pending::<()>()
        });
        let revoke = async {
            let task = spawned.await.unwrap();
            client.force_release(&name).await.unwrap();
            task.await.unwrap()
        };
        let (run, task) = tokio::join!(work, revoke);
        assert!(matches!(run, Err(Error::Lost { .. })), "{run:?}");
        assert!(matches!(task, Err(Error::Lost { .. })), "{task:?}");
    });
}

/// What the guide recommends instead: `run` drops the work, and with it the
/// tasks.
#[test]
fn join_set_of_the_work_ends_with_run() {
    run(async {
        let (_server, client) = revoker().await;
        let name = name();
        let (started, spawned) = oneshot::channel();
        let (running, ended) = oneshot::channel::<()>();
        let pages = async move {
            started.send(()).unwrap();
            std::future::pending::<()>().await;
            drop(running);
        };
        let work = client.mutex(&name).lock().run(|_lease| async {
            let mut tasks = JoinSet::new();
            tasks.spawn(pages);
            tasks.join_all().await;
        });
        let revoke = async {
            spawned.await.unwrap();
            client.force_release(&name).await.unwrap();
            ended.await
        };
        let (run, ended) = tokio::join!(work, revoke);
        assert!(matches!(run, Err(Error::Lost { .. })), "{run:?}");
        assert!(ended.is_err(), "the task was not aborted");
    });
}

/// A task that waits for itself.
async fn nested(mutex: &Mutex) -> Result<(), Error> {
    let outer = mutex.lock().await?;
    let inner = mutex.lock().await?;
    drop((outer, inner));
    Ok(())
}

#[test]
fn nested_lock_times_out_and_names_this_process() {
    run(async {
        let server = server();
        let connect = connect_at(server.port()).acquire_timeout(SHORT);
        let client = connect.await.unwrap();
        let ended = nested(&client.mutex(&name())).await;
        let Err(Error::Timeout { holder, .. }) = &ended else {
            panic!("{ended:?}");
        };
        let holder = holder.as_ref().expect("the holder is known");
        assert_eq!(holder.process.pid, Some(std::process::id()));
    });
}

/// The same if the work itself completes while one of its tasks continues.
#[test]
fn view_of_a_released_guard_is_lost() {
    run(async {
        let server = server();
        let client = client(&server).await;
        let guard = client.mutex(&name()).lock().await.unwrap();
        let lease = guard.lease();
        lease.check().unwrap();
        guard.release().await.unwrap();
        let checked = lease.check();
        assert!(matches!(checked, Err(Error::Lost { .. })), "{checked:?}");
        assert_eq!(lease.remaining(), Duration::ZERO);
    });
}

/// A program that ignores a loss until its end.
#[test]
fn release_of_a_lost_lock_ends_the_program() {
    run(async {
        let (_server, client) = revoker().await;
        let name = name();
        let program = async || -> Result<(), Error> {
            let guard = client.mutex(&name).lock().await?;
            client.force_release(&name).await?;
            guard.release().await
        };
        let ended = program().await;
        assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");
    });
}

/// The guide shows these programs. `scripts/quick-start` compares what it says
/// about them with what the compiler says.
#[test]
fn page_of_mistakes_shows_tested_programs() {
    let read = |path: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        std::fs::read_to_string(path).expect("a file")
    };
    let tested = read("src/misuse.rs") + &read("tests/it/misuse.rs");
    let page = read("../../docs/mistakes.md");
    let wrong = page.lines().filter_map(|line| line.split_once("// wrong"));
    let wrong: Vec<_> = wrong.map(|(code, _)| code.trim()).collect();
    assert!(wrong.len() >= 10, "{wrong:?}");
    for code in wrong {
        assert!(tested.contains(code), "no test has {code}");
    }
}
