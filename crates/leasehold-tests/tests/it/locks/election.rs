//! Elections: one leader at a time, rising epochs, and followers that see
//! every change in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Changes, Client, Election, Error, Token};
use testkit::{Fault, Flavor, Proxy, Server, ServerExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::support::inspection::wait_for_listeners;
use crate::support::{
    AMPLE, LEASE, SHORT, client, client_at, connect_at, eventually, key, name, on_every_server,
    run, server, with_long_timeouts,
};

/// A candidate that leads until it is released.
struct Candidate {
    epochs: mpsc::UnboundedReceiver<Token>,
    resign: oneshot::Sender<()>,
    leading: JoinHandle<Result<(), Error>>,
}

fn campaign(election: Election) -> Candidate {
    let (elected, epochs) = mpsc::unbounded_channel();
    let (resign, resigned) = oneshot::channel();
    let leading = tokio::spawn(async move {
        let resigned = tokio::sync::Mutex::new(resigned);
        election
            .lead(|lease| {
                elected.send(lease.token()).unwrap();
                let resigned = &resigned;
                async move {
                    let _ = (&mut *resigned.lock().await).await;
                }
            })
            .await
    });
    Candidate {
        epochs,
        resign,
        leading,
    }
}

impl Candidate {
    async fn elected(&mut self) -> Token {
        let elected = tokio::time::timeout(AMPLE, self.epochs.recv()).await;
        elected.expect("elected in time").expect("a candidate")
    }

    async fn resign(self) {
        self.resign.send(()).unwrap();
        self.leading.await.unwrap().unwrap();
    }
}

async fn next_epoch(changes: &mut Changes) -> Option<Token> {
    let next = tokio::time::timeout(AMPLE, changes.next()).await;
    let leader = next.expect("a change in time").unwrap();
    leader.and_then(|term| term.epoch)
}

#[test]
fn next_candidate_leads_after_a_resignation() {
    on_every_server(|server| async move {
        let name = name();
        let one = client(&server).await;
        let two = client(&server).await;
        let mut first = campaign(one.election(&name).note("one"));
        let epoch = first.elected().await;
        let mut second = campaign(two.election(&name).note("two"));
        let election = two.election(&name);
        let leader = || async { election.leader().await.unwrap().unwrap() };
        let start = Instant::now();
        while leader().await.epoch != Some(epoch) {
            assert!(start.elapsed() < AMPLE, "the term is not announced");
        }
        assert_eq!(leader().await.process.note.as_deref(), Some("one"));
        assert_eq!(leader().await.process.pid, Some(std::process::id()));
        assert!(second.epochs.try_recv().is_err(), "two leaders");
        first.resign().await;
        assert!(second.elected().await > epoch);
        second.resign().await;
        assert_eq!(election.leader().await.unwrap(), None);
    });
}

#[test]
fn campaign_returns_an_announced_guard() {
    run(async {
        let server = server();
        let name = name();
        let client = client(&server).await;
        let election = client.election(&name).note("here");
        let guard = election.campaign().await.unwrap();
        let leader = election.leader().await.unwrap().unwrap();
        assert_eq!(leader.epoch, Some(guard.token()));
        assert_eq!(leader.process.note.as_deref(), Some("here"));
        let epoch = guard.token();
        guard.release().await.unwrap();
        assert_eq!(election.leader().await.unwrap(), None);
        assert!(election.campaign().await.unwrap().token() > epoch);
    });
}

#[test]
fn followers_see_every_term_in_order() {
    on_every_server(|server| async move {
        let name = name();
        let client = client(&server).await;
        let mut followers: Vec<_> = (0..3).map(|_| client.election(&name).changes()).collect();
        for follower in &mut followers {
            assert_eq!(next_epoch(follower).await, None, "vacant at first");
        }
        let mut epochs = Vec::new();
        for _ in 0..20 {
            let mut candidate = campaign(client.election(&name));
            epochs.push(candidate.elected().await);
            // A term is announced while its leader leads.
            let last = || async { client.election(&name).leader().await.unwrap().unwrap() };
            while last().await.epoch != epochs.last().copied() {}
            candidate.resign().await;
        }
        assert!(epochs.is_sorted_by(|a, b| a < b));
        for follower in &mut followers {
            let mut seen = Vec::new();
            while seen.len() < epochs.len() {
                // A term may have ended before its leader began to lead.
                seen.extend(
                    next_epoch(follower)
                        .await
                        .filter(|epoch| epochs.contains(epoch)),
                );
            }
            assert_eq!(seen, epochs);
            assert_eq!(next_epoch(follower).await, None, "vacant at last");
        }
    });
}

#[test]
fn change_reaches_a_waiting_follower() {
    run(async {
        let server = server();
        let name = name();
        let one = client(&server).await;
        let two = client(&server).await;
        let mut changes = two.election(&name).changes();
        assert_eq!(next_epoch(&mut changes).await, None);
        for _ in 0..3 {
            let waiting = tokio::spawn(async move { (next_epoch(&mut changes).await, changes) });
            let mut candidate = campaign(one.election(&name));
            let epoch = candidate.elected().await;
            let (mut seen, mut follower) = waiting.await.unwrap();
            // A term may have ended before its leader began to lead.
            while seen != Some(epoch) {
                seen = next_epoch(&mut follower).await;
            }
            candidate.resign().await;
            assert_eq!(next_epoch(&mut follower).await, None);
            changes = follower;
        }
    });
}

/// A follower waited for the next election if the record of the terms was gone.
#[test]
fn follower_without_terms_sees_the_leader() {
    run(async {
        let server = Flavor::one().start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let connect = with_long_timeouts(Client::connect(&url));
        let client = connect.await.unwrap();
        let election = client.election("scheduler").note("one");
        let mut candidate = campaign(election.clone());
        let epoch = candidate.elected().await;
        let keys = server.ask(&["KEYS", "leasehold:terms:*"]);
        server.tell(&["DEL", keys.list()[0].text()]);
        let first = tokio::time::timeout(AMPLE, election.changes().next()).await;
        let term = first.expect("a change").unwrap().expect("it leads");
        assert_eq!(
            (term.epoch, term.process.note.as_deref()),
            (None, Some("one"))
        );
        candidate.resign().await;
        let mut next = campaign(election.clone());
        assert!(next.elected().await > epoch);
        next.resign().await;
    });
}

/// A new leader that has not announced its term was shown as the previous one.
#[test]
fn follower_is_not_shown_the_previous_leader() {
    run(async {
        let server = server();
        let name = name();
        let client = client(&server).await;
        let mut former = campaign(client.election(&name).note("former"));
        former.elected().await;
        former.resign().await;
        // The holder of the lock is the leader, whether announced or not.
        let unannounced = client.fair_mutex(&name).lock().note("new").await.unwrap();
        let election = client.election(&name);
        let leader = election.leader().await.unwrap().unwrap();
        assert_eq!(
            (leader.epoch, leader.process.note.as_deref()),
            (None, Some("new"))
        );
        let mut changes = election.changes();
        assert_eq!(next_epoch(&mut changes).await, None);
        drop(unannounced);
    });
}

/// The holder was read before the last term. If the leader changed in between,
/// its term counted as known, and the follower never saw it.
#[test]
fn follower_sees_a_term_that_begins_as_it_asks() {
    run(async {
        for command in ["ZRANGE", "EVALSHA"] {
            let server = server();
            let name = name();
            let proxy = Proxy::start(server.port());
            let one = client(&server).await;
            let two = client(&server).await;
            let follower = client_at(proxy.port()).await;
            // Loads the script that reads the holder.
            follower.election(&name).leader().await.unwrap();
            let first = one.election(&name).note("one").campaign();
            let first = first.await.unwrap();
            let is_held = Arc::new(AtomicBool::new(false));
            let seen = is_held.clone();
            proxy.inject(move |request| {
                let is_it = request[0] == command.as_bytes();
                match is_it && !seen.swap(true, Ordering::SeqCst) {
                    true => Fault::Hold,
                    false => Fault::None,
                }
            });
            let mut changes = follower.election(&name).changes();
            let waiting = tokio::spawn(async move { (next_epoch(&mut changes).await, changes) });
            eventually("the read is held", || is_held.load(Ordering::SeqCst)).await;
            first.release().await.unwrap();
            let second = two.election(&name).note("two").campaign();
            let second = second.await.unwrap();
            proxy.release_held();
            let (mut epoch, mut changes) = waiting.await.unwrap();
            while epoch != Some(second.token()) {
                epoch = next_epoch(&mut changes).await;
            }
        }
    });
}

/// A leader whose term the server did not record led, and no follower knew.
#[test]
fn leader_without_recorded_term_resigns() {
    run(async {
        let server = Flavor::one().start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let connect = with_long_timeouts(Client::connect(&url));
        let client = connect.await.unwrap();
        let election = client.election("scheduler");
        election.campaign().await.unwrap().release().await.unwrap();
        let terms = server.ask(&["KEYS", "leasehold:terms:*"]);
        let terms = terms.list()[0].text().to_owned();
        let later = (1_u64 << 52).to_string();
        server.tell(&[
            "ZADD",
            &terms,
            &later,
            &format!("{later} 0f1e 1 2 host note"),
        ]);
        let acquires = || commands(&server).get("set").copied().unwrap_or(0);
        let before = acquires();
        let campaign = tokio::spawn(async move { election.campaign().await });
        eventually("it resigns and campaigns again", || {
            assert!(!campaign.is_finished(), "it leads");
            acquires() >= before + 2
        })
        .await;
        server.tell(&["DEL", &terms]);
        drop(campaign.await.unwrap().unwrap());
    });
}

/// Returns how often the server executed each command, except those of a new
/// connection and this one.
fn commands(server: &Server) -> BTreeMap<String, u64> {
    let stats = server.ask(&["INFO", "commandstats"]);
    let read = |line: &str| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse().ok()?;
        Some((command.to_owned(), calls))
    };
    let mut commands: BTreeMap<_, _> = stats.text().lines().filter_map(read).collect();
    // Connections may be made at any time, and each request has a seal.
    let handshake = ["hello", "auth", "time", "command|info", "client|setname"];
    let ignored = |name: &str| handshake.contains(&name) || ["info", "echo"].contains(&name);
    commands.retain(|name, _| !ignored(name));
    commands
}

/// A follower subscribed and unsubscribed every second, with 8 commands.
#[test]
fn follower_polls_with_one_request() {
    run(async {
        let server = Flavor::one().start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let connect = || with_long_timeouts(Client::connect(&url)).lease(AMPLE * 10);
        let leader = connect().await.unwrap();
        let _guard = leader.election("scheduler").campaign().await.unwrap();
        let client = connect().await.unwrap();
        let mut changes = client.election("scheduler").changes();
        assert!(next_epoch(&mut changes).await.is_some());
        // Clients listen for revocations a little after they connect.
        wait_for_listeners(std::slice::from_ref(&server), 2).await;
        let follower = tokio::spawn(async move { changes.next().await });
        let polls = |commands: &BTreeMap<_, _>| commands.get("exists").copied().unwrap_or(0);
        let mut before = BTreeMap::new();
        eventually("it polls", || {
            before = commands(&server);
            polls(&before) > 0
        })
        .await;
        let mut after = BTreeMap::new();
        eventually("it polls again", || {
            after = commands(&server);
            polls(&after) >= polls(&before) + 3
        })
        .await;
        for subscription in ["ssubscribe", "sunsubscribe"] {
            assert_eq!(before.get(subscription), after.get(subscription));
        }
        let sum = |commands: &BTreeMap<_, u64>| commands.values().sum::<u64>();
        let sent = sum(&after) - sum(&before);
        let polled = polls(&after) - polls(&before);
        // Two commands each, and a part of the next poll.
        assert!(sent <= 2 * (polled + 1), "{before:?} {after:?}");
        follower.abort();
    });
}

#[test]
fn deposed_leader_stops_and_campaigns_again() {
    run(async {
        let server = server();
        let name = name();
        let client = client(&server).await;
        let mut candidate = campaign(client.election(&name).lease(SHORT));
        let first = candidate.elected().await;
        server.tell(&["DEL", &key(&name)]);
        let second = candidate.elected().await;
        assert!(second > first);
        client.shutdown(AMPLE).await.unwrap();
        let outcome = candidate.leading.await.unwrap();
        assert!(matches!(outcome, Err(Error::ShutDown)), "{outcome:?}");
        let other = self::client(&server).await;
        assert_eq!(other.election(&name).leader().await.unwrap(), None);
    });
}

#[test]
fn unreachable_leader_is_replaced_after_it_stops() {
    run(async {
        let server = server();
        let name = name();
        let proxy = Proxy::start(server.port());
        let lease = Duration::from_secs(2);
        let leading = Arc::new(AtomicBool::new(false));
        let (terms, mut elected) = tokio::sync::mpsc::unbounded_channel();
        let cut_off = client_at(proxy.port()).await.election(&name).lease(lease);
        let flag = leading.clone();
        let task = tokio::spawn(async move {
            cut_off
                .lead(|term| {
                    flag.store(true, Ordering::SeqCst);
                    terms.send(term).unwrap();
                    let stopped = Stopped(flag.clone());
                    async move {
                        std::future::pending::<()>().await;
                        drop(stopped);
                    }
                })
                .await
        });
        let term = elected.recv().await.unwrap();
        proxy.black_hole(true);
        let start = Instant::now();
        let mut successor = campaign(client(&server).await.election(&name));
        successor.elected().await;
        assert!(term.check().is_err(), "two leaders");
        // A busy machine may drop the work later than the deadline.
        eventually("it stops", || !leading.load(Ordering::SeqCst)).await;
        // Generous: the exact delay is measured in the deep tier.
        assert!(start.elapsed() < lease + LEASE, "{:?}", start.elapsed());
        task.abort();
    });
}

/// Clears a flag when the work that owns it is dropped.
struct Stopped(Arc<AtomicBool>);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[test]
fn campaign_continues_through_an_outage() {
    run(async {
        let mut server = Flavor::one().start();
        let url = format!("redis://127.0.0.1:{}", server.port());
        let connect = with_long_timeouts(Client::connect(&url)).max_outage(SHORT);
        let client = connect.await.unwrap();
        server.kill();
        let mut candidate = campaign(client.election("scheduler"));
        // Longer than the outage that an acquire bears.
        tokio::time::sleep(SHORT * 3).await;
        assert!(candidate.epochs.try_recv().is_err());
        server.restart().unwrap();
        candidate.elected().await;
    });
}

#[test]
fn one_of_many_candidates_leads() {
    run(async {
        let server = server();
        let name = name();
        let leaders = Arc::new(AtomicU64::new(0));
        let terms = Arc::new(AtomicU64::new(0));
        let last = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let client = connect_at(server.port()).await.unwrap();
            let election = client.election(&name);
            let leaders = leaders.clone();
            let last = last.clone();
            let terms = terms.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    let term = election.lead(|lease| {
                        let leaders = &leaders;
                        let last = &last;
                        async move {
                            assert_eq!(leaders.fetch_add(1, Ordering::SeqCst), 0);
                            let epoch = lease.token().as_u64();
                            assert!(last.swap(epoch, Ordering::SeqCst) < epoch);
                            tokio::task::yield_now().await;
                            leaders.fetch_sub(1, Ordering::SeqCst);
                        }
                    });
                    term.await.unwrap();
                    terms.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(terms.load(Ordering::SeqCst), 80);
    });
}
