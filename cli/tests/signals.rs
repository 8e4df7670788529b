//! What a signal leaves behind: what was there before, and nothing else.

#![cfg(all(feature = "cpu", target_os = "linux"))]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

const SIGNALS: [(&str, i32); 3] = [("HUP", 1), ("INT", 2), ("TERM", 15)];
const LONG: Duration = Duration::from_secs(60);

/// Kills what a failed test would leave running.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts the program in `folder`, through a shell that does `first`.
    fn start(folder: &Path, first: &str, arguments: &str) -> Self {
        let script = format!("{first} exec \"$0\" {arguments}");
        // What this test was started to ignore, by `nohup` say, it would hand on.
        let child = Command::new("env")
            .args(["--default-signal=HUP,INT,TERM", "sh", "-c", &script, env!("CARGO_BIN_EXE_crossccl")])
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        Running(child.unwrap())
    }

    fn wait_until(&mut self, what: impl Fn() -> bool) {
        let started = Instant::now();
        while !what() {
            assert!(self.0.try_wait().unwrap().is_none(), "ended before the signal");
            assert!(started.elapsed() < LONG, "did not come so far");
            sleep(Duration::from_millis(2));
        }
    }

    fn send(&self, signal: &str) {
        let kill = Command::new("sh").args(["-c", &format!("kill -{signal} {}", self.0.id())]).status();
        assert!(kill.unwrap().success());
    }

    fn end(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < LONG, "outlived the signal");
            sleep(Duration::from_millis(2));
        }
    }

    fn said(&mut self) -> String {
        std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap()
    }
}

fn content(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

/// How many temporary files there are.
fn temporary(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".crossccl-")).count()
}

/// `crossccl perf` that would go on for hours, over two files that exist.
const PERF: &str = "perf broadcast --ranks 2 --max-bytes 4K --iters 2000000000 --json out.json --plot out.svg";

fn perf_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("out.json"), "precious").unwrap();
    fs::write(folder.path().join("out.svg"), "precious").unwrap();
    folder
}

#[test]
fn perf_leaves_no_file() {
    for (name, number) in SIGNALS {
        let folder = perf_folder();
        let before = content(folder.path());
        let mut running = Running::start(folder.path(), "", PERF);
        running.wait_until(|| temporary(folder.path()) == 2);
        running.send(name);
        assert_eq!((running.end().signal(), &*running.said()), (Some(number), ""), "{name}");
        assert_eq!(content(folder.path()), before, "{name}");
    }
}

#[test]
fn reduce_scatter_leaves_the_output_that_was_there() {
    for (name, number) in SIGNALS {
        let folder = tempfile::tempdir().unwrap();
        // Four gigabytes that take no room, in pieces that take a minute.
        let bytes: u64 = 4 << 30;
        let header = format!(r#"{{"a":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
        let path = folder.path().join("x");
        fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(8 + header.len() as u64 + bytes).unwrap();
        fs::write(folder.path().join("out"), "precious").unwrap();
        let mut running = Running::start(folder.path(), "", "reduce-scatter x x --output out --piece-bytes 1K");
        let written = || {
            let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap());
            let mut files = files.filter(|file| file.file_name().to_string_lossy().starts_with(".crossccl-"));
            files.any(|file| file.metadata().is_ok_and(|facts| facts.len() > 0))
        };
        running.wait_until(written);
        running.send(name);
        assert_eq!((running.end().signal(), &*running.said()), (Some(number), ""), "{name}");
        assert_eq!(fs::read(folder.path().join("out")).unwrap(), b"precious", "{name}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "{name}: a file is left");
    }
}

/// It writes no file and so catches no signal.
#[test]
fn broadcast_writes_nothing() {
    for (name, number) in SIGNALS {
        let folder = tempfile::tempdir().unwrap();
        let mut running = Running::start(folder.path(), "", "broadcast --input /dev/stdin --ranks 2");
        // It waits for its standard input, whichever moment of its life this is.
        sleep(Duration::from_millis(100));
        running.send(name);
        assert_eq!((running.end().signal(), &*running.said()), (Some(number), ""), "{name}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{name}");
    }
}

/// As `nohup` does it, and shells with what runs in the background.
#[test]
fn a_signal_that_it_was_started_to_outlive() {
    let folder = perf_folder();
    let mut running = Running::start(folder.path(), "trap '' HUP INT;", PERF);
    running.wait_until(|| temporary(folder.path()) == 2);
    running.send("HUP");
    running.send("INT");
    sleep(Duration::from_millis(300));
    assert!(running.0.try_wait().unwrap().is_none(), "it died of it");
    assert_eq!(temporary(folder.path()), 2);
    running.send("TERM");
    assert_eq!(running.end().signal(), Some(15));
    assert_eq!(temporary(folder.path()), 0);
}
