//! A lock that is lost while its command runs.

use std::time::{Duration, Instant};

use testkit::{Proxy, ServerExt};

use crate::harness::{Harness, LEASEHOLD, UNTIL_STOPPED, eventually, is_running};

/// Ignores SIGTERM, and starts a child that ignores it too.
const STUBBORN: &str = "trap '' TERM; (trap '' TERM; echo $$ > parent; sh -c 'echo $$ > child; while :; do sleep 1; done') & \
                        while :; do sleep 1; done";

/// Records SIGTERM, and exits with 0.
const POLITE: &str =
    "trap 'echo term > term; exit 0' TERM; echo up > up; while :; do sleep 0.1; done";

#[test]
fn server_death_stops_all_processes() {
    kill_server("run --lease 8s --grace 2s job");
}

#[test]
#[ignore = "deep: measures the exit of the command"]
fn server_death_stops_command_before_lease_ends() {
    let stopped = kill_server("run --lease 8s --grace 4s job");
    // The last renewal was before the death of the server.
    assert!(stopped < Duration::from_secs(8), "{stopped:?}");
}

/// Kills the server, and returns how long the command runs from then.
fn kill_server(args: &str) -> Duration {
    let mut harness = Harness::new();
    let run = harness.leasehold(args).script(STUBBORN);
    let run = run.start_until_file(&harness, "child");
    let child = harness.wait_for_pid("child");
    harness.server.kill();
    let died = Instant::now();
    eventually("all processes have exited", || !is_running(child));
    let stopped = died.elapsed();
    let stderr = run.wait().expect_code(76).stderr;
    let at = |text| {
        stderr
            .find(text)
            .unwrap_or_else(|| panic!("no {text} in\n{stderr}"))
    };
    assert!(at("lost `job`") < at("killing it"), "{stderr}");
    stopped
}

#[test]
fn isolated_holder_is_stopped_and_waiter_runs() {
    isolate_holder("run --lease 8s --grace 2s job");
}

#[test]
#[ignore = "deep: SIGKILL precedes the end of the lease by a second"]
fn isolated_holder_stops_before_waiter_starts() {
    let found = isolate_holder("run --lease 8s --grace 4s job");
    assert_eq!(found, "alone");
}

/// Isolates a holder from the server, and returns whether a waiter ran `alone`
/// or beside the command of the holder.
fn isolate_holder(args: &str) -> String {
    let harness = Harness::new();
    let proxy = Proxy::start(harness.server.port());
    let proxied = format!("redis://127.0.0.1:{}", proxy.port());
    let isolated = harness.leasehold_with_url(&proxied, args).script(STUBBORN);
    let isolated = isolated.start_until_file(&harness, "child");
    let child = harness.wait_for_pid("child");
    let script =
        format!("if kill -0 {child} 2>/dev/null; then echo two > next; else echo alone > next; fi");
    let next = harness.leasehold("run job").script(&script).start();
    proxy.black_hole(true);
    next.wait().expect_code(0);
    isolated.wait().expect_code(76);
    assert!(!is_running(child));
    harness.wait_for_file("next")
}

#[test]
fn loss_overrides_the_exit_code_of_the_command() {
    let mut harness = Harness::new();
    let args = "run --lease 12s --grace 5s job";
    let run = harness.leasehold(args).script(POLITE);
    let run = run.start_until_file(&harness, "up");
    harness.server.kill();
    run.wait().expect_code(76);
    assert!(harness.has_file("term"));
}

#[test]
fn revoked_lock_stops_the_command() {
    revoke();
}

#[test]
#[ignore = "deep: measures the exit of the command"]
fn revoked_lock_stops_command_before_renewal() {
    // The next renewal is after ten seconds.
    let took = revoke();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// Revokes the lock, and returns how long the command runs from then.
fn revoke() -> Duration {
    let harness = Harness::new();
    let run = harness.leasehold("run job").script(POLITE);
    let run = run.start_until_file(&harness, "up");
    let revoked_at = Instant::now();
    harness.revoke("job");
    run.wait()
        .expect_code(76)
        .expect_stderr("another client revoked the lock");
    assert!(harness.has_file("term"));
    revoked_at.elapsed()
}

#[test]
fn command_continues_with_on_lost_ignore() {
    let harness = Harness::new();
    let args = "run --on-lost ignore job";
    let script = format!("echo up > up; {UNTIL_STOPPED}; echo end > end");
    let run = harness.leasehold(args).script(&script);
    let run = run.start_until_file(&harness, "up");
    harness.revoke("job");
    run.wait_for_stderr("the command continues");
    harness.stop_scripts();
    run.wait().expect_code(76);
    assert!(harness.has_file("end"));
}

/// A command that exited before the next renewal seemed to have held the lock.
#[test]
fn loss_found_at_the_release_is_reported() {
    for args in ["run job", "lead job", "run --once-per 100d job"] {
        let harness = Harness::new();
        let run = harness.leasehold(args).start_holding(&harness);
        let locks = harness.server.ask(&["KEYS", "lock:*job"]);
        harness.server.tell(&["DEL", locks.list()[0].text()]);
        harness.stop_scripts();
        run.wait().expect_code(76).expect_stderr("lost `job`");
    }
}

/// A terminal or pipe that took no more text kept the CLI from stopping its
/// command.
#[test]
fn full_stderr_does_not_delay_the_stop() {
    let mut harness = Harness::new();
    let script = format!(
        "mkfifo full; exec 3<> full; timeout 1 cat /dev/zero >&3; \
         exec {LEASEHOLD} run --lease 8s --grace 2s job -- sh -c \"$0\" 2>&3"
    );
    let run = harness.shell(&script);
    let run = run.configure(|command| command.arg(STUBBORN));
    let _run = run.start_until_file(&harness, "child");
    let child = harness.wait_for_pid("child");
    harness.server.kill();
    eventually("all processes have exited", || !is_running(child));
}

#[test]
fn ignored_loss_leaves_the_grace() {
    let harness = Harness::new();
    let args = "run --lease 6s --grace 3s --on-lost ignore --at-most 10s job";
    let script =
        "trap 'sleep 0.3; echo end > end; exit 0' TERM; echo up > up; while :; do sleep 0.1; done";
    let run = harness.leasehold(args).script(script);
    let run = run.start_until_file(&harness, "up");
    harness.revoke("job");
    run.wait().expect_code(76).expect_stderr("--at-most");
    assert!(harness.has_file("end"));
}

#[test]
fn on_lost_sends_the_given_signal() {
    let harness = Harness::new();
    let script =
        "trap 'echo usr1 > signal; exit 0' USR1; echo up > up; while :; do sleep 0.1; done";
    let run = harness.leasehold("run --on-lost USR1 job").script(script);
    let run = run.start_until_file(&harness, "up");
    harness.revoke("job");
    run.wait().expect_code(76);
    assert_eq!(harness.wait_for_file("signal"), "usr1");
    harness
        .leasehold("run --on-lost nonsense job")
        .script("true")
        .run()
        .expect_code(64);
}

#[test]
fn outage_shorter_than_the_lease_is_harmless() {
    let harness = Harness::new();
    let proxy = Proxy::start(harness.server.port());
    let proxied = format!("redis://127.0.0.1:{}", proxy.port());
    let args = "run --lease 12s --grace 1s --request-timeout 1s job";
    let run = harness
        .leasehold_with_url(&proxied, args)
        .start_holding(&harness);
    proxy.black_hole(true);
    // The lease is renewed after four seconds at the latest.
    eventually("a renewal is missed", || {
        harness.lease_remaining("job") < 7000
    });
    let remaining = harness.lease_remaining("job");
    proxy.black_hole(false);
    eventually("the lease is renewed", || {
        harness.lease_remaining("job") > remaining
    });
    harness.stop_scripts();
    run.wait().expect_code(0).expect_free(&harness, "job");
}
