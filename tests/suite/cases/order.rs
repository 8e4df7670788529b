//! Cases A and E: hangs, the order of calls, memory that is used again.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crossccl::{Agreement, Algorithm, Backend, Broadcast, Buffer, DType, RankComm, RawRank, ReduceOp, ReduceScatter};
use rstest::rstest;

use super::{super::failures::disagree, B};
use crate::support::{Random, as_often, axes, cells, communicator, is_emulated, on_threads, rank_handles};

const LIMIT: Duration = Duration::from_secs(20);

fn nap(random: &mut Random, most: u64) {
    std::thread::sleep(Duration::from_micros(random.next() % most));
}

/// A broadcast on a stream of the test's own, enqueued only.
fn enqueue(
    comm: &RankComm<B>,
    stream: &<B as Backend>::Stream,
    data: &Buffer<B, u32>,
    root: usize,
) -> crossccl::Launched<B> {
    let ranks = RawRank::new(data.address(), data.address());
    // SAFETY: the callers wait before they touch or drop the buffer.
    unsafe { comm.broadcast_raw(ranks, stream, data.len(), DType::U32, root) }.expect("launch")
}

/// Two streams a rank, used in crossed order. A rank's calls meet the peers' in the order of the calls, on whichever
/// stream; the second waits for the first.
#[rstest]
fn a4_two_streams_in_crossed_order() {
    needs_device!();
    let handles = cells::<B>(rank_handles(2, LIMIT));
    on_threads(&handles, |me, comm| {
        let other = B::create_stream(&B::device_of(comm.stream())).expect("stream");
        let streams = [comm.stream(), &other];
        let mut data = [0, 1].map(|_| comm.buffer::<u32>(1000).expect("buffer"));
        for round in 0..200 {
            for (turn, data) in data.iter_mut().enumerate() {
                data.write(&[if me == 0 { 2 * round + turn as u32 } else { u32::MAX }; 1000]).expect("write");
            }
            let launched = [0, 1].map(|turn| enqueue(comm, streams[(turn + me) % 2], &data[turn], 0));
            launched.iter().for_each(|l| l.wait().expect("outcome"));
            for (turn, data) in data.iter().enumerate() {
                assert_eq!(data.to_vec().expect("read"), [2 * round + turn as u32; 1000], "round {round}, call {turn}");
            }
        }
    });
}

/// The same where the calls of the two streams differ: an error that names what, on both ranks in Strict.
#[rstest]
fn a4_crossed_calls_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    // A rank whose stream and memory came late would be taken for missing.
    let ready = std::sync::Barrier::new(2);
    disagree(agreement, "count", &["1000", "2000"], |me, comm| {
        let other = B::create_stream(&B::device_of(comm.stream())).expect("stream");
        let streams = [comm.stream(), &other];
        // Stream 0 has the short one, and rank 1 begins with stream 1.
        let data = [1000, 2000].map(|n| comm.buffer::<f32>(n).expect("buffer"));
        ready.wait();
        let mut launched = Vec::new();
        for turn in 0..2 {
            let which = (turn + me) % 2;
            let ranks = RawRank::new(data[which].address(), data[which].address());
            // SAFETY: waited for below; after a failure the buffers are kept.
            match unsafe { comm.broadcast_raw(ranks, streams[which], data[which].len(), DType::F32, 0) } {
                Ok(one) => launched.push(one),
                // The peer's failure was there before.
                Err(error) => {
                    std::mem::forget(data);
                    return Err(error);
                }
            }
        }
        let outcome =
            launched.iter().map(crossccl::Launched::wait).collect::<Vec<_>>().into_iter().find(Result::is_err);
        std::mem::forget(data);
        outcome.unwrap_or(Ok(()))
    });
}

/// Groups that make another number of calls each between the world's, a thread a rank: 1000 rounds of random naps.
#[rstest]
fn a6_groups_run_ahead_of_each_other() {
    needs_device!();
    let handles = cells::<B>(rank_handles(4, LIMIT));
    on_threads(&handles, |me, comm| {
        let group = me / 2;
        // What the members of a group must agree on comes from one seed, the naps from another.
        let (mut plan, mut naps) = (Random(group as u64), Random(100 + me as u64));
        let mut world = comm.buffer::<u32>(33).expect("buffer");
        let input = comm.buffer_from(&[me as i32 + 1; 50]).expect("buffer");
        let mut output = comm.buffer::<i32>(25).expect("buffer");
        let expected = [[3; 25], [7; 25]][group];
        for round in 0..1000u32 {
            for call in 0..plan.next() % 4 {
                if naps.next().is_multiple_of(16) {
                    nap(&mut naps, 300);
                }
                output.fill_bytes(0).expect("fill");
                let what = ReduceScatter::new(ReduceOp::Sum).group_size(2);
                comm.reduce_scatter(&input, &mut output, what).expect("launch").wait().expect("outcome");
                assert_eq!(output.to_vec().expect("read"), expected, "round {round}, call {call} of group {group}");
            }
            let root = round as usize % 4;
            world.write(&[round * 4 + me as u32; 33]).expect("write");
            comm.broadcast_in_place(&mut world, root).expect("launch").wait().expect("outcome");
            assert_eq!(world.to_vec().expect("read"), [round * 4 + root as u32; 33], "round {round}, world");
        }
    });
}

/// Fresh communicators whose ranks come to their first call at different times.
#[rstest]
fn a11_first_calls_of_fresh_communicators() {
    needs_device!();
    for round in 0..200u64 {
        let handles = cells::<B>(rank_handles(3, LIMIT));
        on_threads(&handles, |me, comm| {
            nap(&mut Random(3 * round + me as u64), 5000);
            let mut data = comm.buffer_from(&[if me == 0 { 7.0f32 } else { 0.0 }; 1000]).expect("buffer");
            comm.broadcast_in_place(&mut data, 0).expect("launch").wait().expect("outcome");
            assert_eq!(data.to_vec().expect("read"), [7.0; 1000], "round {round}, rank {me}");
        });
    }
}

/// The second of two calls waits for its own payload, which comes 20 ms after the first.
#[rstest]
fn a12_the_second_call_waits_for_its_own_payload(
    #[values(Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency)] algorithm: Algorithm,
) {
    needs_device!();
    crate::support::memory_for(algorithm);
    let handles = cells::<B>(rank_handles(3, LIMIT));
    on_threads(&handles, |me, comm| {
        let what = || Broadcast::from_root(1).algorithm(algorithm);
        let mut data = [0u8, 0].map(|_| comm.buffer_from(&[me as u8; 999]).expect("buffer"));
        let [first, second] = &mut data;
        let flight = comm.broadcast_in_place(first, what()).expect("launch");
        if me == 1 {
            std::thread::sleep(Duration::from_millis(20));
            second.write(&[9; 999]).expect("write");
        }
        // The others have enqueued this one long before.
        let next = comm.broadcast_in_place(second, what()).expect("launch");
        flight.wait().expect("outcome");
        next.wait().expect("outcome");
        assert_eq!(data.map(|d| d.to_vec().expect("read")), [[1; 999], [9; 999]]);
    });
}

one_call! {
/// One thread enqueues thousands of calls of one rank before the first of the other. A device takes only so many
/// before enqueuing waits: then the limit ends it, and names the rank that did not come.
#[rstest]
fn a15_one_rank_thousands_of_calls_ahead() {
    needs_device!();
    const CALLS: usize = 5000;
    let limit = if B::NAME == "cpu" { LIMIT } else { Duration::from_secs(1) };
    let ranks = rank_handles::<B>(2, limit);
    let all: Vec<u32> = (0..CALLS as u32).collect();
    let data = [ranks[0].buffer_from(&all).expect("buffer"), ranks[1].buffer::<u32>(CALLS).expect("buffer")];
    let mut launched = Vec::new();
    for (rank, data) in ranks.iter().zip(&data) {
        for call in 0..CALLS {
            let at = data.address() + 4 * call as u64;
            // SAFETY: the buffers live until after the waits, and each call has its own element.
            let one = unsafe { rank.broadcast_raw(RawRank::new(at, at), rank.stream(), 1, DType::U32, 0) };
            match one {
                Ok(one) => launched.push(one),
                Err(error) => {
                    assert!(B::NAME != "cpu" && rank.rank().0 == 0 && call > 100, "call {call}: {error}");
                    let text = launched[0].wait().expect_err("a rank is missing").to_string();
                    assert!(text.contains("for rank 1"), "{text}");
                    return;
                }
            }
        }
    }
    launched.iter().for_each(|l| l.wait().expect("outcome"));
    assert_eq!(data[1].to_vec().expect("read"), all);
}
}

/// A group without elements leaves its own barrier and nobody else's.
#[rstest]
fn a17_a_group_with_nothing_beside_one_with_something(#[values(0, 1)] empty: usize) {
    needs_device!();
    let handles = cells::<B>(rank_handles(4, LIMIT));
    on_threads(&handles, |me, comm| {
        for round in 0..20 {
            let count = if me / 2 == empty { 0 } else { 1024 };
            let input = comm.buffer_from(&vec![me as i64 + round; count]).expect("buffer");
            let mut output = comm.buffer_from(&vec![-1i64; count / 2]).expect("buffer");
            let what = ReduceScatter::new(ReduceOp::Sum).group_size(2);
            comm.reduce_scatter(&input, &mut output, what).expect("launch").wait().expect("outcome");
            let sum = 2 * (me as i64 / 2 * 2) + 1 + 2 * round;
            assert_eq!(output.to_vec().expect("read"), vec![sum; count / 2]);
            let mut world = comm.buffer_from(&[me as u8; 10]).expect("buffer");
            comm.broadcast_in_place(&mut world, 3).expect("launch").wait().expect("outcome");
            assert_eq!(world.to_vec().expect("read"), [3; 10]);
        }
    });
}

/// A rank overwrites its input behind the collective in its own stream, without asking whether the peers have read it.
#[rstest]
fn e3_inputs_overwritten_at_once() {
    needs_device!();
    const ROUNDS: usize = 1000;
    const PART: usize = 64;
    let handles = cells::<B>(rank_handles(4, LIMIT));
    on_threads(&handles, |me, comm| {
        let mut random = Random(me as u64);
        let input = comm.buffer::<i32>(4 * PART).expect("buffer");
        let output = comm.buffer::<i32>(ROUNDS * PART).expect("buffer");
        let byte = |rank: usize, round: usize| (rank * 37 + round) as u8;
        let mut last = None;
        for round in 0..ROUNDS {
            if random.next().is_multiple_of(8) {
                nap(&mut random, 200);
            }
            let ranks = RawRank::new(input.address(), output.address() + (round * PART * 4) as u64);
            // SAFETY: both buffers live until the last wait; the fill stands behind the collective before it in the
            // stream, which is what is tested.
            last = Some(unsafe {
                B::fill(comm.stream(), input.address(), byte(me, round), 16 * PART).expect("fill");
                comm.reduce_scatter_raw(ranks, comm.stream(), 4 * PART, DType::I32, ReduceOp::Sum).expect("launch")
            });
        }
        last.expect("a round").wait().expect("outcome");
        for (round, part) in output.to_vec().expect("read").chunks(PART).enumerate() {
            let sum = (0..4).map(|r| i32::from_ne_bytes([byte(r, round); 4])).fold(0, i32::wrapping_add);
            assert_eq!(part, [sum; PART], "round {round}, rank {me}");
        }
    });
}

one_call! {
/// The same with messages that take long to read: the next work in the stream begins at once.
#[rstest]
fn e3_large_inputs_overwritten_at_once(#[values(2, 4, 8)] ranks: usize) {
    needs_device!(ranks);
    crate::support::memory_for(Algorithm::TwoStageDirect);
    // In software this is long already, and the limit of the communicator is in real time.
    let bytes = as_often::<B>(1 << 20, 64 << 20);
    let comm = communicator::<B>(ranks);
    let streams: Vec<_> = (0..ranks).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let data: Vec<_> = (0..ranks).map(|r| comm.buffer::<u8>(r, bytes).expect("buffer")).collect();
    let parts: Vec<_> = (0..ranks).map(|r| comm.buffer::<u8>(r, bytes / ranks).expect("buffer")).collect();
    // SAFETY: the buffers live until the last wait; the fills stand in the ranks' streams, which is what is tested.
    let fill =
        |rank: usize, byte: u8| unsafe { B::fill(&streams[rank], data[rank].address(), byte, bytes) }.expect("fill");
    let same = |what: &str, rank: usize, buffer: &Buffer<B, u8>, byte: u8| {
        let wrong = buffer.to_vec().expect("read").iter().filter(|b| **b != byte).count();
        assert_eq!(wrong, 0, "{what}, rank {rank}: bytes that are not {byte}");
    };
    for (round, algorithm) in
        [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect].into_iter().enumerate()
    {
        let byte = 17 + round as u8;
        fill(0, byte);
        let raw: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
        let what = Broadcast::from_root(0).algorithm(algorithm);
        // SAFETY: as above.
        let one = unsafe { comm.broadcast_raw(&raw, &streams, bytes, DType::U8, what) }.expect("launch");
        fill(0, 99);
        one.wait().expect("outcome");
        for (rank, buffer) in data.iter().enumerate().skip(1) {
            same(&format!("{algorithm}"), rank, buffer, byte);
        }
    }
    (0..ranks).for_each(|rank| fill(rank, 3));
    let raw: Vec<_> = data.iter().zip(&parts).map(|(d, p)| RawRank::new(d.address(), p.address())).collect();
    // SAFETY: as above.
    let one = unsafe { comm.reduce_scatter_raw(&raw, &streams, &vec![bytes; ranks], DType::U8, ReduceOp::Sum) };
    let one = one.expect("launch");
    (0..ranks).for_each(|rank| fill(rank, 99));
    one.wait().expect("outcome");
    for (rank, part) in parts.iter().enumerate() {
        same("sum", rank, part, 3 * ranks as u8);
    }
}

/// Sizes and types of a report on flags that travel inside the payload.
#[rstest]
fn e7_payloads_that_change_every_round(#[values(1000, 2076, 4096, 6114, 7809)] count: usize) {
    needs_device!();
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let comm = communicator::<B>(4);
    let mut narrow: Vec<_> = (0..4).map(|r| comm.buffer::<i32>(r, count).expect("buffer")).collect();
    let mut wide: Vec<_> = (0..4).map(|r| comm.buffer::<i64>(r, count).expect("buffer")).collect();
    for round in 0..200usize {
        let root = round % 4;
        let algorithm = [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect][round % 3];
        let what = || Broadcast::from_root(root).algorithm(algorithm);
        let payload: Vec<i32> = (0..count).map(|i| (i * 31 + round * 7919) as i32).collect();
        narrow[root].write(&payload).expect("write");
        comm.broadcast_in_place(&mut narrow, what()).expect("launch").wait().expect("outcome");
        assert!(narrow.iter().all(|b| b.to_vec().expect("read") == payload), "i32, round {round}, {algorithm}");
        let payload: Vec<i64> = payload.iter().map(|x| i64::from(*x) << 29).collect();
        wide[root].write(&payload).expect("write");
        comm.broadcast_in_place(&mut wide, what()).expect("launch").wait().expect("outcome");
        assert!(wide.iter().all(|b| b.to_vec().expect("read") == payload), "i64, round {round}, {algorithm}");
    }
}
}

/// A rank's collective is complete once its peers have read its input: what it does then reaches nobody.
#[rstest]
fn e12_inputs_dropped_while_a_peer_is_late(#[values(false, true)] reduce: bool, #[values(false, true)] wait: bool) {
    needs_device!();
    let handles = cells::<B>(rank_handles(2, LIMIT));
    let called = AtomicU32::new(0);
    on_threads(&handles, |me, comm| {
        for round in 0..4 {
            if me == 1 {
                std::thread::sleep(Duration::from_millis(50));
                called.store(round + 1, Ordering::Release);
            }
            let mut input = comm.buffer_from(&[me as u32 + 1 + round; 50_000]).expect("buffer");
            let mut output = comm.buffer::<u32>(if reduce { 25_000 } else { 50_000 }).expect("buffer");
            let flight = if reduce {
                comm.reduce_scatter(&input, &mut output, ReduceOp::Sum)
            } else {
                comm.broadcast((me == 0).then_some(&input), &mut output, 0)
            };
            let flight = flight.expect("launch");
            if wait {
                flight.wait().expect("outcome");
            } else {
                drop(flight);
            }
            assert!(called.load(Ordering::Acquire) > round, "rank {me} went on before its reader had come");
            input.fill_bytes(0xee).expect("fill");
            drop(input);
            let expected = if reduce { 3 + 2 * round } else { 1 + round };
            assert!(output.to_vec().expect("read").iter().all(|x| *x == expected), "round {round}, rank {me}");
        }
    });
}

one_call! {
/// As many blocks as there may be, on far fewer cores: some are a whole time slice behind. The epoch moves when the last
/// of them is through.
#[rstest]
fn e13_blocks_that_lag_behind() {
    needs_device!();
    let comm = crate::support::builder::<B>(0..2).timeout(LIMIT).build().expect("communicator");
    let bytes = crossccl::MAX_BLOCKS as usize * axes::tile::<B>(2);
    let what = |root: usize| Broadcast::from_root(root).max_blocks(crossccl::MAX_BLOCKS);
    // Ranks that share a GPU share what runs at the same time there.
    let blocks = comm.plan_broadcast(bytes, DType::U8, what(0)).expect("plan").blocks;
    assert!(blocks >= crossccl::MAX_BLOCKS / 2, "{blocks} blocks");
    let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let buffers: Vec<_> = (0..2).map(|r| comm.buffer::<u8>(r, bytes).expect("buffer")).collect();
    let ranks: Vec<_> = buffers.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    // Where software plays the devices, a block's speed is a matter of chance, and a round takes seconds.
    for round in 0..if is_emulated::<B>() { 10 } else { 250 } {
        let launched: Vec<_> = (0..4)
            .map(|call| {
                let (root, byte) = (call % 2, (round * 4 + call) as u8);
                // SAFETY: the buffers live until after the wait; the fill stands in the root's stream, in front.
                unsafe {
                    B::fill(&streams[root], buffers[root].address(), byte, bytes).expect("fill");
                    comm.broadcast_raw(&ranks, &streams, bytes, DType::U8, what(root)).expect("launch")
                }
            })
            .collect();
        launched.iter().for_each(|l| l.wait().expect("outcome"));
        let last = vec![(round * 4 + 3) as u8; bytes];
        assert!(buffers.iter().all(|b| b.to_vec().expect("read") == last), "round {round}");
    }
}
}
