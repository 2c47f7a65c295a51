//! Programs that read the terminal, beside others that do.

use std::io::{Read, Write};

use nix::sys::signal::{Signal, kill};

use crate::harness::{Actor, LEASEHOLD, Stage, UNTIL_GO, eventually, foreground, processor_time};

/// Reads a line from the terminal, whatever its standard input is.
const READER: &str = "echo $$ > up; read line </dev/tty; echo \"$line\" > typed";

/// A stage with the program [`READER`].
fn with_reader() -> Stage {
    let stage = Stage::set();
    std::fs::write(stage.path("reader.sh"), READER).unwrap();
    stage
}

/// Runs a pipeline on a terminal, types a line for [`READER`] and ends.
fn type_to_the_reader(pipeline: &str) {
    let stage = with_reader();
    let script = format!("{pipeline}; true");
    let mut typist = stage.on_a_terminal(&script).leave(&stage, "up");
    typist.take_keys().write_all(b"hello\n").unwrap();
    assert_eq!(stage.left("typed"), "hello");
    stage.go();
    typist.ends().with_code(0);
    eventually("it is free", || stage.is_free("job"));
}

#[test]
fn program_with_piped_input_reads_the_terminal() {
    type_to_the_reader(&format!("echo piped | {LEASEHOLD} run job -- sh reader.sh"));
}

#[test]
fn program_amid_a_pipeline_reads_the_terminal() {
    type_to_the_reader(&format!(
        "echo piped | {LEASEHOLD} run job -- sh reader.sh | cat"
    ));
}

#[test]
fn reader_behind_the_command_reads_the_terminal() {
    let run = format!("{LEASEHOLD} run job -- sh -c 'echo up > started; {UNTIL_GO}'");
    type_to_the_reader(&format!(
        "{run} | sh -c 'until [ -e started ]; do sleep 0.05; done; . ./reader.sh'"
    ));
}

#[test]
fn writer_before_the_command_reads_the_terminal() {
    type_to_the_reader(&format!(
        "sh reader.sh | {LEASEHOLD} run job -- sh -c '{UNTIL_GO}'"
    ));
}

/// A shell with job control, on a terminal.
fn shell(stage: &Stage) -> Actor {
    let shell = stage.on_a_terminal("bash --norc --noprofile -i");
    shell.with(|command| command.env("PS1", "$ ")).start()
}

#[test]
fn command_in_the_background_is_not_stopped() {
    let stage = Stage::set();
    let mut shell = shell(&stage);
    let mut keys = shell.take_keys();
    writeln!(keys, "{LEASEHOLD} run job -- sh -c 'echo ran > ran' &").unwrap();
    assert_eq!(stage.left("ran"), "ran");
    writeln!(keys, "wait; exit 0").unwrap();
    shell.ends().with_code(0).releasing(&stage, "job");
}

#[test]
fn background_program_reads_once_in_the_foreground() {
    let stage = with_reader();
    let mut shell = shell(&stage);
    let mut keys = shell.take_keys();
    writeln!(keys, "{LEASEHOLD} run job -- sh reader.sh 2>said &").unwrap();
    let reader = stage.process("up");
    eventually("it is said what the program waits for", || {
        let said = std::fs::read_to_string(stage.path("said")).unwrap();
        said.contains("in the foreground")
    });
    assert_ne!(foreground(reader), reader);
    writeln!(keys, "fg").unwrap();
    eventually("the terminal is the program's", || {
        foreground(reader) == reader
    });
    writeln!(keys, "hello").unwrap();
    assert_eq!(stage.left("typed"), "hello");
    writeln!(keys, "exit 0").unwrap();
    shell.ends().with_code(0).releasing(&stage, "job");
}

#[test]
#[ignore = "deep: measures processor time"]
fn background_reader_costs_no_processor_time() {
    let stage = with_reader();
    let mut shell = shell(&stage);
    let mut keys = shell.take_keys();
    let line = format!("{LEASEHOLD} run job -- sh reader.sh & echo $! > command");
    writeln!(keys, "{line}").unwrap();
    let (command, reader) = (stage.process("command"), stage.process("up"));
    let before = processor_time(command);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let used = processor_time(command) - before;
    println!("{used:?} of three seconds");
    assert!(used < std::time::Duration::from_millis(300), "{used:?}");
    kill(reader, Signal::SIGKILL).unwrap();
    writeln!(keys, "wait; exit 0").unwrap();
    shell.ends().with_code(0);
}

#[test]
fn suspending_a_pipeline_does_not_stop_the_command() {
    let stage = Stage::set();
    let mut shell = shell(&stage);
    let mut keys = shell.take_keys();
    let program = format!("echo $$ > up; {UNTIL_GO}; echo end > end");
    writeln!(
        keys,
        "{LEASEHOLD} run job -- sh -c '{program}' 2>said | cat"
    )
    .unwrap();
    stage.process("up");
    keys.write_all(b"\x1a").unwrap();
    eventually("it is said", || {
        let said = std::fs::read_to_string(stage.path("said")).unwrap();
        said.contains("cannot be suspended")
    });
    stage.go();
    assert_eq!(stage.left("end"), "end");
    eventually("it is free", || stage.is_free("job"));
    // What was stopped beside it is the shell's business.
    writeln!(keys, "kill -KILL %1; exit 0\nexit 0").unwrap();
    shell.ends();
}

#[test]
fn killed_top_leaves_the_terminal_as_it_was() {
    let stage = Stage::set();
    let script = format!(
        "stty rows 20 cols 100; stty -a > before; sh -c 'echo $$ > pid; exec {LEASEHOLD} top'; \
         echo $? > code; stty -a > after; echo > done"
    );
    for (signal, code) in [(Signal::SIGTERM, "143"), (Signal::SIGINT, "130")] {
        let mut watching = stage.on_a_terminal(&script).start();
        let (mut output, mut shown) = (watching.take_out(), Vec::new());
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
        kill(stage.process("pid"), signal).unwrap();
        output.read_to_end(&mut shown).unwrap();
        watching.ends();
        let settings = |name| std::fs::read_to_string(stage.path(name)).unwrap();
        assert_eq!(settings("before"), settings("after"));
        assert_eq!(settings("code").trim(), code);
        let shown = String::from_utf8_lossy(&shown);
        assert!(shown.contains("\x1b[?1049l"), "still on the other screen");
    }
}
