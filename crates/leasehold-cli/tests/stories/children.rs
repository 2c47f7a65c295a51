//! Programs that behave in all sorts of ways.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::stage::{Stage, eventually, lives};

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
    assert_eq!(
        stage.leasehold(words).play().with_code(0).out,
        "--help -- --url x -w"
    );
    assert!(stage.is_free("job"));
}

#[test]
fn a_program_knows_its_lock() {
    let stage = Stage::set();
    let script = "echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN $LEASEHOLD_OWNER $LEASEHOLD_DEADLINE";
    let first = stage
        .leasehold("run job")
        .playing(script)
        .play()
        .with_code(0)
        .out;
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
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let left = first[3]
        .parse::<u128>()
        .unwrap()
        .saturating_sub(now.unwrap().as_millis());
    assert!((20_000..31_000).contains(&left), "{left} ms");
}

#[test]
fn a_program_that_ignores_term_is_killed_when_its_time_is_over() {
    let stage = Stage::set();
    let words = "run --at-most 500ms --grace 500ms job";
    let start = Instant::now();
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    let run = stage.leasehold(words).playing(script).play();
    run.with_code(124).saying("killing it");
    let took = start.elapsed();
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_secs(3),
        "{took:?}"
    );
    let polite = stage
        .leasehold("run --at-most 300ms job")
        .playing("sleep 10")
        .play();
    polite.with_code(124).saying("as long as it may");
    assert!(stage.is_free("job"));
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
    let reading = reading.with(|command| {
        command.stdin(Stdio::from(input));
    });
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
    let script = "setsid sh -c 'echo $$ > daemon; sleep 2' >/dev/null 2>&1 </dev/null & exit 0";
    let run = stage.leasehold("run job").playing(script).start();
    let daemon = stage.process("daemon");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!stage.is_free("job"), "given back while {daemon} runs");
    let scene = run.ends().with_code(0);
    scene
        .saying("what it started has not")
        .saying(&daemon.to_string());
    assert!(!lives(daemon) && stage.is_free("job"));
}

#[test]
fn a_daemon_is_found_when_the_lock_is_lost() {
    let stage = Stage::set();
    let script = "setsid sh -c 'trap \"\" TERM; echo $$ > daemon; sleep 100' >/dev/null 2>&1 </dev/null & exit 0";
    let run = stage
        .leasehold("run --grace 300ms job")
        .playing(script)
        .start();
    let daemon = stage.process("daemon");
    stage.leasehold("release --force job").play().with_code(0);
    run.ends().with_code(76);
    eventually("the daemon is gone", || !lives(daemon));
}
