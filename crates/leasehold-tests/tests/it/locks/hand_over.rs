//! Hand-over of a held lock to another process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::observe::Event;
use leasehold::{Client, Error, Guard, LockInfo, Loss, Ticket};
use testkit::{Flavor, ServerExt};

use crate::support::deployment::{Deployment, FiveServers, cluster, group};
use crate::support::hand_over::{HAND_OVER_KINDS, HandOverKind, LONG, is_spent};
use crate::support::inspection::allow_inspection;
use crate::support::log::{log, start_log};
use crate::support::{
    AMPLE, LEASE, SHORT, client, connect_at, eventually, exists, has_subscriber, is_busy, key,
    name, on_every_server, only_counters_left, owners, run, server, wait_for_renewal,
};

/// Hands a lock over from one client to another, and checks what third parties
/// see at each step.
async fn check_hand_over<D: Deployment<Client = Client>>(deployment: &D, kind: HandOverKind) {
    let (giver, adopter, third) = tokio::join!(
        deployment.client(),
        deployment.client(),
        deployment.client()
    );
    let name = name();
    let guard = kind.lock(&giver, &name).note("from giver").await.unwrap();
    let view = guard.lease();
    let token = guard.token();
    let ticket = guard.hand_over(LONG).await.unwrap();
    assert!(matches!(
        view.check(),
        Err(Error::Lost {
            loss: Loss::Expired,
            ..
        })
    ));
    assert_eq!(view.lost().await, None);
    assert!(deployment.exists(&name));
    for client in [&giver, &third] {
        assert!(kind.try_lock(client, &name).await.is_none());
    }

    let ticket: Ticket = ticket.to_string().parse().unwrap();
    let adopted = adopter.adopt(&ticket).await.unwrap();
    assert!(adopted.token() > token);
    assert_eq!(adopted.name(), name);
    adopted.check().unwrap();
    assert!(is_spent(&third, &ticket).await);
    assert!(is_spent(&adopter, &ticket).await);
    assert!(kind.try_lock(&giver, &name).await.is_none());
    wait_for_renewal(&[&adopted.lease()]).await;
    adopted.release().await.unwrap();
    assert!(!deployment.exists(&name));
    assert!(is_spent(&third, &ticket).await);
    let next = kind.try_lock(&third, &name).await.unwrap();
    next.release().await.unwrap();
}

#[test]
fn hand_over_gives_adopter_a_larger_token() {
    on_every_server(|server| async move {
        for kind in HAND_OVER_KINDS {
            check_hand_over(&server, kind).await;
        }
        assert!(only_counters_left(&server));
    });
}

#[test]
fn hand_over_works_behind_sentinels() {
    let group = group(&Flavor::one());
    run(async {
        for kind in HAND_OVER_KINDS {
            check_hand_over(&group, kind).await;
        }
    });
}

#[test]
fn hand_over_works_in_a_cluster() {
    let cluster = cluster(&Flavor::one());
    run(async {
        for kind in HAND_OVER_KINDS {
            check_hand_over(&cluster, kind).await;
        }
    });
}

#[test]
fn many_adopters_of_one_ticket_give_one_holder() {
    on_every_server(|server| async move {
        for kind in HAND_OVER_KINDS {
            let name = name();
            let giver = client(&server).await;
            let guard = kind.lock(&giver, &name).await.unwrap();
            let text = guard.hand_over(LONG).await.unwrap().to_string();
            let mut adopters = Vec::new();
            for _ in 0..8 {
                let client = client(&server).await;
                let ticket = text.parse::<Ticket>().unwrap();
                adopters.push(tokio::spawn(async move { client.adopt(&ticket).await }));
            }
            let mut held = Vec::new();
            for adopter in adopters {
                match adopter.await.unwrap() {
                    Ok(guard) => held.push(guard),
                    Err(Error::TicketSpent { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(held.len(), 1, "{kind:?}");
        }
    });
}

#[test]
fn unadopted_ticket_expires_and_waiters_acquire() {
    on_every_server(|server| async move {
        for kind in HAND_OVER_KINDS {
            let name = name();
            let giver = client(&server).await;
            let other = client(&server).await;
            let guard = kind.lock(&giver, &name).await.unwrap();
            let token = guard.token();
            // One waiter in this client, which must not receive the lock by
            // local hand-off, and one elsewhere.
            let waiting = [&giver, &other].map(|client| {
                let lock = kind.lock(client, &name).timeout(AMPLE);
                tokio::spawn(async move {
                    let guard = lock.await.unwrap();
                    let token = guard.token();
                    guard.release().await.unwrap();
                    token
                })
            });
            eventually("both clients wait", || match kind {
                HandOverKind::Mutex => has_subscriber(&server, &name),
                HandOverKind::Fair => owners(&server, "queue", &name).len() == 2,
            })
            .await;
            let ticket = guard.hand_over(SHORT).await.unwrap();
            for waiter in waiting {
                assert!(waiter.await.unwrap() > token);
            }
            assert!(is_spent(&other, &ticket).await);
        }
        assert!(only_counters_left(&server));
    });
}

#[test]
fn adopter_passes_lock_to_first_waiter() {
    on_every_server(|server| async move {
        let giver = client(&server).await;
        let adopter = client(&server).await;
        let name = name();
        let guard = giver.fair_mutex(&name).lock().await.unwrap();
        let mut waiting = Vec::new();
        for number in 1..=3 {
            let waiter = client(&server).await;
            let lock = waiter.fair_mutex(&name).lock().timeout(AMPLE);
            waiting.push(tokio::spawn(async move { (lock.await.unwrap(), waiter) }));
            eventually("it waits", || {
                owners(&server, "queue", &name).len() == number
            })
            .await;
        }
        let ticket = guard.hand_over(LONG).await.unwrap();
        assert_eq!(owners(&server, "queue", &name).len(), 3);
        let adopted = adopter.adopt(&ticket).await.unwrap();
        let mut last = adopted.token();
        adopted.release().await.unwrap();
        for waiter in waiting {
            let (guard, _client) = tokio::time::timeout(AMPLE, waiter).await.unwrap().unwrap();
            assert!(guard.token() > last);
            last = guard.token();
            guard.release().await.unwrap();
        }
        assert!(only_counters_left(&server));
    });
}

/// Returns the reason of [`Error::Invalid`].
fn invalid<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(error @ Error::Invalid { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn other_locks_cannot_be_handed_over() {
    let server = server();
    let five = FiveServers::start(&Flavor::one());
    run(async {
        let client = client(&server).await;
        let quorum = five.client().await;
        let mutex = client.mutex(&name());
        let long = |guard: Guard| async move { invalid(guard.hand_over(LONG).await) };
        let why = long(mutex.lock().at_least(LONG).await.unwrap()).await;
        assert!(why.contains("at_least"), "{why}");
        // The refused guard was released, and `at_least` keeps the lock.
        let mutex = client.mutex(&name());
        let why = long(mutex.lock().at_most(LONG).await.unwrap()).await;
        assert!(why.contains("at_most"), "{why}");
        let why = long(quorum.mutex(&name()).lock().await.unwrap()).await;
        assert!(why.contains("this kind of lock"), "{why}");
        let reentrant = mutex.reentrant();
        let one = reentrant.lock().await.unwrap();
        let other = reentrant.lock().await.unwrap();
        let why = long(one).await;
        assert!(why.contains("reentrant"), "{why}");
        other.check().unwrap();
        // The only guard of a handle can be handed over.
        let ticket = other.hand_over(LONG).await.unwrap();
        let adopted = client.adopt(&ticket).await.unwrap();
        assert!(is_busy(reentrant.try_lock()).await);
        adopted.release().await.unwrap();
        for within in [Duration::ZERO, Duration::MAX] {
            let guard = mutex.lock().await.unwrap();
            let why = invalid(guard.hand_over(within).await);
            assert!(why.contains("within"), "{why}");
        }
    });
}

#[test]
fn tickets_of_other_prefixes_are_refused() {
    let server = server();
    run(async {
        let giver = client(&server).await;
        let guard = giver.mutex(&name()).lock().await.unwrap();
        let ticket = guard.hand_over(LONG).await.unwrap();
        let other = connect_at(server.port()).prefix("lock:other:");
        let other = other.await.unwrap();
        let why = invalid(other.adopt(&ticket).await);
        assert!(why.contains("lock:other:"), "{why}");
        // Another owner, for the same lock.
        let text = ticket.to_string();
        let owner = text.split('.').nth(2).unwrap();
        let forged = text.replace(owner, &"0".repeat(32)).parse().unwrap();
        assert!(is_spent(&giver, &forged).await);
        let fair = text.replace("mutex", "fair").parse().unwrap();
        let wrong = giver.adopt(&fair).await;
        assert!(matches!(wrong, Err(Error::WrongType { .. })), "{wrong:?}");
        giver.adopt(&ticket).await.unwrap().check().unwrap();
    });
}

#[test]
fn inspection_shows_a_pending_hand_over() {
    on_every_server(|server| async move {
        allow_inspection(&server);
        let client = client(&server).await;
        for kind in HAND_OVER_KINDS {
            let name = name();
            let inspect = || async { client.inspect(&name).await.unwrap() };
            let guard = kind.lock(&client, &name).note("export").await.unwrap();
            let ticket = guard.hand_over(LONG).await.unwrap();
            let lock: LockInfo = inspect().await.unwrap();
            let holder = &lock.holders[0];
            assert!(holder.handed_over && !holder.released);
            assert_eq!(holder.process.pid, Some(std::process::id()));
            assert_eq!(holder.process.note.as_deref(), Some("export"));
            assert_eq!(holder.process.connected, None);
            assert!(holder.lease_remaining.unwrap() > LEASE);
            let text = holder.to_string();
            assert!(text.contains("handed over, not adopted"), "{text}");

            let adopted = client.adopt(&ticket).await.unwrap();
            let holder = inspect().await.unwrap().holders.swap_remove(0);
            assert!(!holder.handed_over && holder.process.note.is_none());
            assert!(holder.lease_remaining.unwrap() <= LEASE);
            // An operator can revoke a ticket.
            let ticket = adopted.hand_over(LONG).await.unwrap();
            let revoked = client.force_release(&name).await.unwrap();
            assert!(revoked.len() == 1 && revoked[0].handed_over);
            assert_eq!(inspect().await, None);
            assert!(is_spent(&client, &ticket).await);
        }
    });
}

#[test]
fn shut_down_giver_leaves_the_ticket_valid() {
    let server = server();
    run(async {
        for kind in HAND_OVER_KINDS {
            let giver = client(&server).await;
            let adopter = client(&server).await;
            let guard = kind.lock(&giver, &name()).await.unwrap();
            let ticket = guard.hand_over(LONG).await.unwrap();
            giver.shutdown(AMPLE).await.unwrap();
            assert!(matches!(giver.adopt(&ticket).await, Err(Error::ShutDown)));
            adopter.adopt(&ticket).await.unwrap().check().unwrap();
        }
    });
}

#[test]
fn tokens_rise_although_the_counter_was_lost() {
    let server = server();
    run(async {
        let client = client(&server).await;
        for kind in HAND_OVER_KINDS {
            let name = name();
            let guard = kind.lock(&client, &name).await.unwrap();
            let token = guard.token();
            let ticket = guard.hand_over(LONG).await.unwrap();
            let counters = server.ask(&["KEYS", "leasehold:token:*"]);
            server.tell(&["DEL", counters.list()[0].text()]);
            let adopted = client.adopt(&ticket).await.unwrap();
            assert!(adopted.token() > token);
            let ticket = adopted.hand_over(LONG).await.unwrap();
            let again = client.adopt(&ticket).await.unwrap();
            again.release().await.unwrap();
            assert!(!exists(&server, &name));
        }
    });
}

/// Counts the events of holds.
#[derive(Clone, Default)]
struct Counter {
    acquired: Arc<AtomicU64>,
    released: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl Counter {
    fn observe(&self, event: &Event<'_>) {
        let count = match event {
            Event::Acquired { .. } => &self.acquired,
            Event::Released { .. } => &self.released,
            Event::Lost { .. } => &self.lost,
            _ => return,
        };
        count.fetch_add(1, Ordering::SeqCst);
    }

    fn counts(&self) -> [u64; 3] {
        [&self.acquired, &self.released, &self.lost].map(|count| count.load(Ordering::SeqCst))
    }
}

#[test]
fn giver_and_adopter_report_one_hold_each() {
    let server = server();
    run(async {
        for kind in HAND_OVER_KINDS {
            let one = Counter::default();
            let other = Counter::default();
            let connect = |counter: &Counter| {
                let counter = counter.clone();
                let connect = connect_at(server.port());
                connect.observe(move |event| counter.observe(event))
            };
            let giver = connect(&one).await.unwrap();
            let adopter = connect(&other).await.unwrap();
            let name = name();
            let guard = kind.lock(&giver, &name).await.unwrap();
            let ticket = guard.hand_over(LONG).await.unwrap();
            assert_eq!(one.counts(), [1, 1, 0]);
            let adopted = adopter.adopt(&ticket).await.unwrap();
            assert_eq!(other.counts(), [1, 0, 0]);
            // The holder's guard is unknown to the server.
            server.tell(&["DEL", &key(&name)]);
            assert!(adopted.hand_over(LONG).await.is_err());
            assert_eq!(other.counts(), [1, 0, 1]);
            assert_eq!(one.counts(), [1, 1, 0]);
        }
    });
}

#[test]
fn ticket_is_never_logged() {
    start_log();
    let server = server();
    run(async {
        let giver = client(&server).await;
        let adopter = client(&server).await;
        for kind in HAND_OVER_KINDS {
            let guard = kind.lock(&giver, &name()).await.unwrap();
            let ticket = guard.hand_over(LONG).await.unwrap();
            let text = ticket.to_string();
            let shown = format!("{ticket:?}");
            let guard = adopter.adopt(&ticket).await.unwrap();
            let error = adopter.adopt(&ticket).await.unwrap_err();
            let all = format!("{shown} {error} {error:?} {guard:?} {}", log());
            let secret = &text.split('.').nth(2).unwrap()[..16];
            assert!(!all.contains(secret), "the ticket is shown");
        }
    });
}
