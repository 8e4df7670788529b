//! What a process keeps after many communicators and calls. Alone in its program: it looks at the whole process.
#![cfg(all(feature = "cpu", target_os = "linux"))]
#![allow(missing_docs)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crossccl::{Broadcast, Communicator, Cpu, DType, RawRank, ReduceOp};

/// A line of /proc/self/status: kilobytes, or a number.
fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|l| l.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Resident kilobytes, once the threads of dropped streams are gone.
fn resident(threads: u64) -> u64 {
    let begin = Instant::now();
    while status("Threads:") > threads && begin.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status("Threads:"), threads, "threads of communicators that were dropped");
    status("VmRSS:")
}

/// Communicators that are used in every way and go in every way.
fn come_and_go(rounds: usize) {
    for round in 0..rounds {
        let comm = Communicator::<Cpu>::builder(0..1 + round % 3).payload_bytes(1 << 12).build().unwrap();
        let mut data: Vec<_> = (0..comm.ranks()).map(|r| comm.buffer_from(r, &[r as u8; 4096]).unwrap()).collect();
        comm.broadcast_in_place(&mut data, 0).unwrap().wait().unwrap();
        comm.reduce_scatter_in_place(&mut data, ReduceOp::Sum).unwrap().wait().unwrap();
        let mut recording = comm.record();
        recording.broadcast_in_place(&mut data, 0).unwrap();
        let replay = recording.finish().unwrap();
        drop((replay.launch().unwrap(), replay.launch().unwrap()));
        match round % 4 {
            // As it is.
            0 => drop(comm),
            // Aborted, with a launch in flight.
            1 => {
                let flight = replay.launch().unwrap();
                comm.abort();
                drop(comm);
                drop((data, flight));
            }
            // Failed, with buffers that are still borrowed.
            2 if comm.ranks() > 1 => {
                let ranks = comm.into_ranks();
                let what = Broadcast::from_root(1).timeout(Duration::from_micros(100));
                ranks[0].broadcast_in_place(&mut data[0], what).unwrap().wait().unwrap_err();
                drop((data, ranks));
            }
            // By a panic.
            _ => drop(catch_unwind(AssertUnwindSafe(move || {
                let _flight = comm.broadcast_in_place(&mut data, 0).unwrap();
                std::panic::resume_unwind(Box::new(()));
            }))),
        }
    }
}

/// A rank that does not come, and a reset, again and again.
fn fail_and_recover(comm: &Communicator<Cpu>, rounds: usize) {
    for _ in 0..rounds {
        let mut data = [0, 1].map(|r| comm.buffer::<u8>(r, 100).unwrap());
        let flight = comm.broadcast_in_place(&mut data, 0).unwrap();
        comm.abort();
        // Both ranks were there: it may have been over.
        let _ = flight.wait();
        comm.reset().unwrap();
    }
}

/// Case G2.
#[test]
fn g2_nothing_is_left_of_communicators_and_calls() {
    const MOST: u64 = 2 << 10;
    let threads = status("Threads:");
    // The allocator and the loader keep what the first rounds took.
    come_and_go(100);
    let before = resident(threads);
    come_and_go(1000);
    let after = resident(threads);
    assert!(after < before + MOST, "1000 communicators: from {before} KiB to {after} KiB");

    // Inline streams have no threads, but for launches of more than one block.
    let inline = Communicator::<Cpu>::builder(0..4).inline_streams(true).build().unwrap();
    assert_eq!(status("Threads:"), threads);
    drop(inline);
    for _ in 0..20 {
        let comm = Communicator::<Cpu>::builder(0..2).inline_streams(true).build().unwrap();
        std::thread::scope(|scope| {
            for rank in comm.into_ranks() {
                scope.spawn(move || {
                    let mut data = rank.buffer::<u8>(200_000).unwrap();
                    let what = Broadcast::from_root(1).max_blocks(3);
                    rank.broadcast_in_place(&mut data, what).unwrap().wait().unwrap();
                });
            }
        });
    }
    resident(threads);

    let comm = Communicator::<Cpu>::builder(0..2).build().unwrap();
    let streams: Vec<_> = (0..2).map(|r| comm.stream(r).unwrap().clone()).collect();
    let data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u32; 8]).unwrap()).collect();
    let ranks: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    let calls = |batches: usize| {
        for batch in 0..batches {
            for call in 0..100 {
                // SAFETY: the buffers live until after the last wait, and nothing else uses them until then.
                let launched =
                    unsafe { comm.broadcast_raw(&ranks, &streams, 8, DType::U32, (batch + call) % 2) }.unwrap();
                if call == 99 {
                    launched.wait().unwrap();
                }
            }
        }
    };
    calls(10);
    let before = status("VmRSS:");
    calls(1000);
    let after = status("VmRSS:");
    assert!(after < before + MOST, "100,000 calls: from {before} KiB to {after} KiB");

    // What failed is remembered, but not without end.
    fail_and_recover(&comm, 1200);
    let before = status("VmRSS:");
    fail_and_recover(&comm, 2000);
    let after = status("VmRSS:");
    assert!(after < before + MOST, "2000 failures: from {before} KiB to {after} KiB");
}
