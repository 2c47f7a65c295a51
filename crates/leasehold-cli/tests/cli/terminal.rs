//! Commands that read from the terminal, alone and in a pipeline.

use std::io::{Read, Write};

use nix::sys::signal::{Signal, kill};

use crate::harness::{
    Harness, LEASEHOLD, Running, UNTIL_STOPPED, cpu_time, eventually, foreground_group,
};

/// Reads a line from the terminal, not from standard input.
const READER: &str = "echo $$ > up; read line </dev/tty; echo \"$line\" > typed";

/// Returns a harness with [`READER`] in `reader.sh`.
fn with_reader() -> Harness {
    let harness = Harness::new();
    std::fs::write(harness.path("reader.sh"), READER).unwrap();
    harness
}

/// Runs a pipeline on a terminal, and types a line for [`READER`].
fn type_to_reader(pipeline: &str) {
    let harness = with_reader();
    let script = format!("{pipeline}; true");
    let mut terminal = harness
        .on_terminal(&script)
        .start_until_file(&harness, "up");
    terminal.take_stdin().write_all(b"hello\n").unwrap();
    assert_eq!(harness.wait_for_file("typed"), "hello");
    harness.stop_scripts();
    terminal.wait().expect_code(0);
    eventually("the lock is free", || harness.is_free("job"));
}

#[test]
fn command_with_piped_input_reads_terminal() {
    type_to_reader(&format!("echo piped | {LEASEHOLD} run job -- sh reader.sh"));
}

#[test]
fn command_inside_a_pipeline_reads_terminal() {
    type_to_reader(&format!(
        "echo piped | {LEASEHOLD} run job -- sh reader.sh | cat"
    ));
}

#[test]
fn process_after_run_in_pipeline_reads_terminal() {
    let run = format!("{LEASEHOLD} run job -- sh -c 'echo up > started; {UNTIL_STOPPED}'");
    type_to_reader(&format!(
        "{run} | sh -c 'until [ -e started ]; do sleep 0.05; done; . ./reader.sh'"
    ));
}

#[test]
fn process_before_run_in_pipeline_reads_terminal() {
    type_to_reader(&format!(
        "sh reader.sh | {LEASEHOLD} run job -- sh -c '{UNTIL_STOPPED}'"
    ));
}

/// Starts a shell with job control on a terminal.
fn shell(harness: &Harness) -> Running {
    let shell = harness.on_terminal("bash --norc --noprofile -i");
    shell.configure(|command| command.env("PS1", "$ ")).start()
}

#[test]
fn background_run_is_not_stopped() {
    let harness = Harness::new();
    let mut shell = shell(&harness);
    let mut keys = shell.take_stdin();
    writeln!(keys, "{LEASEHOLD} run job -- sh -c 'echo ran > ran' &").unwrap();
    assert_eq!(harness.wait_for_file("ran"), "ran");
    writeln!(keys, "wait; exit 0").unwrap();
    shell.wait().expect_code(0).expect_free(&harness, "job");
}

#[test]
fn background_command_reads_once_in_foreground() {
    let harness = with_reader();
    let mut shell = shell(&harness);
    let mut keys = shell.take_stdin();
    writeln!(keys, "{LEASEHOLD} run job -- sh reader.sh 2>stderr &").unwrap();
    let reader = harness.wait_for_pid("up");
    eventually("the wait for the terminal is reported", || {
        let stderr = std::fs::read_to_string(harness.path("stderr")).unwrap();
        stderr.contains("to the foreground")
    });
    assert_ne!(foreground_group(reader), reader);
    writeln!(keys, "fg").unwrap();
    eventually("the command has the terminal", || {
        foreground_group(reader) == reader
    });
    writeln!(keys, "hello").unwrap();
    assert_eq!(harness.wait_for_file("typed"), "hello");
    writeln!(keys, "exit 0").unwrap();
    shell.wait().expect_code(0).expect_free(&harness, "job");
}

#[test]
#[ignore = "deep: measures CPU time"]
fn background_reader_uses_no_cpu_time() {
    let harness = with_reader();
    let mut shell = shell(&harness);
    let mut keys = shell.take_stdin();
    let line = format!("{LEASEHOLD} run job -- sh reader.sh & echo $! > command");
    writeln!(keys, "{line}").unwrap();
    let (command, reader) = (harness.wait_for_pid("command"), harness.wait_for_pid("up"));
    let before = cpu_time(command);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let used = cpu_time(command) - before;
    println!("{used:?} of three seconds");
    assert!(used < std::time::Duration::from_millis(300), "{used:?}");
    kill(reader, Signal::SIGKILL).unwrap();
    writeln!(keys, "wait; exit 0").unwrap();
    shell.wait().expect_code(0);
}

#[test]
fn suspended_pipeline_does_not_stop_run() {
    let harness = Harness::new();
    let mut shell = shell(&harness);
    let mut keys = shell.take_stdin();
    let script = format!("echo $$ > up; {UNTIL_STOPPED}; echo end > end");
    writeln!(
        keys,
        "{LEASEHOLD} run job -- sh -c '{script}' 2>stderr | cat"
    )
    .unwrap();
    harness.wait_for_pid("up");
    keys.write_all(b"\x1a").unwrap();
    eventually("the refusal is reported", || {
        let stderr = std::fs::read_to_string(harness.path("stderr")).unwrap();
        stderr.contains("cannot be suspended")
    });
    harness.stop_scripts();
    assert_eq!(harness.wait_for_file("end"), "end");
    eventually("the lock is free", || harness.is_free("job"));
    // The shell cleans up the stopped rest of the pipeline.
    writeln!(keys, "kill -KILL %1; exit 0\nexit 0").unwrap();
    shell.wait();
}

#[test]
fn terminated_top_restores_the_terminal() {
    let harness = Harness::new();
    let script = format!(
        "stty rows 20 cols 100; stty -a > before; sh -c 'echo $$ > pid; exec {LEASEHOLD} top'; \
         echo $? > code; stty -a > after; echo > done"
    );
    for (signal, code) in [(Signal::SIGTERM, "143"), (Signal::SIGINT, "130")] {
        let mut watching = harness.on_terminal(&script).start();
        let (mut output, mut shown) = (watching.take_stdout(), Vec::new());
        let mut piece = [0; 4096];
        while !String::from_utf8_lossy(&shown).contains("quit") {
            let length = output.read(&mut piece).unwrap();
            assert!(
                length > 0,
                "no keys in {:?}",
                String::from_utf8_lossy(&shown)
            );
            shown.extend_from_slice(&piece[..length]);
        }
        kill(harness.wait_for_pid("pid"), signal).unwrap();
        output.read_to_end(&mut shown).unwrap();
        watching.wait();
        let settings = |name| std::fs::read_to_string(harness.path(name)).unwrap();
        assert_eq!(settings("before"), settings("after"));
        assert_eq!(settings("code").trim(), code);
        let shown = String::from_utf8_lossy(&shown);
        assert!(
            shown.contains("\x1b[?1049l"),
            "the alternate screen is still active"
        );
    }
}
