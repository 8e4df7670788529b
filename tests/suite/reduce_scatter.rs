use crossccl::{Algorithm, Backend, Communicator, DType, ReduceOp, ReduceScatter};
use rstest::rstest;

use super::B;
use crate::support::{Guarded, Random, assert_same, axes, communicator, oracle};

/// Where a call's buffers stand: elements off a vector boundary for inputs and outputs, or in place, off for both.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Apart(usize, usize),
    In(usize),
}

/// One reduce-scatter of all groups against the oracle; `shapes` are one a group.
fn check(comm: &Communicator<B>, dtype: DType, op: ReduceOp, shapes: &[Vec<usize>], axis: usize, what: ReduceScatter, offset: usize) {
    check_at(comm, dtype, op, shapes, axis, what, Place::Apart(offset, offset * 3));
}

pub(super) fn check_at(
    comm: &Communicator<B>,
    dtype: DType,
    op: ReduceOp,
    shapes: &[Vec<usize>],
    axis: usize,
    what: ReduceScatter,
    place: Place,
) {
    let (size, group) = (dtype.size(), comm.ranks() / shapes.len());
    let what = what.axis(axis as i64).group_size(group).group_shapes(shapes.to_vec());
    let plan = comm.plan_reduce_scatter(0, shapes[0].iter().product(), dtype, what.clone());
    let plan = plan.map_or_else(|e| e.to_string(), |p| p.to_string());
    let name = format!(
        "{} ranks, {dtype} {op}, shapes {shapes:?}, axis {axis}, {place:?}, plan of rank 0: {plan}; {}",
        comm.ranks(),
        axes::again()
    );
    let stream = |rank: usize| comm.stream(rank).expect("a rank");
    let mut random = Random(shapes.iter().flatten().sum::<usize>() as u64 * 31 + op as u64);
    let data: Vec<Vec<u8>> =
        (0..comm.ranks()).map(|r| random.elements(dtype, shapes[r / group].iter().product())).collect();
    let from = match place {
        Place::Apart(from, _) | Place::In(from) => from,
    };
    let mut inputs: Vec<_> =
        data.iter().enumerate().map(|(r, d)| Guarded::<B>::with(stream(r), dtype, d, from + r % 2)).collect();
    let whole: Vec<Vec<u8>> = data
        .chunks(group)
        .map(|peers| oracle::reduce(dtype, op, &peers.iter().map(Vec::as_slice).collect::<Vec<_>>()))
        .collect();
    let part = |r: usize| oracle::part(&whole[r / group], size, &shapes[r / group], axis, group, r % group);
    let Place::Apart(_, to) = place else {
        let outcome = comm.reduce_scatter_in_place(inputs.iter_mut().map(Guarded::output), what.clone()).and_then(|f| f.wait());
        outcome.unwrap_or_else(|e| panic!("{name}: {e}"));
        for rank in 0..comm.ranks() {
            let mut expected = data[rank].clone();
            let begin = comm.part(rank, data[rank].len() / size, what.clone()).expect("part").offset as usize * size;
            let part = part(rank);
            expected[begin..begin + part.len()].copy_from_slice(&part);
            assert_same(&format!("{name}: rank {rank}"), dtype, &inputs[rank].data(), &expected);
        }
        return;
    };
    let expected: Vec<Vec<u8>> = (0..comm.ranks()).map(part).collect();
    let mut outputs: Vec<_> =
        (0..comm.ranks()).map(|r| Guarded::<B>::new(stream(r), dtype, expected[r].len() / size, to)).collect();
    let outcome = comm
        .reduce_scatter(inputs.iter().map(Guarded::input), outputs.iter_mut().map(Guarded::output), what)
        .and_then(|f| f.wait());
    outcome.unwrap_or_else(|e| panic!("{name}: {e}"));
    for rank in 0..comm.ranks() {
        assert_same(&format!("{name}: rank {rank}"), dtype, &outputs[rank].data(), &expected[rank]);
        assert_same(&format!("{name}: input of rank {rank}"), dtype, &inputs[rank].data(), &data[rank]);
    }
}

/// Whether the planner takes packets for what is small enough.
fn chooses_packets() -> bool {
    let properties = B::properties(&crate::support::device::<B>(0), 1, 1).expect("properties");
    properties.packets.reduce_scatter > 0
}

/// The matrix: any two of count, op, group size and place meet, for each number of ranks and dtype, all on one
/// communicator. Rank 0 is on the last device.
#[rstest]
fn every_dtype_and_op_matches_the_oracle(
    #[values(1, 2, 3, 4, 5, 6, 7, 8)] ranks: usize,
    #[values(DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8, DType::U8, DType::I32, DType::U32, DType::I64, DType::U64)]
    dtype: DType,
    #[values(Algorithm::Auto, Algorithm::OneStage, Algorithm::LowLatency)] algorithm: Algorithm,
) {
    needs_device!();
    if algorithm == Algorithm::OneStage && !chooses_packets() {
        // What the planner chooses is that.
        return;
    }
    let comm = axes::communicator(ranks);
    let places = [Place::Apart(0, 0), Place::Apart(1, 0), Place::Apart(0, 1), Place::In(0), Place::In(1)];
    let groups: Vec<usize> = (1..=ranks).filter(|size| ranks.is_multiple_of(*size)).collect();
    let what = |op| ReduceScatter::new(op).algorithm(algorithm).max_blocks(axes::BLOCKS);
    let counts: Vec<Vec<usize>> = groups
        .iter()
        .map(|size| {
            let what = || what(ReduceOp::Sum).group_size(*size);
            let plan = |count| comm.plan_reduce_scatter(0, count, dtype, what()).expect("plan");
            axes::counts(dtype, axes::elements::<B>(ranks, *size, algorithm, dtype).min(axes::elements::<B>(*size, *size, Algorithm::Auto, dtype)), plan)
        })
        .collect();
    let most = counts.iter().map(Vec::len).max().unwrap_or(0);
    for [count, op, group, place] in axes::pairs([most, ReduceOp::ALL.len(), groups.len(), places.len()]) {
        let (op, count) = (ReduceOp::ALL[op], counts[group][count % counts[group].len()]);
        let shapes = vec![vec![count]; ranks / groups[group]];
        check_at(&comm, dtype, op, &shapes, 0, what(op), places[place]);
    }
}

/// Case B6: 1 to 33 elements a rank, of every width.
#[rstest]
fn b6_sizes_that_are_no_multiple_of_a_vector(#[values(2, 3, 4, 5, 6, 7, 8)] ranks: usize) {
    needs_device!();
    let comm = communicator(ranks);
    for dtype in [DType::I8, DType::F16, DType::BF16, DType::F32, DType::F64] {
        for each in 1..=33 {
            check(&comm, dtype, ReduceOp::Sum, &[vec![each * ranks]], 0, ReduceScatter::new(ReduceOp::Sum), each % 3);
        }
    }
}

#[rstest]
#[case::rows(&[9, 16], 0)]
#[case::ragged_rows(&[10, 7], 0)]
#[case::columns(&[5, 33], 1)]
#[case::long_columns(&[3, 4099], 1)]
#[case::fewer_rows_than_ranks(&[2, 100], 0)]
#[case::one_column(&[300, 1], 1)]
#[case::middle_of_three(&[3, 10, 5], 1)]
#[case::last_of_four(&[2, 3, 2, 19], 3)]
#[case::first_of_four(&[7, 3, 2, 5], 0)]
#[case::empty_axis(&[3, 0, 4], 1)]
#[case::empty_elsewhere(&[0, 8], 1)]
fn any_axis_of_any_shape(
    #[case] shape: &[usize],
    #[case] axis: usize,
    #[values(1, 2, 3, 4, 8)] ranks: usize,
    #[values(Algorithm::OneStage, Algorithm::LowLatency)] algorithm: Algorithm,
) {
    needs_device!();
    let comm = communicator(ranks);
    for (i, dtype) in [DType::F32, DType::BF16, DType::I8, DType::F64].into_iter().enumerate() {
        let op = ReduceOp::ALL[(ranks + i) % ReduceOp::ALL.len()];
        let what = ReduceScatter::new(op).algorithm(algorithm);
        // One part may be more than an inbox takes.
        let fits = comm.plan_reduce_scatter(0, shape.iter().product(), dtype, what.clone().shape(shape).axis(axis as i64)).is_ok();
        check(&comm, dtype, op, &[shape.to_vec()], axis, if fits { what } else { ReduceScatter::new(op) }, i % 2);
    }
}

#[rstest]
fn several_blocks(#[values(2, 3, 8)] ranks: usize, #[values(1, 2, 5, 64)] blocks: u32) {
    needs_device!();
    let comm = communicator(ranks);
    for (shape, axis) in [(vec![50_001], 0), (vec![40, 1031], 1), (vec![30_011, 2], 0)] {
        for dtype in [DType::F32, DType::BF16] {
            let what = ReduceScatter::new(ReduceOp::Average).max_blocks(blocks);
            check(&comm, dtype, ReduceOp::Average, std::slice::from_ref(&shape), axis, what, 1);
        }
    }
}

/// Groups of contiguous ranks, with their own shapes; the second does not start at device 0, and
/// devices are in another order than ranks.
#[rstest]
#[case(4, vec![vec![5, 8], vec![3, 8]], 0)]
#[case(4, vec![vec![1024, 4], vec![0, 4]], 0)]
#[case(4, vec![vec![0, 4], vec![1024, 4]], 0)]
#[case(8, vec![vec![9, 12], vec![7, 12]], 1)]
#[case(6, vec![vec![10, 3], vec![4, 5], vec![1, 1]], 0)]
#[case(6, vec![vec![100], vec![7]], 0)]
#[case(4, vec![vec![5], vec![6], vec![7], vec![0]], 0)]
fn groups_differ_in_shape(#[case] ranks: usize, #[case] shapes: Vec<Vec<usize>>, #[case] axis: usize) {
    needs_device!();
    let comm = crate::support::builder::<B>((0..ranks).rev()).build().expect("communicator");
    for op in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max] {
        for algorithm in [Algorithm::OneStage, Algorithm::LowLatency] {
            let what = || ReduceScatter::new(op).algorithm(algorithm);
            check(&comm, DType::F32, op, &shapes, axis, what(), 0);
            check(&comm, DType::F16, op, &shapes, axis, what(), 1);
        }
    }
}

/// Case A6: groups of every size and the world share one set of signal buffers, in any order.
#[rstest]
fn a6_groups_and_the_world_interleaved() {
    needs_device!();
    let comm = communicator(8);
    let mut random = Random(6);
    for _ in 0..100 {
        let groups = [1, 2, 4, 8][random.next() as usize % 4];
        let shapes: Vec<Vec<usize>> = (0..groups).map(|_| vec![random.next() as usize % 50]).collect();
        let algorithm = [Algorithm::OneStage, Algorithm::LowLatency][random.next() as usize % 2];
        let what = ReduceScatter::new(ReduceOp::Sum).algorithm(algorithm);
        check(&comm, DType::I32, ReduceOp::Sum, &shapes, 0, what, 0);
        if random.next().is_multiple_of(2) {
            let mut buffers: Vec<_> = (0..8).map(|r| comm.buffer_from(r, &[r as u32; 99]).expect("buffer")).collect();
            comm.broadcast_in_place(&mut buffers, 5).expect("launch").wait().expect("outcome");
            assert!(buffers.iter().all(|b| b.to_vec().expect("read") == [5; 99]));
        }
    }
}

/// Cases C2, C3: in place, and nothing outside the rank's own part changes.
#[rstest]
fn c3_in_place_leaves_the_other_parts_alone(#[values(1, 2, 3, 4, 8)] ranks: usize, #[values(DType::F32, DType::BF16, DType::I8)] dtype: DType) {
    needs_device!();
    let comm = communicator(ranks);
    for shape in [vec![ranks * 5 + 1], vec![7, 3], vec![2000, 11]] {
        let op = ReduceOp::Sum;
        let count: usize = shape.iter().product();
        let data: Vec<Vec<u8>> = (0..ranks).map(|r| Random(r as u64).elements(dtype, count)).collect();
        let mut buffers: Vec<_> = (0..ranks)
            .map(|r| Guarded::<B>::with(comm.stream(r).expect("a rank"), dtype, &data[r], 1))
            .collect();
        let what = ReduceScatter::new(op).shape(shape.clone());
        comm.reduce_scatter_in_place(buffers.iter_mut().map(Guarded::output), what.clone()).expect("launch").wait().expect("outcome");
        let whole = oracle::reduce(dtype, op, &data.iter().map(Vec::as_slice).collect::<Vec<_>>());
        for rank in 0..ranks {
            let part = comm.part(rank, count, what.clone()).expect("part");
            let bytes = part.offset as usize * dtype.size()..(part.offset + part.count()) as usize * dtype.size();
            let mut expected = data[rank].clone();
            expected[bytes.clone()].copy_from_slice(&whole[bytes]);
            assert_same(&format!("{ranks} ranks, {dtype}, {shape:?}, rank {rank}"), dtype, &buffers[rank].data(), &expected);
        }
    }
}

#[rstest]
fn sixty_four_ranks() {
    needs_device!(64);
    let comm = communicator(64);
    for algorithm in [Algorithm::OneStage, Algorithm::LowLatency] {
        let what = ReduceScatter::new(ReduceOp::Sum).algorithm(algorithm);
        check(&comm, DType::F32, ReduceOp::Sum, &[vec![64 * 33 + 5]], 0, what, 0);
    }
    check(&comm, DType::I8, ReduceOp::Average, &[vec![64 * 33 + 5]], 0, ReduceScatter::new(ReduceOp::Average), 0);
    let shapes: Vec<_> = (0..4).map(|g| vec![g * 40, 3]).collect();
    check(&comm, DType::BF16, ReduceOp::Average, &shapes, 0, ReduceScatter::new(ReduceOp::Average), 0);
}
