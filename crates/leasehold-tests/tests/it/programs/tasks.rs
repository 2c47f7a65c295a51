//! The programs for tasks. They use no runtime themselves, so any executor can
//! poll them.

use leasehold::{
    Client, Connect, Error, Exclusive, Lease, Loss, MultiLock, OnceOutcome, Shared, Tick,
};

use super::{BRIEFLY, DAY, release_when_waited_for};
use crate::support::AMPLE;

/// Runs all programs, and shuts the client down.
pub(super) async fn all(connect: Connect) -> Result<(), Error> {
    let client = connect.acquire_timeout(AMPLE).await?;
    report(&client).await?;
    pages(&client).await?;
    catalogue(&client).await?;
    nightly(&client).await?;
    transfer(&client).await?;
    let _kept = client.mutex("kept").lock().await?;
    client.shutdown(AMPLE).await?;
    let refused = client.mutex("kept").try_lock().await;
    assert!(matches!(refused, Err(Error::ShutDown)), "{refused:?}");
    Ok(())
}

async fn report(client: &Client) -> Result<(), Error> {
    let report = client.mutex("report");
    let guard = report.lock().timeout(AMPLE).await?;
    assert_eq!(guard.waited(), None);
    for _page in 1..=3 {
        guard.check()?;
    }

    let busy = report.try_lock().await.unwrap_err();
    let Error::Busy { name, holder } = busy else {
        panic!("{busy:?}");
    };
    assert_eq!(name, "report");
    let holder = holder.expect("the server knows the holder");
    assert_eq!(holder.process.pid, Some(std::process::id()));
    let late = report.lock().timeout(BRIEFLY).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");

    assert_eq!(client.force_release("report").await?.len(), 1);
    assert_eq!(guard.lost().await, Some(Loss::Revoked));
    let lost = guard.release().await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");

    report.try_lock().await?.release().await
}

async fn pages(client: &Client) -> Result<(), Error> {
    let pages = client.mutex("pages");
    let token = pages.run(|lease| async move { lease.token() }).await?;
    let later = pages.lock().run(async |lease: Lease| lease.token()).await?;
    assert!(later > token);

    // The work never ends by itself, and is dropped when the lock is lost.
    let lost = pages.run(|_| async {
        client.force_release("pages").await.unwrap();
        std::future::pending::<()>().await;
    });
    let lost = lost.await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");

    // A job that another process does already is skipped.
    let held = pages.lock().await?;
    let skipped = pages.try_lock().run_or_skip(|_| async { 1 }).await?;
    assert_eq!(skipped, None);
    held.release().await?;
    let done = pages.try_lock().run_or_skip(|_| async { 2 }).await?;
    assert_eq!(done, Some(2));
    Ok(())
}

async fn catalogue(client: &Client) -> Result<(), Error> {
    let catalogue = client.rw_lock("catalogue");
    let reader = catalogue.read().await?;
    let refused = catalogue.try_write().await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    reader.release().await?;

    let reader = catalogue.write().await?.downgrade().await?;
    let other = catalogue.read().await?;
    assert!(other.token() > reader.token());
    other.release().await?;
    let releasing = release_when_waited_for(client, reader);
    let writer = catalogue.write().await?;
    assert!(writer.waited().is_some());
    releasing.join().unwrap()?;
    writer.release().await?;

    let downloads = client.semaphore("downloads", 3);
    let two = downloads.acquire_many(2).await?;
    let refused = downloads.try_acquire_many(2).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    assert_eq!(downloads.permits().await?.held, 2);
    two.release().await?;

    let mutex = client.mutex("no-readers").lock().await?;
    let refused = mutex.downgrade().await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    Ok(())
}

async fn nightly(client: &Client) -> Result<(), Error> {
    let election = client.election("scheduler").note("10.0.0.7:8080");
    let mut changes = election.changes();
    assert_eq!(changes.next().await?, None);
    let epoch = election.lead(|lease| async move { lease.token() }).await?;
    let leader = election.campaign().await?;
    assert!(leader.token() > epoch);
    let term = election.leader().await?.expect("a leader");
    assert_eq!(term.epoch, Some(leader.token()));
    assert_eq!(term.process.note.as_deref(), Some("10.0.0.7:8080"));
    // A term may have ended before its leader began to lead.
    while changes.next().await?.and_then(|term| term.epoch) != Some(epoch) {}
    leader.release().await?;

    let noon = client.once("noon", Tick::now(DAY));
    let ran = noon.run(|_| async { 42 }).await?;
    assert_eq!(ran, OnceOutcome::Ran(42));
    let again = noon.run(|_| async { 43 }).await?;
    assert!(matches!(again, OnceOutcome::AlreadyRan(_)), "{again:?}");
    assert!(noon.last().await?.is_some());

    let guard = client.mutex("deploy").lock().await?;
    let token = guard.token();
    let ticket = guard.hand_over(AMPLE).await?;
    let adopted = client.adopt(&ticket).await?;
    assert!(adopted.token() > token);
    adopted.release().await
}

async fn transfer(client: &Client) -> Result<(), Error> {
    let from = client.mutex("account:1");
    let to = client.fair_mutex("account:2");
    let both = MultiLock::new([from.lock(), to.lock()]);
    let both = both.timeout(AMPLE).await?;
    let names: Vec<_> = both.leases().map(Lease::name).collect();
    assert_eq!(names, ["account:1", "account:2"]);
    both.check()?;
    both.release().await?;

    let both = MultiLock::new([from.lock(), to.lock()]);
    let count = both.run(async |leases: Vec<Lease>| leases.len()).await?;
    assert_eq!(count, 2);

    let downloads = client.semaphore("downloads", 10);
    let mixed = MultiLock::<Shared>::new([from.lock().into(), downloads.acquire()]);
    mixed.await?.release().await?;
    let none = MultiLock::<Exclusive>::new([]).await;
    assert!(matches!(none, Err(Error::Invalid { .. })), "{none:?}");
    Ok(())
}
