//! What packets alone can get wrong: borders of words and inboxes, payloads that look like flags, slots that are used again,
//! and ranks that agree on everything but the algorithm.

use std::time::{Duration, Instant};

use crossccl::{
    Agreement, Algorithm, Broadcast, Communicator, DType, Error, Rank, RankComm, RawRank, ReduceOp, ReduceScatter, Result,
};
use rstest::rstest;

use super::{
    B,
    failures::{disagree, guarded_broadcast, guarded_reduce_scatter, recovers},
};
use crate::support::{Random, builder, cells, communicator, on_threads, oracle, rank_handles};

fn low_latency(root: usize) -> Broadcast {
    Broadcast::from_root(root).algorithm(Algorithm::LowLatency)
}

fn sum() -> ReduceScatter {
    ReduceScatter::new(ReduceOp::Sum).algorithm(Algorithm::LowLatency)
}

one_call! {
use super::{
    broadcast::check,
    reduce_scatter::{Place, check_at},
};

/// Bytes around the data of a packet, of one access of two, of all threads' accesses, and of a slot; any alignment.
#[rstest]
fn borders_of_words_blocks_and_slots(#[values(2, 3, 8)] ranks: usize, #[values(1, 3, 16)] blocks: u32) {
    needs_device!(ranks);
    let comm = communicator(ranks);
    let most = crossccl::low_latency_bytes(ranks);
    let around = [0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 4095, 4096, 4097, 16_383, 16_384, 16_385, most - 9, most - 1, most];
    for (i, bytes) in around.into_iter().enumerate() {
        let root = i % ranks;
        check(&comm, DType::U8, bytes, low_latency(root).max_blocks(blocks), root, [i % 9, i % 5], i % 2 == 0);
        for (dtype, op) in [(DType::I8, ReduceOp::Max), (DType::BF16, ReduceOp::Average), (DType::F64, ReduceOp::Sum)] {
            let count = (bytes / dtype.size() * ranks).saturating_sub(i % 3);
            let what = ReduceScatter::new(op).algorithm(Algorithm::LowLatency).max_blocks(blocks);
            let place = if i % 2 == 0 { Place::In(i % 3) } else { Place::Apart(i % 4, i % 3) };
            check_at(&comm, dtype, op, &[vec![count]], 0, what, place);
        }
    }
}

/// Parts of given lengths, empty ones included, along the last axis.
#[rstest]
fn parts_of_given_lengths(#[values(0, 1)] axis: usize) {
    needs_device!();
    let comm = communicator::<B>(4);
    let (shape, lengths) = if axis == 0 { ([12, 7], [5, 0, 1, 6]) } else { ([9, 12], [0, 11, 1, 0]) };
    let data: Vec<Vec<u8>> = (0..4).map(|r| Random(r).elements(DType::I32, shape[0] * shape[1])).collect();
    let what = || sum().shape(shape).axis(axis as i64).lengths(lengths);
    let mut inputs: Vec<_> = (0..4).map(|r| comm.buffer::<i32>(r, shape[0] * shape[1]).expect("buffer")).collect();
    inputs.iter_mut().zip(&data).for_each(|(i, d)| i.write_bytes(d).expect("write"));
    let part = |r: usize| comm.part(r, shape[0] * shape[1], what()).expect("a part").count() as usize;
    let mut outputs: Vec<_> = (0..4).map(|r| comm.buffer::<i32>(r, part(r)).expect("buffer")).collect();
    comm.reduce_scatter(&inputs, &mut outputs, what()).expect("launch").wait().expect("outcome");
    let whole = oracle::reduce(DType::I32, ReduceOp::Sum, &data.iter().map(Vec::as_slice).collect::<Vec<_>>());
    for (rank, output) in outputs.iter().enumerate() {
        let mut bytes = vec![0; output.size_in_bytes()];
        output.read_bytes(&mut bytes).expect("read");
        assert_eq!(bytes, oracle::part_of_lengths(&whole, 4, &shape, axis, &lengths, rank), "rank {rank}");
    }
}

/// Case E8: flags are 2^31 and the number of the launch; a payload of such words is a payload.
#[rstest]
fn e8_payloads_that_look_like_flags() {
    needs_device!();
    let comm = communicator::<B>(2);
    for launch in 1..=200u32 {
        // The flags of this launch, of its neighbours, of two launches ago and of untouched memory.
        let flags = [0, 1 << 31 | launch, 1 << 31 | (launch + 1), 1 << 31 | (launch - 1), 1 << 31 | launch.saturating_sub(2)];
        let words: Vec<u32> = (0..100).map(|i| flags[(i + launch as usize) % flags.len()]).collect();
        let root = launch as usize % 2;
        let mut buffers: Vec<_> = (0..2).map(|r| comm.buffer::<u32>(r, words.len()).expect("buffer")).collect();
        buffers[root].write(&words).expect("write");
        comm.broadcast_in_place(&mut buffers, low_latency(root)).expect("launch").wait().expect("outcome");
        assert_eq!(buffers[1 - root].to_vec().expect("read"), words, "launch {launch}");
    }
}

/// Case E7: flags that travel inside the payload. Each round has other data of another size in the same slots.
#[rstest]
fn e7_packets_that_change_every_round(#[values(1, 1000, 2076, 7809)] count: usize) {
    needs_device!();
    let comm = communicator::<B>(4);
    let mut data: Vec<_> = (0..4).map(|r| comm.buffer::<i64>(r, count).expect("buffer")).collect();
    for round in 0..200usize {
        let (root, n) = (round % 4, 1 + round * 31 % count);
        let payload: Vec<i64> = (0..n).map(|i| (i * 31 + round * 7919) as i64 * 0x1_0000_0001).collect();
        data[root].write_at(0, &payload).expect("write");
        let parts = data.iter_mut().map(|b| b.slice_mut(0..n).expect("inside"));
        comm.broadcast_in_place(parts, low_latency(root)).expect("launch").wait().expect("outcome");
        for (rank, buffer) in data.iter().enumerate() {
            let mut got = vec![0; n];
            buffer.read_at(0, &mut got).expect("read");
            assert!(got == payload, "round {round}, rank {rank}");
        }
    }
}

/// 10,000 launches in a row, by packets and by pulls, of the world and of groups, queued 100 at a time.
#[rstest]
fn ten_thousand_launches_of_both_kinds() {
    needs_device!();
    const COUNT: usize = 96;
    let comm = communicator::<B>(4);
    let streams: Vec<_> = (0..4).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let mut random = Random(4);
    let mut state: Vec<Vec<u8>> = (0..4).map(|_| random.elements(DType::U32, COUNT)).collect();
    let mut buffers: Vec<_> = (0..4).map(|r| comm.buffer::<u32>(r, COUNT).expect("buffer")).collect();
    buffers.iter_mut().zip(&state).for_each(|(b, s)| b.write_bytes(s).expect("write"));
    let raw: Vec<_> = buffers.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    for round in 0..100 {
        let mut launched = Vec::new();
        for _ in 0..100 {
            let algorithm = if random.next().is_multiple_of(4) { Algorithm::OneStage } else { Algorithm::LowLatency };
            if random.next().is_multiple_of(2) {
                let root = random.next() as usize % 4;
                let what = Broadcast::from_root(root).algorithm(algorithm);
                // SAFETY: the buffers live until after the waits.
                let one = unsafe { comm.broadcast_raw(&raw, &streams, COUNT, DType::U32, what) };
                launched.push(one.expect("launch"));
                let data = state[root].clone();
                state.iter_mut().for_each(|s| s.clone_from(&data));
                continue;
            }
            let group = [2, 4][random.next() as usize % 2];
            let what = ReduceScatter::new(ReduceOp::Sum).algorithm(algorithm).group_size(group);
            let each = COUNT / group * 4;
            let at: Vec<_> = (raw.iter().enumerate())
                .map(|(r, one)| RawRank::new(one.send, one.send + ((r % group) * each) as u64))
                .collect();
            // SAFETY: as above.
            let one = unsafe { comm.reduce_scatter_raw(&at, &streams, &[COUNT; 4], DType::U32, what) };
            launched.push(one.expect("launch"));
            for ranks in state.chunks_mut(group) {
                let whole = oracle::reduce(DType::U32, ReduceOp::Sum, &ranks.iter().map(Vec::as_slice).collect::<Vec<_>>());
                for (r, state) in ranks.iter_mut().enumerate() {
                    state[r * each..(r + 1) * each].copy_from_slice(&whole[r * each..(r + 1) * each]);
                }
            }
        }
        launched.iter().for_each(|one| one.wait().expect("outcome"));
        for (rank, (buffer, state)) in buffers.iter().zip(&state).enumerate() {
            let mut bytes = vec![0; buffer.size_in_bytes()];
            buffer.read_bytes(&mut bytes).expect("read");
            assert!(bytes == *state, "round {round}, rank {rank}");
        }
    }
}
}

/// A rank that comes late finds what two launches left for it, and the third waits for it.
#[rstest]
fn a_late_rank_loses_nothing() {
    needs_device!();
    let handles = cells::<B>(rank_handles(3, Duration::from_secs(10)));
    on_threads(&handles, |me, comm| {
        for call in 0..12u32 {
            if me == 2 && call % 4 == 0 {
                std::thread::sleep(Duration::from_millis(30));
            }
            let root = call as usize / 3 % 3;
            let mut data = comm.buffer_from(&[1000 * me as u32 + call; 300]).expect("buffer");
            comm.broadcast_in_place(&mut data, low_latency(root)).expect("launch").wait().expect("outcome");
            assert_eq!(data.to_vec().expect("read"), [1000 * root as u32 + call; 300], "call {call}");
        }
    });
}

/// Case A9: whoever misses a rank names it, receivers and roots, and all goes on after a reset.
#[rstest]
fn a9_a_missing_rank_by_packets(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    let short = Duration::from_millis(200);
    let comm = builder::<B>(0..3).timeout(short).agreement(agreement).build().expect("communicator");
    let handles = cells(comm.into_ranks());
    type Call<'a> = &'a (dyn Fn(&RankComm<B>) -> Result<()> + Sync);
    let calls: [Call<'_>; 3] = [
        &|comm| comm.broadcast_in_place(&mut comm.buffer::<u32>(70)?, low_latency(2))?.wait(),
        &|comm| comm.reduce_scatter_in_place(&mut comm.buffer::<u32>(70)?, sum())?.wait(),
        &|comm| comm.broadcast_in_place(&mut comm.buffer::<u32>(70)?, low_latency(0))?.wait(),
    ];
    for (i, call) in calls.into_iter().enumerate() {
        let begin = Instant::now();
        let outcomes = on_threads(&handles[..2], |_, comm| call(comm));
        assert!(begin.elapsed() < Duration::from_secs(1), "took {:?}", begin.elapsed());
        for (rank, outcome) in outcomes.iter().enumerate() {
            // A receiver has all that it depends on.
            if i == 2 && rank == 1 && agreement == Agreement::Dependent {
                assert_eq!(*outcome, Ok(()));
                continue;
            }
            assert!(matches!(outcome, Err(Error::Timeout { missing, .. }) if missing[..] == [Rank(2)]), "{i}: {outcomes:?}");
        }
        let late = on_threads(&handles[2..], |_, comm| call(comm));
        assert!(matches!(late[0], Err(Error::Poisoned { .. })), "{late:?}");
        recovers(&handles);
    }
}

/// Case C6: each field that ranks may not agree on, all of them sending packets.
#[rstest]
fn c6_packets_that_differ(#[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement) {
    needs_device!();
    disagree(agreement, "root", &["0", "1"], |me, comm| guarded_broadcast(comm, DType::F32, 100, low_latency(me)));
    disagree(agreement, "root", &["0", "0", "2"], |me, comm| {
        guarded_broadcast(comm, DType::F32, 100, low_latency(if me == 2 { 2 } else { 0 }))
    });
    disagree(agreement, "count", &["100", "101", "101"], |me, comm| {
        guarded_broadcast(comm, DType::F32, if me == 0 { 100 } else { 101 }, low_latency(0))
    });
    disagree(agreement, "count", &["100", "0"], |me, comm| {
        guarded_broadcast(comm, DType::F32, if me == 0 { 100 } else { 0 }, low_latency(0))
    });
    disagree(agreement, "count", &["60", "70"], |me, comm| guarded_reduce_scatter(comm, DType::I8, [[12, 5], [14, 5]][me], sum()));
    disagree(agreement, "dtype", &["f32", "f32", "i32"], |me, comm| {
        guarded_broadcast(comm, if me == 2 { DType::I32 } else { DType::F32 }, 100, low_latency(1))
    });
    disagree(agreement, "op", &["sum", "sum", "average"], |me, comm| {
        let op = if me == 2 { ReduceOp::Average } else { ReduceOp::Sum };
        guarded_reduce_scatter(comm, DType::F32, [12, 5], ReduceScatter::new(op).algorithm(Algorithm::LowLatency))
    });
    disagree(agreement, "axis", &["0", "1", "0"], |me, comm| {
        guarded_reduce_scatter(comm, DType::BF16, [12, 12], sum().axis(i64::from(me == 1)))
    });
    disagree(agreement, "shape", &["[12, 5]", "[6, 10]"], |me, comm| {
        guarded_reduce_scatter(comm, DType::I8, [[12, 5], [6, 10]][me], sum())
    });
    disagree(agreement, "blocks", &["1", "2"], |me, comm| {
        guarded_broadcast(comm, DType::F32, 12_000, low_latency(0).max_blocks(me as u32 + 1))
    });
    disagree(agreement, "collective", &["broadcast", "reduce_scatter"], |me, comm| {
        if me == 0 {
            guarded_broadcast(comm, DType::F32, 60, low_latency(0))
        } else {
            guarded_reduce_scatter(comm, DType::F32, [12, 5], sum())
        }
    });
}

/// Some pull and some send packets, whoever comes first: a mismatch that names the algorithm, at once, on both sides.
#[rstest]
fn c6_packets_against_pulls(
    #[values(Agreement::Dependent, Agreement::Strict)] agreement: Agreement,
    #[values(0, 1, 2)] late: usize,
    #[values(Algorithm::OneStage, Algorithm::TwoStageStaged)] pulls: Algorithm,
) {
    needs_device!();
    for packets in 0..3 {
        let values = [0, 1, 2].map(|r| if r == packets { "low-latency" } else { pulls.name() });
        let algorithm = |me: usize| if me == packets { Algorithm::LowLatency } else { pulls };
        let nap = |me: usize| std::thread::sleep(Duration::from_millis(if me == late { 30 } else { 0 }));
        disagree(agreement, "algorithm", &values, |me, comm| {
            nap(me);
            guarded_broadcast(comm, DType::F32, 100, Broadcast::from_root(0).algorithm(algorithm(me)))
        });
        if pulls == Algorithm::OneStage {
            disagree(agreement, "algorithm", &values, |me, comm| {
                nap(me);
                guarded_reduce_scatter(comm, DType::F32, [12, 5], ReduceScatter::new(ReduceOp::Sum).algorithm(algorithm(me)))
            });
        }
    }
}

/// Failures with packets left in the inboxes, each of another call, and resets: nothing of before is taken for new.
#[rstest]
fn a11_packets_of_before_a_reset() {
    needs_device!();
    let comm = builder::<B>(0..3).timeout(Duration::from_millis(30)).build().expect("communicator");
    let handles = cells(comm.into_ranks());
    for round in 0..8u32 {
        // Their packets reach the one that does not come.
        let absent = round as usize % 3;
        on_threads(&handles, |me, comm| {
            if me != absent {
                let mut data = comm.buffer_from(&[0xbad; 90]).expect("buffer");
                comm.reduce_scatter_in_place(&mut data, sum()).and_then(|f| f.wait()).expect_err("one is missing");
            }
        });
        recovers(&handles);
        on_threads(&handles, |me, comm| {
            let what = || low_latency(round as usize % 3).timeout(Duration::from_secs(10));
            for call in 0..3 {
                let mut data = comm.buffer_from(&[me as u32 + 10 * round + 100 * call; 90]).expect("buffer");
                comm.broadcast_in_place(&mut data, what()).expect("launch").wait().expect("outcome");
                assert_eq!(data.to_vec().expect("read"), [round % 3 + 10 * round + 100 * call; 90], "round {round}");
            }
        });
    }
}

one_call! {
/// The planner's own choice, on both sides of its border: never beyond what packets are good for, and below where the
/// cost model or a row has something else faster.
#[rstest]
fn the_border_of_what_is_small() {
    needs_device!();
    let comm: Communicator<B> = communicator(2);
    let sharing = if <B as crossccl::Backend>::device_count().expect("devices") < 2 { 2 } else { 1 };
    let packets = <B as crossccl::Backend>::properties(&crate::support::device::<B>(0), 2, sharing).expect("properties").packets;
    // A tuning row may know better than the backend how far they are good, and no further than they go.
    let most = if packets.broadcast == 0 { 0 } else { crossccl::low_latency_bytes(2) };
    let small = |count: usize| comm.plan_broadcast(count, DType::U8, 0).expect("plan").algorithm == Algorithm::LowLatency;
    assert!(!small(most + 1));
    let (mut border, mut beyond) = (0, most + 1);
    while most > 0 && beyond - border > 1 {
        let middle = border.midpoint(beyond);
        if small(middle) { border = middle } else { beyond = middle }
    }
    assert_eq!(border > 0, most > 0, "packets up to {most} bytes, chosen up to {border}");
    for count in [border.max(1), border + 1] {
        check(&comm, DType::U8, count, Broadcast::from_root(1), 1, [0, 0], false);
    }
}
}
