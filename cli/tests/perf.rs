//! `crossccl info` and `crossccl perf`, run as a user runs them.

use std::process::{Command, Output};

fn crossccl(arguments: &str) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_crossccl")).args(arguments.split_whitespace()).output();
    output.expect("the binary starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// The exact text of a refusal, on standard error alone, with exit status 2.
fn refused(arguments: &str, expected: &str) {
    let output = crossccl(arguments);
    assert_eq!(text(&output.stderr), expected, "{arguments}");
    assert_eq!(output.status.code(), Some(2), "{arguments}");
    assert_eq!(text(&output.stdout), "", "{arguments}");
}

#[cfg(feature = "cpu")]
mod cpu {
    use super::*;

    /// Runs, expects success, and returns the cells of each row.
    fn rows(arguments: &str) -> Vec<Vec<String>> {
        let output = crossccl(&format!("perf {arguments} --iters 2 --warmup 1"));
        assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)), "{arguments}");
        table(text(&output.stdout))
    }

    fn table(stdout: &str) -> Vec<Vec<String>> {
        let wrong = stdout.lines().find(|l| l.starts_with("# wrong: ")).expect("a total");
        assert!(wrong.starts_with("# wrong: 0 of ") && !wrong.contains(" 0 elements"), "{stdout}");
        assert!(stdout.lines().last().is_some_and(|l| l.starts_with("# avg busbw: ")), "{stdout}");
        let rows = stdout.lines().filter(|l| !l.starts_with('#'));
        let rows: Vec<Vec<_>> = rows.map(|l| l.split_whitespace().map(str::to_owned).collect()).collect();
        for row in &rows {
            assert_eq!(row.len(), 16, "{row:?}");
            assert!(["0", "-"].contains(&&*row[10]) && ["0", "-"].contains(&&*row[15]), "{row:?}");
        }
        rows
    }

    /// One column.
    fn column(rows: &[Vec<String>], at: usize) -> Vec<&str> {
        rows.iter().map(|r| &*r[at]).collect()
    }

    #[test]
    fn broadcast_of_every_dtype_from_every_root() {
        let rows = rows("broadcast --ranks 3 --dtype all --root all --min-bytes 8 --max-bytes 3000 --factor 7");
        // 8, 56, 392, 2744 bytes.
        assert_eq!(rows.len(), 10 * 3 * 4);
        assert_eq!(rows[1][..6], ["56", "14", "f32", "-", "0", "one-stage"]);
        assert_eq!(rows[4][..6], ["8", "2", "f32", "-", "1", "one-stage"]);
        assert_eq!(rows[119][..6], ["2744", "343", "u64", "-", "2", "one-stage"]);
    }

    #[test]
    fn broadcast_in_two_stages_and_rounds() {
        for (asked, form) in [
            ("two-stage", "two-stage-direct"),
            ("two-stage-staged", "two-stage-staged"),
            ("two-stage-direct", "two-stage-direct"),
        ] {
            let sizes = "--min-bytes 12 --max-bytes 8M --factor 500000";
            let rows = rows(&format!("broadcast --ranks 3 --algorithm {asked} {sizes}"));
            assert_eq!(column(&rows, 0), ["12", "6000000"]);
            assert_eq!(column(&rows, 5), [form; 2]);
        }
    }

    #[test]
    fn reduce_scatter_of_every_dtype_and_op() {
        // 67 * 8 bytes: no number of elements that 3 divides, for no dtype.
        let rows = rows("reduce-scatter --ranks 3 --dtype all --op all --min-bytes 536 --max-bytes 6000 --factor 11");
        assert_eq!(rows.len(), 10 * 5 * 2);
        assert_eq!(rows[0][..6], ["536", "134", "f32", "sum", "-", "one-stage"]);
        assert_eq!(rows[99][..6], ["5896", "737", "u64", "product", "-", "one-stage"]);
    }

    /// A group of one copies every bit, NaN included.
    #[test]
    fn reduce_scatter_with_the_kernels_of_fixed_rank_counts_and_of_one() {
        for ranks in [1, 2, 4, 8] {
            rows(&format!("reduce-scatter --ranks {ranks} --dtype all --op average --min-bytes 2440 --max-bytes 2440"));
        }
    }

    #[test]
    fn reduce_scatter_in_groups() {
        let rows =
            rows("reduce-scatter --ranks 6 --group-size 3 --dtype bf16 --op all --min-bytes 1000 --max-bytes 9000");
        assert_eq!(rows.len(), 10);
    }

    #[test]
    fn more_ranks_than_elements() {
        rows("reduce-scatter --ranks 5 --dtype u8 --min-bytes 1 --max-bytes 7 --factor 2");
        rows("broadcast --ranks 5 --dtype u8 --min-bytes 1 --max-bytes 7 --factor 2 --algorithm two-stage");
    }

    #[test]
    fn what_is_not_aligned() {
        for skipped in [1, 3] {
            let common = format!("--ranks 3 --dtype all --unalign {skipped} --min-bytes 1000 --max-bytes 4000");
            rows(&format!("broadcast {common}"));
            rows(&format!("broadcast {common} --algorithm two-stage-staged"));
            rows(&format!("reduce-scatter {common}"));
        }
    }

    #[test]
    fn bus_bandwidth_is_a_fraction_of_algorithm_bandwidth() {
        let rows = rows("reduce-scatter --ranks 4 --group-size 2 --min-bytes 1M --max-bytes 1M");
        let [algbw, busbw] = [8, 9].map(|at| rows[0][at].parse::<f64>().expect("a number"));
        assert!((busbw - algbw / 2.0).abs() <= 0.001, "{rows:?}");
    }

    #[test]
    fn places_can_be_chosen() {
        let size = "--min-bytes 64 --max-bytes 64 --ranks 2";
        let dashes = |rows: Vec<Vec<String>>| [6, 11].map(|at| rows[0][at..at + 5].iter().all(|c| c == "-"));
        assert_eq!(dashes(rows(&format!("broadcast {size} --in-place"))), [true, false]);
        assert_eq!(dashes(rows(&format!("broadcast {size} --out-of-place"))), [false, true]);
        assert_eq!(dashes(rows(&format!("reduce-scatter {size} --out-of-place --in-place"))), [false, false]);
    }

    #[test]
    fn along_another_axis_there_is_no_in_place_and_it_says_so_once() {
        let output = crossccl("perf reduce-scatter --ranks 3 --shape 5x7x3 --axis 1 --dtype all --op all --iters 1");
        assert_eq!(text(&output.stderr), "crossccl: in place is offered along axis 0 only: its columns show `-`\n");
        assert_eq!(output.status.code(), Some(0));
        let rows = table(text(&output.stdout));
        assert_eq!(rows.len(), 50);
        assert_eq!(rows[0][..2], ["420", "105"]);
        assert_eq!(rows[0][11..], ["-"; 5]);
        // Short runs, and the last axis.
        self::rows("reduce-scatter --ranks 4 --shape 37x9 --axis 1 --dtype f16 --out-of-place");
        self::rows("reduce-scatter --ranks 4 --shape 3x2 --axis 0");
    }

    #[test]
    fn json_has_the_configuration_and_the_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        let path = path.to_str().expect("text");
        std::fs::write(path, "what was there before").expect("writable");
        let table = rows(&format!(
            "reduce-scatter --ranks 3 --op max --dtype f64 --min-bytes 80 --max-bytes 320 --json {path}"
        ));
        let file = std::fs::read_to_string(path).expect("the file");
        let json: serde_json::Value = serde_json::from_str(&file).expect("JSON");
        assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(json["collective"], "reduce-scatter");
        assert_eq!((&json["backend"], &json["ranks"], &json["iters"]), (&"cpu".into(), &3.into(), &2.into()));
        assert!(json["cores"].as_u64() >= Some(1));
        let rows = json["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1]["bytes"], 320);
        assert_eq!((&rows[1]["dtype"], &rows[1]["op"]), (&"f64".into(), &"max".into()));
        for place in ["out_of_place", "in_place"] {
            assert!(rows[1][place]["time_us_p50"].as_f64() > Some(0.0));
            assert!(rows[1][place]["time_us_p99"].as_f64() >= rows[1][place]["time_us_p50"].as_f64());
            assert_eq!(rows[1][place]["wrong"], 0);
        }
        // The table has the same numbers: p50, p99, algbw, busbw of each place.
        for (row, cells) in rows.iter().zip(&table) {
            for (place, first) in [("out_of_place", 6), ("in_place", 11)] {
                let names = ["time_us_p50", "time_us_p99", "algbw_gb_per_s", "busbw_gb_per_s"];
                for (name, cell) in names.iter().zip(&cells[first..]) {
                    let (full, shown) =
                        (row[place][name].as_f64().expect("a number"), cell.parse::<f64>().expect("one"));
                    assert!((full - shown).abs() <= 0.006_f64.max(full * 1e-5), "{place} {name}: {full} as {shown}");
                }
            }
        }
        // Nothing else is left in the folder.
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn a_json_file_that_cannot_be_written_is_told_before_anything_is_measured() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("none").join("out.json");
        let output = crossccl(&format!("perf broadcast --json {}", missing.display()));
        assert_eq!((text(&output.stdout), output.status.code()), ("", Some(1)));
        let error = text(&output.stderr);
        let expected = format!("crossccl: --json {}: its folder ", missing.display());
        assert!(error.starts_with(&expected) && error.lines().count() == 1, "{error}");
        let here = folder.path().display();
        refused(
            &format!("perf broadcast --json {here}"),
            &format!("crossccl: --json {here}: is the name of a folder; give the name of a file\n"),
        );
    }

    #[test]
    fn files_that_would_replace_what_they_should_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path().display();
        let missing = format!("{here}/none");
        let output = crossccl(&format!("perf broadcast --plot {missing}/a.svg"));
        assert_eq!((text(&output.stdout), output.status.code()), ("", Some(1)));
        let error = format!("--plot {missing}/a.svg: its folder {missing} does not exist; create it first");
        assert_eq!(text(&output.stderr), format!("crossccl: {error}\n"));
        for (arguments, error) in [
            ("perf --plot a.png", "--plot a.png: the picture is an SVG; give a name that ends in .svg".to_owned()),
            ("perf --plot a", "--plot a: the picture is an SVG; give a name that ends in .svg".into()),
            (
                &*format!("perf broadcast --json {here}/a.svg --plot {here}/./a.svg"),
                format!("--json {here}/a.svg and --plot {here}/./a.svg are one file; give another name to one of them"),
            ),
        ] {
            refused(arguments, &format!("crossccl: perf: {error}\n"));
        }
        std::fs::create_dir(folder.path().join("folder.svg")).expect("a folder");
        refused(
            &format!("perf --plot {here}/folder.svg"),
            &format!("crossccl: --plot {here}/folder.svg: is the name of a folder; give the name of a file\n"),
        );
        #[cfg(unix)]
        {
            let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket.svg")).expect("a socket");
            for option in ["--plot", "--json"] {
                refused(
                    &format!("perf broadcast {option} {here}/socket.svg"),
                    &format!("crossccl: {option} {here}/socket.svg: is a socket; give the name of a file\n"),
                );
            }
        }
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).expect("a folder").map(|f| f.expect("one").file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
    }

    #[test]
    fn what_the_library_refuses_is_a_usage_error() {
        for (arguments, expected) in [
            ("broadcast --root 4", "broadcast: root: expected a rank from 0 to 3, got 4"),
            (
                "broadcast --algorithm low-latency --min-bytes 1M --max-bytes 1M",
                "broadcast: the algorithm low-latency moves at most 65536 bytes from rank to rank in this communicator, \
                 and this broadcast has 1048576; use auto or one-stage",
            ),
            (
                "reduce-scatter --algorithm two-stage",
                "reduce_scatter: the algorithm two-stage is for broadcast; use auto, one-stage or low-latency",
            ),
            ("broadcast --max-blocks 129", "broadcast: max_blocks: expected 1 to 128, got 129"),
            (
                "reduce-scatter --axis -1",
                "reduce_scatter: axis: expected an axis of the shape [256], counted from 0, got -1",
            ),
            (
                "reduce-scatter --shape 8x8 --axis 2",
                "reduce_scatter: axis: expected an axis of the shape [8, 8], counted from 0, got 2",
            ),
            ("reduce-scatter --group-size 3", "reduce_scatter: group_size: expected a divisor of the 4 ranks, got 3"),
            ("reduce-scatter --group-size 0", "reduce_scatter: group_size: expected a divisor of the 4 ranks, got 0"),
            (
                "reduce-scatter --shape 8x8 --axis 1 --in-place",
                "perf reduce-scatter: in place is offered along axis 0 only, not along axis 1; leave out --in-place",
            ),
            ("broadcast --backend cuda", "this build has no cuda backend; build with `--features cuda`"),
        ] {
            refused(&format!("perf {arguments}"), &format!("crossccl: {expected}\n"));
        }
    }

    #[test]
    fn sizes_that_are_not_what_they_seem() {
        for (arguments, expected) in [
            (
                "broadcast --min-bytes 1001",
                "--min-bytes 1001 is not a multiple of the 4 bytes of f32; give a multiple, like 1000",
            ),
            (
                "broadcast --min-bytes 4 --dtype all",
                "--min-bytes 4 is not a multiple of the 8 bytes of f64; give a multiple, like 8",
            ),
            ("broadcast --min-bytes 0", "--min-bytes 0 measures nothing; give at least one element"),
            (
                "broadcast --max-bytes 512",
                "--min-bytes 1024 is above --max-bytes 512; lower the one or raise the other",
            ),
            (
                "reduce-scatter --shape 4294967296x4294967296",
                "--shape [4294967296, 4294967296] has more elements than can be counted; give a smaller one",
            ),
            (
                "reduce-scatter --shape 4611686018427387904",
                "4611686018427387904 elements of f32 are more bytes than 64 bits can count; give a smaller --shape",
            ),
        ] {
            refused(&format!("perf {arguments}"), &format!("crossccl: {expected}\n"));
        }
        // `tune` has the same sizes; its errors once said `perf`.
        for (arguments, expected) in [
            ("--min-bytes 1", "--min-bytes 1 is not a multiple of the 4 bytes of f32; give a multiple, like 4"),
            ("--min-bytes 0", "--min-bytes 0 measures nothing; give at least one element"),
        ] {
            refused(&format!("tune {arguments} --output none.toml"), &format!("crossccl: {expected}\n"));
        }
    }

    /// Runs in a shell that does `first`.
    #[cfg(target_os = "linux")]
    fn limited(first: &str, arguments: &str) -> Output {
        let script = format!("{first} && exec \"$0\" {arguments}");
        let output = Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_crossccl")]).output();
        output.expect("the binary starts")
    }

    /// A size that the process has no memory for is refused by name, before anything is taken for it. Those that fit
    /// are measured, and all files have them. (All was lost with it; in a container the process was killed.)
    #[cfg(target_os = "linux")]
    #[test]
    fn sizes_that_do_not_fit_take_nothing_along() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let (json, svg) = (path("out.json"), path("out.svg"));
        let sizes = "--min-bytes 4K --max-bytes 64G --factor 4096 --iters 2";
        let files = format!("--json {} --plot {}", json.display(), svg.display());
        let limit = "ulimit -v 4000000";
        let output = limited(limit, &format!("perf broadcast --ranks 2 --dtype bf16 {sizes} {files}"));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        let begin = "crossccl: 68719476736 bytes of bf16 for 2 ranks: this takes about 320.0 GiB of memory, and the \
                     limit of its address space (ulimit -v) leaves ";
        let end = "; lower --max-bytes or --ranks (1 of 3 sizes of perf broadcast were not measured)\n";
        assert!(error.starts_with(begin) && error.ends_with(end), "{error}");
        assert_eq!(table(text(&output.stdout)).len(), 2);
        let document: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&json).expect("a document")).expect("JSON");
        assert_eq!(document["rows"].as_array().map(Vec::len), Some(2));
        assert_eq!(document["failure"].as_str(), Some(error["crossccl: ".len()..].trim_end()));
        let svg = std::fs::read_to_string(&svg).expect("a picture");
        assert!(svg.contains("not complete: some sizes could not be measured"), "{svg}");

        // What was there is not replaced by nothing.
        std::fs::write(&json, "precious").expect("writable");
        let none = "--min-bytes 64G --max-bytes 64G --iters 2";
        let output = limited(limit, &format!("perf reduce-scatter --ranks 2 {none} --json {}", json.display()));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("bytes of f32 for 2 ranks: this takes about 320.0 GiB"), "{output:?}");
        assert_eq!(std::fs::read_to_string(&json).expect("the file"), "precious");

        // The ranks themselves, and `tune`, before hours of work.
        let output = limited("ulimit -v 120000", "perf broadcast --ranks 64 --max-bytes 1K");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).starts_with("crossccl: 64 ranks: this takes about "), "{output:?}");
        let output = limited(limit, &format!("tune --max-bytes 64G --output {}", path("rows.toml").display()));
        assert_eq!((text(&output.stdout), output.status.code()), ("", Some(1)), "{output:?}");
        assert!(text(&output.stderr).ends_with("; lower --max-bytes or --ranks\n"), "{output:?}");
        assert!(!path("rows.toml").exists() && !path("rows.toml.measured").exists());
    }

    /// Who reads the table goes away: the document has what was measured until then.
    #[test]
    fn a_table_that_nobody_reads_any_more() {
        use std::io::{BufRead, BufReader};
        let folder = tempfile::tempdir().expect("a folder");
        let json = folder.path().join("out.json");
        let mut child = Command::new(env!("CARGO_BIN_EXE_crossccl"))
            .args("perf broadcast --ranks 2 --min-bytes 1K --max-bytes 4M --factor 2 --iters 2 --json".split(' '))
            .arg(&json)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        while line.is_empty() || line.starts_with('#') {
            line.clear();
            assert!(lines.read_line(&mut line).expect("a line") > 0, "the table has a row");
        }
        drop(lines);
        let output = child.wait_with_output().expect("it ends");
        // It may have been done before the pipe was closed; what it wrote into the pipe nobody knows.
        if output.status.code() != Some(0) {
            let error = text(&output.stderr);
            assert!(error.starts_with("crossccl: perf: cannot write to standard output: "), "{error}");
        }
        let document: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&json).expect("a document")).expect("JSON");
        assert!(document["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{document}");
    }

    /// No thread can be had with stacks that no machine has room for.
    #[test]
    fn threads_that_cannot_be_had_are_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = |arguments: &str| {
            let output = Command::new(env!("CARGO_BIN_EXE_crossccl"))
                .args(arguments.split_whitespace())
                .current_dir(folder.path())
                .env("RUST_MIN_STACK", (1u64 << 46).to_string())
                .output()
                .expect("the binary starts");
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            text(&output.stderr).to_owned()
        };
        let advice = "raise the limit of processes and threads (`ulimit -u`, or pids.max of a container), or ";
        // Of the library's streams, of the command's own, and of what cleans up after a signal.
        let error = run("perf broadcast --ranks 2 --max-bytes 1K");
        assert!(error.starts_with("crossccl: cpu device 0 (rank 0): thread failed with code "), "{error}");
        assert!(error.ends_with(&format!("; {advice}use fewer ranks\n")), "{error}");
        let error = run("perf broadcast --ranks 2 --max-bytes 1K --drive inline");
        assert!(error.starts_with("crossccl: a thread for each rank cannot be started: "), "{error}");
        assert!(error.contains(&format!("; end other processes, {advice}lower --ranks")), "{error}");
        let error = run("perf --plot a.svg");
        let begin = "crossccl: --plot a.svg: the thread that cleans up after a signal cannot be started: ";
        assert!(error.starts_with(begin), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0);
    }

    #[test]
    fn what_takes_the_time_is_told_and_caches_are_emptied_on_request() {
        for (option, expected) in [("", "host, hot"), ("--time host --cold", "host, cold")] {
            let output = crossccl(&format!("perf broadcast --ranks 2 --max-bytes 1K --iters 2 --warmup 1 {option}"));
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            let stdout = text(&output.stdout);
            assert!(stdout.contains(&format!("then 2 timed by {expected};")), "{stdout}");
        }
        for (option, has) in [("--time events", "events that take the time"), ("--graph", "graphs")] {
            let expected =
                format!("crossccl: perf: the cpu backend has no {has}; leave it to the host (--time host)\n");
            refused(&format!("perf broadcast {option}"), &expected);
        }
        let both = crossccl("perf broadcast --graph --time host");
        assert!(text(&both.stderr).contains("cannot be used with"), "{}", text(&both.stderr));
    }

    /// A thread a rank, with streams that have threads of their own and with such that have none.
    #[test]
    fn threads_drive_a_rank_each() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        for (drive, told) in [
            ("one-call", "3 ranks (one call for all)"),
            ("thread-a-rank", "3 ranks (a thread each)"),
            ("inline", "3 ranks (a thread each, which runs the rank's blocks itself)"),
        ] {
            let sizes = "--ranks 3 --min-bytes 1K --max-bytes 2M --factor 40";
            for what in ["broadcast --root all", "reduce-scatter --op all --dtype bf16 --unalign 1"] {
                let json = path.display();
                let command = format!("perf {what} {sizes} --drive {drive} --iters 2 --warmup 1 --json {json}");
                let output = crossccl(&command);
                assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)), "{command}");
                let stdout = text(&output.stdout);
                assert!(stdout.contains(&format!("# backend cpu, {told}, ")), "{stdout}");
                assert_eq!(table(stdout).len(), if what.starts_with("broadcast") { 9 } else { 15 }, "{stdout}");
                let json = std::fs::read_to_string(&path).expect("the file");
                let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
                assert_eq!((&json["driven_by"], &json["timed_by"]), (&drive.into(), &"host".into()));
            }
            let groups = format!("reduce-scatter --ranks 4 --group-size 2 --max-bytes 1K --drive {drive} --cold");
            assert_eq!(rows(&groups).len(), 1);
            let along = format!("reduce-scatter --ranks 3 --shape 5x7 --axis 1 --out-of-place --drive {drive}");
            assert_eq!(rows(&along).len(), 1);
        }
        for (drive, option) in [("inline", "--graph"), ("thread-a-rank", "--time events")] {
            refused(
                &format!("perf broadcast --drive {drive} {option}"),
                &format!(
                    "crossccl: perf: --drive {drive} is timed by the host; leave out --time and --graph, or --drive\n"
                ),
            );
        }
    }

    /// A rank that fails ends all of them, and the command.
    #[test]
    fn threads_that_wait_in_vain_end() {
        for drive in ["thread-a-rank", "inline"] {
            // Nobody comes within a nanosecond.
            let output = crossccl(&format!("perf broadcast --ranks 4 --timeout 0.000000001 --drive {drive}"));
            let error = text(&output.stderr);
            assert!(error.starts_with("crossccl: broadcast") && error.contains(": waited "), "{error}");
            assert_eq!(output.status.code(), Some(1), "{error}");
        }
    }

    /// Without a number of calls, until the median is stable: told in the head, by row in the document, and below the table
    /// where it is not.
    #[test]
    fn calls_are_repeated_until_the_median_is_stable() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        let run = |options: &str| {
            let size = "--ranks 2 --min-bytes 1K --max-bytes 4K";
            let output = crossccl(&format!("perf broadcast {size} {options} --json {}", path.display()));
            assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)), "{options}");
            assert_eq!(table(text(&output.stdout)).len(), 2);
            let json = std::fs::read_to_string(&path).expect("the file");
            (text(&output.stdout).to_owned(), serde_json::from_str::<serde_json::Value>(&json).expect("JSON"))
        };
        let places = |json: &serde_json::Value| -> Vec<(u64, Option<bool>, f64)> {
            let rows = json["rows"].as_array().expect("rows").iter();
            let places = rows.flat_map(|row| [row["out_of_place"].clone(), row["in_place"].clone()]);
            let place = |m: serde_json::Value| {
                let interval = m["time_us_p50_interval"].as_array().expect("an interval").clone();
                let [low, p50, high] =
                    [&interval[0], &m["time_us_p50"], &interval[1]].map(|n| n.as_f64().expect("a number"));
                assert!(low <= p50 && p50 <= high, "{m}");
                let percent = m["p50_within_percent"].as_f64().expect("a number");
                assert!(((p50 - low).max(high - p50) / p50 * 100.0 - percent).abs() < 0.01, "{m}");
                (m["calls"].as_u64().expect("a number"), m["stable"].as_bool(), percent)
            };
            places.map(place).collect()
        };

        // Whatever they take, that is stable.
        let (stdout, json) = run("--within 1000000000");
        let until = "until their median (p50) is known within 1000000000 %, for 0.25 s at most;";
        assert!(stdout.contains(&format!("# 5 calls to warm up, then calls timed by host, hot, {until}")), "{stdout}");
        assert!(!stdout.contains("not stable"), "{stdout}");
        assert!(places(&json).iter().all(|(calls, stable, _)| (*calls, *stable) == (20, Some(true))), "{json}");
        assert_eq!(
            (&json["iters"], &json["within_percent"], &json["max_time_s"]),
            (&().into(), &1e9.into(), &0.25.into())
        );

        // Nothing is, on a clock that counts nanoseconds: one place or another of 20 calls and more must differ.
        let (stdout, json) = run("--within 0.000001 --max-time 0.02");
        let places_of = places(&json);
        let unstable = places_of.iter().filter(|(_, stable, _)| *stable == Some(false)).count();
        assert!(unstable > 0, "{json}");
        assert!(places_of.iter().all(|(_, stable, percent)| *stable == Some(*percent <= 0.000001)), "{json}");
        assert!(stdout.contains(&format!("\n# not stable in its time: the median of {unstable} of 4; ")), "{stdout}");
        assert!(places_of.iter().any(|(calls, ..)| *calls > 20), "{json}");

        // A number of calls is so many, stable or not.
        let (stdout, json) = run("--iters 21");
        assert!(stdout.contains("then 21 timed by host, hot;") && !stdout.contains("not stable"), "{stdout}");
        assert!(places(&json).iter().all(|(calls, stable, _)| (*calls, *stable) == (21, None)), "{json}");
        assert_eq!((&json["iters"], &json["within_percent"]), (&21.into(), &().into()));
        for option in ["--within 1", "--max-time 1"] {
            let output = crossccl(&format!("perf broadcast --iters 3 {option}"));
            assert!(text(&output.stderr).contains("cannot be used with"), "{}", text(&output.stderr));
            assert_eq!(output.status.code(), Some(2));
        }
    }

    #[test]
    fn info_shows_the_cpu_and_its_peers() {
        let output = crossccl("info --ranks 3");
        assert_eq!((text(&output.stderr), output.status.code()), ("", Some(0)));
        let stdout = text(&output.stdout);
        assert!(stdout.starts_with(&format!("crossccl {}\n", env!("CARGO_PKG_VERSION"))), "{stdout}");
        for line in [
            "limits: 64 ranks, 128 blocks a launch",
            "  cpu   compiled in      available",
            "         0   1   2",
            "     0   -  ok  ok",
            "     2  ok  ok   -",
            "  link: shared memory: every pair",
            "  self-test: each of these wrote to and read back from each other one",
        ] {
            assert!(stdout.lines().any(|l| l == line), "{line}\n{stdout}");
        }
        assert!(stdout.contains("  64 virtual devices on "), "{stdout}");
    }
}

/// What the parser of the command line refuses, in its form.
#[test]
fn arguments_that_make_no_sense() {
    const TAIL: &str = "\n\nFor more information, try '--help'.\n";
    let dtypes = "the dtypes are f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64";
    let size = "is not a size; give whole bytes, like 4096, or with K, M or G, like 64M";
    for (arguments, option, value, why) in [
        ("broadcast --ranks 0", "--ranks <N>", "0", "0 is not in 1..=64".to_owned()),
        ("broadcast --ranks 65", "--ranks <N>", "65", "65 is not in 1..=64".into()),
        ("broadcast --dtype f31", "--dtype <DTYPE>", "f31", format!("unknown dtype `f31`; {dtypes}, or all")),
        (
            "reduce-scatter --op mean",
            "--op <OP>",
            "mean",
            "unknown op `mean`; the ops are sum, average, min, max, product, or all".into(),
        ),
        (
            "broadcast --algorithm ring",
            "--algorithm <ALGORITHM>",
            "ring",
            "unknown algorithm `ring`; the algorithms are auto, one-stage, two-stage, two-stage-staged, \
             two-stage-direct, low-latency"
                .into(),
        ),
        (
            "broadcast --backend metal",
            "--backend <BACKEND>",
            "metal",
            "unknown backend `metal`; the backends are cpu, cuda, rocm".into(),
        ),
        ("broadcast --min-bytes 12Q", "--min-bytes <SIZE>", "12Q", format!("`12Q` {size}")),
        (
            "broadcast --max-bytes 99999999999G",
            "--max-bytes <SIZE>",
            "99999999999G",
            "`99999999999G` is more bytes than 64 bits can count; give a smaller size".into(),
        ),
        ("broadcast --factor 1", "--factor <N>", "1", "1 is not in 2..=4294967295".into()),
        ("broadcast --iters 0", "--iters <N>", "0", "0 is not in 1..=4294967295".into()),
        (
            "broadcast --within 0",
            "--within <PERCENT>",
            "0",
            "`0` is not a part of the median; give percent above 0, like 2.5".into(),
        ),
        (
            "broadcast --max-time never",
            "--max-time <SECONDS>",
            "never",
            "`never` is not a time limit; give seconds above 0, like 2.5".into(),
        ),
        (
            "broadcast --root first",
            "--root <RANK>",
            "first",
            "`first` is not a rank; give a number from 0, or all".into(),
        ),
        (
            "reduce-scatter --shape 8x",
            "--shape <SHAPE>",
            "8x",
            "`8x` is not a shape; give extents joined by x, like 1024x512".into(),
        ),
        (
            "broadcast --timeout 0",
            "--timeout <SECONDS>",
            "0",
            "`0` is not a time limit; give seconds above 0, like 2.5".into(),
        ),
    ] {
        refused(&format!("perf {arguments}"), &format!("error: invalid value '{value}' for '{option}': {why}{TAIL}"));
    }
    #[cfg(feature = "cpu")]
    for (short, op) in [("avg", "average"), ("prod", "product")] {
        let output = crossccl(&format!("perf reduce-scatter --op {short} --max-bytes 1K --iters 1"));
        assert!(text(&output.stdout).contains(&format!(" {op} ")), "{output:?}");
    }
    for option in ["--min-bytes 8", "--max-bytes 8", "--factor 2"] {
        let output = crossccl(&format!("perf reduce-scatter --shape 8 {option}"));
        assert!(text(&output.stderr).starts_with("error: the argument '--shape <SHAPE>' cannot be used with"));
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn help_has_examples() {
    for command in ["perf broadcast", "perf reduce-scatter"] {
        let output = crossccl(&format!("{command} --help"));
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains(&format!("Examples:\n  crossccl {command}\n")));
    }
}

#[test]
fn help_tells_what_the_times_are_and_where_the_picture_goes() {
    for command in ["perf broadcast", "perf reduce-scatter"] {
        let help = crossccl(&format!("{command} --help"));
        let help = text(&help.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        for told in [
            "p50 is their median: half of them took at most this long; p99 is what 99 of 100 took at most",
            "--plot <FILE.svg> Draw time (p50) and bus bandwidth over size into this file, too.",
        ] {
            assert!(help.contains(told), "{command}: {told}\n{help}");
        }
    }
    let help = crossccl("perf --help");
    assert!(text(&help.stdout).contains("--plot <FILE.svg>"), "{}", text(&help.stdout));
}

#[cfg(not(feature = "cpu"))]
#[test]
fn without_a_backend_it_says_so() {
    let output = crossccl("info");
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("no backend is compiled in: build with `--features cpu`"));
    refused("perf broadcast", "crossccl: this build has no cpu backend; build with `--features cpu`\n");
}

/// The README's first command. What it measures is run in release by .ci/run; here, that no name is needed.
#[cfg(feature = "cpu")]
#[test]
fn perf_needs_no_name() {
    let help = crossccl("perf --help");
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("Usage: crossccl perf [OPTIONS] [COMMAND]"), "{}", text(&help.stdout));
}
