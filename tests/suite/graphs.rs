//! Collectives captured into graphs, on backends that have them; the others say so.

use std::time::Duration;

use crossccl::{Algorithm, Backend, Broadcast, Communicator, DType, Error, RawRank, ReduceOp, Result};
use rstest::rstest;

use super::B;
use crate::support::{builder, communicator, rank_handles};

fn has_graphs() -> bool {
    if !B::GRAPHS {
        println!("SKIPPED {} without graphs", B::NAME);
    }
    B::GRAPHS
}

fn streams(comm: &Communicator<B>) -> Vec<<B as Backend>::Stream> {
    (0..comm.ranks()).map(|r| comm.stream(r).expect("a rank").clone()).collect()
}

#[rstest]
fn a_backend_without_graphs_says_so() {
    needs_device!();
    let comm = communicator::<B>(1);
    // SAFETY: nothing is enqueued.
    let outcome = unsafe { comm.capture(&streams(&comm), || Ok(())) };
    assert_eq!(outcome.is_ok(), B::GRAPHS, "{outcome:?}");
    if let Err(error) = outcome {
        assert!(error.to_string().contains("has no graphs"), "{error}");
    }
}

/// Cases E11, G10: the very first calls of a communicator are captured, and each replay works on the data of its
/// time.
#[rstest]
fn e11_replays_see_new_data(
    #[values(2, 4, 8)] ranks: usize,
    #[values(Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency)] algorithm: Algorithm,
) {
    needs_device!(ranks);
    crate::support::memory_for(algorithm);
    if !has_graphs() {
        return;
    }
    let comm = communicator::<B>(ranks);
    let streams = streams(&comm);
    let mut data: Vec<_> = (0..ranks).map(|r| comm.buffer::<u32>(r, 16_000).expect("buffer")).collect();
    let sums: Vec<_> = (0..ranks)
        .map(|r| {
            let part = comm.part(r, 16_000, ReduceOp::Sum).expect("a part");
            comm.buffer::<u32>(r, part.count() as usize).expect("buffer")
        })
        .collect();
    let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    let into: Vec<_> = data.iter().zip(&sums).map(|(b, s)| RawRank::new(b.address(), s.address())).collect();
    // SAFETY: the buffers live until after the last wait.
    let graph = unsafe {
        comm.capture(&streams, || {
            let what = Broadcast::from_root(ranks - 1).algorithm(algorithm);
            comm.broadcast_raw(&raw, &streams, 16_000, DType::U32, what)?.wait()?;
            comm.reduce_scatter_raw(&into, &streams, &vec![16_000; ranks], DType::U32, ReduceOp::Sum)?.wait()
        })
    }
    .expect("graph");
    for value in 1..=5 {
        data[ranks - 1].write(&vec![value; 16_000]).expect("write");
        // SAFETY: as above.
        unsafe { graph.launch() }.expect("launch").wait().expect("outcome");
        assert!(data.iter().all(|b| b.to_vec().expect("read") == vec![value; 16_000]), "replay {value}");
        for sum in &sums {
            assert!(sum.to_vec().expect("read").iter().all(|x| *x == value * ranks as u32), "replay {value}");
        }
    }
    // Calls and replays take turns.
    data[0].write(&vec![77; 16_000]).expect("write");
    comm.broadcast_in_place(&mut data, 0).expect("launch").wait().expect("outcome");
    assert!(data.iter().all(|b| b.to_vec().expect("read") == vec![77; 16_000]));
    // SAFETY: as above.
    let queued: Vec<_> = (0..50).map(|_| unsafe { graph.launch() }.expect("launch")).collect();
    queued.iter().for_each(|one| one.wait().expect("outcome"));
    assert!(sums.iter().all(|s| s.to_vec().expect("read").iter().all(|x| *x == 77 * ranks as u32)));
}

/// A rank that does not replay is named by those that do, and after a reset all goes on.
#[rstest]
fn a_missing_rank_in_a_replay_is_named() {
    needs_device!(2);
    if !has_graphs() {
        return;
    }
    let ranks = rank_handles::<B>(2, Duration::from_millis(200));
    let data: Vec<_> = ranks.iter().map(|r| r.buffer_from(&[r.rank().0; 100]).expect("buffer")).collect();
    let graphs: Vec<_> = (ranks.iter().zip(&data))
        .map(|(rank, data)| {
            let at = RawRank::new(data.address(), data.address());
            // SAFETY: the buffers live until after the last wait, and the reset after the failure.
            unsafe {
                rank.capture(rank.stream(), || rank.broadcast_raw(at, rank.stream(), 100, DType::U32, 1)?.wait())
            }
            .expect("graph")
        })
        .collect();
    let both = || -> Result<()> {
        // SAFETY: as above.
        let launched: Vec<_> = graphs.iter().map(|g| unsafe { g.launch() }).collect::<Result<_>>()?;
        launched.iter().try_for_each(|l| l.wait())
    };
    both().expect("outcome");
    // SAFETY: as above.
    let error = unsafe { graphs[0].launch() }.expect("launch").wait().expect_err("rank 1 is missing");
    assert!(matches!(&error, Error::Timeout { missing, .. } if missing[..] == [1.into()]), "{error}");
    // SAFETY: as above.
    let refused = unsafe { graphs[1].launch() }.expect_err("poisoned");
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| scope.spawn(move || (rank.reset(Duration::from_secs(5)), rank)))
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("no panic").0.expect("reset"));
    });
    both().expect("outcome");
    assert_eq!(data[0].to_vec().expect("read"), [1; 100]);
}

/// A capture cannot wait for another stream's work: refused, and the capture goes on.
#[rstest]
fn a_capture_refuses_to_wait_for_another_stream() {
    needs_device!(2);
    if !has_graphs() {
        return;
    }
    let comm = builder::<B>(0..2).build().expect("communicator");
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u32; 100]).expect("buffer")).collect();
    comm.broadcast_in_place(&mut data, 0).expect("launch").wait().expect("outcome");
    let others: Vec<_> =
        (0..2).map(|r| B::create_stream(&B::device_of(comm.stream(r).expect("a rank"))).expect("stream")).collect();
    let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    let mut refused = None;
    // SAFETY: the buffers live until after the last wait.
    let graph = unsafe {
        comm.capture(&others, || {
            refused = comm.broadcast_raw(&raw, &others, 100, DType::U32, 1).err();
            Ok(())
        })
    };
    graph.expect("the capture is whole");
    assert!(matches!(refused, Some(Error::Busy { .. })), "{refused:?}");
}

/// A graph of all ranks on one thread and calls on another: neither goes between the other's ranks.
#[rstest]
fn replays_and_calls_of_two_threads_take_turns() {
    needs_device!(4);
    if !has_graphs() {
        return;
    }
    let comm = communicator::<B>(4);
    let streams = streams(&comm);
    let data: Vec<_> = (0..4).map(|r| comm.buffer_from(r, &[r as u32; 100]).expect("buffer")).collect();
    let others: Vec<_> = (0..4).map(|r| comm.buffer_from(r, &[r as u32; 100]).expect("buffer")).collect();
    let raw = |buffers: &[crossccl::Buffer<B, u32>]| -> Vec<RawRank> {
        buffers.iter().map(|b| RawRank::new(b.address(), b.address())).collect()
    };
    let (captured, called) = (raw(&data), raw(&others));
    // SAFETY: the buffers live until after the last wait.
    let graph =
        unsafe { comm.capture(&streams, || comm.broadcast_raw(&captured, &streams, 100, DType::U32, 1)?.wait()) };
    let graph = graph.expect("graph");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..2000 {
                // SAFETY: as above.
                unsafe { graph.launch() }.expect("launch").wait().expect("outcome");
            }
        });
        for _ in 0..2000 {
            // SAFETY: as above.
            let one = unsafe { comm.broadcast_raw(&called, &streams, 100, DType::U32, 2) };
            one.expect("launch").wait().expect("outcome");
        }
    });
    assert!(data.iter().all(|b| b.to_vec().expect("read") == [1; 100]));
    assert!(others.iter().all(|b| b.to_vec().expect("read") == [2; 100]));
}

/// What fails inside ends the capture on every stream.
#[rstest]
fn an_error_inside_ends_the_capture() {
    needs_device!(2);
    if !has_graphs() {
        return;
    }
    let comm = builder::<B>(0..2).build().expect("communicator");
    let streams = streams(&comm);
    // SAFETY: nothing is enqueued.
    let error = unsafe { comm.capture(&streams, || comm.broadcast_raw(&[], &streams, 1, DType::U8, 0)?.wait()) };
    assert!(matches!(error, Err(Error::InvalidArgument { .. })), "{error:?}");
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u32; 100]).expect("buffer")).collect();
    comm.broadcast_in_place(&mut data, 1).expect("launch").wait().expect("outcome");
    assert_eq!(data[0].to_vec().expect("read"), [1; 100]);
}

/// A panic inside ends it as well: it once left the streams capturing, so that later calls went into a graph that nobody had,
/// and were told as done.
#[rstest]
fn a_panic_inside_ends_the_capture() {
    needs_device!(2);
    if !has_graphs() {
        return;
    }
    let comm = builder::<B>(0..2).build().expect("communicator");
    let streams = streams(&comm);
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u32; 100]).expect("buffer")).collect();
    let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    let call = || {
        // SAFETY: the buffers live until after the last wait.
        unsafe { comm.broadcast_raw(&raw, &streams, 100, DType::U32, 1) }
    };
    let inside = std::panic::AssertUnwindSafe(|| {
        // SAFETY: as above.
        let _ = unsafe {
            comm.capture(&streams, || {
                call()?.wait()?;
                std::panic::resume_unwind(Box::new("a bug of the caller's"))
            })
        };
    });
    assert!(std::panic::catch_unwind(inside).is_err());
    for (rank, stream) in streams.iter().enumerate() {
        assert_eq!(B::is_capturing(stream), Ok(false), "the stream of rank {rank}");
    }
    call().expect("launch").wait().expect("outcome");
    assert_eq!(data[0].to_vec().expect("read"), [1; 100]);
    // SAFETY: as above.
    let graph = unsafe { comm.capture(&streams, || call()?.wait()) }.expect("a graph");
    data[1].write(&[5; 100]).expect("write");
    // SAFETY: as above.
    unsafe { graph.launch() }.expect("launch").wait().expect("outcome");
    assert_eq!(data[0].to_vec().expect("read"), [5; 100]);
}

/// What went into a capture of somebody else's has not run, and is not told as done; buffers, which such a graph could outlive,
/// are refused.
#[rstest]
fn a_launch_in_somebody_elses_capture_is_not_told_as_done() {
    needs_device!(2);
    if !has_graphs() {
        return;
    }
    let ranks = rank_handles::<B>(2, Duration::from_secs(20));
    let mut data: Vec<_> = ranks.iter().map(|r| r.buffer_from(&[r.rank().0; 100]).expect("buffer")).collect();
    let graphs: Vec<_> = (ranks.iter().zip(&mut data))
        .map(|(rank, data)| {
            let at = RawRank::new(data.address(), data.address());
            B::begin_capture(rank.stream()).expect("a capture");
            // SAFETY: the buffers live until after the last wait.
            let launched = unsafe { rank.broadcast_raw(at, rank.stream(), 100, DType::U32, 1) }.expect("captured");
            let told = launched.wait().expect_err("it has not run");
            assert!(matches!(&told, Error::Busy { what, .. } if what.contains("captured into a graph")), "{told}");
            let refused = rank.broadcast_in_place(data, 1).map(drop).expect_err("a buffer");
            assert!(matches!(&refused, Error::Busy { what, .. } if what.contains("is being captured")), "{refused}");
            B::end_capture(rank.stream()).expect("a graph")
        })
        .collect();
    for (rank, graph) in ranks.iter().zip(&graphs) {
        // SAFETY: as above.
        unsafe { B::launch_graph(rank.stream(), graph) }.expect("launch");
    }
    assert_eq!(data[0].to_vec().expect("read"), [1; 100]);
    // Other calls go on.
    std::thread::scope(|scope| {
        for (rank, mut data) in ranks.into_iter().zip(data) {
            scope.spawn(move || {
                data.write(&[rank.rank().0 + 3; 100]).expect("write");
                rank.broadcast_in_place(&mut data, 0).expect("launch").wait().expect("outcome");
                assert_eq!(data.to_vec().expect("read"), [3; 100]);
            });
        }
    });
}

/// A recording of several collectives, replayed on new data each time; buffers are read in between, and written
/// once it was waited for.
#[rstest]
fn replays_of_a_recording_see_new_data(#[values(1, 2, 4, 8)] ranks: usize) {
    needs_device!(ranks);
    const COUNT: usize = 20_000;
    let comm = communicator::<B>(ranks);
    let mut data: Vec<_> = (0..ranks).map(|r| comm.buffer::<i32>(r, COUNT).expect("buffer")).collect();
    let part = |r: usize| comm.part(r, COUNT, ReduceOp::Sum).expect("a part").count() as usize;
    let mut sums: Vec<_> = (0..ranks).map(|r| comm.buffer::<i32>(r, part(r)).expect("buffer")).collect();
    let mut recording = comm.record();
    recording.broadcast_in_place(&mut data, ranks - 1).expect("recorded");
    recording.reduce_scatter(&data, &mut sums, ReduceOp::Sum).expect("recorded");
    recording.reduce_scatter_in_place(&mut data, ReduceOp::Max).expect("recorded");
    let replay = recording.finish().expect("replay");
    for value in 1..=5 {
        data[ranks - 1].write(&vec![value; COUNT]).expect("write");
        let flight = replay.launch().expect("launch");
        // Reading waits for it.
        assert_eq!(sums[0].to_vec().expect("read"), vec![value * ranks as i32; part(0)]);
        let refused = data[0].write(&[0; COUNT]).expect_err("a write beside a replay").to_string();
        assert!(refused.contains("a replay that was launched, and not waited for, may still use the buffer"), "{refused}");
        flight.wait().expect("outcome");
        assert!(data.iter().all(|b| b.to_vec().expect("read") == vec![value; COUNT]), "replay {value}");
    }
    let queued: Vec<_> = (0..50).map(|_| replay.launch().expect("launch")).collect();
    let refused = comm.broadcast_in_place(&mut sums, 0).map(drop);
    assert!(matches!(refused, Err(Error::Busy { .. })), "an output of a replay in flight: {refused:?}");
    queued.into_iter().for_each(|one| one.wait().expect("outcome"));
    data[0].write(&[7; COUNT]).expect("write");
}

/// What a recording owns outlives the buffers and the communicator's handle.
#[rstest]
fn a_replay_keeps_its_memory() {
    needs_device!(2);
    let comm = communicator::<B>(2);
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 5000]).expect("buffer")).collect();
    let mut recording = comm.record();
    recording.broadcast_in_place(&mut data, 1).expect("recorded");
    let replay = recording.finish().expect("replay");
    drop((data, comm));
    for _ in 0..3 {
        replay.launch().expect("launch").wait().expect("outcome");
    }
}

/// Mistakes are told when they are recorded.
#[rstest]
fn a_recording_checks_its_calls() {
    needs_device!(2);
    let comm = communicator::<B>(2);
    let mut short: Vec<_> = (0..2).map(|r| comm.buffer::<u8>(r, 10 + r).expect("buffer")).collect();
    let mut recording = comm.record();
    let error = recording.broadcast_in_place(&mut short, 0).expect_err("unequal lengths");
    assert!(matches!(error, Error::InvalidArgument { argument: "output", .. }), "{error}");
    // Nothing of it was recorded.
    recording.finish().expect("replay").launch().expect("launch").wait().expect("outcome");
}

/// After a failure the buffers are the communicator's until reset, and replays go on after it.
#[rstest]
fn a_replay_after_a_failure_and_a_reset() {
    needs_device!(2);
    let comm = communicator::<B>(2);
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 100]).expect("buffer")).collect();
    let mut recording = comm.record();
    recording.broadcast_in_place(&mut data, 1).expect("recorded");
    let replay = recording.finish().expect("replay");
    comm.abort();
    let error = replay.launch().expect_err("aborted");
    assert!(matches!(error, Error::Poisoned { .. }), "{error}");
    comm.reset().expect("reset");
    replay.launch().expect("launch").wait().expect("outcome");
    assert_eq!(data[0].to_vec().expect("read"), [1; 100]);
}
