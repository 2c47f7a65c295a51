//! Examples of several processes that share a resource.

use testkit::Flavor;

use crate::page::shows;
use crate::process::{locks, program, run};

#[test]
fn one_instance_refreshes_and_all_read() {
    let server = Flavor::one().start();
    let output = run(program!("cache-refresh"), &server);
    let refreshes = output.matches(": 1 of 4 instances refreshed").count();
    assert_eq!(refreshes, 2, "{output}");
    assert_eq!(locks(&server), [""; 0]);
    shows("cache-refresh", &[output]);
}

#[test]
fn downloads_of_all_processes_are_bounded() {
    let server = Flavor::one().start();
    let output = run(program!("downloads"), &server);
    assert!(output.contains("at most 2 downloads"), "{output}");
    assert_eq!(locks(&server), [""; 0]);
    shows("downloads", &[output]);
}
