//! Examples with several servers, and with a client in another language.

use std::process::Command;

use testkit::{Flavor, Redisson, Server, ServerExt};

use crate::page::{code, shows};
use crate::process::{Process, locks, program, start, url};
use crate::{read, root};

#[test]
fn quorum_lock_survives_the_loss_of_a_server() {
    let mut servers: Vec<_> = (0..3).map(|_| Flavor::one().start()).collect();
    let urls: Vec<_> = servers.iter().map(url).collect();
    let quorum = |words: &[&str]| {
        let mut command = Command::new(program!("quorum"));
        Process::start({
            command.args(words).args(&urls);
            command
        })
    };
    let bootstrap = quorum(&["bootstrap"]).succeeds();
    let mut holder = quorum(&[]);
    let first = holder.prints("acquired with token ");
    servers[0].kill();
    holder.enter("");
    holder.prints("confirmed by a majority");
    holder.end_input();
    let output = holder.succeeds();
    let second = output.lines().last().expect("a line");
    let token = |line: &str| {
        line.rsplit(' ')
            .next()
            .and_then(|word| word.parse::<u64>().ok())
    };
    assert!(token(second) > token(&first), "{output}");
    for server in &servers[1..] {
        assert_eq!(locks(server), [""; 0]);
    }
    shows("quorum", &[bootstrap, output]);
}

#[test]
fn java_and_rust_exclude_each_other() {
    let path = "interop/redisson/src/main/java/leasehold/Invoice.java";
    let code = code("redisson", "java");
    let source = unindented(&read(path));
    assert!(source.contains(&unindented(&code)), "{path} has no\n{code}");
    let Some(version) = Redisson::versions().into_iter().next() else {
        return;
    };
    let server = Flavor::one().start();
    let mut first = start(program!("redisson"), &server, &[]);
    first.prints("acquired");
    let mut java = Process::start(java(version, &server));
    java.prints("waiting");
    first.enter("");
    let first = first.succeeds();
    java.prints("acquired");
    let mut second = start(program!("redisson"), &server, &[]);
    second.prints("waiting for Redisson client ");
    java.enter("");
    let java = java.succeeds();
    second.prints("acquired");
    second.enter("");
    let second = second.succeeds();
    assert_eq!(server.ask(&["EXISTS", "invoice:42"]).int(), 0);
    shows("redisson", &[first, java, second]);
}

fn java(version: &str, server: &Server) -> Command {
    let folder = root().join("interop/redisson/target").join(version);
    let path = format!("{0}/classes:{0}/lib/*", folder.display());
    let mut command = Command::new("java");
    // A small heap and a fast start, for machines with two cores.
    command
        .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"])
        .args(["-cp", &path, "leasehold.Invoice", &url(server)]);
    command
}

fn unindented(code: &str) -> String {
    let lines: Vec<_> = code.lines().map(str::trim).collect();
    lines.join("\n").trim().to_owned()
}
