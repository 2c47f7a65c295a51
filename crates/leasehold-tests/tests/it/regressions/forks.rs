//! Bugs of clients in forked processes.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard, Reentrant};
use tokio::runtime::Runtime;

use crate::support::{AMPLE, LEASE, name, owners, server, url_at, with_long_timeouts};

const URL: &str = "LEASEHOLD_FORKED_URL";

/// A forked child used its parent's connection. The parent took the reply for
/// its own, and both held the lock.
#[test]
fn forked_child_cannot_use_its_parents_client() {
    let server = server();
    // In a process of its own, since a fork copies the locks of other tests.
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "regressions::forks::parent"])
        .args(["--ignored", "--nocapture"])
        .env(URL, url_at(server.port()))
        .spawn()
        .unwrap();
    assert!(parent.wait().unwrap().success());
}

/// A forked child has a copy of its parent's random numbers. If it drew them,
/// both would have the same owners.
#[test]
fn forked_child_has_owners_of_its_own() {
    let server = server();
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "regressions::forks::forking_owner"])
        .args(["--ignored", "--nocapture"])
        .env(URL, url_at(server.port()))
        .spawn()
        .unwrap();
    assert!(parent.wait().unwrap().success());
    let random_half = |prefix: &str, number| {
        let owners = owners(&server, "holders", &format!("{prefix}:{number}"));
        assert_eq!(owners.len(), 1, "{prefix}:{number} is held");
        owners[0][..16].to_owned()
    };
    let halves = ["before", "parent", "child"]
        .into_iter()
        .flat_map(|prefix| (0..OWNERS).map(move |number| (prefix, number)))
        .map(|(prefix, number)| random_half(prefix, number));
    let halves: HashSet<_> = halves.collect();
    assert_eq!(halves.len(), 3 * OWNERS);
}

/// More than a thread keeps random numbers for.
const OWNERS: usize = 40;

#[test]
#[ignore = "the body of worker processes"]
fn forking_owner() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    let hold = |client: &Client, prefix: &str| {
        for number in 0..OWNERS {
            let mutex = client.mutex(&format!("{prefix}:{number}"));
            let guard = mutex.lock().fixed_lease(LEASE).wait().unwrap();
            // Not released, so that the test can read the owner.
            std::mem::forget(guard);
        }
    };
    let client = connect(&url);
    // On this thread: the child has copies of what it has not drawn yet.
    hold(&client, "before");
    match fork::fork().unwrap() {
        fork::Fork::Child => {
            hold(&connect(&url), "child");
            std::process::exit(0);
        }
        fork::Fork::Parent(child) => {
            hold(&client, "parent");
            assert_eq!(fork::waitpid(child).unwrap(), 0);
            // Without destructors, which would release the locks.
            std::process::exit(0);
        }
    }
}

#[test]
#[ignore = "the body of worker processes"]
fn parent() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    let mut inherited = Inherited::connect(&url);
    let (mut report, mut sink) = UnixStream::pair().unwrap();
    report.set_read_timeout(Some(AMPLE)).unwrap();
    match fork::fork().unwrap() {
        fork::Fork::Child => {
            drop(report);
            let failures = inherited.check_in_child(&url);
            sink.write_all(failures.join("\n").as_bytes()).unwrap();
            std::process::exit(0);
        }
        fork::Fork::Parent(child) => {
            drop(sink);
            // While the child runs, too: no reply may go astray.
            let end = Instant::now() + Duration::from_millis(200);
            while Instant::now() < end {
                inherited.acquire_in_parent();
            }
            let mut failures = String::new();
            report
                .read_to_string(&mut failures)
                .expect("the child ends");
            assert_eq!(failures, "");
            assert_eq!(fork::waitpid(child).unwrap(), 0);
            inherited.acquire_in_parent();
            inherited.release_in_parent();
        }
    }
}

/// What the child has copies of.
struct Inherited {
    threads: Client,
    tasks: Client,
    runtime: Runtime,
    /// A lock that the parent holds.
    taken: String,
    guards: Vec<Guard>,
    task_guards: Vec<Guard>,
    /// A handle whose lock the last task guard holds.
    reentrant: Reentrant,
}

fn refused<T>(outcome: &Result<T, Error>) -> bool {
    matches!(
        outcome,
        Err(Error::Invalid {
            what: "process",
            ..
        })
    )
}

impl Inherited {
    fn connect(url: &str) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let threads = connect(url);
        let tasks = with_long_timeouts(Client::connect(url));
        let tasks = runtime.block_on(tasks.into_future()).unwrap();
        let taken = name();
        let lock = |name: &str| threads.mutex(name).lock().wait().unwrap();
        let guards = vec![lock(&taken), lock(&name())];
        let task_lock = || runtime.block_on(tasks.mutex(&name()).lock().into_future());
        let reentrant = tasks.mutex(&name()).reentrant();
        let entered = runtime.block_on(reentrant.lock().into_future()).unwrap();
        let task_guards = vec![task_lock().unwrap(), task_lock().unwrap(), entered];
        Self {
            threads,
            tasks,
            runtime,
            taken,
            guards,
            task_guards,
            reentrant,
        }
    }

    /// Returns which operations were not refused. Every one of them returns.
    fn check_in_child(&mut self, url: &str) -> Vec<&'static str> {
        let mut failures = Vec::new();
        let mut expect = |what, is_right: bool| {
            if !is_right {
                failures.push(what);
            }
        };
        let mutex = self.threads.mutex("free");
        expect("try_lock", refused(&mutex.try_lock().wait()));
        expect("lock", refused(&mutex.lock().wait()));
        expect("holder", refused(&mutex.holder().wait()));
        expect("release", refused(&self.guards.remove(0).release().wait()));
        expect("extend", refused(&self.guards[0].extend(LEASE).wait()));
        self.guards.clear();
        expect("shutdown", refused(&self.threads.shutdown(AMPLE).wait()));

        let mut builder = tokio::runtime::Builder::new_current_thread();
        let own_runtime = builder.enable_all().build().unwrap();
        own_runtime.block_on(async {
            let mutex = self.tasks.mutex("free");
            expect("task: try_lock", refused(&mutex.try_lock().await));
            expect("task: lock", refused(&mutex.lock().await));
            expect("task: run", refused(&mutex.run(async |_| ()).await));
            let entered = self.reentrant.try_lock().await;
            expect("task: reentrant try_lock", refused(&entered));
            let entered = self.reentrant.lock().await;
            expect("task: reentrant lock", refused(&entered));
            let guard = self.task_guards.remove(0);
            expect("task: release", refused(&guard.release().await));
            self.task_guards.clear();
            let outcome = self.tasks.shutdown(AMPLE).await;
            expect("task: shutdown", refused(&outcome));
        });

        let new = connect(url);
        let taken = new.mutex(&self.taken).try_lock().wait();
        expect(
            "the parent holds the lock",
            matches!(taken, Err(Error::Busy { .. })),
        );
        let free = new.mutex("free").try_lock().wait();
        expect("a new client works", free.is_ok());
        drop(free);
        expect(
            "shutdown of the new client",
            new.shutdown(AMPLE).wait().is_ok(),
        );
        failures
    }

    fn acquire_in_parent(&self) {
        let guard = self.threads.mutex("parent").lock().wait().unwrap();
        guard.release().wait().unwrap();
        self.runtime.block_on(async {
            let guard = self.tasks.mutex("parent").lock().await.unwrap();
            guard.release().await.unwrap();
        });
    }

    /// The child has released nothing.
    fn release_in_parent(self) {
        for guard in self.guards {
            guard.release().wait().unwrap();
        }
        self.runtime.block_on(async {
            for guard in self.task_guards {
                guard.release().await.unwrap();
            }
        });
    }
}

fn connect(url: &str) -> Client {
    with_long_timeouts(Client::connect(url)).wait().unwrap()
}
