//! Rotated passwords, while clients hold leases and wait for locks.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::Client;
use testkit::sentinel_group::GROUP;
use testkit::{Flavor, Server};

use crate::support::contract::LockOf;
use crate::support::deployment::{FiveServers, cluster, connect_to_quorum, group};
use crate::support::vault::{Vault, login, rotate, url};
use crate::support::{
    AMPLE, LEASE, PASSWORD, connect_at, name, run, server, wait_for_renewal, with_long_timeouts,
};

/// How much a test of rotations does.
struct Scale {
    clients: usize,
    leases: usize,
    rotations: usize,
    pause: Duration,
}

const SMALL: Scale = Scale {
    clients: 3,
    leases: 4,
    rotations: 3,
    pause: Duration::from_millis(300),
};

/// Returns a scale with 10,000 leases, unless `LEASEHOLD_FLEET` sets another
/// number of clients than 200.
fn large() -> Scale {
    let clients = std::env::var("LEASEHOLD_FLEET").ok();
    Scale {
        clients: clients.map_or(200, |clients| clients.parse().unwrap()),
        leases: 50,
        rotations: 100,
        pause: Duration::from_secs(2),
    }
}

/// How many leases and waiters survived, of how many.
#[derive(Debug, PartialEq, Eq)]
struct Survivors {
    leases: (usize, usize),
    waiters: (usize, usize),
}

/// Rotates the password of `servers` while every client holds leases, and
/// waits for a lock of the next client. Clients with a `vault` ask it, and
/// learn each new password a little late.
async fn rotate_under_load<C>(
    servers: &[Server],
    scale: &Scale,
    vault: Option<&Vault>,
    clients: Vec<C>,
) -> Survivors
where
    leasehold::Mutex: LockOf<C>,
{
    let prefix = name();
    let mutex = |client: usize, number: usize| {
        leasehold::Mutex::with_name(&clients[client], &format!("{prefix}:{client}:{number}"))
    };
    let mut guards = Vec::new();
    let mut waiters = Vec::new();
    for client in 0..clients.len() {
        for number in 0..scale.leases {
            guards.push(mutex(client, number).lock().await.unwrap());
        }
    }
    for client in 0..clients.len() {
        let next = (client + 1) % clients.len();
        let awaited = format!("{prefix}:{next}:0");
        let awaited = leasehold::Mutex::with_name(&clients[client], &awaited);
        waiters.push(tokio::spawn(awaited.lock().into_future()));
    }
    for number in 0..scale.rotations {
        let password = format!("{PASSWORD}-{number}");
        rotate(servers, &password);
        tokio::time::sleep(Duration::from_millis(50)).await;
        if let Some(vault) = vault {
            vault.set(login(&password));
        }
        tokio::time::sleep(scale.pause).await;
    }
    let mut leases = (0, guards.len());
    if vault.is_some() {
        let held: Vec<_> = guards.iter().map(leasehold::Guard::lease).collect();
        let held: Vec<_> = held.iter().filter(|lease| lease.check().is_ok()).collect();
        wait_for_renewal(&held).await;
    } else {
        // What is not renewed by then never is.
        tokio::time::sleep(LEASE).await;
    }
    for guard in guards {
        leases.0 += usize::from(guard.release().await.is_ok());
    }
    let mut granted = (0, waiters.len());
    for waiter in waiters {
        let outcome = tokio::time::timeout(AMPLE, waiter).await;
        let outcome = outcome.expect("no waiter hangs").unwrap();
        granted.0 += usize::from(outcome.is_ok());
    }
    Survivors {
        leases,
        waiters: granted,
    }
}

/// Connects clients with a vault, and checks that they lose nothing.
async fn survive<C>(
    servers: &[Server],
    scale: &Scale,
    connect: impl Fn(&Vault) -> leasehold::Pending<'static, C>,
) where
    leasehold::Mutex: LockOf<C>,
{
    let vault = Vault::new();
    let mut clients = Vec::new();
    for _ in 0..scale.clients {
        clients.push(connect(&vault).await.unwrap());
    }
    let start = Instant::now();
    let survivors = rotate_under_load(servers, scale, Some(&vault), clients).await;
    let rotations = scale.rotations;
    println!(
        "{survivors:?} of {rotations} rotations, {:?}",
        start.elapsed()
    );
    let leases = scale.clients * scale.leases;
    let all = Survivors {
        leases: (leases, leases),
        waiters: (scale.clients, scale.clients),
    };
    assert_eq!(survivors, all);
}

async fn survive_at(url: &str, servers: &[Server], scale: &Scale) {
    survive(servers, scale, |vault| {
        let connect = with_long_timeouts(Client::connect(url));
        vault.attach(connect).into_future()
    })
    .await;
}

fn survive_on_one_server(scale: &Scale) {
    run(async {
        let server = server();
        let url = url(server.port());
        survive_at(&url, std::slice::from_ref(&server), scale).await;
    });
}

fn survive_behind_sentinel(scale: &Scale) {
    run(async {
        let group = group(&Flavor::one());
        let url = format!("redis+sentinel://{}/{GROUP}", group.sentinels());
        survive_at(&url, group.servers(), scale).await;
    });
}

fn survive_in_a_cluster(scale: &Scale) {
    run(async {
        let cluster = cluster(&Flavor::one());
        let url = format!("redis+cluster://{}", cluster.hosts());
        survive_at(&url, cluster.servers(), scale).await;
    });
}

#[test]
fn rotations_on_one_server_lose_nothing() {
    survive_on_one_server(&SMALL);
}

#[test]
fn rotations_behind_sentinel_lose_nothing() {
    survive_behind_sentinel(&SMALL);
}

#[test]
fn rotations_in_a_cluster_lose_nothing() {
    survive_in_a_cluster(&SMALL);
}

#[test]
fn rotations_of_a_quorum_lose_nothing() {
    run(async {
        let five = FiveServers::start(&Flavor::one());
        let urls: Vec<_> = five.servers.iter().map(|one| url(one.port())).collect();
        survive(&five.servers, &SMALL, |vault| {
            vault.attach(connect_to_quorum(urls.clone())).into_future()
        })
        .await;
    });
}

#[test]
#[ignore = "deep: takes minutes"]
fn many_rotations_on_one_server_lose_nothing() {
    survive_on_one_server(&large());
}

#[test]
#[ignore = "deep: takes minutes"]
fn many_rotations_behind_sentinel_lose_nothing() {
    survive_behind_sentinel(&large());
}

#[test]
#[ignore = "deep: takes minutes"]
fn many_rotations_in_a_cluster_lose_nothing() {
    survive_in_a_cluster(&large());
}

/// The control: without a provider, one rotation ends everything.
fn lose_all(scale: &Scale) {
    run(async {
        let server = server();
        let mut clients = Vec::new();
        for _ in 0..scale.clients {
            clients.push(connect_at(server.port()).await.unwrap());
        }
        let survivors =
            rotate_under_load(std::slice::from_ref(&server), scale, None, clients).await;
        println!("{survivors:?}");
        assert_eq!((survivors.leases.0, survivors.waiters.0), (0, 0));
    });
}

#[test]
fn rotation_of_a_fixed_password_loses_all() {
    lose_all(&Scale {
        rotations: 1,
        ..SMALL
    });
}

#[test]
#[ignore = "deep: the control of the tests with many rotations"]
fn rotation_of_many_fixed_passwords_loses_all() {
    lose_all(&Scale {
        rotations: 1,
        ..large()
    });
}
