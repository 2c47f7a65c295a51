//! The whole contract on each deployment.

use leasehold::{Client, FairMutex, Mutex, Reentrant, RwLock, Semaphore};
use testkit::Flavor;

use crate::locks::conformance::{GATE, STRICT, Timing, check_cases, check_strict_cases};
use crate::support::contract::LockPair;
use crate::support::deployment::{Deployment, FiveServers, cluster, group, oldest_and_newest};
use crate::support::run;

async fn check_contract<D: Deployment<Client = Client>>(deployment: &D, timing: Timing) {
    tokio::join!(
        check_cases::<D, Mutex>(deployment, timing),
        check_cases::<D, Reentrant>(deployment, timing),
        check_cases::<D, FairMutex>(deployment, timing),
        check_cases::<D, Semaphore>(deployment, timing),
        check_cases::<D, RwLock>(deployment, timing),
        check_cases::<D, LockPair>(deployment, timing),
    );
    tokio::join!(
        check_strict_cases::<D, Mutex>(deployment, timing),
        check_strict_cases::<D, Reentrant>(deployment, timing),
        check_strict_cases::<D, FairMutex>(deployment, timing),
        check_strict_cases::<D, Semaphore>(deployment, timing),
        check_strict_cases::<D, RwLock>(deployment, timing),
        check_strict_cases::<D, LockPair>(deployment, timing),
    );
}

async fn check_quorum_contract(five: &FiveServers, timing: Timing) {
    tokio::join!(
        check_cases::<FiveServers, Mutex>(five, timing),
        check_cases::<FiveServers, Reentrant>(five, timing),
    );
    tokio::join!(
        check_strict_cases::<FiveServers, Mutex>(five, timing),
        check_strict_cases::<FiveServers, Reentrant>(five, timing),
    );
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
