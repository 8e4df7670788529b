//! Cases B: sizes, indices, alignment.

use std::time::Duration;

use crossccl::{
    Algorithm, Backend, Broadcast, Buffer, Communicator, DType, MAX_BLOCKS, ReduceOp, ReduceScatter, VECTOR,
    signal_buffer_bytes,
};
use rstest::rstest;

use super::{
    super::{
        broadcast::check,
        reduce_scatter::{Place, check_at},
    },
    B,
};
use crate::support::{axes, communicator};

const ALGORITHMS: [Algorithm; 3] = [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStageDirect];

/// `block` over and over, the last one cut off.
fn write_pattern(buffer: &mut Buffer<B, u8>, block: &[u8]) {
    for at in (0..buffer.len()).step_by(block.len()) {
        buffer.write_at(at, &block[..block.len().min(buffer.len() - at)]).expect("write");
    }
}

/// The first of `range` that is not as in `block` over and over.
fn first_wrong(buffer: &Buffer<B, u8>, range: std::ops::Range<usize>, block: &[u8]) -> Option<usize> {
    let mut got = vec![0; block.len()];
    let mut at = range.start;
    while at < range.end {
        let from = at % block.len();
        let len = (block.len() - from).min(range.end - at);
        buffer.read_at(at, &mut got[..len]).expect("read");
        if got[..len] != block[from..from + len] {
            return (0..len).find(|i| got[*i] != block[from + *i]).map(|i| at + i);
        }
        at += len;
    }
    None
}

/// More bytes than 31 and 32 bits count. One pair of buffers for all of it: touching 8 GiB for the first time takes
/// longer than all the rest.
#[rstest]
fn b1_offsets_beyond_32_bits() {
    needs_device!();
    // Minutes in software, beyond any limit of the suite.
    let emulated = crate::support::is_emulated::<B>();
    if emulated && std::env::var_os("CROSSCCL_EMULATOR_LONG").is_none() {
        println!("SKIPPED {} with 2 ranks: 4 GiB, emulated; CROSSCCL_EMULATOR_LONG=1 takes the time", B::NAME);
        return;
    }
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let (long, short) = ((1usize << 32) + 5, (1usize << 31) + 5);
    // A period that divides neither, so that nothing passes that went 2^31 or 2^32 astray.
    let block: Vec<u8> = (0..(1u32 << 18) - 5).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let limit = Duration::from_secs(if emulated { 900 } else { 20 });
    let comm = crate::support::builder::<B>(0..2).timeout(limit).build().expect("communicator");
    let mut buffers = [0, 1].map(|r| comm.buffer::<u8>(r, long).expect("buffer"));
    write_pattern(&mut buffers[0], &block);
    // From the one that has it to the other, in turns.
    for (turn, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let (root, other) = (turn % 2, 1 - turn % 2);
        buffers[other].fill_bytes(0xab).expect("fill");
        let what = Broadcast::from_root(root).algorithm(algorithm);
        let two_gib = buffers.iter_mut().map(|b| b.slice_mut(0..short).expect("inside"));
        comm.broadcast_in_place(two_gib, what.clone()).expect("launch").wait().expect("outcome");
        assert_eq!(first_wrong(&buffers[other], short - 9..short, &block), None, "{algorithm}, {short} bytes");
        let mut behind = [0; 4096];
        buffers[other].read_at(short, &mut behind).expect("read");
        assert_eq!(behind, [0xab; 4096], "{algorithm}, {short} bytes: written beyond the end");
        comm.broadcast_in_place(&mut buffers, what).expect("launch").wait().expect("outcome");
        assert_eq!(first_wrong(&buffers[other], 0..long, &block), None, "{algorithm}, {long} bytes");
    }
    let sum = ReduceScatter::new(ReduceOp::Sum);
    let part = comm.part(1, long, sum.clone()).expect("part").offset as usize;
    comm.reduce_scatter_in_place(&mut buffers, sum).expect("launch").wait().expect("outcome");
    let doubled: Vec<u8> = block.iter().map(|b| b.wrapping_mul(2)).collect();
    for (rank, [first, second]) in [[&doubled, &block], [&block, &doubled]].into_iter().enumerate() {
        assert_eq!(first_wrong(&buffers[rank], 0..part, first), None, "reduce-scatter, rank {rank}");
        assert_eq!(first_wrong(&buffers[rank], part..long, second), None, "reduce-scatter, rank {rank}");
    }
}

/// A count that no vector, no rank and no tile divides.
#[rstest]
fn b5_a_broadcast_of_ten_million_elements(#[values(0, 2)] algorithm: usize) {
    needs_device!();
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let comm = communicator(3);
    let what = Broadcast::from_root(1).algorithm(ALGORITHMS[algorithm]);
    check(&comm, DType::F32, 10_556_587, what, 1, [1, 0], false);
}

/// Sums of small integers, exact in f32, so that the expected value of an element is a formula.
#[rstest]
#[case::the_counts_of_the_report(8, 8 * 1_319_573)]
#[case::seven(7, 7 * 1_508_083)]
#[case::ragged(8, 10_556_587)]
fn b5_a_reduce_scatter_of_ten_million_elements(#[case] ranks: usize, #[case] count: usize) {
    needs_device!();
    const GUARD: usize = 7;
    let comm = communicator::<B>(ranks);
    let inputs: Vec<_> = (0..ranks)
        .map(|r| {
            comm.buffer_from(r, &(0..count).map(|i| ((i + 13 * r) % 1009) as f32).collect::<Vec<_>>()).expect("buffer")
        })
        .collect();
    let parts: Vec<_> = (0..ranks).map(|r| comm.part(r, count, ReduceOp::Sum).expect("part")).collect();
    let guarded = |r: usize| vec![-1.0f32; GUARD + parts[r].count() as usize + GUARD];
    let mut outputs: Vec<_> = (0..ranks).map(|r| comm.buffer_from(r, &guarded(r)).expect("buffer")).collect();
    let between = outputs.iter_mut().map(|o| {
        let end = o.len() - GUARD;
        o.slice_mut(GUARD..end).expect("inside")
    });
    comm.reduce_scatter(&inputs, between, ReduceOp::Sum).expect("launch").wait().expect("outcome");
    for (rank, output) in outputs.iter().enumerate() {
        let got = output.to_vec().expect("read");
        let begin = parts[rank].offset as usize;
        for (at, got) in got.iter().enumerate() {
            let expected = match at.checked_sub(GUARD) {
                Some(i) if at < output.len() - GUARD => {
                    (0..ranks).map(|r| (begin + i + 13 * r) % 1009).sum::<usize>() as f32
                }
                _ => -1.0,
            };
            assert_eq!(*got, expected, "rank {rank}, element {at} of the guarded output; {}", axes::again());
        }
    }
}

/// Messages of less than the smallest store that a peer has.
#[rstest]
fn b7_messages_of_one_to_three_bytes(#[values(2, 3, 8)] ranks: usize) {
    needs_device!();
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let comm = communicator(ranks);
    for algorithm in ALGORITHMS {
        for root in 0..ranks {
            let what = || Broadcast::from_root(root).algorithm(algorithm);
            for offset in 0..3 {
                check(&comm, DType::BF16, 1, what(), root, [offset, 0], false);
                for count in 1..=3 {
                    check(&comm, DType::U8, count, what(), root, [0, offset], offset == 0);
                }
            }
        }
    }
}

/// Numbers of ranks that are no power of two; an output that was not written still holds its poison.
#[rstest]
fn b8_three_five_six_and_seven_ranks(#[values(3, 5, 6, 7)] ranks: usize) {
    needs_device!();
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let comm = communicator(ranks);
    for count in [ranks, 1000, 4099] {
        for algorithm in ALGORITHMS {
            check(
                &comm,
                DType::F32,
                count,
                Broadcast::from_root(ranks - 1).algorithm(algorithm),
                ranks - 1,
                [0, 0],
                false,
            );
        }
        for op in ReduceOp::ALL {
            check_at(&comm, DType::F32, op, &[vec![count]], 0, ReduceScatter::new(op), Place::Apart(0, 0));
        }
    }
}

/// A communicator in signal buffers of its own that end in bytes which nobody may write, and a look at those.
fn with_bytes_behind(ranks: usize, blocks: u32, payload: usize) -> (Communicator<B>, impl Fn(&str)) {
    const BEHIND: usize = 512;
    let streams: Vec<_> = (0..ranks).map(|r| B::create_stream(&crate::support::device::<B>(r)).expect("stream")).collect();
    let bytes = signal_buffer_bytes(ranks, blocks, payload);
    let signals: Vec<_> = streams.iter().map(|s| Buffer::<B, u8>::coherent(s, bytes + BEHIND).expect("buffer")).collect();
    let behind: Vec<u64> = signals.iter().map(|s| s.address() + bytes as u64).collect();
    let comm = crate::support::builder::<B>(0..ranks)
        .streams(streams.clone())
        .signal_buffers(signals)
        .max_blocks(blocks)
        .payload_bytes(payload)
        .build()
        .expect("communicator");
    for (stream, at) in streams.iter().zip(&behind) {
        // SAFETY: the signal buffers live as long as the communicator, whose kernels know nothing of these bytes.
        unsafe { B::fill(stream, *at, 0x5a, BEHIND) }.expect("fill");
        assert!(B::wait(&B::record(stream).expect("event"), None).expect("wait"));
    }
    let look = move |what: &str| {
        for (rank, (stream, at)) in streams.iter().zip(&behind).enumerate() {
            let mut found = vec![0u8; BEHIND];
            // SAFETY: as above, and `found` outlives the wait.
            unsafe { B::copy(stream, found.as_mut_ptr() as u64, *at, BEHIND) }.expect("copy");
            assert!(B::wait(&B::record(stream).expect("event"), None).expect("wait"));
            let wrong = found.iter().position(|b| *b != 0x5a);
            assert_eq!(wrong, None, "{what}: a byte behind the signal buffer of rank {rank} was overwritten");
        }
    };
    (comm, look)
}

/// The report's 127 bf16 over 8 ranks, and 23 vectors: cut evenly no rank has more than 3 of them, which is what the
/// payload has; with all of the remainder on the last it would have 9.
#[rstest]
fn b9_the_payload_is_as_large_as_the_largest_chunk() {
    needs_device!();
    let half = 3 * VECTOR as usize;
    let (comm, look) = with_bytes_behind(8, 1, 2 * half);
    for root in 0..8 {
        let what = || Broadcast::from_root(root).algorithm(Algorithm::TwoStageStaged);
        for (count, rounds) in
            [(127, 1), (23 * VECTOR as usize / 2 - 1, 1), (8 * half / 2 + 1, 2), (47 * VECTOR as usize / 2, 2)]
        {
            assert_eq!(comm.plan_broadcast(count, DType::BF16, what()).expect("plan").rounds, rounds, "{count}");
            check(&comm, DType::BF16, count, what(), root, [0, 0], false);
            look("broadcast");
        }
    }
}

/// Flags for the most blocks, and nothing behind them.
#[rstest]
fn b10_the_most_blocks_stay_within_their_flags(#[values(1, 3, 64)] blocks: u32) {
    needs_device!();
    crate::support::memory_for(Algorithm::TwoStageDirect);
    let (comm, look) = with_bytes_behind(8, blocks, 0);
    let bytes = MAX_BLOCKS as usize * axes::tile::<B>(8);
    for algorithm in [Algorithm::OneStage, Algorithm::TwoStageDirect] {
        let what = Broadcast::from_root(7).algorithm(algorithm).max_blocks(blocks);
        check(&comm, DType::U8, 7 * bytes, what, 7, [0, 0], true);
    }
    let sum = ReduceScatter::new(ReduceOp::Sum).max_blocks(blocks);
    let planned = comm.plan_reduce_scatter(0, 8 * bytes, DType::U8, sum.clone()).expect("plan").blocks;
    // On a device that ranks share, what is resident is the cap.
    assert!(planned == blocks || (B::NAME != "cpu" && planned < blocks), "{planned} of {blocks} blocks");
    for groups in [1, 2, 4] {
        check_at(&comm, DType::U8, ReduceOp::Sum, &vec![vec![70_001]; groups], 0, sum.clone(), Place::Apart(0, 0));
    }
    look("flags");
}

/// All pairs of offsets between inputs and outputs, for every kernel that reads and writes by vectors.
#[rstest]
fn b11_misaligned_views_of_a_reduce_scatter() {
    needs_device!();
    let comm = communicator(2);
    let sum = || ReduceScatter::new(ReduceOp::Sum);
    for from in 1..16 {
        for to in 1..16 {
            check_at(&comm, DType::U8, ReduceOp::Sum, &[vec![1000]], 0, sum(), Place::Apart(from, to));
        }
        check_at(&comm, DType::U8, ReduceOp::Sum, &[vec![1000]], 0, sum(), Place::In(from));
    }
    for dtype in DType::ALL {
        check_at(&comm, dtype, ReduceOp::Sum, &[vec![4097]], 0, sum(), Place::Apart(1, 3));
    }
}
