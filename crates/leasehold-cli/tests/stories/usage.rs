//! Settings, exit codes, help, and what a server is told by `doctor`.

use std::time::{Duration, Instant};

use testkit::{Flavor, Proxy, Setup};

use crate::stage::{Scene, Stage, eventually};

#[test]
fn without_a_server_nothing_is_run() {
    let stage = Stage::set();
    let nowhere = stage.leasehold_at("", "run job").playing("echo ran").play();
    let nowhere = nowhere
        .with_code(64)
        .saying("no server is named")
        .saying("hint: set LEASEHOLD_URL");
    assert_eq!(nowhere.out, "");
    let closed = stage
        .leasehold_at("redis://127.0.0.1:1", "run job")
        .playing("echo ran")
        .play();
    let closed = closed
        .with_code(69)
        .saying("leasehold: the server cannot be reached");
    assert_eq!(closed.out, "");
    stage
        .leasehold("run --nonsense job")
        .playing("true")
        .play()
        .with_code(64)
        .saying("leasehold: ");
    stage.leasehold("run job").play().with_code(64);
    stage
        .leasehold("run --lease 3s --grace 2s job")
        .playing("true")
        .play()
        .with_code(64);
    stage
        .leasehold("run --wait nonsense job")
        .playing("true")
        .play()
        .with_code(64);
}

#[test]
fn a_wrong_password_is_told_from_a_server_that_is_down() {
    let stage = Stage::set();
    let url = format!("redis://nobody:secret@127.0.0.1:{}", stage.server.port());
    let denied = stage.leasehold_at(&url, "run job").playing("true").play();
    let denied = denied.with_code(77);
    assert!(!denied.said.contains("secret"), "{denied:?}");
}

#[test]
fn settings_come_from_the_command_line_the_environment_or_a_file() {
    let stage = Stage::set();
    let file = format!(
        "url = \"{}\"\nprefix = \"batch:\"\nlease = \"20s\"\n",
        stage.url()
    );
    std::fs::write(stage.path("leasehold.toml"), file).unwrap();
    let run = stage.leasehold_at("", "run job").hold(&stage);
    let key = stage.server.ask(&["PTTL", "batch:job"]).int();
    assert!((1..=20_000).contains(&key), "{key}");
    stage
        .leasehold("run -w 60s --prefix other: job")
        .playing("true")
        .play()
        .with_code(0);
    stage.go();
    run.ends().with_code(0);
    std::fs::write(stage.path("wrong.toml"), "adress = \"x\"\n").unwrap();
    let wrong = stage.leasehold("--config wrong.toml ls").play();
    wrong.with_code(64).saying("wrong.toml");
}

#[test]
fn tls_name_is_expected_in_the_certificate() {
    let setup = Setup::default().tls_named("redis.internal");
    let stage = Stage::at(setup.start(&Flavor::one()));
    std::fs::write(stage.path("ca.pem"), stage.server.ca_certificate()).unwrap();
    let file = "root_certificate = \"ca.pem\"\ntls_name = \"redis.internal\"\n";
    std::fs::write(stage.path("leasehold.toml"), file).unwrap();
    let url = format!("rediss://127.0.0.1:{}", stage.server.tls_port());
    let ls = |words: &str| stage.leasehold_at(&url, words).play();
    ls("ls").with_code(0);
    let wrong = ls("ls --tls-name other.internal");
    wrong.with_code(69).saying("certificate");
    std::fs::write(
        stage.path("leasehold.toml"),
        "root_certificate = \"ca.pem\"\n",
    )
    .unwrap();
    ls("ls").with_code(69).saying("certificate");
    ls("ls --tls-name redis.internal").with_code(0);
}

#[test]
fn a_busy_lock_has_the_code_that_was_asked_for() {
    let stage = Stage::set();
    let holder = stage.leasehold("run job").hold(&stage);
    let busy = |words: &str| stage.leasehold(words).playing("true").play();
    busy("run -n job")
        .with_code(75)
        .saying("`job`")
        .saying(" is held by process");
    busy("run -w 100ms job").with_code(75).saying("waited ");
    busy("run -n -E 3 job").with_code(3);
    busy("run -n --skip-ok job").with_code(0).saying_nothing();
    stage.go();
    holder.ends().with_code(0);
}

#[test]
#[ignore = "deep: measures how long a command waits"]
fn command_waits_no_longer_than_its_limit() {
    let stage = Stage::set();
    let holder = stage.leasehold("run job").hold(&stage);
    let busy = stage.leasehold("run -w 100ms job").playing("true").play();
    busy.with_code(75).saying("waited 0.");
    stage.go();
    holder.ends().with_code(0);
}

#[test]
fn a_lock_of_another_kind_is_told_with_a_hint() {
    let stage = Stage::set();
    let holder = stage.leasehold("run job").hold(&stage);
    let other = stage.leasehold("run -n --fair job").playing("true").play();
    other.with_code(64).saying("hint:");
    stage.go();
    holder.ends().with_code(0);
}

#[test]
fn help_names_every_exit_code_and_manuals_can_be_made() {
    let stage = Stage::set();
    let help = stage.leasehold("run --help").play().with_code(0).out;
    for text in [
        "75  busy",
        "76  the lock was lost",
        "LEASEHOLD_TOKEN",
        "--at-least",
    ] {
        assert!(help.contains(text), "no {text} in\n{help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = stage.leasehold(&format!("completions {shell}")).play();
        assert!(script.with_code(0).out.contains("leasehold"), "{shell}");
    }
    stage.leasehold("man pages").play().with_code(0);
    assert!(stage.has("pages/leasehold.1") && stage.has("pages/leasehold-run.1"));
}

/// What the doctor says of a healthy server; it takes a stall for a fault of the server.
fn healthy(found: &Scene) -> bool {
    let text = [
        "never thrown away",
        "locks of all kinds",
        "was told within",
        "round trip",
    ];
    found.status.success() && text.iter().all(|text| found.out.contains(text))
}

#[test]
#[ignore = "deep: a stall is taken for a fault of the server"]
fn doctor_finds_a_healthy_server_healthy() {
    let found = Stage::set().leasehold("doctor").play();
    assert!(healthy(&found), "{found:?}");
}

#[test]
fn a_doctor_finds_what_is_wrong_and_says_what_to_do() {
    let stage = Stage::set();
    let found = stage.leasehold("doctor").play();
    assert!(!found.out.contains('\x1b'), "colours without a terminal");
    assert!(found.out.contains("never thrown away"), "{found:?}");

    let evicting = Setup::default()
        .option("maxmemory", "100mb")
        .option("maxmemory-policy", "allkeys-lru")
        .user("poor on nopass ~* &* +@all -eval -evalsha");
    let ill = Stage::at(evicting.start(&Flavor::one()));
    let found = ill.leasehold("doctor").play().with_code(1).out;
    for text in ["BAD", "allkeys-lru", "set maxmemory-policy noeviction"] {
        assert!(found.contains(text), "no {text} in\n{found}");
    }
    let poor = format!("redis://poor:x@127.0.0.1:{}", ill.server.port());
    let found = ill
        .leasehold_at(&poor, "doctor --json")
        .play()
        .with_code(1)
        .out;
    assert!(
        found.contains(r#""what":"rights","verdict":"bad""#),
        "{found}"
    );
}

#[test]
fn a_quorum_is_founded_once_and_outlives_one_of_three() {
    let mut stages = [(); 3].map(|()| Stage::set());
    let urls = stages.each_ref().map(Stage::url);
    let quorum = format!("--quorum {} job", urls.join(","));
    let early = stages[0]
        .leasehold_at("", &format!("run -n {quorum}"))
        .playing("true")
        .play();
    early.with_code(69).saying("hint: `leasehold quorum init`");
    let found = format!("quorum init {}", urls.join(" "));
    stages[0].leasehold_at("", &found).play().with_code(0);
    stages[1].server.kill();
    let held = stages[0]
        .leasehold_at("", &format!("run {quorum}"))
        .hold(&stages[0]);
    stages[2]
        .leasehold_at("", &format!("run -n {quorum}"))
        .playing("true")
        .play()
        .with_code(75);
    stages[0].go();
    held.ends().with_code(0);
}

#[test]
fn quorum_may_have_addresses_with_commas() {
    let stages = [(); 3].map(|()| Stage::set());
    let [one, two, three] = stages.each_ref().map(Stage::url);
    let found = format!("quorum init {one} {two} {three}");
    stages[0].leasehold_at("", &found).play().with_code(0);
    // Nobody answers there: the others are a majority of three, and none of four.
    let nobody = "redis+sentinel://127.0.0.1:1,127.0.0.1:2/group";
    let words = format!("run --quorum {one},{nobody} --quorum {two} job");
    let run = stages[0].leasehold_at("", &words).playing("echo ran");
    assert_eq!(run.play().with_code(0).out, "ran\n");
}

#[test]
fn a_lock_that_replicas_must_have_is_not_held_without_them() {
    let at_once = Setup::default().option("repl-diskless-sync-delay", "0");
    let stage = Stage::at(at_once.start(&Flavor::one()));
    let run = "run -n --replicas 1 job";
    let alone = stage.leasehold(run).playing("echo ran").play();
    let alone = alone.with_code(69).saying("hint: is a replica down?");
    assert_eq!(alone.out, "");
    let master = format!("127.0.0.1 {}", stage.server.port());
    let replica = Setup::default()
        .option("replicaof", &master)
        .start(&Flavor::one());
    let up = || {
        replica
            .ask(&["INFO", "replication"])
            .text()
            .contains("master_link_status:up")
    };
    eventually("the replica follows", up);
    stage.leasehold(run).playing("true").play().with_code(0);
    stage
        .leasehold("run -n --replicas some job")
        .playing("true")
        .play()
        .with_code(64);
}

#[test]
#[ignore = "deep: measures how soon a lock is held"]
fn an_uncontended_lock_is_had_within_three_round_trips() {
    const DISTANCE: Duration = Duration::from_millis(200);
    let stage = Stage::set();
    let network = Proxy::start(stage.server.port());
    let far = format!("redis://127.0.0.1:{}", network.port());
    let held_after = |url: &str| {
        let start = Instant::now();
        let run = stage
            .leasehold_at(url, "run job")
            .playing("sleep 0.5")
            .start_until("it is held", || !stage.is_free("job"));
        let took = start.elapsed();
        run.ends().with_code(0);
        took
    };
    let near = (0..5).map(|_| held_after(&stage.url())).min().unwrap();
    network.latency(DISTANCE);
    let far = (0..3).map(|_| held_after(&far)).min().unwrap();
    println!("held after {near:?}, and after {far:?} at {DISTANCE:?}");
    assert!(near < Duration::from_millis(30), "{near:?}");
    assert!(far < DISTANCE * 3 + near + DISTANCE / 4, "{far:?}");
}
