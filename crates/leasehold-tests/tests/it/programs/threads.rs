//! The programs for threads.

use std::time::{Duration, Instant};

use leasehold::{Client, Connect, Error, Lease, Loss, MultiLock, OnceOutcome, Shared, Tick};

use super::{BRIEFLY, DAY, release_when_waited_for};
use crate::support::AMPLE;

/// Runs all programs, lists the locks that are left, and shuts the client down.
pub(super) fn all(connect: Connect) -> Result<(), Error> {
    let client = connect.acquire_timeout(AMPLE).wait()?;
    report(&client)?;
    pages(&client)?;
    catalogue(&client)?;
    nightly(&client)?;
    transfer(&client)?;
    let _kept = client.mutex("kept").lock().wait()?;
    let mut names = Vec::new();
    let mut scan = client.scan("k*");
    while let Some(page) = scan.next().wait()? {
        names.extend(page.into_iter().map(|lock| lock.name));
    }
    assert_eq!(names, ["kept"]);
    client.shutdown(AMPLE).wait()?;
    let refused = client.mutex("kept").try_lock().wait();
    assert!(matches!(refused, Err(Error::ShutDown)), "{refused:?}");
    Ok(())
}

fn report(client: &Client) -> Result<(), Error> {
    let report = client.mutex("report");
    let guard = report.lock().timeout(AMPLE).wait()?;
    assert_eq!(guard.waited(), None);
    for _page in 1..=3 {
        guard.check()?;
    }

    let busy = report.try_lock().wait().unwrap_err();
    let Error::Busy { name, holder } = busy else {
        panic!("{busy:?}");
    };
    assert_eq!(name, "report");
    let holder = holder.expect("the server knows the holder");
    assert_eq!(holder.process.pid, Some(std::process::id()));
    let late = report.lock().timeout(BRIEFLY).wait();
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");

    assert_eq!(client.force_release("report").wait()?.len(), 1);
    let mut lost = guard.lost();
    assert!(lost.wait_timeout(AMPLE));
    assert_eq!(lost.wait(), Some(Loss::Revoked));
    let lost = guard.release().wait();
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");

    report.try_lock().wait()?.release().wait()
}

fn pages(client: &Client) -> Result<(), Error> {
    let pages = client.mutex("pages");
    let printed = pages.lock().run_blocking(|lease| {
        for _page in 1..=3 {
            lease.check()?;
        }
        Ok::<_, Error>(3)
    })??;
    assert_eq!(printed, 3);

    // No lock can stop a thread: the work checks its lease before each step.
    let lost = pages.lock().run_blocking(|lease| {
        client.force_release("pages").wait().unwrap();
        let start = Instant::now();
        while lease.check().is_ok() {
            assert!(start.elapsed() < AMPLE, "the loss is not announced");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");

    // A job that another process does already is skipped.
    let held = pages.lock().wait()?;
    let skipped = pages.try_lock().run_blocking(|_| 1);
    assert!(matches!(skipped, Err(Error::Busy { .. })), "{skipped:?}");
    held.release().wait()
}

fn catalogue(client: &Client) -> Result<(), Error> {
    let catalogue = client.rw_lock("catalogue");
    let reader = catalogue.read().wait()?;
    let refused = catalogue.try_write().wait();
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    reader.release().wait()?;

    let reader = catalogue.write().wait()?.downgrade().wait()?;
    let other = catalogue.read().wait()?;
    assert!(other.token() > reader.token());
    other.release().wait()?;
    let releasing = release_when_waited_for(client, reader);
    let writer = catalogue.write().wait()?;
    assert!(writer.waited().is_some());
    releasing.join().unwrap()?;
    writer.release().wait()?;

    let downloads = client.semaphore("downloads", 3);
    let two = downloads.acquire_many(2).wait()?;
    let refused = downloads.try_acquire_many(2).wait();
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    assert_eq!(downloads.permits().wait()?.held, 2);
    two.release().wait()
}

fn nightly(client: &Client) -> Result<(), Error> {
    let election = client.election("scheduler").note("10.0.0.7:8080");
    let mut changes = election.changes();
    assert_eq!(changes.next().wait()?, None);
    let leader = election.campaign().wait()?;
    assert!(!leader.lost().wait_timeout(Duration::ZERO));
    let term = election.leader().wait()?.expect("a leader");
    assert_eq!(term.epoch, Some(leader.token()));
    assert_eq!(term.process.note.as_deref(), Some("10.0.0.7:8080"));
    // A term may have ended before its leader began to lead.
    while changes.next().wait()?.as_ref() != Some(&term) {}
    leader.release().wait()?;

    let noon = client.once("noon", Tick::now(DAY));
    let OnceOutcome::Ran(run) = noon.start().wait()? else {
        panic!("nobody ran it before");
    };
    run.lease().check()?;
    run.finish("42 pages").wait()?;
    let again = noon.start().wait()?;
    assert!(matches!(again, OnceOutcome::AlreadyRan(_)), "{again:?}");
    let last = noon.last().wait()?.expect("a run");
    assert_eq!(last.report.as_deref(), Some("42 pages"));

    let guard = client.mutex("deploy").lock().wait()?;
    let token = guard.token();
    let ticket = guard.hand_over(AMPLE).wait()?;
    let adopted = client.adopt(&ticket).wait()?;
    assert!(adopted.token() > token);
    adopted.release().wait()
}

fn transfer(client: &Client) -> Result<(), Error> {
    let from = client.mutex("account:1");
    let to = client.fair_mutex("account:2");
    let both = MultiLock::new([from.lock(), to.lock()]);
    let both = both.timeout(AMPLE).wait()?;
    let names: Vec<_> = both.leases().map(Lease::name).collect();
    assert_eq!(names, ["account:1", "account:2"]);
    both.check()?;
    both.release().wait()?;

    let both = MultiLock::new([from.lock(), to.lock()]);
    let count = both.run_blocking(<[Lease]>::len)?;
    assert_eq!(count, 2);

    let downloads = client.semaphore("downloads", 10);
    let mixed = MultiLock::<Shared>::new([from.lock().into(), downloads.acquire()]);
    mixed.wait()?.release().wait()
}
