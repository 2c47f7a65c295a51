//! Programs that behave in all sorts of ways.

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use crate::harness::{Stage, UNTIL_GO, lives};

#[test]
fn a_program_s_exit_code_is_the_command_s() {
    let stage = Stage::set();
    for code in [0, 1, 75, 76, 200, 255] {
        let run = stage
            .leasehold("run job")
            .playing(&format!("exit {code}"))
            .play();
        run.with_code(code).saying_nothing();
    }
    let missing = stage.leasehold("run job -- no-such-program").play();
    missing
        .with_code(127)
        .saying("leasehold: cannot run no-such-program");
    std::fs::write(stage.path("data"), "no program").unwrap();
    stage.leasehold("run job -- ./data").play().with_code(126);
    let words = "run job -- echo -n --help -- --url x -w";
    let last = stage.leasehold(words).play().with_code(0);
    assert_eq!(last.out, "--help -- --url x -w");
    last.releasing(&stage, "job");
}

#[test]
fn a_program_knows_its_lock() {
    let stage = Stage::set();
    let script = "echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN $LEASEHOLD_OWNER $LEASEHOLD_DEADLINE";
    let now = || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap().as_millis()
    };
    let before = now();
    let first = stage
        .leasehold("run job")
        .playing(script)
        .play()
        .with_code(0)
        .out;
    let after = now();
    let second = stage
        .leasehold("run job")
        .playing(script)
        .play()
        .with_code(0)
        .out;
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (first, second) = (words(&first), words(&second));
    assert_eq!((first.len(), &*first[0]), (4, "job"));
    let token = |words: &[String]| words[1].parse::<u64>().unwrap();
    assert!(token(&second) > token(&first));
    assert!(first[2].contains(':'));
    // A lease of 30 s was granted between the two moments.
    let deadline = first[3].parse::<u128>().unwrap();
    let possible = before + 20_000..after + 31_000;
    assert!(possible.contains(&deadline), "{deadline} in {possible:?}");
}

#[test]
fn a_program_that_ignores_term_is_killed_when_its_time_is_over() {
    // Long enough for the program to ignore TERM by then.
    stop_by_force(Duration::from_secs(3));
    let stage = Stage::set();
    let polite = stage
        .leasehold("run --at-most 300ms job")
        .playing("sleep 100")
        .play();
    polite
        .with_code(124)
        .saying("as long as it may")
        .releasing(&stage, "job");
}

#[test]
#[ignore = "deep: measures how long a program is given"]
fn program_ignoring_term_is_killed_in_time() {
    let took = stop_by_force(Duration::from_millis(500));
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// Runs a program that ignores TERM for longer than `at_most`; how long it ran.
fn stop_by_force(at_most: Duration) -> Duration {
    let stage = Stage::set();
    let words = format!("run --at-most {}ms --grace 500ms job", at_most.as_millis());
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    let start = Instant::now();
    let run = stage.leasehold(&words).playing(script).play();
    let took = start.elapsed();
    run.with_code(124)
        .saying("killing it")
        .releasing(&stage, "job");
    assert!(took >= at_most + Duration::from_millis(500), "{took:?}");
    took
}

#[test]
fn a_program_may_close_its_input_or_read_it() {
    let stage = Stage::set();
    let run = stage
        .leasehold("run job")
        .playing("exec <&-; echo fine")
        .play();
    assert_eq!(run.with_code(0).out, "fine\n");
    std::fs::write(stage.path("input"), "from the pipe\n").unwrap();
    let input = std::fs::File::open(stage.path("input")).unwrap();
    let reading = stage.leasehold("run job").playing("cat");
    let reading = reading.with(|command| command.stdin(Stdio::from(input)));
    assert_eq!(reading.play().with_code(0).out, "from the pipe\n");
}

#[test]
fn a_program_may_print_a_hundred_megabytes() {
    let stage = Stage::set();
    let run = stage
        .leasehold("run job")
        .playing("head -c 100000000 /dev/zero")
        .play();
    assert_eq!(run.with_code(0).out.len(), 100_000_000);
}

#[test]
fn what_a_program_leaves_in_the_background_keeps_the_lock() {
    let stage = Stage::set();
    // A daemon: in a session of its own, with nothing of its parent's.
    let script =
        format!("setsid sh -c 'echo $$ > daemon; {UNTIL_GO}' >/dev/null 2>&1 </dev/null & exit 0");
    let run = stage.leasehold("run job").playing(&script);
    let run = run.leave(&stage, "daemon");
    let daemon = stage.process("daemon");
    run.until_said("what it started has not");
    assert!(!stage.is_free("job"), "released while {daemon} runs");
    stage.go();
    let scene = run.ends().with_code(0).saying(&daemon.to_string());
    assert!(!lives(daemon));
    scene.releasing(&stage, "job");
}

#[test]
fn a_daemon_is_found_when_the_lock_is_lost() {
    let stage = Stage::set();
    let script = "setsid sh -c 'trap \"\" TERM; echo $$ > daemon; sleep 100' >/dev/null 2>&1 </dev/null & exit 0";
    let run = stage.leasehold("run --grace 300ms job").playing(script);
    let run = run.leave(&stage, "daemon");
    let daemon = stage.process("daemon");
    stage.revoke("job");
    run.ends().with_code(76);
    assert!(!lives(daemon));
}
