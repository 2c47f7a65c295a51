//! The scripts of latches, each on its own.

use testkit::{Flavor, Reply, ServerExt};

use super::is_error;
use crate::support::lua;

#[test]
fn latch_counts_each_caller_once() {
    let server = Flavor::one().start();
    let call = |script: &str, args: &[&str]| {
        let words = ["EVAL", script, "1", "latch"].into_iter();
        server.ask(&words.chain(args.iter().copied()).collect::<Vec<_>>())
    };
    let set = lua!("latch/set");
    let count_down = lua!("latch/count_down");
    let delete = lua!("latch/delete");
    assert_eq!(call(count_down, &["a", "c"]), Reply::Int(-1));
    assert_eq!(call(delete, &["c"]), Reply::Int(0));
    for (count, life) in [("0", "1"), ("1", "0"), ("x", "1"), ("1.5", "1"), ("1", "")] {
        assert!(is_error(&call(set, &[count, life]), "LEASEHOLD"));
    }
    assert_eq!(call(set, &["2", "60000"]), Reply::Int(1));
    assert_eq!(call(set, &["9", "1"]), Reply::Int(0));
    for (caller, remaining) in [("a", 1), ("a", 1), ("b", 0), ("c", 0)] {
        assert_eq!(call(count_down, &[caller, "c"]), Reply::Int(remaining));
    }
    assert!(server.ask(&["PTTL", "latch"]).int() > 30_000);
    assert_eq!(call(delete, &["c"]), Reply::Int(1));
    server.tell(&["HSET", "latch", "kind", "fair"]);
    for script in [set, count_down, delete] {
        assert!(is_error(&call(script, &["1", "1"]), "WRONGTYPE"));
    }
}
