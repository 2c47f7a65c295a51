//! Metrics of locks on standard output.

use std::io::Write;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use testkit::{ServerExt, tool};

use crate::harness::{Cmd, Harness, Running, UNTIL_STOPPED, eventually};

/// Parsed metrics.
pub(crate) struct Metrics(pub(crate) String);

impl Metrics {
    /// Returns the value of a series, as in `name{lock="job"}`.
    pub(crate) fn get(&self, series: &str) -> Option<f64> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map(|value| value.parse().unwrap())
    }

    #[track_caller]
    pub(crate) fn assert(&self, series: &str, expected: impl Into<Option<f64>>) {
        assert_eq!(self.get(series), expected.into(), "{series}\n{}", self.0);
    }

    /// Checks the format with Prometheus' own parser and its rules.
    pub(crate) fn check(&self) {
        let Some(mut promtool) = tool("promtool") else {
            return;
        };
        promtool.args(["check", "metrics"]).stdin(Stdio::piped());
        let mut checking = promtool.stderr(Stdio::piped()).spawn().unwrap();
        let mut input = checking.stdin.take().unwrap();
        input.write_all(self.0.as_bytes()).unwrap();
        drop(input);
        let output = checking.wait_with_output().unwrap();
        let problems = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{problems}\n{}", self.0);
        assert_eq!(problems, "", "{}", self.0);
    }
}

pub(crate) fn printed(cmd: Cmd) -> Metrics {
    let metrics = Metrics(cmd.run().expect_code(0).expect_no_stderr().stdout);
    metrics.check();
    metrics.assert("leasehold_export_success", 1.0);
    metrics
}

/// Holds a lock until [`Harness::stop_scripts`].
pub(crate) fn hold(harness: &Harness, args: &str, up: &str) -> Running {
    let script = format!("echo up > {up}; {UNTIL_STOPPED}");
    let run = harness.leasehold(args).script(&script);
    run.start_until_file(harness, up)
}

#[test]
fn export_reports_named_and_other_locks() {
    let harness = Harness::new();
    let holder = hold(&harness, "run --fair job", "job");
    let waiter = harness.leasehold("run --fair job").script("true");
    let waiter = waiter.start_until("it is queued", || harness.waiter_count("job") == 1);
    let one = hold(&harness, "run --permits 3 gate", "one");
    let two = hold(&harness, "run --permits 3 gate", "two");

    let export = "export --lock job --lock idle --lock job";
    let metrics = printed(harness.leasehold(export));
    for (series, expected) in [
        (r#"holders{lock="job"}"#, 1.0),
        (r#"waiters{lock="job"}"#, 1.0),
        (r#"disconnected_holders{lock="job"}"#, 0.0),
        (r#"info{lock="job",kind="fair_mutex"}"#, 1.0),
        (r#"holders{lock="idle"}"#, 0.0),
        (r#"waiters{lock="idle"}"#, 0.0),
        (r#"oldest_hold_seconds{lock="idle"}"#, 0.0),
        (r#"disconnected_holders{lock="idle"}"#, 0.0),
    ] {
        metrics.assert(&format!("leasehold_lock_{series}"), expected);
    }
    let age = |metrics: &Metrics| {
        let age = metrics.get(r#"leasehold_lock_oldest_hold_seconds{lock="job"}"#);
        age.unwrap()
    };
    assert!((0.0..600.0).contains(&age(&metrics)), "{}", metrics.0);
    // Locks that are not named are not read.
    assert!(!metrics.0.contains("leasehold_locks"), "{}", metrics.0);
    assert!(!metrics.0.contains("leasehold_other"), "{}", metrics.0);
    eventually("the holder is a second older", || {
        age(&printed(harness.leasehold(export))) > age(&metrics) + 1.0
    });
    let unnamed = printed(harness.leasehold("export"));
    for (kind, holders, locks) in [
        ("fair_mutex", 1.0, 1.0),
        ("semaphore", 2.0, 1.0),
        ("mutex", 0.0, 0.0),
    ] {
        let all = format!("leasehold_other_lock_holders{{kind=\"{kind}\"}}");
        unnamed.assert(&all, holders);
        unnamed.assert(&format!("leasehold_locks{{kind=\"{kind}\"}}"), locks);
    }
    assert!(!unnamed.0.contains("gate"), "{}", unnamed.0);
    unnamed.assert(r#"leasehold_other_lock_holders{kind="fair_mutex"}"#, 1.0);
    unnamed.assert(r#"leasehold_other_lock_waiters{kind="fair_mutex"}"#, 1.0);
    let oldest = r#"leasehold_other_lock_oldest_hold_seconds{kind="fair_mutex"}"#;
    assert!(unnamed.get(oldest) > Some(1.0), "{}", unnamed.0);

    harness.stop_scripts();
    for run in [holder, waiter, one, two] {
        run.wait().expect_code(0);
    }
    let metrics = printed(harness.leasehold(export));
    metrics.assert(r#"leasehold_lock_holders{lock="job"}"#, 0.0);
    metrics.assert(r#"leasehold_lock_info{lock="job",kind="fair_mutex"}"#, None);
}

#[test]
fn export_counts_killed_holders_as_disconnected() {
    let harness = Harness::new();
    let holder = hold(&harness, "run --lease 1h job", "job");
    let permits = ["one", "two", "three"].map(|up| {
        let run = "run --lease 1h --permits 3 gate";
        hold(&harness, run, up)
    });
    let named = r#"leasehold_lock_disconnected_holders{lock="job"}"#;
    let others = r#"leasehold_other_lock_disconnected_holders{kind="semaphore"}"#;
    let counted = |job: f64, gate: f64| {
        let metrics = printed(harness.leasehold("export --lock job"));
        metrics.assert(r#"leasehold_lock_holders{lock="job"}"#, 1.0);
        let all = printed(harness.leasehold("export"));
        metrics.get(named) == Some(job) && all.get(others) == Some(gate)
    };
    eventually("all are connected", || counted(0.0, 0.0));
    holder.signal(Signal::SIGKILL);
    eventually("the holder is disconnected", || counted(1.0, 0.0));
    // A scan lists only the first holder of a lock.
    permits[1].signal(Signal::SIGKILL);
    permits[2].signal(Signal::SIGKILL);
    eventually("two permits are disconnected", || counted(1.0, 2.0));
}

#[test]
fn export_omits_what_is_unknown_of_redisson_locks() {
    let harness = Harness::new();
    let id = "a2b1f3c4-0000-4000-8000-123456789abc:1";
    let other = "a2b1f3c4-0000-4000-8000-123456789abc:2";
    let server = &harness.server;
    server.tell(&["HSET", "plain", id, "1"]);
    server.tell(&["HSET", "named", id, "1"]);
    server.tell(&["HSET", "both", "mode", "read", id, "1", other, "2"]);
    server.tell(&["HSET", "fair", id, "1"]);
    server.tell(&["RPUSH", "redisson_lock_queue:{fair}", other]);
    server.tell(&["SET", "data", "of the application"]);
    let export = harness.leasehold("export --lock named");
    let metrics = printed(export.configure(|command| command.args(["--prefix", ""])));
    for (series, expected) in [
        (r#"lock_holders{lock="named"}"#, Some(1.0)),
        (r#"lock_waiters{lock="named"}"#, None),
        (r#"lock_oldest_hold_seconds{lock="named"}"#, None),
        (r#"lock_disconnected_holders{lock="named"}"#, Some(0.0)),
        (r#"lock_info{lock="named",kind="redisson_lock"}"#, Some(1.0)),
    ] {
        metrics.assert(&format!("leasehold_{series}"), expected);
    }
    let export = harness.leasehold("export");
    let metrics = printed(export.configure(|command| command.args(["--prefix", ""])));
    for (series, expected) in [
        (r#"locks{kind="redisson_lock"}"#, Some(2.0)),
        (r#"other_lock_holders{kind="redisson_lock"}"#, Some(2.0)),
        (r#"other_lock_waiters{kind="redisson_lock"}"#, None),
        (
            r#"other_lock_waiters{kind="redisson_fair_lock"}"#,
            Some(1.0),
        ),
        (
            r#"other_lock_holders{kind="redisson_read_write_lock"}"#,
            Some(2.0),
        ),
        (r#"locks{kind="foreign"}"#, Some(0.0)),
    ] {
        metrics.assert(&format!("leasehold_{series}"), expected);
    }
}

#[test]
fn export_escapes_names_in_labels() {
    const NAME: &str = "a\"b\\c\nd\\n{}, é";
    let harness = Harness::new();
    let key = format!("lock:{NAME}");
    let value = "another library";
    harness.server.tell(&["SET", &key, value, "PX", "3600000"]);
    let export = harness.leasehold("export");
    let metrics = printed(export.configure(|command| command.args(["--lock", NAME])));
    let series = r#"leasehold_lock_holders{lock="a\"b\\c\nd\\n{}, é"}"#;
    metrics.assert(series, 1.0);
}

#[test]
fn failed_export_prints_nothing() {
    let mut harness = Harness::new();
    let unnamed = harness.leasehold("export --listen 127.0.0.1:0 --lock=");
    unnamed.run().expect_code(64).expect_stderr("--lock");
    let url = format!("redis://unknown:x@127.0.0.1:{}", harness.server.port());
    let denied = harness.leasehold_with_url(&url, "export --listen 127.0.0.1:0");
    denied.run().expect_code(77);
    harness.server.kill();
    let failed = harness.leasehold("export").run().expect_code(69);
    assert_eq!(failed.stdout, "");
}

#[test]
fn last_run_of_a_job_is_exported() {
    let harness = Harness::new();
    let timestamp = r#"leasehold_lock_last_run_timestamp_seconds{lock="noon"}"#;
    let export = || printed(harness.leasehold("export --lock noon"));
    export().assert(timestamp, None);
    let job = harness.leasehold("run --once-per 100d noon").script("true");
    job.run().expect_code(0);
    let metrics = export();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - metrics.get(timestamp).unwrap();
    assert!((-1.0..600.0).contains(&age), "{age}");
    let period = r#"leasehold_lock_last_run_period_seconds{lock="noon"}"#;
    metrics.assert(period, 8_640_000.0);
}
