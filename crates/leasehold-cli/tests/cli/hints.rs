//! What the CLI says about a wrong option, setting or key.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use testkit::ServerExt;

use crate::harness::{Finished, Harness};

#[test]
fn unknown_timeout_option_suggests_wait() {
    let harness = Harness::new();
    for command in ["run", "steal"] {
        let args = format!("{command} --timeout 5s job");
        let wrong = harness.leasehold(&args).script("true").run();
        let wrong = wrong.expect_code(64).expect_stderr("'--wait'");
        assert!(!wrong.stderr.contains("--at-most"), "{wrong:?}");
    }
}

#[test]
fn refused_limit_names_its_option() {
    let harness = Harness::new();
    for (args, message) in [
        ("run --once-per 0s job", "invalid --once-per: a period of 0"),
        ("run --watchdog 0s job", "invalid --watchdog: 0ns is below"),
        ("lead --watchdog 0s job", "invalid --watchdog: 0ns is below"),
        ("run --at-least 999d job", "invalid --at-least: "),
        ("run --lease 0s --grace 0s job", "invalid `lease`: 0ns"),
    ] {
        let refused = harness.leasehold(args).script("true").run();
        refused.expect_code(64).expect_stderr(message);
    }
}

#[test]
fn wrong_configuration_file_names_line_and_key() {
    let harness = Harness::new();
    let first = format!("url = \"{}\"\n", harness.url());
    let ls = |second: &str| -> Finished {
        let file = harness.path("leasehold.toml");
        std::fs::write(file, format!("{first}{second}\n")).unwrap();
        harness.leasehold("ls").run().expect_code(64)
    };
    for (second, message) in [
        ("lease = 30", "line 2: invalid `lease`: invalid type"),
        ("lease = \"30x\"", "line 2: invalid `lease`: unknown unit"),
        (
            "request_timeout = \"x\"",
            "line 2: invalid `request_timeout`: ",
        ),
        ("adress = \"x\"", "line 2: unknown field `adress`, expected"),
        ("url = \"x\"", "line 2: invalid `url`: duplicate key"),
        ("prefix = batch", "line 2: invalid `prefix`: "),
    ] {
        ls(second).expect_stderr(&format!("leasehold.toml, {message}"));
    }
    ls("client_key = \"key.pem\"").expect_stderr("cannot read `client_key`, key.pem: ");
    std::fs::write(harness.path("key.pem"), "").unwrap();
    ls("client_key = \"key.pem\"").expect_stderr("leasehold.toml: `client_certificate` and ");
    for second in ["password_command = echo hunter2", "prefix hunter2 = x"] {
        let secret = ls(second).expect_stderr("leasehold.toml, line 2: ");
        assert!(!secret.stderr.contains("hunter2"), "{secret:?}");
    }
}

#[test]
fn wrong_timeout_names_its_variable() {
    let harness = Harness::new();
    let ls = harness.leasehold("ls");
    let ls = ls.configure(|command| command.env("LEASEHOLD_REQUEST_TIMEOUT", "5x"));
    let expected = "invalid LEASEHOLD_REQUEST_TIMEOUT: unknown unit `x`";
    ls.run().expect_code(64).expect_stderr(expected);
}

#[test]
fn user_of_a_server_without_password_gets_a_hint() {
    let harness = Harness::new();
    let port = harness.server.port();
    let ls = |user: &str| {
        let url = format!("redis://{user}127.0.0.1:{port}");
        harness.leasehold_with_url(&url, "ls").run()
    };
    ls("batch:secret@")
        .expect_code(77)
        .expect_stderr("a server without a password has the user `default` only");
    let without = ls("batch@").expect_code(64);
    without.expect_stderr("hint: for a user with `nopass`, write any password");
    let rules = "on nopass ~* &* +@all".split(' ');
    let user: Vec<_> = ["ACL", "SETUSER", "batch"]
        .into_iter()
        .chain(rules)
        .collect();
    assert_eq!(harness.server.ask(&user).text(), "OK");
    ls("batch:any@").expect_code(0);
}

#[test]
fn key_that_is_no_lock_gets_a_hint() {
    let harness = Harness::new();
    let hash = ["HSET", "map", "field", "value"];
    assert_eq!(harness.server.ask(&hash).int(), 1);
    for command in ["show", "queue"] {
        let shown = harness.leasehold(&format!("{command} map --prefix="));
        let shown = shown.run().expect_code(64);
        let shown = shown.expect_stderr("hint: of Redisson's objects, only locks");
        assert!(!shown.stderr.contains("--permits"), "{shown:?}");
    }
}

#[test]
fn url_of_another_server_gets_a_hint() {
    let harness = Harness::new();
    let port = harness.server.port();
    let ls = |url: &str| harness.leasehold_with_url(url, "ls").run();
    ls(&format!("redis://127.0.0.1:{port}/99"))
        .expect_code(69)
        .expect_stderr("hint: check the database at the end of the URL");
    ls(&format!("redis+sentinel://127.0.0.1:{port}/group"))
        .expect_code(69)
        .expect_stderr("hint: the server is no sentinel; use redis://HOST");
    let rules = ["CONFIG", "SET", "requirepass", "secret"];
    assert_eq!(harness.server.ask(&rules).text(), "OK");
    ls(&format!("redis://127.0.0.1:{port}"))
        .expect_code(77)
        .expect_stderr("hint: the server requires a login: redis://USER:PASSWORD@HOST");
}

#[test]
fn lock_of_redisson_gets_a_hint() {
    let harness = Harness::new();
    let lock = [
        "HSET",
        "invoice",
        "285475da-9152-4c83-822a-67ee2f116a79:7",
        "1",
    ];
    assert_eq!(harness.server.ask(&lock).int(), 1);
    assert_eq!(
        harness.server.ask(&["PEXPIRE", "invoice", "60000"]).int(),
        1
    );
    let run = harness.leasehold("run --prefix= -n invoice");
    run.script("true")
        .run()
        .expect_code(64)
        .expect_stderr("`leasehold run` cannot acquire Redisson's locks");
    harness
        .leasehold("release --force --prefix= invoice")
        .run()
        .expect_code(0)
        .expect_stderr("hint: the holder uses another library");
}

/// The server of the configuration file was used.
#[test]
fn variable_that_is_not_utf8_is_refused() {
    let harness = Harness::new();
    let url = OsStr::from_bytes(b"redis://h\xff");
    let ls = harness.leasehold("ls");
    let ls = ls.configure(|command| command.env("LEASEHOLD_URL", url));
    ls.run().expect_code(64).expect_stderr("LEASEHOLD_URL");
}
