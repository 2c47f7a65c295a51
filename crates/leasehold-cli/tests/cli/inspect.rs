//! An operator asks who holds what, at three in the morning.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testkit::{Flavor, Setup, scaled};

use crate::harness::{LEASEHOLD, Stage, eventually};

#[test]
fn who_holds_it_since_when_who_waits_and_is_the_holder_there() {
    let stage = Stage::set();
    let holder = stage
        .leasehold("run --lease 120s --fair --note import job")
        .hold(&stage);
    let queue = || stage.leasehold("queue job").play().out;
    let waiter = stage
        .leasehold("run --fair --note second job")
        .playing("true")
        .start_until("it waits", || queue().contains("second"));
    let show = || stage.leasehold("show job").play().with_code(0).out;
    let pid = holder.pid().to_string();
    for text in ["fair, held by 1", "import", "yes", &pid, "second"] {
        eventually(text, || show().contains(text));
    }
    holder.gets(Signal::SIGKILL);
    eventually("it is seen that the holder is gone", || {
        show().contains("GONE")
    });
    let listed = stage.leasehold("ls j*").play().with_code(0).out;
    assert!(listed.contains("GONE"), "{listed}");
    // The lock is given to the next without waiting for the lease.
    stage.leasehold("release --force job").play().with_code(0);
    waiter.ends().with_code(0);
    eventually("all is over", || stage.is_free("job"));
    stage
        .leasehold("show job")
        .play()
        .with_code(1)
        .saying("nobody holds `job`");
    assert_eq!(stage.leasehold("show --json job").play().out, "null\n");
    assert_eq!(stage.leasehold("ls").play().with_code(0).out, "");
}

#[test]
fn kept_lock_shows_as_kept_and_can_be_freed() {
    let stage = Stage::set();
    for kind in ["", "--fair"] {
        let job = format!("run -n --at-least 1h {kind} job");
        let job = || stage.leasehold(&job).playing("true").play();
        job().with_code(0);
        for words in ["ls", "show job"] {
            let shown = stage.leasehold(words).play().with_code(0).out;
            assert!(shown.contains("kept"), "{shown}");
            assert!(shown.contains("59m") || shown.contains("1h"), "{shown}");
            assert!(!shown.contains("GONE"), "{shown}");
        }
        let json = stage.leasehold("show --json job").play().out;
        assert!(json.contains(r#""released":true"#), "{json}");
        job().with_code(75).saying("released, kept for");
        let freed = stage.leasehold("release --force job").play();
        freed
            .with_code(0)
            .saying("freed `job`, last held by process");
        assert!(stage.is_free("job"));
    }
}

#[test]
fn on_the_screen_a_lock_is_taken_away_only_when_that_is_allowed_and_confirmed() {
    let stage = Stage::set();
    let holder = stage.leasehold("run --note import job").hold(&stage);
    let screen = |words: &str, keys: &[(&str, &str)]| {
        let script =
            format!("stty rows 20 cols 100; timeout --foreground 60 {LEASEHOLD} top {words}");
        let mut watching = stage.on_a_terminal(&script).start();
        let mut typing = watching.take_keys();
        let (mut output, mut shown) = (watching.take_out(), String::new());
        let mut read = |shown: &mut String| {
            let mut piece = [0; 4096];
            let length = output.read(&mut piece).unwrap();
            shown.push_str(&String::from_utf8_lossy(&piece[..length]));
            length > 0
        };
        for (seen, key) in keys {
            while !shown.contains(seen) {
                assert!(read(&mut shown), "no {seen} in {shown}");
            }
            typing.write_all(key.as_bytes()).unwrap();
        }
        while read(&mut shown) {}
        watching.ends().with_code(0);
    };
    screen("", &[("import", "r"), ("--allow-release", "y"), ("", "q")]);
    let question = "stopped:";
    let refuse = [("import", "r"), (question, "n"), ("", "q")];
    screen("--allow-release", &refuse);
    assert!(!stage.is_free("job"));
    let confirm = [("import", "r"), (question, "y"), ("took", "q")];
    screen("--allow-release", &confirm);
    holder.ends().with_code(76);
    assert!(stage.is_free("job"));
}

#[test]
fn a_lock_is_waited_for_until_it_is_free() {
    let stage = Stage::set();
    stage.leasehold("wait job").play().with_code(0);
    let holder = stage.leasehold("run job").hold(&stage);
    let before = stage.waiting("job");
    let impatient = stage.leasehold("wait -w 200ms job").play();
    impatient.with_code(75).saying("held by process");
    let waiter = stage.leasehold("wait job");
    let waiter = waiter.start_until("it waits", || stage.waiting("job") == before + 1);
    stage.go();
    waiter.ends().with_code(0);
    assert!(stage.is_free("job"));
    holder.ends().with_code(0);
}

#[test]
fn a_lock_can_be_stolen() {
    let stage = Stage::set();
    let holder = stage.leasehold("run job").hold(&stage);
    let thief = stage
        .leasehold("steal -w 60s job")
        .playing("echo mine")
        .play()
        .saying("took `job` away from process");
    assert_eq!(thief.with_code(0).out, "mine\n");
    holder.ends().with_code(76);
}

#[test]
fn semaphores_and_latches_are_managed() {
    let stage = Stage::set();
    stage.leasehold("semaphore set gate 1").play().with_code(0);
    let show = || stage.leasehold("show gate").play().out;
    let one = stage.leasehold("run --permits 5 gate").hold(&stage);
    eventually("one is in", || show().contains("semaphore 1/1"));
    stage
        .leasehold("run -n --permits 5 gate")
        .playing("true")
        .play()
        .with_code(75);
    stage.leasehold("semaphore set gate 2").play().with_code(0);
    stage
        .leasehold("run -w 60s --permits 5 gate")
        .playing("true")
        .play()
        .with_code(0);
    stage.go();
    one.ends().with_code(0);

    stage.leasehold("latch set ready 2").play().with_code(0);
    stage.leasehold("latch set ready 2").play().with_code(1);
    let waiter = stage.leasehold("latch wait ready").start();
    stage
        .leasehold("latch wait -w 100ms ready")
        .play()
        .with_code(75);
    for shard in ["one", "one", "two"] {
        stage
            .leasehold(&format!("latch count-down ready --by {shard}"))
            .play()
            .with_code(0);
    }
    waiter.ends().with_code(0);
    stage.leasehold("latch delete ready").play().with_code(0);
    stage
        .leasehold("latch wait ready")
        .play()
        .with_code(1)
        .saying("there is no latch `ready`");
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let stage = Stage::set();
    let reader = stage.leasehold("run -s data").hold(&stage);
    stage
        .leasehold("run -w 60s -s data")
        .playing("true")
        .play()
        .with_code(0);
    stage
        .leasehold("run -n -x data")
        .playing("true")
        .play()
        .with_code(75);
    stage.go();
    reader.ends().with_code(0);
    stage
        .leasehold("run -w 60s -x data")
        .playing("true")
        .play()
        .with_code(0);
}

#[test]
fn ls_prints_a_line_for_each_lock() {
    let stage = Stage::set();
    fill(&stage, 1000);
    let listed = stage.leasehold("ls").play().with_code(0).out;
    assert_eq!(listed.lines().count(), 1000 + 1);
}

#[test]
#[ignore = "deep: measures the first line, memory and slow calls"]
fn a_million_locks_are_listed_from_the_first_second_on() {
    let count = scaled(100_000);
    let setup = Setup::default().option("slowlog-log-slower-than", "5000");
    let stage = Stage::at(setup.start(&Flavor::one()));
    fill(&stage, count);
    stage.server.tell(&["SLOWLOG", "RESET"]);
    let start = Instant::now();
    let mut list = stage.leasehold("ls").start();
    let out = list.take_out();
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
    list.ends().with_code(0);
    let slow = stage.server.ask(&["SLOWLOG", "LEN"]).int();
    let first = first.unwrap();
    println!(
        "{lines} lines in {took:?}, the first after {first:?}; {most} KiB at most, {slow} slow calls"
    );
    assert_eq!(lines, count + 1);
    assert!(first < Duration::from_secs(1), "{first:?}");
    assert!(most < 40_000, "{most} KiB");
    // A busy machine may take the processor away from the server in any call: one in ten thousand, not more.
    let calls = stage.server.info("total_commands_processed");
    assert!(
        slow as f64 <= 1.0 + calls / 10_000.0,
        "{slow} of {calls}: {:?}",
        stage.server.ask(&["SLOWLOG", "GET", "10"])
    );
}

/// Locks as the library would have taken them.
fn fill(stage: &Stage, count: u64) {
    const MAKE: &str = "for n = ARGV[1], ARGV[2] do redis.call('SET', 'lock:job:' .. n, \
                        string.format('lh1 %032x 1763000000000 %d web-%d nightly', n, n % 30000, n % 100), 'PX', 3600000) end";
    let mut from = 1;
    while from <= count {
        let to = (from + 9_999).min(count);
        stage
            .server
            .tell(&["EVAL", MAKE, "0", &from.to_string(), &to.to_string()]);
        from = to + 1;
    }
}
