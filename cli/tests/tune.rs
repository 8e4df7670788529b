//! `crossccl tune` and `crossccl perf --explain`, run as a user runs them.
#![cfg(feature = "cpu")]
#![allow(missing_docs)]

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

fn crossccl(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crossccl"));
    command.args(arguments.split_whitespace()).current_dir(folder).env_remove("CROSSCCL_TUNING");
    command
}

fn run(folder: &Path, arguments: &str) -> Output {
    crossccl(folder, arguments).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

fn ok(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

const SMALL: &str = "--ranks 3 --min-bytes 1K --max-bytes 64K --factor 8 --iters 3 --warmup 1";

/// Measures, writes rows, and communicators that are pointed to them do as they say.
#[test]
fn rows_are_measured_written_and_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    // Nothing can be so much faster: what is chosen now stays, in one row a collective.
    let output = run(folder, &format!("tune {SMALL} --blocks 1,2 --margin 100 --output rows.toml"));
    assert!(ok(&output).ends_with(" rows in rows.toml\n"), "{}", text(&output.stdout));
    let rows = fs::read_to_string(folder.join("rows.toml")).expect("the rows");
    assert!(rows.starts_with("# crossccl ") && rows.contains("3 ranks, apart, on virtual device * of "), "{rows}");
    let tuning = crossccl::Tuning::parse(&rows, "rows").expect("a tuning file");
    assert!(tuning.rows().any(|row| row.collective == crossccl::Tuned::Broadcast), "{rows}");
    assert!(tuning.rows().any(|row| row.collective == crossccl::Tuned::ReduceScatter), "{rows}");
    assert_eq!(tuning.rows().last().and_then(|row| row.bytes_up_to), Some(64 << 10), "{rows}");
    // What was measured on the way is gone.
    assert_eq!(fs::read_dir(folder).expect("list").count(), 1);

    let explain = |folder: &Path| {
        let mut command =
            crossccl(folder, "perf broadcast --ranks 3 --min-bytes 64K --max-bytes 1M --factor 16 --explain");
        command.env("CROSSCCL_TUNING", "rows.toml").output().expect("the binary starts")
    };
    let output = explain(folder);
    let told: Vec<&str> = ok(&output).lines().filter(|line| line.starts_with("chosen: ")).collect();
    assert!(told[0].contains(" of rows.toml says so"), "{told:?}");
    assert!(told[1].ends_with("since the model has it fastest"), "{told:?}");

    // Once more only if that is wanted.
    let output = run(folder, &format!("tune {SMALL} --output rows.toml"));
    let expected = "crossccl: tune: rows.toml is there already; give another --output, or --force\n";
    assert_eq!((text(&output.stderr), output.status.code()), (expected, Some(2)));

    // A file that is wrong is told with its line, by whatever uses it.
    fs::write(folder.join("rows.toml"), "version = 1\n[[row]]\nranks = 2\n").expect("write");
    let output = explain(folder);
    assert_eq!(text(&output.stderr), "crossccl: tuning: rows.toml, line 2: missing field `device`\n");
    assert_eq!(output.status.code(), Some(2));
    fs::remove_file(folder.join("rows.toml")).expect("remove");
    let output = explain(folder);
    assert!(text(&output.stderr).starts_with("crossccl: tuning: rows.toml: cannot open it: "), "{output:?}");
}

/// What it would read or write is looked at before the work.
#[cfg(unix)]
#[test]
fn names_of_what_is_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let refused = |arguments: &str, error: &str| {
        let output = run(folder, arguments);
        assert_eq!((text(&output.stderr), text(&output.stdout)), (&*format!("crossccl: {error}\n"), ""), "{arguments}");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
    };
    let made = Command::new("mkfifo").args(["pipe", "rows.toml.measured"]).current_dir(folder).status();
    assert!(made.expect("mkfifo").success());
    let file = "give the name of a file";
    refused("tune --output none/", &format!("--output none/: is the name of a folder; {file}"));
    refused("tune --output . --force", &format!("--output .: is the name of a folder; {file}"));
    refused("tune --output pipe --force", &format!("--output pipe: is a pipe; {file}"));
    // Opening it would wait for ever.
    let anew = "--restart measures all of it anew";
    refused(&format!("tune {SMALL} --output rows.toml"), &format!("tune: rows.toml.measured: is a pipe; {anew}"));
    for (name, what) in [("pipe", "a pipe, a socket or a device"), (".", "a folder")] {
        let mut command = crossccl(folder, "perf broadcast --explain");
        let output = command.env("CROSSCCL_TUNING", name).output().expect("the binary starts");
        let expected = format!("crossccl: tuning: {name}: expected a regular file, got {what}\n");
        assert_eq!((text(&output.stderr), output.status.code()), (&*expected, Some(2)));
    }
    assert_eq!(fs::read_dir(folder).expect("list").count(), 2);
}

/// Killed in the middle, it goes on where it was.
#[test]
fn an_interrupted_run_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let beside = folder.join("rows.toml.measured");
    let long = "tune --ranks 2 --min-bytes 1K --max-bytes 16M --factor 2 --iters 30 --warmup 1 --output rows.toml";
    let mut child =
        crossccl(folder, long).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
    let begin = Instant::now();
    let points = |text: &str| text.matches("one-stage").count();
    while fs::read_to_string(&beside).map_or(0, |text| points(&text)) < 2 {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing was measured");
        assert!(child.try_wait().expect("a child").is_none(), "it was done before it could be killed");
        sleep(Duration::from_millis(1));
    }
    child.kill().expect("kill");
    child.wait().expect("a child");
    assert!(!folder.join("rows.toml").exists());
    let left = fs::read_to_string(&beside).expect("what was measured");
    assert!(points(&left) >= 2, "{left}");

    // Another run's points are not taken.
    let other = run(folder, "tune --ranks 3 --max-bytes 1K --output rows.toml");
    let told = text(&other.stderr);
    assert!(told.starts_with("crossccl: tune: rows.toml.measured: left by another run (crossccl "), "{told}");
    assert!(told.ends_with("; --restart measures all of it anew\n"), "{told}");
    assert_eq!(other.status.code(), Some(2));

    // The same run with other sizes: what both have is not measured again.
    let short = "tune --ranks 2 --min-bytes 1K --max-bytes 2K --factor 2 --iters 30 --warmup 1 --output rows.toml";
    let output = run(folder, short);
    ok(&output);
    let told = text(&output.stderr);
    assert!(told.starts_with("crossccl: goes on: ") && told.ends_with(" points are in rows.toml.measured\n"), "{told}");
    assert!(folder.join("rows.toml").exists() && !beside.exists());

    // What is no such file is told, not overwritten.
    fs::write(&beside, "{\"points\": [").expect("write");
    let output = run(folder, &format!("{short} --force"));
    assert!(
        text(&output.stderr).starts_with("crossccl: tune: rows.toml.measured: not what a run leaves: "),
        "{output:?}"
    );
    ok(&run(folder, &format!("{short} --force --restart")));
}

/// What was chosen, why, what it should take, and the runner-up; nothing is measured.
#[test]
fn explanations() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(folder.path(), "perf broadcast --ranks 4 --min-bytes 1M --max-bytes 1M --explain");
    let told = ok(&output);
    assert!(told.starts_with("broadcast of 1048576 bytes, 4 ranks: host memory, "), "{told}");
    assert!(told.contains("\nchosen: one-stage, ") && told.contains(", since the model has it fastest\n"), "{told}");
    assert!(told.contains(" us = launch ") && told.contains("(runner-up: two-stage-"), "{told}");
    assert!(told.contains("\n  low-latency       not weighed: "), "{told}");
    let output = run(folder.path(), "perf reduce-scatter --ranks 4 --max-bytes 1K --algorithm one-stage --explain");
    assert!(ok(&output).contains("chosen: one-stage, 1 block, since it was asked for\n"), "{output:?}");
    for file in ["--json x.json", "--plot x.svg"] {
        let output = run(folder.path(), &format!("perf broadcast --explain {file}"));
        assert_eq!((text(&output.stdout), output.status.code()), ("", Some(2)), "{output:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 0);
}
