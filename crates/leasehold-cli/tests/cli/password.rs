//! Passwords that change, in a file or from a command.

use std::time::Duration;

use nix::unistd::Pid;
use testkit::ServerExt;

use crate::harness::{Cmd, Finished, Harness, eventually, is_running};

/// Starts a server with the user `batch`, whose password is in the file
/// `password`.
fn harness() -> Harness {
    let harness = Harness::new();
    rotate(&harness, "open-sesame-1");
    harness
}

/// Sets another password, and closes the user's connections.
fn rotate(harness: &Harness, password: &str) {
    let password_rule = format!(">{password}");
    let user = ["ACL", "SETUSER", "batch", "on", "resetpass", &password_rule];
    let rights = ["allkeys", "allchannels", "+@all"];
    harness.server.tell(&[&user[..], &rights[..]].concat());
    std::fs::write(harness.path("password"), format!("{password}\n")).unwrap();
    harness.server.tell(&["CLIENT", "KILL", "USER", "batch"]);
}

/// Prepares the CLI with a password command in the environment.
fn with_command(harness: &Harness, command: &str, args: &str) -> Cmd {
    harness.leasehold(args).configure(|cli| {
        cli.env("LEASEHOLD_USER", "batch")
            .env("LEASEHOLD_PASSWORD_COMMAND", command)
    })
}

#[test]
fn password_comes_from_options_environment_or_file() {
    let harness = harness();
    let options = "--user batch --password-file password";
    harness
        .leasehold(&format!("{options} ls"))
        .run()
        .expect_code(0);
    // We don't assert the exit status: on a stalled machine, `doctor` finds the
    // server slow.
    let doctor = harness.leasehold(&format!("{options} doctor")).run();
    assert!(doctor.stdout.contains("permissions"), "{doctor:?}");
    with_command(&harness, "cat password", "ls")
        .run()
        .expect_code(0);
    let file = "user = \"batch\"\npassword_command = \"cat password\"\n";
    std::fs::write(harness.path("leasehold.toml"), file).unwrap();
    harness.leasehold("ls").run().expect_code(0);
    // An option replaces what the file says.
    let missing = harness.leasehold("--password-file missing ls").run();
    missing.expect_code(69).expect_stderr("cannot read missing");
    let url = format!("redis://u:hunter2@127.0.0.1:{}", harness.server.port());
    let both = harness.leasehold_with_url(&url, "ls").run();
    let both = both.expect_code(64).expect_stderr("remove one");
    assert!(!both.stderr.contains("hunter2"), "{both:?}");
}

#[test]
fn failed_password_command_is_summarised() {
    let harness = harness();
    let ls = |command: &str| -> Finished { with_command(&harness, command, "ls").run() };
    let failed = ls("echo hunter2; echo no vault >&2; exit 3")
        .expect_code(69)
        .expect_stderr("hint: check the user, and --password-file or --password-command");
    let failed = failed.expect_stderr("password command exited with status 3: no vault");
    assert!(!failed.stderr.contains("hunter2"), "{failed:?}");
    let wrong = ls("echo hunter2")
        .expect_code(69)
        .expect_stderr("WRONGPASS");
    assert!(!wrong.stderr.contains("hunter2"), "{wrong:?}");
    let lonely = harness.leasehold("--user batch ls").run();
    lonely
        .expect_code(64)
        .expect_stderr("`user` has no password");
}

#[test]
fn hanging_password_command_is_killed() {
    let harness = harness();
    let hanging = with_command(&harness, "sleep 1000 & echo $! >> pids; wait", "ls");
    let hanging = hanging.run().expect_code(69);
    hanging.expect_stderr("the credentials provider did not return within");
    // One for each connection.
    for pid in harness.wait_for_file("pids").lines() {
        let pid = Pid::from_raw(pid.parse().unwrap());
        eventually("it is killed", || !is_running(pid));
    }
}

fn keep_lock_through_rotations(harness: &Harness, cli: Cmd) {
    let run = cli.start_holding(harness);
    for number in 2..5 {
        rotate(harness, &format!("open-sesame-{number}"));
        std::thread::sleep(Duration::from_secs(1));
    }
    harness.stop_scripts();
    run.wait().expect_code(0);
}

#[test]
fn rotated_password_file_keeps_the_lock() {
    let harness = harness();
    let options = "--user batch --password-file password";
    let cli = harness.leasehold(&format!("{options} run job"));
    keep_lock_through_rotations(&harness, cli);
}

/// While a command runs, the CLI reaps every process below it, also that of
/// the password command.
#[test]
fn rotated_password_command_keeps_the_lock() {
    let harness = harness();
    let cli = with_command(&harness, "cat password; sleep 0.1", "run job");
    keep_lock_through_rotations(&harness, cli);
}
