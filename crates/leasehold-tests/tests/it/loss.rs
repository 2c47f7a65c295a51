//! A lease that cannot be kept is told to its holder before the server can give the lock to another.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Loss, MultiLock, Release};
use testkit::machine::{ran_since, worst_since};
use testkit::{Fault, Proxy, Server};

use crate::contract::{KINDS, any_lock, any_try_lock};
use crate::support::{
    LEASE, alone, beside_others, builder_at, client, clock, key, name, run, scaled, server,
};
use crate::worker::Worker;

/// Long enough that its margin (42 ms) is above what a small machine's scheduler does to a thread: 25 ms were seen.
const LONG: Duration = Duration::from_secs(4);

/// How many locks are lost at once, of all kinds.
const BATCH: u64 = 128;

/// Says when it was dropped.
struct Work {
    name: String,
    dropped: mpsc::Sender<(String, u64)>,
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = self.dropped.send((self.name.clone(), clock()));
    }
}

/// Loses `BATCH` locks by `fault`; each time asserts that the work was dropped before another could
/// hold the lock.
async fn lose_a_batch(server: &Server, fault: impl Fn(&Proxy), heal: impl Fn(&Proxy)) {
    let proxy = Proxy::start(server.port());
    let client = builder_at(proxy.port())
        .lease(LONG)
        .connect()
        .await
        .unwrap();
    let (start, (dropped, drops)) = (Instant::now(), mpsc::channel());
    let names: Vec<String> = (0..BATCH).map(|_| name()).collect();
    let holders: Vec<_> = (0..)
        .zip(&names)
        .map(|(number, name)| hold(&client, name, number, &dropped))
        .collect();
    let held = || {
        names
            .iter()
            .all(|name| server.ask(&["EXISTS", &key(name)]).int() == 1)
    };
    while !held() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Past the first renewal, so that deadlines come from renewals too.
    tokio::time::sleep(LONG / 2).await;
    fault(&proxy);
    let port = server.port();
    let contender = std::thread::spawn(move || run(take_all(port, &names)));
    for holder in holders {
        let error = holder.await.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                Error::Lost {
                    loss: Loss::Expired,
                    ..
                }
            ),
            "{error:?}"
        );
    }
    heal(&proxy);
    let grants = contender.join().unwrap();
    for (name, dropped) in drops.try_iter() {
        let granted = grants
            .iter()
            .find(|grant| grant.0 == name)
            .expect("taken in the end")
            .1;
        // Telling takes two threads in turn, the keeper's and the holder's; either may have to wait for the machine.
        let still = 2 * u64::try_from(worst_since(start).as_nanos()).unwrap();
        assert!(
            dropped < granted + still,
            "{name}: dropped {} µs late",
            (dropped - granted) / 1000
        );
    }
}

fn hold(
    client: &Client,
    name: &str,
    number: u64,
    dropped: &mpsc::Sender<(String, u64)>,
) -> tokio::task::JoinHandle<Result<(), Error>> {
    let (lock, multi) = (any_lock(client, name, number), number / KINDS % 4 == 3);
    let (name, dropped) = (name.to_owned(), dropped.clone());
    let beside = client.mutex(&format!("beside {name}")).lock();
    tokio::spawn(async move {
        let work = async move {
            let _work = Work { name, dropped };
            std::future::pending::<()>().await;
        };
        match multi {
            true => MultiLock::new([lock, beside]).run(|_| work).await,
            false => lock.run(|_| work).await,
        }
    })
}

/// Takes every lock as soon as the server gives it; says when each was asked for with success.
async fn take_all(port: u16, names: &[String]) -> Vec<(String, u64)> {
    let client = builder_at(port)
        .lease(Duration::from_secs(60))
        // The server may be paused.
        .request_timeout(LONG * 6)
        .connect_timeout(LONG * 6)
        .connect()
        .await
        .unwrap();
    let takers: Vec<_> = (0..)
        .zip(names)
        .map(|(number, name)| tokio::spawn(take_one(client.clone(), name.clone(), number)))
        .collect();
    let mut grants = Vec::new();
    for taker in takers {
        grants.push(taker.await.unwrap());
    }
    grants
}

async fn take_one(client: Client, name: String, number: u64) -> (String, u64) {
    let end = Instant::now() + LONG * 6;
    loop {
        let asked = clock();
        if let Some(guard) = any_try_lock(&client, &name, number).await.unwrap() {
            drop(guard);
            return (name, asked);
        }
        assert!(Instant::now() < end, "{name} is never free");
        // Rarely enough that asking does not starve those who are to be told.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn rounds() -> u64 {
    scaled(500).div_ceil(4 * BATCH)
}

#[test]
fn told_in_time_when_the_network_swallows_everything() {
    alone(|| {
        run(async {
            let server = server();
            for _ in 0..rounds() {
                let fault = |proxy: &Proxy| proxy.black_hole(true);
                lose_a_batch(&server, fault, Proxy::heal).await;
            }
        });
    });
}

#[test]
fn told_in_time_when_the_server_cannot_be_reached() {
    alone(|| {
        run(async {
            let server = server();
            for _ in 0..rounds() {
                let fault = |proxy: &Proxy| {
                    proxy.refuse(true);
                    proxy.sever();
                };
                lose_a_batch(&server, fault, Proxy::heal).await;
            }
        });
    });
}

#[test]
fn told_in_time_when_renewals_are_held_back() {
    alone(|| {
        run(async {
            let server = server();
            for _ in 0..rounds() {
                let fault = |proxy: &Proxy| {
                    proxy.judge(|request| match request[0].as_slice() {
                        b"EVALSHA" | b"EVAL" => Fault::HoldBack,
                        _ => Fault::None,
                    });
                };
                lose_a_batch(&server, fault, Proxy::heal).await;
            }
        });
    });
}

#[test]
fn told_in_time_when_the_server_is_paused() {
    alone(|| {
        run(async {
            let server = server();
            for _ in 0..rounds() {
                lose_a_batch(&server, |_| server.pause(), |_| server.resume()).await;
            }
        });
    });
}

#[test]
fn told_at_the_next_renewal_when_the_key_is_gone_or_another_s() {
    beside_others(async {
        let server = server();
        let client = client(&server).await;
        for tamper in [vec!["DEL"], vec!["SET", "intruder"]] {
            let name = name();
            let guard = client.mutex(&name).lock().await.unwrap();
            let key = key(&name);
            let words: Vec<_> = [tamper[0], key.as_str()]
                .into_iter()
                .chain(tamper[1..].iter().copied())
                .collect();
            server.tell(&words);
            let start = Instant::now();
            assert_eq!(guard.lost().await, Some(Loss::Taken));
            assert!(ran_since(start) < LEASE * 3 / 4);
            let after = server.ask(&["GET", &key]);
            assert_eq!(
                guard.release().await.unwrap(),
                Release::WasLost { loss: Loss::Taken }
            );
            assert_eq!(
                server.ask(&["GET", &key]),
                after,
                "the intruder's lock was touched"
            );
        }
    });
}

#[test]
fn a_release_that_finds_another_s_lock_says_so() {
    beside_others(async {
        let server = server();
        let name = name();
        let guard = client(&server).await.mutex(&name).lock().await.unwrap();
        server.tell(&["SET", &key(&name), "intruder"]);
        assert_eq!(
            guard.release().await.unwrap(),
            Release::WasLost { loss: Loss::Taken }
        );
        assert_eq!(server.ask(&["GET", &key(&name)]).text(), "intruder");
    });
}

#[test]
fn a_paused_process_finds_its_guard_invalid_on_waking() {
    beside_others(async {
        let server = server();
        let mut worker = Worker::start(server.port(), LEASE);
        for _ in 0..scaled(5) {
            let name = name();
            worker.ask(&format!("lock {name}"));
            assert_eq!(worker.ask("check"), "true");
            worker.pause();
            std::thread::sleep(LEASE * 2);
            let other = client(&server).await.mutex(&name).lock().await.unwrap();
            worker.tell("check");
            worker.resume();
            assert_eq!(worker.answer(), "false");
            assert!(
                worker
                    .ask("release")
                    .ends_with("Ok(WasLost { loss: Expired })")
            );
            other.check().unwrap();
        }
    });
}

#[test]
fn one_failed_renewal_loses_nothing() {
    beside_others(async {
        let server = server();
        let proxy = Proxy::start(server.port());
        let client = builder_at(proxy.port())
            .lease(LEASE * 3)
            .connect()
            .await
            .unwrap();
        let guard = client.mutex(&name()).lock().await.unwrap();
        for _ in 0..5 {
            proxy.sever();
            tokio::time::sleep(LEASE).await;
            guard.check().unwrap();
        }
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    });
}
