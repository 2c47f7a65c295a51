//! The whole contract on each deployment.

use leasehold::{Client, FairMutex, Mutex, Quorum, Reentrant, RwLock, Semaphore};
use testkit::Flavor;

use crate::locks::conformance::{GATE, STRICT, Timing, check_cases, check_strict_cases};
use crate::support::contract::LockPair;
use crate::support::deployment::{
    Deployment, FiveServers, OnThreads, cluster, group, oldest_and_newest,
};
use crate::support::run;

/// Runs the contract for several lock types on one deployment.
macro_rules! check_types {
    ($deployment:expr, $timing:expr; $($type:ty),+) => {
        let deployment = $deployment;
        tokio::join!($(check_cases::<_, $type>(deployment, $timing)),+);
        tokio::join!($(check_strict_cases::<_, $type>(deployment, $timing)),+);
    };
}

pub(super) async fn check_contract<D: Deployment<Client = Client>>(deployment: &D, timing: Timing) {
    check_types!(deployment, timing; Mutex, Reentrant, FairMutex, Semaphore, RwLock, LockPair);
}

async fn check_quorum_contract<D: Deployment<Client = Quorum>>(five: &D, timing: Timing) {
    check_types!(five, timing; Mutex, Reentrant);
}

#[test]
fn quorum_conforms() {
    run(check_quorum_contract(
        &FiveServers::start(&Flavor::one()),
        GATE,
    ));
}

#[test]
fn sentinel_conforms() {
    run(check_contract(&group(&Flavor::one()), GATE));
}

#[test]
fn cluster_conforms() {
    run(check_contract(&cluster(&Flavor::one()), GATE));
}

#[test]
fn quorum_conforms_for_threads() {
    let five = FiveServers::start(&Flavor::one());
    run(check_quorum_contract(&OnThreads(&five), GATE));
}

#[test]
fn sentinel_conforms_for_threads() {
    let group = group(&Flavor::one());
    run(check_contract(&OnThreads(&group), GATE));
}

#[test]
fn cluster_conforms_for_threads() {
    let cluster = cluster(&Flavor::one());
    run(check_contract(&OnThreads(&cluster), GATE));
}

#[test]
#[ignore = "deep: measures times, on several servers"]
fn quorum_conforms_under_strict_timing() {
    for flavor in oldest_and_newest() {
        println!("{}", flavor.name);
        run(check_quorum_contract(&FiveServers::start(&flavor), STRICT));
    }
}

#[test]
#[ignore = "deep: measures times, on several servers"]
fn sentinel_conforms_under_strict_timing() {
    for flavor in oldest_and_newest() {
        println!("{}", flavor.name);
        run(check_contract(&group(&flavor), STRICT));
    }
}

#[test]
#[ignore = "deep: measures times, on several servers"]
fn cluster_conforms_under_strict_timing() {
    for flavor in oldest_and_newest() {
        println!("{}", flavor.name);
        run(check_contract(&cluster(&flavor), STRICT));
    }
}
