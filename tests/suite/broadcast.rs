use crossccl::{Algorithm, Broadcast, Communicator, DType, RawRank, Topology};
use rstest::rstest;

use super::B;
use crate::support::{Guarded, Random, assert_same, axes, communicator};

/// One broadcast, its outputs between guards and poisoned before; compared byte by byte.
pub(super) fn check(comm: &Communicator<B>, dtype: DType, count: usize, what: Broadcast, root: usize, offsets: [usize; 2], in_place: bool) {
    let ranks = comm.ranks();
    let plan = comm.plan_broadcast(count, dtype, what.clone()).map_or_else(|e| e.to_string(), |p| p.to_string());
    let name = format!(
        "{ranks} ranks, {count} x {dtype}, root {root}, offsets {offsets:?}, in place: {in_place}, plan: {plan}; {}",
        axes::again()
    );
    let stream = |rank: usize| comm.stream(rank).expect("a rank");
    let data = Random((count * 64 + root) as u64).bytes(count * dtype.size());
    let mut outputs: Vec<_> =
        (0..ranks).map(|r| Guarded::<B>::new(stream(r), dtype, count, offsets[1] + r % 2)).collect();
    if in_place {
        outputs[root].set(&data);
        let outcome = comm.broadcast_in_place(outputs.iter_mut().map(Guarded::output), what).and_then(|f| f.wait());
        outcome.unwrap_or_else(|e| panic!("{name}: {e}"));
    } else {
        let input = Guarded::<B>::with(stream(root), dtype, &data, offsets[0]);
        let outcome = comm.broadcast(input.input(), outputs.iter_mut().map(Guarded::output), what).and_then(|f| f.wait());
        outcome.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&format!("{name}: input"), dtype, &input.data(), &data);
    }
    for (rank, output) in outputs.iter().enumerate() {
        assert_same(&format!("{name}: rank {rank}"), dtype, &output.data(), &data);
    }
}

/// The matrix: any two of count, root, dtype and the two offsets meet, for each number of ranks and
/// algorithm, in place and not, all on one communicator.
#[rstest]
fn matches_the_input(
    #[values(1, 2, 3, 4, 5, 6, 7, 8)] ranks: usize,
    #[values(Algorithm::Auto, Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency)] algorithm: Algorithm,
    #[values(false, true)] in_place: bool,
) {
    needs_device!();
    crate::support::memory_for(algorithm);
    let comm = axes::communicator::<B>(ranks);
    let what = |root: usize| Broadcast::from_root(root).algorithm(algorithm).max_blocks(axes::BLOCKS);
    let counts = DType::ALL.map(|dtype| {
        let plan = |count| comm.plan_broadcast(count, dtype, what(0)).expect("plan");
        axes::counts(dtype, axes::elements::<B>(ranks, 1, algorithm, dtype), plan)
    });
    let most = counts.iter().map(Vec::len).max().unwrap_or(0);
    for [count, root, dtype, from, to] in axes::pairs([most, ranks, counts.len(), 2, 2]) {
        let counts = &counts[dtype];
        check(&comm, DType::ALL[dtype], counts[count % counts.len()], what(root), root, [from, to], in_place);
    }
}

/// The most bytes of a broadcast that an algorithm takes.
fn limit(ranks: usize, algorithm: Algorithm) -> usize {
    if algorithm == Algorithm::LowLatency { crossccl::low_latency_bytes(ranks) } else { usize::MAX }
}

/// An algorithm that the planner learns must come into the lists of this suite.
#[rstest]
fn every_algorithm_is_in_the_matrix() {
    needs_device!();
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let here = [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency];
    assert_eq!(axes::offered(&axes::communicator::<B>(4)), here);
}

/// The thresholds that the matrix goes around are there: more blocks, a second and a third round.
#[rstest]
fn the_counts_meet_every_threshold() {
    needs_device!();
    let comm = axes::communicator::<B>(3);
    let plans = |algorithm: Algorithm| {
        let what = || Broadcast::from_root(0).algorithm(algorithm).max_blocks(axes::BLOCKS);
        let plan = |count| comm.plan_broadcast(count, DType::U8, what()).expect("plan");
        axes::counts(DType::U8, axes::elements::<B>(3, 1, algorithm, DType::U8), plan).into_iter().map(plan).collect::<Vec<_>>()
    };
    for algorithm in axes::offered(&comm) {
        assert!((1..=axes::BLOCKS).all(|blocks| plans(algorithm).iter().any(|p| p.blocks == blocks)), "{algorithm}");
    }
    assert!((1..=3).all(|rounds| plans(Algorithm::TwoStageStaged).iter().any(|p| p.rounds == rounds)));
}

/// The direct form in several slices, which links that hide one stage behind the other make it take; unequal and ragged at
/// the end, fewer and more blocks than sources.
#[rstest]
fn slices_of_a_direct_broadcast(#[values(2, 3, 8)] ranks: usize, #[values(1, 4)] blocks: u32) {
    needs_device!();
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let mut links = Topology::switch(1_000_000_000);
    (links.flight_ns, links.read_ns, links.release_ns) = (0, 0, 1);
    let comm: Communicator<B> = crate::support::builder::<B>(0..ranks).topology(links).build().expect("communicator");
    let what = |root| Broadcast::from_root(root).algorithm(Algorithm::TwoStageDirect).max_blocks(blocks);
    let step = axes::tile::<B>(ranks) * blocks as usize * (ranks - 1);
    for (count, at_least) in [(step, 1), (step + 1, 1), (3 * step + 17, 3), (5 * step - 1, 4)] {
        let plan = comm.plan_broadcast(count, DType::U8, what(0)).expect("plan");
        // Two ranks have no second stage to hide.
        assert!(plan.rounds >= if ranks == 2 { 1 } else { at_least }, "{plan}");
        for root in [0, ranks - 1] {
            check(&comm, DType::U8, count, what(root), root, [1, 3], false);
            check(&comm, DType::U8, count, what(root), root, [0, 0], true);
        }
    }
}

/// The same communicator and the same buffers three times, with other data from another root each time.
#[rstest]
fn three_times_on_the_same_buffers(
    #[values(2, 3, 8)] ranks: usize,
    #[values(Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency)] algorithm: Algorithm,
) {
    needs_device!();
    crate::support::memory_for(algorithm);
    let comm = axes::communicator::<B>(ranks);
    let count = axes::elements::<B>(ranks, 1, algorithm, DType::U8);
    let mut buffers: Vec<_> =
        (0..ranks).map(|r| Guarded::<B>::new(comm.stream(r).expect("a rank"), DType::U8, count, r)).collect();
    for turn in 0..3 {
        let root = (turn + 1) % ranks;
        let data = Random(turn as u64).bytes(count);
        buffers[root].set(&data);
        let what = Broadcast::from_root(root).algorithm(algorithm).max_blocks(axes::BLOCKS);
        comm.broadcast_in_place(buffers.iter_mut().map(Guarded::output), what).expect("launch").wait().expect("outcome");
        for (rank, buffer) in buffers.iter().enumerate() {
            assert_same(&format!("turn {turn}, rank {rank}; {}", axes::again()), DType::U8, &buffer.data(), &data);
        }
    }
}

#[rstest]
fn any_dtype_and_number_of_blocks(
    #[values(2, 3, 8)] ranks: usize,
    #[values(1, 2, 5, 64)] blocks: u32,
    #[values(Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency)] algorithm: Algorithm,
) {
    needs_device!();
    crate::support::memory_for(algorithm);
    let comm = communicator(ranks);
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        let what = Broadcast::from_root(i % ranks).algorithm(algorithm).max_blocks(blocks);
        check(&comm, dtype, 40_001.min(limit(ranks, algorithm) / dtype.size()), what, i % ranks, [1, 0], i % 2 == 0);
    }
}

/// Case B11: every pair of byte offsets between source and destination.
#[rstest]
fn b11_any_alignment(#[values(Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency)] algorithm: Algorithm) {
    needs_device!();
    crate::support::memory_for(algorithm);
    let comm = communicator(3);
    for from in 0..16 {
        for to in 0..16 {
            check(&comm, DType::U8, 1000, Broadcast::from_root(1).algorithm(algorithm), 1, [from, to], false);
        }
    }
    check(&comm, DType::BF16, 4097, Broadcast::from_root(2).algorithm(algorithm), 2, [1, 3], false);
}

/// Rounds through a small payload: the halves are used again and again, the last round is short.
#[rstest]
fn two_stage_goes_in_rounds(#[values(2, 3, 4, 8)] ranks: usize, #[values(32, 64, 4096)] payload: usize) {
    needs_device!();
    let comm = crate::support::builder::<B>(0..ranks).payload_bytes(payload).build().expect("communicator");
    let half = payload / 2;
    for length in [1, half, half * ranks, half * ranks + 1, 7 * half * ranks - 1, 7 * half * ranks + 15] {
        for root in [0, ranks - 1] {
            let what = Broadcast::from_root(root).algorithm(Algorithm::TwoStageStaged).max_blocks(3);
            check(&comm, DType::U8, length, what, root, [3, 1], false);
        }
    }
}

#[rstest]
fn sixty_four_ranks(#[values(Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency)] algorithm: Algorithm) {
    needs_device!(64);
    crate::support::memory_for(algorithm);
    let comm = communicator(64);
    for root in [0, 31, 63] {
        check(&comm, DType::U8, 70_001.min(limit(64, algorithm)), Broadcast::from_root(root).algorithm(algorithm), root, [0, 0], false);
    }
}

/// Case A12: each call waits for its own launch of the peers, not for any earlier one.
#[rstest]
fn a12_calls_follow_each_other() {
    needs_device!();
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let comm = communicator(4);
    for round in 0..200 {
        let algorithm = [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency][round % 4];
        check(&comm, DType::U8, 1 + round * 37, Broadcast::from_root(round % 4).algorithm(algorithm), round % 4, [0, 0], false);
    }
}

/// Case C7: a rank is a position, never a device number.
#[rstest]
fn c7_devices_in_any_order(#[values(Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency)] algorithm: Algorithm) {
    needs_device!();
    crate::support::memory_for(algorithm);
    let comm = crate::support::builder::<B>([3, 1, 2, 0]).build().expect("communicator");
    for root in 0..4 {
        check(&comm, DType::F32, 1001, Broadcast::from_root(root).algorithm(algorithm), root, [0, 0], true);
    }
}

/// Case E8: no payload is mistaken for a sentinel.
#[rstest]
fn e8_every_bit_pattern_arrives(#[values(0u32, u32::MAX, 0x8000_0000, 0x8000_8000, 0x7fc0_0001)] pattern: u32) {
    needs_device!();
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let comm = communicator::<B>(3);
    let input = comm.buffer_from(0, &[pattern; 5000]).expect("buffer");
    let mut outputs: Vec<_> = (0..3).map(|r| comm.buffer_from(r, &[!pattern; 5000]).expect("buffer")).collect();
    for algorithm in [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect, Algorithm::LowLatency] {
        let what = Broadcast::from_root(0).algorithm(algorithm);
        comm.broadcast(&input, &mut outputs, what).expect("launch").wait().expect("outcome");
        assert!(outputs.iter().all(|o| o.to_vec().expect("read") == [pattern; 5000]));
    }
}

/// I9: the 16 bits of epoch in a record's fingerprint wrap around, which must not matter.
#[rstest]
fn i9_more_launches_than_a_fingerprint_counts() {
    needs_device!();
    let comm = communicator::<B>(2);
    let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let mut data: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[r as u8; 3]).expect("buffer")).collect();
    let ranks: Vec<_> = data.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    for round in 0..(1usize << 16) / 64 + 2 {
        for call in 0..64 {
            // SAFETY: the buffers outlive the wait below, and nothing else uses them until then.
            let launched = unsafe { comm.broadcast_raw(&ranks, &streams, 3, DType::U8, (round + call) % 2) };
            let launched = launched.expect("launch");
            if call == 63 {
                launched.wait().expect("outcome");
            }
        }
    }
    data[1].write(&[9; 3]).expect("write");
    comm.broadcast_in_place(&mut data, 1).expect("launch").wait().expect("outcome");
    assert_eq!(data[0].to_vec().expect("read"), [9; 3]);
}
