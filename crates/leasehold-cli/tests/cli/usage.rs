//! Settings, exit codes, help and `doctor`.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use testkit::{Fault, Flavor, Proxy, ServerExt, Setup};

use crate::harness::{Finished, Harness, eventually};

#[test]
fn run_without_a_server_starts_no_command() {
    let harness = Harness::new();
    let nowhere = harness
        .leasehold_with_url("", "run job")
        .script("echo ran")
        .run();
    let nowhere = nowhere
        .expect_code(64)
        .expect_stderr("no server is configured")
        .expect_stderr("hint: set LEASEHOLD_URL");
    assert_eq!(nowhere.stdout, "");
    let closed = harness
        .leasehold_with_url("redis://127.0.0.1:1", "run job")
        .script("echo ran")
        .run();
    let closed = closed
        .expect_code(69)
        .expect_stderr("hint: check the address");
    assert_eq!(closed.stdout, "");
    harness
        .leasehold("run --nonsense job")
        .script("true")
        .run()
        .expect_code(64)
        .expect_stderr("leasehold: ");
    harness.leasehold("run job").run().expect_code(64);
    harness
        .leasehold("run --lease 3s --grace 2s job")
        .script("true")
        .run()
        .expect_code(64);
    harness
        .leasehold("run --wait nonsense job")
        .script("true")
        .run()
        .expect_code(64);
}

#[test]
fn wrong_password_exits_with_denied() {
    let harness = Harness::new();
    let url = format!("redis://unknown:secret@127.0.0.1:{}", harness.server.port());
    let denied = harness
        .leasehold_with_url(&url, "run job")
        .script("true")
        .run();
    let denied = denied
        .expect_code(77)
        .expect_stderr("hint: check the user and the password");
    assert!(!denied.stderr.contains("secret"), "{denied:?}");
    assert!(!denied.stderr.contains("doctor"), "{denied:?}");
}

/// The CLI printed the error of a server that does not know `HELLO`.
#[test]
fn password_quoted_by_the_server_is_not_printed() {
    let harness = Harness::new();
    let proxy = Proxy::start(harness.server.port());
    proxy.inject(|words| match words[0].as_slice() {
        b"HELLO" => Fault::ReplaceReply(
            b"-ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'u' 'hunter2'\r\n",
        ),
        _ => Fault::None,
    });
    let url = format!("redis://u:hunter2@127.0.0.1:{}", proxy.port());
    for args in ["ls", "show job", "doctor", "run job -- true"] {
        let failed = harness.leasehold_with_url(&url, args).run();
        assert!(!failed.stderr.contains("hunter2"), "{args}: {failed:?}");
        assert!(!failed.stdout.contains("hunter2"), "{args}: {failed:?}");
        assert!(
            failed.stderr.contains("does not know `HELLO`"),
            "{args}: {failed:?}"
        );
    }
}

#[test]
fn settings_come_from_arguments_environment_or_file() {
    let harness = Harness::new();
    let file = format!(
        "url = \"{}\"\nprefix = \"batch:\"\nlease = \"20s\"\n",
        harness.url()
    );
    std::fs::write(harness.path("leasehold.toml"), file).unwrap();
    let run = harness
        .leasehold_with_url("", "run job")
        .start_holding(&harness);
    let key = harness.server.ask(&["PTTL", "batch:job"]).int();
    assert!((1..=20_000).contains(&key), "{key}");
    harness
        .leasehold("run -w 60s --prefix other: job")
        .script("true")
        .run()
        .expect_code(0);
    harness.stop_scripts();
    run.wait().expect_code(0);
    std::fs::write(harness.path("wrong.toml"), "adress = \"x\"\n").unwrap();
    let wrong = harness.leasehold("--config wrong.toml ls").run();
    wrong.expect_code(64).expect_stderr("wrong.toml");
}

#[test]
fn tls_name_is_checked_in_the_certificate() {
    let setup = Setup::default().tls_named("redis.internal");
    let harness = Harness::with_server(setup.start(&Flavor::one()));
    std::fs::write(harness.path("ca.pem"), harness.server.ca_certificate()).unwrap();
    let file = "root_certificate = \"ca.pem\"\ntls_name = \"redis.internal\"\n";
    std::fs::write(harness.path("leasehold.toml"), file).unwrap();
    let url = format!("rediss://127.0.0.1:{}", harness.server.tls_port());
    let ls = |args: &str| harness.leasehold_with_url(&url, args).run();
    ls("ls").expect_code(0);
    let wrong = ls("ls --tls-name other.internal");
    wrong.expect_code(69).expect_stderr("certificate");
    std::fs::write(
        harness.path("leasehold.toml"),
        "root_certificate = \"ca.pem\"\n",
    )
    .unwrap();
    ls("ls").expect_code(69).expect_stderr("certificate");
    ls("ls --tls-name redis.internal").expect_code(0);
}

#[test]
fn invisible_configuration_file_is_an_error() {
    let harness = Harness::new();
    let folder = harness.path("private");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, Permissions::from_mode(0o000)).unwrap();
    // Root can read everything.
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let ls = harness.leasehold("ls").configure(|command| {
        let command = command.env("XDG_CONFIG_HOME", &folder);
        if is_root {
            command.uid(65_534)
        } else {
            command
        }
    });
    ls.run()
        .expect_code(64)
        .expect_stderr("cannot read")
        .expect_stderr("private/leasehold.toml");
    let nowhere = harness.leasehold("ls");
    let nowhere = nowhere.configure(|command| command.env("XDG_CONFIG_HOME", "/dev/null"));
    nowhere.run().expect_code(0);
}

#[test]
fn huge_request_timeout_is_not_a_panic() {
    let harness = Harness::new();
    let args = "ls --request-timeout 10000000000000000000";
    let huge = harness.leasehold(args).run();
    assert!(!huge.stderr.contains("panicked"), "{huge:?}");
}

#[test]
fn command_without_separator_gets_a_hint() {
    let harness = Harness::new();
    for args in ["run nightly true", "lead nightly true", "run nightly"] {
        let run = harness.leasehold(args).run();
        run.expect_code(64).expect_stderr("hint: write `--` before");
    }
    let other = harness.leasehold("run --nonsense nightly -- true").run();
    assert!(!other.stderr.contains("hint:"), "{other:?}");
}

#[test]
fn busy_lock_exits_with_the_requested_code() {
    let harness = Harness::new();
    let holder = harness.leasehold("run job").start_holding(&harness);
    let busy = |args: &str| harness.leasehold(args).script("true").run();
    busy("run -n job")
        .expect_code(75)
        .expect_stderr("`job`")
        .expect_stderr(" is held by process");
    busy("run -w 100ms job")
        .expect_code(75)
        .expect_stderr("timed out after ");
    busy("run -n -E 3 job").expect_code(3);
    busy("run -n --skip-ok job")
        .expect_code(0)
        .expect_no_stderr();
    harness.stop_scripts();
    holder.wait().expect_code(0);
}

#[test]
#[ignore = "deep: measures the time of a waiter"]
fn waiter_times_out_at_its_limit() {
    let harness = Harness::new();
    let holder = harness.leasehold("run job").start_holding(&harness);
    let busy = harness.leasehold("run -w 100ms job").script("true").run();
    busy.expect_code(75).expect_stderr("timed out after 0.");
    harness.stop_scripts();
    holder.wait().expect_code(0);
}

#[test]
fn lock_of_another_kind_is_reported_with_a_hint() {
    let harness = Harness::new();
    let holder = harness.leasehold("run job").start_holding(&harness);
    let other = harness.leasehold("run -n --fair job").script("true").run();
    other.expect_code(64).expect_stderr("hint:");
    harness.stop_scripts();
    holder.wait().expect_code(0);
}

#[test]
fn help_completions_and_man_pages_are_complete() {
    let harness = Harness::new();
    let help = harness.leasehold("run --help").run().expect_code(0).stdout;
    for text in [
        "75  busy",
        "76  the lock was lost",
        "LEASEHOLD_TOKEN",
        "--at-least",
    ] {
        assert!(help.contains(text), "no {text} in\n{help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = harness.leasehold(&format!("completions {shell}")).run();
        assert!(
            script.expect_code(0).stdout.contains("leasehold"),
            "{shell}"
        );
    }
    harness.leasehold("man pages").run().expect_code(0);
    for page in ["", "-run", "-lead", "-leader"] {
        assert!(harness.has_file(&format!("pages/leasehold{page}.1")));
    }
    for page in ["run", "steal", "lead"] {
        let page = harness.path(&format!("pages/leasehold-{page}.1"));
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains(r"\-\- <\fICMD\fR>"), "{page}");
        assert!(page.contains("\n.SH EXIT STATUS\n.nf\n"), "{page}");
    }
}

#[test]
fn every_subcommand_is_in_the_guide() {
    let help = Harness::new().leasehold("--help").run().stdout;
    let (_, commands) = help.split_once("\nCommands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let names = commands.lines().filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && name != "help").then_some(name)
    });
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, table) = guide.split_once("| subcommand | effect |\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let mut count = 0;
    for name in names {
        count += 1;
        let listed = [format!("`{name}`"), format!("`{name} ")];
        let found = listed.iter().any(|text| table.contains(text));
        assert!(found, "`{name}` is not in docs/cli.md");
    }
    assert!(count > 15, "{help}");
}

/// Returns whether `doctor` reports a healthy server. It reports a stall of the
/// machine as a slow server.
fn is_healthy(report: &Finished) -> bool {
    let text = [
        "never evicted",
        "all kinds of locks",
        "was woken within",
        "round trip",
    ];
    report.status.success() && text.iter().all(|text| report.stdout.contains(text))
}

#[test]
#[ignore = "deep: reports a stall of the machine as a slow server"]
fn doctor_accepts_a_healthy_server() {
    let report = Harness::new().leasehold("doctor").run();
    assert!(is_healthy(&report), "{report:?}");
}

#[test]
fn doctor_reports_problems_with_advice() {
    let harness = Harness::new();
    let report = harness.leasehold("doctor").run();
    assert!(!report.stdout.contains('\x1b'), "colors without a terminal");
    assert!(report.stdout.contains("never evicted"), "{report:?}");

    let evicting = Setup::default()
        .option("maxmemory", "100mb")
        .option("maxmemory-policy", "allkeys-lru")
        .user("limited on nopass ~* &* +@all -eval -evalsha");
    let harness = Harness::with_server(evicting.start(&Flavor::one()));
    let report = harness.leasehold("doctor").run().expect_code(1).stdout;
    for text in ["BAD", "allkeys-lru", "set maxmemory-policy noeviction"] {
        assert!(report.contains(text), "no {text} in\n{report}");
    }
    let limited = format!("redis://limited:x@127.0.0.1:{}", harness.server.port());
    let report = harness
        .leasehold_with_url(&limited, "doctor --json")
        .run()
        .expect_code(1)
        .stdout;
    assert!(
        report.contains(r#""check":"permissions","verdict":"bad""#),
        "{report}"
    );
}

#[test]
fn doctor_compares_the_clocks_of_replicas() {
    let harness = Harness::new();
    let of = format!("127.0.0.1 {}", harness.server.port());
    let replica = Setup::default()
        .option("replicaof", &of)
        .movable_clock()
        .start(&Flavor::one());
    replica.set_clock(3600);
    eventually("the replica is connected", || {
        let role = harness.server.ask(&["ROLE"]);
        !role.list()[2].list().is_empty()
    });
    let report = harness.leasehold("doctor --json").run().stdout;
    assert!(
        report.contains(r#""check":"replica clocks","verdict":"warning""#),
        "{report}"
    );
}

/// It advised an ACL to users of servers that do not know the commands.
#[test]
fn doctor_reports_how_messages_arrive() {
    let sharded = ["SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE"];
    let classic = ["PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE"];
    // A stall of the machine is a warning in any mode.
    for (missing, expected) in [
        (sharded.to_vec(), ["classic: ", "a waiter acquired after"]),
        ([sharded, classic].concat(), ["none: waiters poll"; 2]),
    ] {
        let server = Setup::default().without(&missing).start(&Flavor::one());
        let report = Harness::with_server(server).leasehold("doctor").run();
        let text = &report.stdout;
        assert!(report.status.success(), "{text}");
        assert!(expected.iter().any(|one| text.contains(one)), "{text}");
    }
}

#[test]
fn doctor_tries_the_commands_of_a_queue() {
    // All that an uncontended lock needs.
    let rules = "on nopass ~* &* +@all -zadd -zrange -zrank -zcard -zpopmin -hmget";
    let setup = Setup::default().user(&format!("uncontended {rules}"));
    let harness = Harness::with_server(setup.start(&Flavor::one()));
    let url = format!("redis://uncontended:x@127.0.0.1:{}", harness.server.port());
    let alone = harness.leasehold_with_url(&url, "run --fair job");
    alone.script("true").run().expect_code(0);
    let report = harness.leasehold_with_url(&url, "doctor --json").run();
    let report = report.expect_code(1).stdout;
    assert!(
        report.contains(r#""check":"permissions","verdict":"bad""#),
        "{report}"
    );
}

#[test]
fn quorum_survives_the_loss_of_one_of_three() {
    let mut harnesses = [(); 3].map(|()| Harness::new());
    let urls = harnesses.each_ref().map(Harness::url);
    let quorum = format!("--quorum {} job", urls.join(","));
    let early = harnesses[0]
        .leasehold_with_url("", &format!("run -n {quorum}"))
        .script("true")
        .run();
    early.expect_code(69).expect_stderr("none has ever voted");
    let init = format!("quorum init {}", urls.join(" "));
    harnesses[0]
        .leasehold_with_url("", &init)
        .run()
        .expect_code(0);
    harnesses[1].server.kill();
    let held = harnesses[0]
        .leasehold_with_url("", &format!("run {quorum}"))
        .start_holding(&harnesses[0]);
    harnesses[2]
        .leasehold_with_url("", &format!("run -n {quorum}"))
        .script("true")
        .run()
        .expect_code(75);
    harnesses[0].stop_scripts();
    held.wait().expect_code(0);
}

#[test]
fn quorum_init_keeps_a_held_lock_exclusive() {
    let mut harnesses = [(); 3].map(|()| Harness::new());
    let urls = harnesses.each_ref().map(Harness::url);
    let quorum = format!("--quorum {} job", urls.join(","));
    let init = format!("quorum init {}", urls.join(" "));
    let init = |harness: &Harness| harness.leasehold_with_url("", &init).run();
    init(&harnesses[0]).expect_code(0);
    let held = harnesses[0]
        .leasehold_with_url("", &format!("run --lease 60s {quorum}"))
        .start_holding(&harnesses[0]);
    // They have no data on disk.
    harnesses[1].server.restart().unwrap();
    harnesses[2].server.restart().unwrap();
    let second = |harness: &Harness| {
        let run = format!("run -n --request-timeout 1s {quorum}");
        let run = harness.leasehold_with_url("", &run).script("echo ran");
        let run = run.run().expect_code(69);
        assert_eq!(run.stdout, "", "a second holder ran");
    };
    second(&harnesses[1]);
    init(&harnesses[1])
        .expect_code(69)
        .expect_stderr("restarted nodes are in quarantine for another");
    second(&harnesses[1]);
    assert!(!harnesses[0].is_free("job"), "the first holder has lost it");
    harnesses[0].stop_scripts();
    held.wait();
}

#[test]
fn quorum_accepts_urls_with_commas() {
    let harnesses = [(); 3].map(|()| Harness::new());
    let [one, two, three] = harnesses.each_ref().map(Harness::url);
    let init = format!("quorum init {one} {two} {three}");
    harnesses[0]
        .leasehold_with_url("", &init)
        .run()
        .expect_code(0);
    // Unreachable: two servers are a majority of three, but not of four.
    let unreachable = "redis+sentinel://127.0.0.1:1,127.0.0.1:2/group";
    let args = format!("run --quorum {one},{unreachable} --quorum {two} job");
    let run = harnesses[0]
        .leasehold_with_url("", &args)
        .script("echo ran");
    assert_eq!(run.run().expect_code(0).stdout, "ran\n");
}

#[test]
fn replicas_are_required_for_the_acquire() {
    let setup = Setup::default().option("repl-diskless-sync-delay", "0");
    let harness = Harness::with_server(setup.start(&Flavor::one()));
    let run = "run -n --replicas 1 job";
    let alone = harness.leasehold(run).script("echo ran").run();
    let alone = alone.expect_code(64).expect_stderr("has no replicas");
    assert_eq!(alone.stdout, "");
    let master = format!("127.0.0.1 {}", harness.server.port());
    let replica = Setup::default()
        .option("replicaof", &master)
        .start(&Flavor::one());
    let up = || {
        replica
            .ask(&["INFO", "replication"])
            .text()
            .contains("master_link_status:up")
    };
    eventually("the replica is synchronized", up);
    harness.leasehold(run).script("true").run().expect_code(0);
    harness
        .leasehold("run -n --replicas some job")
        .script("true")
        .run()
        .expect_code(64);
}

#[test]
#[ignore = "deep: measures the time to acquire"]
fn uncontended_acquire_takes_three_round_trips() {
    const DISTANCE: Duration = Duration::from_millis(200);
    let harness = Harness::new();
    let proxy = Proxy::start(harness.server.port());
    let far = format!("redis://127.0.0.1:{}", proxy.port());
    let held_after = |url: &str| {
        let start = Instant::now();
        let run = harness
            .leasehold_with_url(url, "run job")
            .script("sleep 0.5")
            .start_until("the lock is held", || !harness.is_free("job"));
        let took = start.elapsed();
        run.wait().expect_code(0);
        took
    };
    let near = (0..5).map(|_| held_after(&harness.url())).min().unwrap();
    proxy.latency(DISTANCE);
    let far = (0..3).map(|_| held_after(&far)).min().unwrap();
    println!("held after {near:?}, and after {far:?} at {DISTANCE:?}");
    assert!(near < Duration::from_millis(30), "{near:?}");
    assert!(far < DISTANCE * 3 + near + DISTANCE / 4, "{far:?}");
}
