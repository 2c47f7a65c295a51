//! Inspection and management of locks.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testkit::{Flavor, ServerExt, Setup, scaled};

use crate::harness::{Harness, LEASEHOLD, UNTIL_STOPPED, eventually};

#[test]
fn show_reports_holder_waiters_and_connection() {
    let harness = Harness::new();
    let holder = harness
        .leasehold("run --lease 120s --fair --note import job")
        .start_holding(&harness);
    let queue = || harness.leasehold("queue job").run().stdout;
    let waiter = harness
        .leasehold("run --fair --note second job")
        .script("true")
        .start_until("it is queued", || queue().contains("second"));
    let show = || harness.leasehold("show job").run().expect_code(0).stdout;
    let pid = holder.pid().to_string();
    for text in ["fair, 1 holder", "import", "yes", &pid, "second"] {
        eventually(text, || show().contains(text));
    }
    for text in [show(), queue()] {
        let rows = text.lines().filter(|line| line.contains(" pid "));
        for row in rows {
            assert!(row.contains("  20") && row.contains("Z "), "{row}");
        }
        assert!(text.contains(" SINCE "), "{text}");
    }
    holder.signal(Signal::SIGKILL);
    eventually("the holder is disconnected", || show().contains("NO"));
    let listed = harness.leasehold("ls j*").run().expect_code(0).stdout;
    assert!(listed.contains(" NO "), "{listed}");
    // A forced release grants the lock without waiting for the lease.
    harness
        .leasehold("release --force job")
        .run()
        .expect_code(0);
    waiter.wait().expect_code(0);
    eventually("the lock is free", || harness.is_free("job"));
    harness
        .leasehold("show job")
        .run()
        .expect_code(1)
        .expect_stderr("`job` is not held");
    assert_eq!(harness.leasehold("show --json job").run().stdout, "null\n");
    assert_eq!(harness.leasehold("ls").run().expect_code(0).stdout, "");
}

#[test]
fn show_prints_the_trace_of_the_holder() {
    let harness = Harness::new();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let _holder = harness
        .leasehold("run --note import job")
        .configure(|command| command.env("TRACEPARENT", parent))
        .start_holding(&harness);
    let shown = harness.leasehold("show job").run().expect_code(0).stdout;
    assert!(
        shown.contains(parent) && shown.contains("import"),
        "{shown}"
    );
    let json = harness.leasehold("show --json job").run().stdout;
    let field = format!(r#""trace_parent":"{parent}""#);
    assert!(json.contains(&field), "{json}");
    let listed = harness.leasehold("ls").run().expect_code(0).stdout;
    assert!(!listed.contains("traceparent"), "{listed}");
}

#[test]
fn released_lock_shows_held_until_and_can_be_freed() {
    let harness = Harness::new();
    for kind in ["", "--fair"] {
        let job = format!("run -n --at-least 1h {kind} job");
        let job = || harness.leasehold(&job).script("true").run();
        job().expect_code(0);
        for args in ["ls", "show job"] {
            let shown = harness.leasehold(args).run().expect_code(0).stdout;
            assert!(shown.contains("held until "), "{shown}");
            assert!(shown.contains("59m") || shown.contains("1h"), "{shown}");
            assert!(!shown.contains("NO "), "{shown}");
        }
        let json = harness.leasehold("show --json job").run().stdout;
        assert!(json.contains(r#""released":true"#), "{json}");
        job()
            .expect_code(75)
            .expect_stderr("`job` is held by process");
        let freed = harness.leasehold("release --force job").run();
        freed
            .expect_code(0)
            .expect_stderr("freed `job`, last held by process");
        assert!(harness.is_free("job"));
    }
}

#[test]
fn handed_over_lock_shows_until_when() {
    let harness = Harness::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let ticket = runtime.block_on(async {
        let client = leasehold::Client::connect(&harness.url()).await.unwrap();
        let guard = client.mutex("job").lock().note("import").await.unwrap();
        let ticket = guard.hand_over(Duration::from_secs(3600)).await;
        ticket.unwrap().to_string()
    });
    for args in ["ls", "show job"] {
        let shown = harness.leasehold(args).run().expect_code(0).stdout;
        assert!(shown.contains("handed over until "), "{shown}");
        assert!(shown.contains("import"), "{shown}");
    }
    let json = harness.leasehold("show --json job").run().stdout;
    assert!(json.contains(r#""handed_over":true"#), "{json}");
    let secret = ticket.split('.').nth(2).unwrap();
    assert!(!json.contains(secret), "{json}");
    harness
        .leasehold("release --force job")
        .run()
        .expect_code(0)
        .expect_stderr("freed `job`, last held by process");
    assert!(harness.is_free("job"));
}

#[test]
fn top_revokes_only_if_allowed_and_confirmed() {
    let harness = Harness::new();
    let holder = harness
        .leasehold("run --note import job")
        .start_holding(&harness);
    let top = |args: &str, keys: &[(&str, &str)]| {
        let script =
            format!("stty rows 20 cols 100; timeout --foreground 60 {LEASEHOLD} top {args}");
        let mut watching = harness.on_terminal(&script).start();
        let mut typing = watching.take_stdin();
        let (mut output, mut shown) = (watching.take_stdout(), String::new());
        let mut read = |shown: &mut String| {
            let mut piece = [0; 4096];
            let length = output.read(&mut piece).unwrap();
            shown.push_str(&String::from_utf8_lossy(&piece[..length]));
            length > 0
        };
        for (text, key) in keys {
            while !shown.contains(text) {
                assert!(read(&mut shown), "no {text} in {shown}");
            }
            typing.write_all(key.as_bytes()).unwrap();
        }
        while read(&mut shown) {}
        watching.wait().expect_code(0);
    };
    top("", &[("import", "r"), ("--allow-release", "y"), ("", "q")]);
    let question = "Revoke";
    let refuse = [("import", "r"), (question, "n"), ("", "q")];
    top("--allow-release", &refuse);
    assert!(!harness.is_free("job"));
    let confirm = [("import", "r"), (question, "y"), ("revoked", "q")];
    top("--allow-release", &confirm);
    holder.wait().expect_code(76);
    assert!(harness.is_free("job"));
}

/// Answers the question of `release --pattern` on a terminal, after
/// `meanwhile`. Returns what the terminal shows.
fn answer(harness: &Harness, answer: &str, meanwhile: impl FnOnce()) -> String {
    let script = format!("{LEASEHOLD} release --force --pattern 'import:*'; true");
    let mut asking = harness.on_terminal(&script).start();
    let mut typing = asking.take_stdin();
    let mut output = asking.take_stdout();
    let mut shown = String::new();
    let mut piece = [0; 4096];
    while !shown.contains("[y/N]") {
        let length = output.read(&mut piece).unwrap();
        assert!(length > 0, "no question in {shown}");
        shown.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    meanwhile();
    typing.write_all(answer.as_bytes()).unwrap();
    output.read_to_string(&mut shown).unwrap();
    asking.wait().expect_code(0);
    shown
}

#[test]
fn pattern_is_released_after_a_question() {
    let harness = Harness::new();
    let hold = |name: &str| {
        let file = name.replace(':', "-");
        let script = format!("echo up > {file}; {UNTIL_STOPPED}");
        let holder = harness.leasehold(&format!("run {name}")).script(&script);
        holder.start_until_file(&harness, &file)
    };
    let first = hold("import:1");
    let second = hold("import:2");
    let other = hold("export:1");

    let refused = harness
        .leasehold("release --force --pattern import:*")
        .run();
    refused
        .expect_code(64)
        .expect_stderr("there is no terminal");
    let literal = harness.leasehold("release --force import:*").run();
    literal
        .expect_code(1)
        .expect_stderr("`import:*` is not held");
    let none = harness
        .leasehold("release --force --pattern --yes none:*")
        .run();
    none.expect_code(1).expect_stderr("no lock that matches");
    for no in ["n\n", "\n", "\u{4}"] {
        let shown = answer(&harness, no, || {});
        assert!(
            shown.contains("import:1") && shown.contains("import:2"),
            "{shown}"
        );
        assert!(!shown.contains("export:1"), "{shown}");
        assert!(shown.contains("nothing was released"), "{shown}");
    }
    assert!(!harness.is_free("import:1") && !harness.is_free("import:2"));

    let mut third = None;
    let shown = answer(&harness, "y\n", || {
        harness.revoke("import:1");
        first.wait().expect_code(76);
        std::fs::remove_file(harness.path("import-1")).unwrap();
        third = Some(hold("import:1"));
    });
    assert!(shown.contains("`import:1` has changed hands"), "{shown}");
    assert!(shown.contains("revoked `import:2` from"), "{shown}");
    second.wait().expect_code(76);
    assert!(!harness.is_free("import:1") && harness.is_free("import:2"));

    let script = harness.leasehold("release --force --json --pattern --yes import:*");
    let script = script
        .run()
        .expect_code(0)
        .expect_stderr("revoked `import:1`");
    assert!(
        script
            .stdout
            .starts_with(r#"{"name":"import:1","holders":[{"#)
    );
    third.unwrap().wait().expect_code(76);
    harness.stop_scripts();
    other.wait().expect_code(0);
}

#[test]
fn wait_ends_when_the_lock_is_free() {
    let harness = Harness::new();
    harness.leasehold("wait job").run().expect_code(0);
    let holder = harness.leasehold("run job").start_holding(&harness);
    let before = harness.waiter_count("job");
    let impatient = harness.leasehold("wait -w 200ms job").run();
    impatient.expect_code(75).expect_stderr("held by process");
    let waiter = harness.leasehold("wait job");
    let waiter = waiter.start_until("it is queued", || harness.waiter_count("job") == before + 1);
    harness.stop_scripts();
    waiter.wait().expect_code(0);
    assert!(harness.is_free("job"));
    holder.wait().expect_code(0);
}

/// Revokes a lock with two holders, after one of them has released it.
#[test]
fn pattern_releases_a_lock_of_several_holders() {
    let harness = Harness::new();
    let hold = |number: u32| {
        let script =
            format!("echo up > up-{number}; until [ -e stop-{number} ]; do sleep 0.05; done");
        let holder = harness
            .leasehold("run --permits 3 import:s")
            .script(&script);
        holder.start_until_file(&harness, &format!("up-{number}"))
    };
    let (first, second) = (hold(1), hold(2));
    let mut first = Some(first);
    let shown = answer(&harness, "y\n", || {
        std::fs::write(harness.path("stop-1"), "").unwrap();
        first.take().unwrap().wait().expect_code(0);
    });
    assert!(shown.contains("revoked `import:s`"), "{shown}");
    second.wait().expect_code(76);
}

#[test]
fn wait_outlasts_a_restart_of_the_server() {
    let mut harness = Harness::new();
    let holder = harness.leasehold("run job").start_holding(&harness);
    let before = harness.waiter_count("job");
    let waiter = harness.leasehold("wait job");
    let waiter = waiter.start_until("it is queued", || harness.waiter_count("job") == before + 1);
    harness.server.kill();
    std::thread::sleep(Duration::from_secs(2));
    harness.server.restart().unwrap();
    // The server has lost the lock.
    waiter.wait().expect_code(0);
    drop(holder);
}

#[test]
fn steal_revokes_and_acquires() {
    let harness = Harness::new();
    let holder = harness.leasehold("run job").start_holding(&harness);
    let thief = harness
        .leasehold("steal -w 60s job")
        .script("echo mine")
        .run()
        .expect_stderr("revoked `job` from process");
    assert_eq!(thief.expect_code(0).stdout, "mine\n");
    holder.wait().expect_code(76);
}

#[test]
fn semaphore_and_latch_subcommands_work() {
    let harness = Harness::new();
    harness
        .leasehold("semaphore set gate 1")
        .run()
        .expect_code(0);
    let show = || harness.leasehold("show gate").run().stdout;
    let one = harness
        .leasehold("run --permits 5 gate")
        .start_holding(&harness);
    eventually("a permit is acquired", || show().contains("semaphore 1/1"));
    harness
        .leasehold("run -n --permits 5 gate")
        .script("true")
        .run()
        .expect_code(75);
    harness
        .leasehold("semaphore set gate 2")
        .run()
        .expect_code(0);
    harness
        .leasehold("run -w 60s --permits 5 gate")
        .script("true")
        .run()
        .expect_code(0);
    harness.stop_scripts();
    one.wait().expect_code(0);

    harness.leasehold("latch set ready 2").run().expect_code(0);
    harness.leasehold("latch set ready 2").run().expect_code(1);
    let waiter = harness.leasehold("latch wait ready").start();
    harness
        .leasehold("latch wait -w 100ms ready")
        .run()
        .expect_code(75);
    for shard in ["one", "one", "two"] {
        harness
            .leasehold(&format!("latch count-down ready --by {shard}"))
            .run()
            .expect_code(0);
    }
    waiter.wait().expect_code(0);
    harness.leasehold("latch delete ready").run().expect_code(0);
    harness
        .leasehold("latch wait ready")
        .run()
        .expect_code(1)
        .expect_stderr("latch `ready` does not exist");
}

#[test]
fn readers_share_and_writer_excludes() {
    let harness = Harness::new();
    let reader = harness.leasehold("run -s data").start_holding(&harness);
    harness
        .leasehold("run -w 60s -s data")
        .script("true")
        .run()
        .expect_code(0);
    harness
        .leasehold("run -n -x data")
        .script("true")
        .run()
        .expect_code(75);
    harness.stop_scripts();
    reader.wait().expect_code(0);
    harness
        .leasehold("run -w 60s -x data")
        .script("true")
        .run()
        .expect_code(0);
}

#[test]
fn ls_prints_a_line_for_each_lock() {
    let harness = Harness::new();
    create_locks(&harness, 1000);
    let listed = harness.leasehold("ls").run().expect_code(0).stdout;
    assert_eq!(listed.lines().count(), 1000 + 1);
}

#[test]
#[ignore = "deep: measures the first line, memory and slow calls"]
fn ls_streams_many_locks_in_constant_memory() {
    let count = scaled(100_000);
    let setup = Setup::default().option("slowlog-log-slower-than", "5000");
    let harness = Harness::with_server(setup.start(&Flavor::one()));
    create_locks(&harness, count);
    harness.server.tell(&["SLOWLOG", "RESET"]);
    let start = Instant::now();
    let mut list = harness.leasehold("ls").start();
    let out = list.take_stdout();
    let (mut lines, mut first, mut most) = (0, None, 0);
    for line in BufReader::new(out).lines() {
        line.unwrap();
        first.get_or_insert_with(|| start.elapsed());
        lines += 1;
        if lines % 10_000 == 0 {
            most = most.max(list.memory());
        }
    }
    let took = start.elapsed();
    list.wait().expect_code(0);
    let slow = harness.server.ask(&["SLOWLOG", "LEN"]).int();
    let first = first.unwrap();
    println!(
        "{lines} lines in {took:?}, the first after {first:?}; {most} KiB at most, {slow} slow calls"
    );
    assert_eq!(lines, count + 1);
    assert!(first < Duration::from_secs(1), "{first:?}");
    assert!(most < 40_000, "{most} KiB");
    // A busy machine can preempt the server in any call: at most one in 10,000.
    let calls = harness.server.info("total_commands_processed");
    assert!(
        slow as f64 <= 1.0 + calls / 10_000.0,
        "{slow} of {calls}: {:?}",
        harness.server.ask(&["SLOWLOG", "GET", "10"])
    );
}

/// Creates locks as the library writes them.
fn create_locks(harness: &Harness, count: u64) {
    const CREATE: &str = "for n = ARGV[1], ARGV[2] do redis.call('SET', 'lock:job:' .. n, \
                        string.format('lh1 %032x 1763000000000 %d web-%d - nightly', n, n % 30000, n % 100), 'PX', 3600000) end";
    let mut from = 1;
    while from <= count {
        let to = (from + 9_999).min(count);
        harness
            .server
            .tell(&["EVAL", CREATE, "0", &from.to_string(), &to.to_string()]);
        from = to + 1;
    }
}

#[test]
fn fence_sql_is_printed_for_each_database() {
    let harness = Harness::new();
    for database in ["postgres", "mysql", "mariadb", "sqlite"] {
        // It needs no server.
        let fence = harness.leasehold_with_url("", &format!("fence sql {database}"));
        let sql = fence.run().expect_code(0).expect_no_stderr().stdout;
        for text in [
            "create table",
            "leasehold_fence",
            "LEASEHOLD_KEY",
            "LEASEHOLD_TOKEN",
            "release savepoint",
        ] {
            let found = sql.to_lowercase().contains(&text.to_lowercase());
            assert!(found, "no {text} in\n{sql}");
        }
    }
    let unknown = harness.leasehold_with_url("", "fence sql oracle").run();
    unknown
        .expect_code(64)
        .expect_stderr("postgres, mysql, sqlite");
}

#[test]
fn fence_schema_is_the_table_alone() {
    let harness = Harness::new();
    for database in ["postgres", "mysql", "sqlite"] {
        let sql = |option: &str| {
            let args = format!("fence sql {option} {database}");
            harness.leasehold_with_url("", &args).run().expect_code(0)
        };
        let schema = sql("--schema").stdout;
        assert!(sql("").stdout.starts_with(&schema), "{schema}");
        assert!(schema.contains("\nCREATE TABLE"), "{schema}");
        assert!(!schema.contains("INSERT"), "{schema}");
        assert!(schema.ends_with(";\n"), "{schema}");
    }
}
