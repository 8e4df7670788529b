//! Streams that the threads which wait work off themselves. What they share with all others is tested with the others'
//! tests (`inline` of `matrix.rs`); here stands what is theirs alone.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use crossccl::{
    Algorithm, Backend, Broadcast, Communicator, DType, Error, Rank, RankComm, RawRank, ReduceOp, ReduceScatter,
};
use rstest::rstest;

use super::B;
use crate::support::{Random, cells, inline_streams, on_threads, oracle, rank_handles};

const LIMIT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);

fn handles(ranks: usize, limit: Duration) -> Vec<RankComm<B>> {
    let _inline = inline_streams();
    rank_handles(ranks, limit)
}

/// Every dtype and operation, counts around tiles, more blocks than one (with a crew then) and all algorithms.
#[rstest]
fn results_are_those_of_other_streams(#[values(1, 2, 4)] ranks: usize, #[values(1, 3)] blocks: u32) {
    needs_device!();
    let comm = cells(handles(ranks, LIMIT));
    on_threads(&comm, |me, comm| {
        assert!(B::is_inline(comm.stream()));
        for (round, (dtype, op)) in DType::ALL.into_iter().zip(ReduceOp::ALL.into_iter().cycle()).enumerate() {
            let count = [1, 1000, 40_000][round % 3] * ranks;
            let data: Vec<Vec<u8>> =
                (0..ranks).map(|r| Random((round * 10 + r) as u64).elements(dtype, count)).collect();
            let mut input = comm.buffer::<u8>(count * dtype.size()).expect("buffer");
            let output = comm.buffer::<u8>(count / ranks * dtype.size()).expect("buffer");
            for algorithm in [Algorithm::OneStage, Algorithm::LowLatency] {
                input.write(&data[me]).expect("write");
                let small = count / ranks * dtype.size() <= crossccl::low_latency_bytes(ranks);
                let algorithm = if small { algorithm } else { Algorithm::OneStage };
                let what = ReduceScatter::new(op).algorithm(algorithm).max_blocks(blocks);
                let at = RawRank::new(input.address(), output.address());
                // SAFETY: the buffers live until after the wait, and nothing else uses them until then.
                let launched = unsafe { comm.reduce_scatter_raw(at, comm.stream(), count, dtype, what) };
                launched.expect("launch").wait().expect("outcome");
                let whole = oracle::reduce(dtype, op, &data.iter().map(Vec::as_slice).collect::<Vec<_>>());
                let bytes = count / ranks * dtype.size();
                let expected = &whole[me * bytes..(me + 1) * bytes];
                crate::support::assert_same("reduce-scatter", dtype, &output.to_vec().expect("read"), expected);
            }
            for algorithm in [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect] {
                input.write(&data[me]).expect("write");
                let root = round % ranks;
                let what = Broadcast::from_root(root).algorithm(algorithm).max_blocks(blocks);
                comm.broadcast_in_place(&mut input, what).expect("launch").wait().expect("outcome");
                assert_eq!(input.to_vec().expect("read"), data[root], "{dtype} {algorithm}");
            }
        }
    });
}

/// One call for all ranks would wait in the first for the second: refused before anything is launched.
#[rstest]
fn one_call_for_all_ranks_is_refused() {
    needs_device!();
    let _inline = inline_streams();
    let comm = crate::support::builder::<B>(0..3).build().expect("communicator");
    let mut data: Vec<_> = (0..3).map(|r| comm.buffer_from(r, &[r as f32; 9]).expect("buffer")).collect();
    let expected = |operation| {
        format!(
            "{operation}: the stream of rank 0 is inline, and who waits for one rank does nothing for the others; call for \
             each rank on a thread of its own (into_ranks), or build the communicator without inline_streams"
        )
    };
    let begin = Instant::now();
    let error = comm.broadcast_in_place(&mut data, 1).expect_err("one thread");
    assert_eq!(error.to_string(), expected("broadcast"));
    let error = comm.reduce_scatter_in_place(&mut data, ReduceOp::Sum).expect_err("one thread");
    assert_eq!(error.to_string(), expected("reduce_scatter"));
    let mut recording = comm.record();
    recording.broadcast_in_place(&mut data, 1).expect("recorded");
    let error = recording.finish().expect("replay").launch().expect_err("one thread");
    assert_eq!(error.to_string(), expected("broadcast"));
    let streams: Vec<_> = (0..3).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let at: Vec<_> = data.iter().map(|d| RawRank::new(d.address(), d.address())).collect();
    // SAFETY: nothing is launched.
    let error = unsafe { comm.broadcast_raw(&at, &streams, 9, DType::F32, 0) }.expect_err("one thread");
    assert_eq!(error.to_string(), expected("broadcast"));
    // Nothing was, and nobody has to reset. Ranks that are alone have nobody to wait for.
    let alone = ReduceScatter::new(ReduceOp::Sum).group_size(1);
    comm.reduce_scatter_in_place(&mut data, alone).expect("launch").wait().expect("outcome");
    assert!(data.iter().enumerate().all(|(r, d)| d.to_vec().expect("free") == [r as f32; 9]));
    let handles = cells(comm.into_ranks());
    on_threads(&handles, |me, comm| {
        let mut data = comm.buffer_from(&[me as u8; 9]).expect("buffer");
        comm.broadcast_in_place(&mut data, 1).expect("launch").wait().expect("outcome");
        assert_eq!(data.to_vec().expect("read"), [1; 9]);
    });
    assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
}

/// One inline stream among others is enough: who waits for another rank may be in there.
#[rstest]
fn one_inline_stream_among_others_is_refused() {
    needs_device!();
    let device = |r| crate::support::device::<B>(r);
    let streams = [B::create_stream(&device(0)).expect("stream"), B::create_inline_stream(&device(1)).expect("stream")];
    let comm = Communicator::<B>::builder(0..2).streams(streams).build().expect("communicator");
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 9]).expect("buffer")).collect();
    let error = comm.broadcast_in_place(&mut data, 0).expect_err("one thread");
    assert!(error.to_string().contains("the stream of rank 1 is inline"), "{error}");
    drop(data);
    // By threads of their own they meet.
    let handles = cells(comm.into_ranks());
    on_threads(&handles, |me, comm| {
        for round in 0..200u32 {
            let mut data = comm.buffer_from(&[me as u32 + 10 * round; 100]).expect("buffer");
            comm.broadcast_in_place(&mut data, round as usize % 2).expect("launch").wait().expect("outcome");
            assert_eq!(data.to_vec().expect("read"), [round % 2 + 10 * round; 100]);
        }
    });
}

/// A thread that calls for a second rank before it has waited for the first is told so; that one ends by its limit.
#[rstest]
fn two_ranks_of_one_thread_are_refused() {
    needs_device!();
    let comm = handles(3, SHORT);
    let mut data: Vec<_> = comm.iter().map(|c| c.buffer::<f32>(9).expect("buffer")).collect();
    let [first, second, _] = &mut data[..] else { panic!("three ranks") };
    let begin = Instant::now();
    let flight = comm[0].broadcast_in_place(first, 0).expect("launch");
    let error = comm[1].broadcast_in_place(&mut *second, 0).expect_err("one thread");
    let expected = "broadcast: this thread has not waited for what it called for rank 0, whose stream is inline, and would \
                    wait for itself; give each rank a thread of its own";
    assert_eq!(error.to_string(), expected);
    let error = flight.wait().expect_err("nobody came");
    let Error::Timeout { rank, missing, .. } = &error else { panic!("{error}") };
    assert_eq!((*rank, &missing[..]), (Rank(0), &[Rank(1), Rank(2)][..]));
    // Once it has waited, it may; here that tells of the failure.
    let error = comm[1].broadcast_in_place(second, 0).expect_err("poisoned");
    assert!(matches!(error, Error::Poisoned { .. }), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(1), "took {:?}", begin.elapsed());
}

/// A thread that waits for each rank before it calls for the next cannot be told beforehand: the limit ends it, and names
/// the ranks that did not come.
#[rstest]
fn one_rank_after_the_other_is_a_time_out() {
    needs_device!();
    let comm = handles(2, SHORT);
    let begin = Instant::now();
    let mut data = comm[0].buffer::<f32>(9).expect("buffer");
    let error = comm[0].broadcast_in_place(&mut data, 0).and_then(|f| f.wait()).expect_err("rank 1 cannot come");
    assert!(matches!(&error, Error::Timeout { missing, .. } if missing[..] == [Rank(1)]), "{error}");
    let mut data = comm[1].buffer::<f32>(9).expect("buffer");
    let error = comm[1].broadcast_in_place(&mut data, 0).and_then(|f| f.wait()).expect_err("rank 0 has failed");
    assert!(matches!(&error, Error::Poisoned { cause } if matches!(**cause, Error::Timeout { .. })), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(1), "took {:?}", begin.elapsed());
}

/// Abort from another thread ends a call that has no limit and runs on this one.
#[rstest]
fn a10_abort_ends_what_runs_on_this_thread() {
    needs_device!();
    let _inline = inline_streams();
    let comm = crate::support::builder::<B>(0..2).timeout(None).build().expect("communicator");
    let abort = comm.abort_handle();
    let ranks = comm.into_ranks();
    let begin = Instant::now();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            abort.abort();
        });
        let mut data = ranks[0].buffer::<u8>(10).expect("buffer");
        ranks[0].broadcast_in_place(&mut data, 1).expect("launch").wait()
    });
    assert_eq!(outcome, Err(Error::Aborted));
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(100) && took < Duration::from_millis(1100), "took {took:?}");
}

/// Nothing is begun before somebody waits; then peers that have come long ago go on. Any thread may wait.
#[rstest]
fn who_waits_runs_it() {
    needs_device!();
    let comm = cells(handles(2, LIMIT));
    let (come, came) = mpsc::channel();
    let root = comm[0].lock();
    let mut data = root.buffer_from(&[7u8; 10]).expect("buffer");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let comm = comm[1].lock();
            let mut data = comm.buffer::<u8>(10).expect("buffer");
            let flight = comm.broadcast_in_place(&mut data, 0).expect("launch");
            come.send(()).expect("sent");
            flight.wait().expect("outcome");
            (Instant::now(), data.to_vec().expect("read"))
        });
        let flight = root.broadcast_in_place(&mut data, 0).expect("launch");
        came.recv().expect("received");
        std::thread::sleep(Duration::from_millis(100));
        let begin = Instant::now();
        scope.spawn(move || flight.wait().expect("outcome"));
        let (end, data) = waiting.join().expect("no panic");
        assert!(end >= begin, "the root's call was done before anybody waited for it");
        assert_eq!(data, [7; 10]);
    });
}

/// A call is not lost where its handle is dropped or leaked: the drop does it, and so does whatever waits next.
#[rstest]
fn dropped_and_leaked_calls_are_done(#[values(false, true)] limited: bool) {
    needs_device!();
    let _inline = inline_streams();
    let limit = limited.then_some(LIMIT);
    let comm = crate::support::builder::<B>(0..2).timeout(limit).build().expect("communicator");
    let handles = cells(comm.into_ranks());
    on_threads(&handles, |me, comm| {
        let mut data = [0, 1, 2].map(|n| comm.buffer_from(&[me as u8 * 10 + n; 50]).expect("buffer"));
        let [first, second, third] = &mut data;
        std::mem::forget(comm.broadcast_in_place(first, 1).expect("launch"));
        if me == 1 {
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(comm.broadcast_in_place(second, 1).expect("launch"));
        // Only now, and without a wait of its own.
        std::mem::forget(comm.broadcast_in_place(third, 0).expect("launch"));
        assert_eq!(data.map(|d| d.to_vec().expect("read")), [[10; 50], [11; 50], [2; 50]]);
    });
}

/// A reset of one communicator does nothing of another's that waits for its peers in the same stream.
#[rstest]
fn reset_leaves_the_work_of_others_alone() {
    needs_device!();
    let _inline = inline_streams();
    let first = crate::support::builder::<B>(0..2).build().expect("communicator");
    let streams: Vec<_> = (0..2).map(|r| first.stream(r).expect("a rank").clone()).collect();
    let second = Communicator::<B>::builder(0..2).streams(streams).timeout(None).build().expect("communicator");
    let handles = second.into_ranks();
    let mut data = handles[0].buffer::<u8>(10).expect("buffer");
    let endless = handles[0].broadcast_in_place(&mut data, 1).expect("launch");
    let begin = Instant::now();
    let error = first.reset().expect_err("the stream has work");
    assert!(matches!(error, Error::Busy { .. }) && begin.elapsed() < Duration::from_secs(5), "{error}");
    handles[0].abort();
    assert_eq!(endless.wait(), Err(Error::Aborted));
    first.reset().expect("at rest now");
}

/// Everything goes in every order, with a call in flight that nobody meets, aborted or not.
#[rstest]
fn g11_drops_in_every_order_of_inline_streams() {
    needs_device!();
    let begin = Instant::now();
    for number in 0..120 {
        let mut left: Vec<usize> = (0..5).collect();
        let order: Vec<usize> = [24, 6, 2, 1, 1].iter().map(|n| left.remove(number / n % left.len())).collect();
        let mut comm = handles(2, Duration::from_millis(5));
        let (other, one) = (comm.pop().expect("a rank"), comm.pop().expect("a rank"));
        let mut data = one.buffer_from(&[5u8; 100]).expect("buffer");
        let flight = one.broadcast_in_place(&mut data, 1).expect("launch");
        let (abort, stream) = (one.abort_handle(), one.stream().clone());
        if number % 2 == 0 {
            abort.abort();
        }
        let (mut one, mut other, mut flight, mut abort, mut stream) =
            (Some(one), Some(other), Some(flight), Some(abort), Some(stream));
        for at in order {
            match at {
                0 => drop(one.take()),
                1 => drop(other.take()),
                2 => drop(flight.take()),
                3 => drop(abort.take()),
                _ => drop(stream.take()),
            }
        }
        drop((one, other, flight, abort, stream));
        // With the last of them it is free.
        assert_eq!(data.to_vec().expect("free"), [5; 100]);
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "took {:?}", begin.elapsed());
}
