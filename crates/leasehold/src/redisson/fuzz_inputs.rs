//! Random names and replies for Redisson's objects; see `fuzz_inputs`.

use std::time::Duration;

use proptest::collection::vec;
use testkit::check_property;

use super::calls::{
    CountDownCalls, ExpirableCalls, FairLockCalls, LockCalls, Naming, Object, SemaphoreCalls,
};
use crate::fuzz_inputs::{name, read, read_as_kind, reply};
use crate::protocol::{Kind, Mode};

const LEASE: Duration = Duration::from_secs(3);

/// The id of a client: 32 hex digits.
const CLIENT: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn redisson_names_are_accepted_or_rejected() {
    let naming = Naming::new(CLIENT, true, LEASE);
    check_property(5_000, &name(), |name: String| {
        let _ = (naming.object(&name), naming.latch(&name));
    });
}

#[test]
fn redisson_replies_are_parsed_or_rejected() {
    check_property(3_000, &vec(reply(), 0..5), |replies| {
        for kind in kinds() {
            read_as_kind(&*kind, &replies);
        }
        let naming = Naming::new(CLIENT, false, LEASE);
        let latch = CountDownCalls::new(naming.latch("a").expect("a name"));
        read(latch.set(3), &replies);
        read(latch.remaining(), &replies);
        read(latch.delete(), &replies);
        read(SemaphoreCalls::new(object()).available(), &replies);
        read(ExpirableCalls::new(object()).available(), &replies);
        read(LockCalls::plain(object()).force_unlock(), &replies);
    });
}

fn kinds() -> Vec<Box<dyn Kind>> {
    vec![
        Box::new(LockCalls::plain(object())),
        Box::new(LockCalls::fenced(object())),
        Box::new(FairLockCalls::new(object(), LEASE)),
        Box::new(SemaphoreCalls::new(object())),
        Box::new(ExpirableCalls::new(object())),
        Box::new(LockCalls::read_write(object(), Mode::Read)),
        Box::new(LockCalls::read_write(object(), Mode::Write)),
    ]
}

fn object() -> Object {
    let naming = Naming::new(CLIENT, false, LEASE);
    naming.object("a").expect("a name")
}
