//! Observers: each event has its cause, and holds and waits are balanced.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::observe::{Event, Refusal};
use leasehold::{Client, Connect, Loss};
use testkit::{Flavor, SeededRng, Server, ServerExt};

use crate::support::log::{log_line, start_log};
use crate::support::{
    AMPLE, LEASE, SHORT, client, connect_at, eventually, has_subscriber, is_busy, key, loss_of,
    name, run, server, with_long_timeouts,
};

/// An observer that records each event as one line, and counts by its first
/// word.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Record>>);

#[derive(Default)]
struct Record {
    events: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
    pending: usize,
    margins: Vec<Duration>,
}

impl Recorder {
    fn add(&self, event: &'static str, rest: &str) {
        let event_line = format!("{event} {rest}");
        self.0.lock().unwrap().events.push(event_line);
        self.tick(event);
    }

    fn tick(&self, event: &'static str) {
        *self.0.lock().unwrap().counts.entry(event).or_default() += 1;
    }

    fn count(&self, event: &str) -> u64 {
        *self.0.lock().unwrap().counts.get(event).unwrap_or(&0)
    }

    /// Returns the events of locks so far, and forgets them.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().events)
    }
}

impl Recorder {
    /// Returns an observer that records here.
    fn observer(&self) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
        let recorder = self.clone();
        move |event| recorder.observe(event)
    }

    fn observe(&self, event: &Event<'_>) {
        match *event {
            Event::Acquired {
                kind,
                contended,
                token,
                ..
            } => {
                let contended = if contended { "contended" } else { "free" };
                assert_eq!(token.is_some(), kind != "redisson_lock");
                self.add("acquired", &format!("{kind} {contended}"));
            }
            Event::Refused { reason, .. } => self.add("refused", refusal(reason)),
            Event::WaitStarted { kind, holder, .. } => {
                // Unknown to a task that joins others which wait for a reply.
                if let Some(holder) = holder {
                    assert_eq!(holder.process.pid, Some(std::process::id()));
                }
                self.add("wait_started", kind);
            }
            Event::WaitEnded { kind, .. } => self.add("wait_ended", kind),
            Event::Renewed { margin, lease, .. } => {
                self.0.lock().unwrap().margins.push(margin);
                assert!(margin < lease);
            }
            Event::RenewalFailed { .. } => self.tick("renewal_failed"),
            Event::Released { kind, .. } => self.add("released", kind),
            Event::HandedOff { kind, .. } => self.add("handed_off", kind),
            Event::Lost { loss, caller, .. } => {
                assert_eq!(caller.file(), file!());
                self.add("lost", &loss.to_string());
            }
            Event::CancelPending { pending, .. } => self.0.lock().unwrap().pending = pending,
            Event::RequestDone { commands, .. } => {
                assert!(commands > 0);
                self.tick("request_done");
            }
            Event::ConnectionUp { version, .. } => {
                assert!(!version.is_empty());
                self.tick("connection_up");
            }
            Event::ConnectionDown { reason, .. } => {
                assert!(!reason.is_empty());
                self.tick("connection_down");
            }
            _ => panic!("an unknown event: {event:?}"),
        }
    }
}

fn refusal(reason: Refusal<'_>) -> &'static str {
    match reason {
        Refusal::Busy => "busy",
        Refusal::TimedOut => "timed out",
        Refusal::Cancelled => "cancelled",
        _ => "failed",
    }
}

async fn observed(server: &Server) -> (Recorder, Client) {
    let recorder = Recorder::default();
    let connect = connect_at(server.port()).observe(recorder.observer());
    let client = connect.await.expect("the server is up");
    (recorder, client)
}

#[test]
fn free_lock_is_reported_acquired_and_released() {
    run(async {
        // With permissions for the keys of Redisson.
        let server = Flavor::one().start();
        let recorder = Recorder::default();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let connect = with_long_timeouts(Client::connect(&url));
        let client = connect.observe(recorder.observer()).await.unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        assert_eq!(recorder.take(), ["acquired mutex free"]);
        guard.release().await.unwrap();
        assert_eq!(recorder.take(), ["released mutex"]);
        drop(client.fair_mutex(&name()).lock().await.unwrap());
        assert_eq!(
            recorder.take(),
            ["acquired fair_mutex free", "released fair_mutex"]
        );
        let redisson = client.redisson().lock(&name());
        drop(redisson.try_lock().await.unwrap());
        assert_eq!(
            recorder.take(),
            ["acquired redisson_lock free", "released redisson_lock"]
        );
    });
}

#[test]
fn busy_lock_is_reported_with_the_reason() {
    run(async {
        let server = server();
        let (recorder, client) = observed(&server).await;
        let name = name();
        let other = self::client(&server).await;
        let held = other.mutex(&name).lock().await.unwrap();
        let mutex = client.mutex(&name);
        assert!(is_busy(mutex.try_lock()).await);
        assert_eq!(recorder.take(), ["refused busy"]);
        assert!(mutex.lock().timeout(SHORT).await.is_err());
        let waited = ["wait_started mutex", "wait_ended mutex"];
        assert_eq!(
            recorder.take(),
            [&waited[..], &["refused timed out"]].concat()
        );
        let cancelled = tokio::time::timeout(SHORT, mutex.lock()).await;
        assert!(cancelled.is_err());
        assert_eq!(
            recorder.take(),
            [&waited[..], &["refused cancelled"]].concat()
        );
        let waiting = tokio::spawn(client.mutex(&name).lock().into_future());
        eventually("the task waits", || recorder.count("wait_started") == 3).await;
        drop(held);
        let guard = waiting.await.unwrap().unwrap();
        let events = [&waited[..], &["acquired mutex contended"]].concat();
        assert_eq!(recorder.take(), events);
        drop(guard);
    });
}

#[test]
fn every_loss_is_reported_once_with_its_cause() {
    run(async {
        let server = server();
        let (recorder, client) = observed(&server).await;
        let revoked = name();
        let guard = client.mutex(&revoked).lock().lease(SHORT).await.unwrap();
        recorder.take();
        server.tell(&["DEL", &key(&revoked)]);
        assert!(guard.lost().await.is_some());
        eventually("the loss is reported", || recorder.count("lost") == 1).await;
        drop(guard);

        let guard = client.mutex(&name()).lock().fixed_lease(SHORT).await;
        let guard = guard.unwrap();
        assert!(guard.lost().await.is_some());
        eventually("the expiry is reported", || recorder.count("lost") == 2).await;
        let _ = guard.release().await;

        let name = name();
        let guard = client.mutex(&name).lock().await.unwrap();
        server.tell(&["DEL", &key(&name)]);
        assert_eq!(loss_of(guard.release().await), Some(Loss::Revoked));
        assert_eq!(recorder.count("lost"), 3, "found by the release");

        let guard = client.mutex(&self::name()).lock().await.unwrap();
        client.shutdown(AMPLE).await.unwrap();
        assert_eq!(recorder.count("lost"), 4);
        drop(guard);
        assert_eq!(recorder.count("acquired"), 4);
        assert_eq!(recorder.count("released"), 0);
    });
}

#[test]
fn holds_and_waits_are_balanced_under_load() {
    run(async {
        let server = server();
        let (recorder, client) = observed(&server).await;
        let names: Vec<_> = (0..3).map(|_| name()).collect();
        let tasks: Vec<_> = (0..32)
            .map(|task| {
                let client = client.clone();
                let names = names.clone();
                tokio::spawn(async move {
                    let mut rng = SeededRng::new(task);
                    for _ in 0..30 {
                        let mutex = client.mutex(&names[rng.below(3) as usize]);
                        let patience = Duration::from_micros(rng.below(20_000));
                        match rng.below(3) {
                            0 => drop(tokio::time::timeout(patience, mutex.lock()).await),
                            1 => drop(mutex.lock().timeout(patience).await),
                            _ => {
                                let guard = mutex.lock().await.unwrap();
                                tokio::time::sleep(patience / 100).await;
                                guard.release().await.unwrap();
                            }
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let count = |event| recorder.count(event);
        let ends = count("released") + count("handed_off") + count("lost");
        assert_eq!(count("acquired"), ends);
        assert_eq!(count("acquired") + count("refused"), 32 * 30);
        assert_eq!(count("wait_started"), count("wait_ended"));
        assert!(count("handed_off") > 0 && count("refused") > 0);
        let pending = || recorder.0.lock().unwrap().pending;
        eventually("no cancel is pending", || pending() == 0).await;
    });
}

#[test]
fn renewal_reports_the_margin_that_was_left() {
    run(async {
        let server = server();
        let (recorder, client) = observed(&server).await;
        let lease = LEASE / 2;
        let start = Instant::now();
        let lock = client.mutex(&name()).lock().lease(lease);
        let _guard = lock.await.unwrap();
        let margins = || recorder.0.lock().unwrap().margins.clone();
        eventually("the lease is renewed", || !margins().is_empty()).await;
        // 100 ms: a part of the lease is never relied on.
        let passed = start.elapsed() + Duration::from_millis(100);
        let margin = margins()[0];
        assert!(
            margin < lease && margin + passed > lease,
            "{margin:?} {passed:?}"
        );
    });
}

#[test]
fn restart_of_the_server_is_reported() {
    run(async {
        let mut server = Flavor::one().start();
        let recorder = Recorder::default();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let connect = with_long_timeouts(Client::connect(&url));
        let client = connect.observe(recorder.observer()).await.unwrap();
        let lock = client.mutex(&name()).lock().lease(Duration::from_secs(2));
        let _guard = lock.await.unwrap();
        eventually("both connections are up", || {
            recorder.count("connection_up") == 2
        })
        .await;
        assert!(recorder.count("request_done") > 0);
        server.kill();
        eventually("both are down", || recorder.count("connection_down") == 2).await;
        eventually("a renewal fails", || recorder.count("renewal_failed") > 0).await;
        server.restart().unwrap();
        eventually("the keeper reconnects", || {
            recorder.count("connection_up") > 2
        })
        .await;
    });
}

/// An observer that panics.
fn panic_on_purpose(event: &Event<'_>) {
    if let Event::Acquired { .. } | Event::Renewed { .. } = event {
        panic!("on purpose");
    }
}

#[test]
fn panic_of_an_observer_is_contained() {
    run(async {
        let server = server();
        let recorder = Recorder::default();
        let connect = connect_at(server.port()).observe(panic_on_purpose);
        let connect = connect.observe(recorder.observer());
        let client = connect.await.unwrap();
        let lock = client.mutex(&name()).lock().lease(LEASE);
        let guard = lock.await.unwrap();
        assert_eq!(recorder.count("acquired"), 1, "the next observer is called");
        let renewed = || recorder.0.lock().unwrap().margins.len();
        eventually("renewals continue", || renewed() > 1).await;
        guard.check().unwrap();
    });
}

#[test]
fn warnings_name_the_line_that_acquired() {
    start_log();
    run(async {
        let server = server();
        let limit = Duration::from_millis(100);
        let connect = connect_at(server.port()).slow_hold(limit);
        let client = connect.await.unwrap();
        let slow = name();
        let quoted = format!("{slow:?}");
        let line = line!() + 1;
        let guard = client.mutex(&slow).lock().await.unwrap();
        let place = format!("{}:{line}:", file!());
        eventually("the slow hold is logged", || {
            log_line(&["slow hold", &quoted, &place]).is_some()
        })
        .await;
        server.tell(&["DEL", &key(&slow)]);
        assert!(loss_of(guard.release().await).is_some());
        assert!(log_line(&["WARN", "lease lost", &quoted, &place]).is_some());
    });
}

/// The compiler warns only if the result is not bound to a name.
#[test]
fn acquire_that_is_not_awaited_logs_its_line() {
    start_log();
    run(async {
        let server = server();
        let client = client(&server).await;
        let forgotten = name();
        let quoted = format!("{forgotten:?}");
        let line = line!() + 1;
        let _guard = client.mutex(&forgotten).lock().timeout(SHORT);
        let place = format!("{}:{line}:", file!());
        drop(_guard);
        assert!(log_line(&["WARN", "nothing was acquired", &quoted, &place]).is_some());
    });
}

#[test]
fn span_of_a_wait_names_holder_and_outcome() {
    start_log();
    run(async {
        let server = server();
        let name = name();
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let parent = format!("00-{trace}-00f067aa0ba902b7-01");
        let traced = |connect: Connect| {
            let parent = parent.clone();
            connect.trace_parent(move || Some(parent.clone()))
        };
        let holder = traced(connect_at(server.port())).await.unwrap();
        let guard = holder.mutex(&name).lock().note("a job").await.unwrap();
        let shown = holder.mutex(&name).holder().await.unwrap().unwrap();
        assert_eq!(shown.trace_parent.as_deref(), Some(&*parent));
        assert_eq!(shown.process.note.as_deref(), Some("a job"));
        let waiter = client(&server).await.mutex(&name);
        let waiting = tokio::spawn(async move {
            waiter
                .run(|lease| async move { lease.token() })
                .await
                .unwrap()
        });
        eventually("the task waits", || has_subscriber(&server, &name)).await;
        drop(guard);
        let token = waiting.await.unwrap().to_string();
        let quoted = format!("{name:?}");
        let wait = log_line(&["close", "leasehold.wait{", &quoted]).expect("a span of the wait");
        for field in [trace, "acquired", &token, &std::process::id().to_string()] {
            assert!(wait.contains(field), "{wait}");
        }
        let hold = log_line(&["close", "leasehold.hold{", &quoted, &token]);
        assert!(hold.is_some_and(|hold| hold.contains("released")));
    });
}
