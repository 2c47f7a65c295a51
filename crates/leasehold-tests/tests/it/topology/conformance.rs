//! The whole contract on each deployment.

use leasehold::{Client, FairMutex, Mutex, Reentrant, RwLock, Semaphore};
use testkit::Flavor;

use crate::locks::conformance::{GATE, IN_TIME, Pace, timed, untimed};
use crate::support::contract::Pair;
use crate::support::deployment::{Deployment, Five, cluster, group, old_and_new};
use crate::support::run;

async fn contract<D: Deployment<Client = Client>>(site: &D, pace: Pace) {
    tokio::join!(
        untimed::<D, Mutex>(site, pace),
        untimed::<D, Reentrant>(site, pace),
        untimed::<D, FairMutex>(site, pace),
        untimed::<D, Semaphore>(site, pace),
        untimed::<D, RwLock>(site, pace),
        untimed::<D, Pair>(site, pace),
    );
    tokio::join!(
        timed::<D, Mutex>(site, pace),
        timed::<D, Reentrant>(site, pace),
        timed::<D, FairMutex>(site, pace),
        timed::<D, Semaphore>(site, pace),
        timed::<D, RwLock>(site, pace),
        timed::<D, Pair>(site, pace),
    );
}

async fn quorum_contract(five: &Five, pace: Pace) {
    tokio::join!(
        untimed::<Five, Mutex>(five, pace),
        untimed::<Five, Reentrant>(five, pace),
    );
    tokio::join!(
        timed::<Five, Mutex>(five, pace),
        timed::<Five, Reentrant>(five, pace),
    );
}

#[test]
fn quorum_keeps_the_contract() {
    run(quorum_contract(&Five::start(&Flavor::one()), GATE));
}

#[test]
fn sentinel_keeps_the_contract() {
    run(contract(&group(&Flavor::one()), GATE));
}

#[test]
fn cluster_keeps_the_contract() {
    run(contract(&cluster(&Flavor::one()), GATE));
}

#[test]
#[ignore = "deep: measures times, on several servers"]
fn quorum_keeps_the_contract_in_time() {
    for flavor in old_and_new() {
        println!("{}", flavor.name);
        run(quorum_contract(&Five::start(&flavor), IN_TIME));
    }
}

#[test]
#[ignore = "deep: measures times, on several servers"]
fn sentinel_keeps_the_contract_in_time() {
    for flavor in old_and_new() {
        println!("{}", flavor.name);
        run(contract(&group(&flavor), IN_TIME));
    }
}

#[test]
#[ignore = "deep: measures times, on several servers"]
fn cluster_keeps_the_contract_in_time() {
    for flavor in old_and_new() {
        println!("{}", flavor.name);
        run(contract(&cluster(&flavor), IN_TIME));
    }
}
