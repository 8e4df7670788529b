//! A process that ends with communicators alive: at once, with its own status, whatever they are at.
#![cfg(all(feature = "cpu", not(crossccl_no_kernels)))]
#![allow(missing_docs)]

use std::{
    cell::RefCell,
    process::{Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use crossccl::{Broadcast, Buffer, Communicator, Cpu, RankComm};

/// In the environment of a process that ends: how.
const HOW: &str = "EXIT_TEST_HOW";
/// The status that it ends with.
const STATUS: i32 = 42;

type Kept = (Communicator<Cpu>, Vec<Buffer<Cpu, u32>>);

static KEPT: OnceLock<Kept> = OnceLock::new();

thread_local! {
    static OF_THREAD: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

fn used() -> Kept {
    let comm = Communicator::<Cpu>::builder(0..3).build().expect("communicator");
    let mut data: Vec<_> = (0..3).map(|r| comm.buffer_from(r, &[r as u32; 1000]).expect("buffer")).collect();
    comm.broadcast_in_place(&mut data, 2).expect("launch").wait().expect("outcome");
    assert_eq!(data[0].to_vec().expect("read"), [2; 1000]);
    (comm, data)
}

/// Handles of which the first waits for a rank that never comes, without limit.
fn waiting() -> Vec<RankComm<Cpu>> {
    let ranks = Communicator::<Cpu>::builder(0..2).build().expect("communicator").into_ranks();
    let mut data = ranks[0].buffer::<u8>(100).expect("buffer");
    std::mem::forget(ranks[0].broadcast_in_place(&mut data, Broadcast::from_root(1).no_timeout()).expect("launch"));
    ranks
}

fn end(how: &str) {
    match how {
        "idle" => drop(KEPT.set(used())),
        "in flight" => {
            let (comm, mut data) = used();
            std::mem::forget(comm.broadcast_in_place(&mut data, 1).expect("launch"));
            let _ = KEPT.set((comm, data));
        }
        "waiting" => std::mem::forget(waiting()),
        "waiting in a thread" => {
            std::thread::spawn(|| {
                let ranks = waiting();
                let mut data = ranks[0].buffer::<u8>(100).expect("buffer");
                let what = Broadcast::from_root(1).no_timeout();
                let _ = ranks[0].broadcast_in_place(&mut data, what).expect("launch").wait();
            });
            std::thread::sleep(Duration::from_millis(50));
        }
        "of a thread that ends" => {
            std::thread::spawn(|| OF_THREAD.set(Some(used()))).join().expect("no panic");
        }
        "of this thread" => OF_THREAD.set(Some(used())),
        other => panic!("{other}"),
    }
    std::process::exit(STATUS);
}

#[test]
fn a_process_ends_whatever_its_communicators_are_at() {
    if let Ok(how) = std::env::var(HOW) {
        end(&how);
    }
    for how in ["idle", "in flight", "waiting", "waiting in a thread", "of a thread that ends", "of this thread"] {
        let begin = Instant::now();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["a_process_ends_whatever_its_communicators_are_at", "--exact", "--nocapture", "--test-threads=1"])
            .env(HOW, how)
            .stdout(Stdio::null())
            .spawn()
            .expect("this program");
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break status;
            }
            if begin.elapsed() > Duration::from_secs(20) {
                child.kill().expect("a child");
                panic!("{how}: it does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(STATUS), "{how}: {status}");
    }
}
