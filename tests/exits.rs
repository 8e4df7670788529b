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

/// In the environment of a process that forks.
const FORK: &str = "EXIT_TEST_FORK";

/// A child has neither the threads nor the locks of its parent's communicators: it is told at once, in every call, and can build
/// its own. (It waited for the limit, and was told that the other ranks were missing.)
#[cfg(unix)]
#[test]
fn a_forked_child_is_told_so() {
    const NAME: &str = "a_forked_child_is_told_so";
    if std::env::var(FORK).is_err() {
        let begin = Instant::now();
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
            .env(FORK, "1")
            .output()
            .expect("this program");
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(text.contains("the child: as expected") && text.contains("the parent: as expected"), "{child:?}");
        assert!(begin.elapsed() < Duration::from_secs(20), "took {:?}", begin.elapsed());
        return;
    }
    let (comm, mut data) = used();
    // SAFETY: the child makes calls that take no lock of the parent's, and ends by itself.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = [
            comm.broadcast_in_place(&mut data, 0).map(drop),
            comm.reset(),
            Communicator::<Cpu>::builder(0..2).build().and_then(|own| {
                let mut data = [own.buffer_from(0, &[1u32; 10])?, own.buffer(1, 10)?];
                own.broadcast_in_place(&mut data, 0)?.wait()?;
                assert_eq!(data[1].to_vec()?, [1; 10]);
                Ok(())
            }),
        ];
        for outcome in &refused[..2] {
            let text = outcome.as_ref().expect_err("a fork").to_string();
            assert!(text.contains("this process is a fork of the one that built the communicator"), "{text}");
        }
        assert_eq!(refused[2], Ok(()));
        drop((comm, data));
        println!("the child: as expected");
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    comm.broadcast_in_place(&mut data, 1).expect("launch").wait().expect("outcome");
    println!("the parent: as expected");
}
