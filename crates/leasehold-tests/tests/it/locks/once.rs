//! Jobs that run once per tick: one run, its record, and crashes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use leasehold::{Client, Error, OnceOutcome, Tick};
use testkit::{Fault, Proxy, SeededRng, ServerExt};

use crate::support::{AMPLE, SHORT, client, client_at, exists, name, on_every_server, run, server};

const PERIOD: Duration = Duration::from_secs(60);

/// Returns the tick with this number.
fn tick(number: u32) -> Tick {
    Tick::at(SystemTime::UNIX_EPOCH + PERIOD * number, PERIOD)
}

async fn runs(client: &Client, name: &str, number: u32) -> bool {
    let outcome = client.once(name, tick(number)).run(|_| async {}).await;
    matches!(outcome.unwrap(), OnceOutcome::Ran(()))
}

#[test]
fn tick_runs_once_and_is_remembered() {
    on_every_server(|server| async move {
        let name = name();
        let one = client(&server).await;
        let two = client(&server).await;
        let job = one.once(&name, tick(7)).note("first host");
        assert_eq!(job.last().await.unwrap(), None);
        let outcome = job.run(|lease| async move { lease.token() }).await;
        assert!(matches!(outcome.unwrap(), OnceOutcome::Ran(_)));
        let other = two.once(&name, tick(7));
        let OnceOutcome::AlreadyRan(last) = other.run(|_| async {}).await.unwrap() else {
            panic!("it ran twice");
        };
        assert_eq!(last.tick, 7);
        assert_eq!(last.process.pid, Some(std::process::id()));
        assert_eq!(last.process.note.as_deref(), Some("first host"));
        assert_eq!(last.report.as_deref(), Some("completed"));
        assert!(!runs(&two, &name, 6).await, "a tick before the last");
        assert!(runs(&two, &name, 8).await);
        assert!(!exists(&server, &name), "the lock is released");
    });
}

#[test]
fn tick_whose_runner_ended_is_not_repeated() {
    run(async {
        let server = server();
        let name = name();
        let client = client(&server).await;
        let job = client.once(&name, tick(1));
        let OnceOutcome::Ran(started) = job.start().await.unwrap() else {
            panic!("the first start");
        };
        let OnceOutcome::AlreadyRan(running) = job.start().await.unwrap() else {
            panic!("started twice");
        };
        assert_eq!((running.tick, running.report), (1, None));
        let next = client.once(&name, tick(2)).start().await.unwrap();
        assert!(matches!(next, OnceOutcome::Busy), "{next:?}");
        drop(started);
        assert!(!runs(&client, &name, 1).await);
        let mut starting = client.once(&name, tick(2)).start().await.unwrap();
        // The drop releases in the background.
        while let OnceOutcome::Busy = starting {
            starting = client.once(&name, tick(2)).start().await.unwrap();
        }
        let OnceOutcome::Ran(second) = starting else {
            panic!("{starting:?}");
        };
        second.finish("3 rows").await.unwrap();
        let last = job.last().await.unwrap().unwrap();
        assert_eq!((last.tick, last.report.as_deref()), (2, Some("3 rows")));
    });
}

#[test]
fn lost_run_reports_the_loss() {
    run(async {
        let server = server();
        let name = name();
        let client = client(&server).await;
        let job = client.once(&name, tick(1));
        let outcome = job.run(|lease| {
            server.tell(&["DEL", &crate::support::key(lease.name())]);
            async {}
        });
        // The release of the completed work finds the loss.
        let _ = outcome.await;
        assert!(job.last().await.unwrap().unwrap().report.is_some());
        let long = job.clone().note("x".repeat(257)).start().await;
        assert!(matches!(long, Err(Error::Invalid { .. })), "{long:?}");
        let ahead = Tick::at(SystemTime::now() + 3 * PERIOD, PERIOD);
        let ahead = client.once(&name, ahead).start().await;
        assert!(matches!(ahead, Err(Error::Invalid { .. })), "{ahead:?}");
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 52);
        let late = client.once(&name, Tick::at(late, PERIOD)).start().await;
        assert!(matches!(late, Err(Error::Invalid { .. })), "{late:?}");
        let tiny = client.once(&name, Tick::now(Duration::ZERO)).start().await;
        assert!(matches!(tiny, Err(Error::Invalid { .. })), "{tiny:?}");
    });
}

#[test]
fn cancelled_run_leaves_its_tick_to_others() {
    run(async {
        let server = server();
        let name = name();
        let one = client(&server).await;
        let two = client(&server).await;
        assert!(runs(&one, &name, 1).await);
        let OnceOutcome::Ran(started) = one.once(&name, tick(2)).start().await.unwrap() else {
            panic!("the second tick");
        };
        started.cancel().await.unwrap();
        assert!(!exists(&server, &name), "the lock is released");
        let last = two.once(&name, tick(2)).last().await.unwrap().unwrap();
        assert_eq!((last.tick, last.report.as_deref()), (1, Some("completed")));
        assert!(!runs(&two, &name, 1).await, "the tick before has run");
        assert!(runs(&two, &name, 2).await);
        assert!(!runs(&one, &name, 2).await);
    });
}

#[test]
fn reset_lets_the_last_tick_run_again() {
    run(async {
        let server = server();
        let name = name();
        let client = client(&server).await;
        let job = client.once(&name, tick(5));
        assert_eq!(job.reset().await.unwrap(), None);
        assert!(runs(&client, &name, 5).await);
        let forgotten = job.reset().await.unwrap().unwrap();
        assert_eq!((forgotten.tick, forgotten.period), (5, PERIOD));
        assert_eq!(forgotten.next, Some(SystemTime::UNIX_EPOCH + PERIOD * 6));
        assert_eq!(forgotten.report.as_deref(), Some("completed"));
        assert!(runs(&client, &name, 5).await);
        assert!(!runs(&client, &name, 5).await);
    });
}

#[test]
fn claim_without_a_reply_is_repeated() {
    run(async {
        let server = server();
        let name = name();
        let proxy = Proxy::start(server.port());
        let connect = crate::support::connect_at(proxy.port()).request_timeout(SHORT);
        let client = connect.await.unwrap();
        let dropped = AtomicU32::new(0);
        proxy.inject(move |request| {
            let is_claim = request
                .iter()
                .any(|word| word.starts_with(b"leasehold:once:"));
            match is_claim && dropped.fetch_add(1, Ordering::SeqCst) == 0 {
                true => Fault::DropReplies,
                false => Fault::None,
            }
        });
        assert!(runs(&client, &name, 1).await, "the claim was its own");
        assert!(!runs(&client_at(server.port()).await, &name, 1).await);
    });
}

#[test]
fn hosts_with_different_clocks_run_each_tick_once() {
    run(async {
        let server = server();
        let name: Arc<str> = name().into();
        let period = Duration::from_millis(200);
        let ran: Arc<Vec<AtomicU64>> = Arc::new((0..40).map(|_| AtomicU64::new(0)).collect());
        let first = Tick::now(period).number() + 2;
        let hosts: Vec<_> = (0..10)
            .map(|host| {
                let name = name.clone();
                let ran = ran.clone();
                let port = server.port();
                tokio::spawn(async move {
                    let client = client_at(port).await;
                    let mut rng = SeededRng::new(host);
                    // Up to half a period behind or ahead.
                    let skew = Duration::from_millis(rng.below(200));
                    let mut last = first;
                    while last < first + 38 {
                        let clock = SystemTime::now() + skew - period / 2;
                        let tick = Tick::at(clock, period);
                        if tick.number() > last {
                            last = tick.number();
                            let at = usize::try_from(last - first).unwrap();
                            let outcome = client.once(&name, tick).run(|_| async {
                                ran[at.min(39)].fetch_add(1, Ordering::SeqCst);
                            });
                            let _ = outcome.await.unwrap();
                        }
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                })
            })
            .collect();
        for host in hosts {
            tokio::time::timeout(AMPLE, host).await.unwrap().unwrap();
        }
        let counts: Vec<_> = ran
            .iter()
            .map(|count| count.load(Ordering::SeqCst))
            .collect();
        // The last element collects later ticks, of a stalled machine.
        assert!(counts[..39].iter().all(|count| *count <= 1), "{counts:?}");
        assert!(counts.iter().sum::<u64>() > 5, "{counts:?}");
    });
}
