//! Many collectives of all kinds queued at once, on the same buffers, with ranks that come late.

use crossccl::{Algorithm, Backend, Broadcast, Communicator, DType, Overlap, RawRank, ReduceOp, ReduceScatter};
use rstest::rstest;

use super::B;
use crate::support::{Random, as_often, communicator, oracle};

const COUNT: usize = 5000;

/// What one collective of the queue is, and what the ranks' outputs hold after it.
enum Step {
    Broadcast { root: usize, what: Broadcast },
    ReduceScatter { what: ReduceScatter, op: ReduceOp },
}

fn step(random: &mut Random, ranks: usize, overlaps: &[Overlap]) -> Step {
    let overlap = overlaps[random.next() as usize % overlaps.len()];
    if random.next().is_multiple_of(2) {
        let root = random.next() as usize % ranks;
        let algorithm =
            [Algorithm::OneStage, Algorithm::TwoStageStaged, Algorithm::TwoStage, Algorithm::LowLatency];
        let what = Broadcast::from_root(root).algorithm(algorithm[random.next() as usize % 4]);
        let blocks = 1 + random.next() as u32 % 8;
        Step::Broadcast { root, what: what.max_blocks(blocks).overlap(overlap) }
    } else {
        let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Average][random.next() as usize % 3];
        let algorithm = [Algorithm::OneStage, Algorithm::LowLatency][random.next() as usize % 2];
        let what = ReduceScatter::new(op).algorithm(algorithm).max_blocks(1 + random.next() as u32 % 8);
        Step::ReduceScatter { what: what.overlap(overlap), op }
    }
}

/// 64 collectives are enqueued before one check, a rank's launches late now and then; the next 64 go over the
/// same buffers. A broadcast overwrites all data, a reduce-scatter in place the rank's own part.
fn run(comm: &Communicator<B>, seed: u64, rounds: usize, overlaps: &[Overlap]) {
    let ranks = comm.ranks();
    let mut random = Random(seed);
    let mut state: Vec<Vec<u8>> = (0..ranks).map(|_| random.elements(DType::I32, COUNT)).collect();
    let mut buffers: Vec<_> = (0..ranks).map(|r| comm.buffer::<i32>(r, COUNT).expect("buffer")).collect();
    for (buffer, state) in buffers.iter_mut().zip(&state) {
        buffer.write_bytes(state).expect("write");
    }
    let streams: Vec<_> = (0..ranks).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let raw: Vec<_> = buffers.iter().map(|b| RawRank::new(b.address(), b.address())).collect();
    let parts: Vec<_> = (0..ranks).map(|r| comm.part(r, COUNT, ReduceOp::Sum).expect("a part")).collect();
    let in_place: Vec<_> = (buffers.iter().zip(&parts))
        .map(|(b, part)| RawRank::new(b.address(), b.address() + part.offset * 4))
        .collect();
    for round in 0..rounds {
        let mut launched = Vec::new();
        for _ in 0..64 {
            match step(&mut random, ranks, overlaps) {
                Step::Broadcast { root, what } => {
                    // SAFETY: the buffers live until after the waits.
                    let one = unsafe { comm.broadcast_raw(&raw, &streams, COUNT, DType::I32, what) };
                    launched.push(one.expect("launch"));
                    let data = state[root].clone();
                    state.iter_mut().for_each(|s| s.clone_from(&data));
                }
                Step::ReduceScatter { what, op } => {
                    let counts = vec![COUNT; ranks];
                    // SAFETY: as above.
                    let one = unsafe { comm.reduce_scatter_raw(&in_place, &streams, &counts, DType::I32, what) };
                    launched.push(one.expect("launch"));
                    let whole = oracle::reduce(DType::I32, op, &state.iter().map(Vec::as_slice).collect::<Vec<_>>());
                    for (state, part) in state.iter_mut().zip(&parts) {
                        let bytes = part.offset as usize * 4..(part.offset + part.count()) as usize * 4;
                        state[bytes.clone()].copy_from_slice(&whole[bytes]);
                    }
                }
            }
            if random.next().is_multiple_of(16) {
                std::thread::sleep(std::time::Duration::from_micros(random.next() % 300));
            }
        }
        launched.iter().for_each(|one| one.wait().expect("outcome"));
        for (rank, (buffer, state)) in buffers.iter().zip(&state).enumerate() {
            let mut bytes = vec![0; buffer.size_in_bytes()];
            buffer.read_bytes(&mut bytes).expect("read");
            assert!(bytes == *state, "{ranks} ranks, seed {seed}, round {round}, rank {rank}");
        }
    }
}

#[rstest]
fn sixty_four_queued_before_a_check(#[values(2, 3, 4, 8)] ranks: usize) {
    needs_device!(ranks);
    let comm = communicator::<B>(ranks);
    let rounds = as_often::<B>(3, 30);
    for seed in 0..2 {
        run(&comm, seed, rounds, &[Overlap::Off]);
    }
}

/// Case E10: each launch may start before the one whose output is its input is over, by every pair of levels; 10,000
/// launches in a row, then all of it at random.
#[rstest]
fn e10_launches_that_overlap(
    #[values(2, 4)] ranks: usize,
    #[values(Overlap::AtEnd, Overlap::AtBeginning, Overlap::AtEndWithoutWait)] overlap: Overlap,
) {
    needs_device!(ranks);
    let comm = communicator::<B>(ranks);
    let plan = comm.plan_broadcast(COUNT, DType::I32, Broadcast::from_root(0).overlap(overlap)).expect("plan");
    // Ranks that share a device would keep each other's launches out. Elsewhere, where nothing can overlap, it is noted
    // down and has no effect.
    let apart = B::device_count().expect("devices") >= ranks;
    assert_eq!(plan.overlap, if apart { overlap } else { Overlap::Off });
    run(&comm, 1, as_often::<B>(2, 160), &[overlap]);
    let all = [Overlap::Off, Overlap::AtEnd, Overlap::AtBeginning, Overlap::AtEndWithoutWait];
    run(&comm, 2, as_often::<B>(2, 30), &all);
}

/// Case E2: 8 MiB of f16 over two ranks, 64 collectives with changing values queued before all are looked at.
#[rstest]
fn e2_values_that_change_while_calls_are_queued() {
    needs_device!(2);
    const ELEMENTS: usize = 4 << 20;
    let rounds = as_often::<B>(8, 64);
    let comm = communicator::<B>(2);
    let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let values: Vec<Vec<_>> =
        (0..2).map(|r| vec![crossccl::half::f16::from_f32(r as f32 + 1.0); ELEMENTS]).collect();
    let inputs: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &values[r]).expect("buffer")).collect();
    let outputs: Vec<Vec<_>> = (0..rounds)
        .map(|_| (0..2).map(|r| comm.buffer::<crossccl::half::f16>(r, ELEMENTS / 2).expect("buffer")).collect())
        .collect();
    let mut launched = Vec::new();
    for (round, outputs) in outputs.iter().enumerate() {
        let raw: Vec<_> = (0..2).map(|r| RawRank::new(inputs[r].address(), outputs[r].address())).collect();
        let what = ReduceScatter::new(ReduceOp::Sum).factor(round as f64 + 1.0);
        // SAFETY: the buffers live until after the waits.
        let one = unsafe { comm.reduce_scatter_raw(&raw, &streams, &[ELEMENTS; 2], DType::F16, what) };
        launched.push(one.expect("launch"));
    }
    launched.iter().for_each(|one| one.wait().expect("outcome"));
    for (round, outputs) in outputs.iter().enumerate() {
        for output in outputs {
            let expected = crossccl::half::f16::from_f32(3.0 * (round as f32 + 1.0));
            assert!(output.to_vec().expect("read").iter().all(|x| *x == expected), "round {round}");
        }
    }
}
