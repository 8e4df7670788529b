//! Reduce-scatter with given lengths, and with a fused epilogue: factor, residual, conversion.

use crossccl::{
    Algorithm, Communicator, DType, Destination, Error, Kernel, RawRank, ReduceOp, ReduceScatter, Result, half::bf16,
};
use rstest::rstest;

use super::B;
use crate::support::{Guarded, Random, assert_same, cells, communicator, on_threads, oracle, rank_handles};

/// What a rank adds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Residual {
    None,
    Separate,
    Output,
}

/// One fused reduce-scatter of all ranks, axis 0, against the oracle.
#[allow(clippy::too_many_arguments)]
fn check(comm: &Communicator<B>, from: DType, to: DType, op: ReduceOp, factor: f64, residual: Residual, count: usize, offset: usize) {
    for algorithm in [Algorithm::OneStage, Algorithm::LowLatency] {
        check_by(comm, from, to, op, factor, residual, count, offset, algorithm);
    }
}

#[allow(clippy::too_many_arguments)]
fn check_by(
    comm: &Communicator<B>,
    from: DType,
    to: DType,
    op: ReduceOp,
    factor: f64,
    residual: Residual,
    count: usize,
    offset: usize,
    algorithm: Algorithm,
) {
    let ranks = comm.ranks();
    let name = format!("{ranks} ranks, {count} x {from} to {to}, {op} x {factor}, residual {residual:?}, offset {offset}, {algorithm}");
    let stream = |rank: usize| comm.stream(rank).expect("a rank");
    let mut random = Random(count as u64 * 7 + from as u64 * 16 + to as u64);
    let data: Vec<Vec<u8>> = (0..ranks).map(|_| random.elements(from, count)).collect();
    let inputs: Vec<_> = data.iter().enumerate().map(|(r, d)| Guarded::<B>::with(stream(r), from, d, offset)).collect();
    let what = ReduceScatter::new(op).factor(factor).algorithm(algorithm);
    let parts: Vec<_> = (0..ranks).map(|r| comm.part(r, count, what.clone()).expect("a part")).collect();
    let added: Vec<Vec<u8>> = parts.iter().map(|p| random.elements(to, p.count() as usize)).collect();
    let residuals: Vec<_> = added.iter().enumerate().map(|(r, d)| Guarded::<B>::with(stream(r), to, d, offset * 2)).collect();
    let mut outputs: Vec<_> = (0..ranks)
        .map(|r| match residual {
            Residual::Output => Guarded::<B>::with(stream(r), to, &added[r], offset * 3),
            _ => Guarded::<B>::new(stream(r), to, parts[r].count() as usize, offset * 3),
        })
        .collect();
    let destinations: Vec<_> = (outputs.iter_mut().zip(&residuals))
        .map(|(output, added)| match residual {
            Residual::None => Destination::new(output.output()),
            Residual::Separate => Destination::new(output.output()).residual(added.input()),
            Residual::Output => Destination::accumulate(output.output()),
        })
        .collect();
    let outcome = comm.reduce_scatter_fused(inputs.iter().map(Guarded::input), destinations, what).and_then(|f| f.wait());
    outcome.unwrap_or_else(|e| panic!("{name}: {e}"));
    for rank in 0..ranks {
        let part = parts[rank];
        let at = part.offset as usize * from.size()..(part.offset + part.count()) as usize * from.size();
        let mine: Vec<&[u8]> = data.iter().map(|d| &d[at.clone()]).collect();
        let plus = (residual != Residual::None).then_some(&added[rank][..]);
        let expected = if from == to && factor == 1.0 && plus.is_none() {
            oracle::reduce(from, op, &mine)
        } else {
            oracle::fused(from, op, &mine, factor, plus, to)
        };
        assert_same(&format!("{name}: rank {rank}"), to, &outputs[rank].data(), &expected);
        assert_same(&format!("{name}: residual of rank {rank}"), to, &residuals[rank].data(), &added[rank]);
    }
}

const PAIRS: [(DType, DType); 10] = [
    (DType::F32, DType::F32),
    (DType::F32, DType::F16),
    (DType::F32, DType::BF16),
    (DType::F16, DType::F32),
    (DType::F16, DType::F16),
    (DType::F16, DType::BF16),
    (DType::BF16, DType::F32),
    (DType::BF16, DType::F16),
    (DType::BF16, DType::BF16),
    (DType::F64, DType::F64),
];

#[rstest]
fn every_pair_of_dtypes_rounds_once(
    #[values(1, 2, 3, 4, 8)] ranks: usize,
    #[values(Residual::None, Residual::Separate, Residual::Output)] residual: Residual,
) {
    needs_device!();
    let comm = communicator(ranks);
    for (i, (from, to)) in PAIRS.into_iter().enumerate() {
        for (j, count) in [0, 1, 7 * ranks, 64 * ranks + 1, 1009, 4096 * ranks + 3].into_iter().enumerate() {
            let op = [ReduceOp::Sum, ReduceOp::Average][(i + j) % 2];
            let factor = [1.0, 0.1, -2.0][(i + j) % 3];
            check(&comm, from, to, op, factor, residual, count, (i + j) % 3);
        }
    }
}

/// Sum, factor and residual each fit where the result rounded too early would not: 2048 + 1 is no f16, and
/// 65504 x 2 overflows it.
#[rstest]
fn nothing_is_rounded_before_the_end() {
    needs_device!();
    let comm = communicator::<B>(2);
    let run = |inputs: [f32; 2], factor: f64, residual: f32| {
        let inputs: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[crossccl::half::f16::from_f32(inputs[r]); 2]).expect("buffer")).collect();
        let added: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[crossccl::half::f16::from_f32(residual)]).expect("buffer")).collect();
        let mut outputs: Vec<_> = (0..2).map(|r| comm.buffer::<crossccl::half::f16>(r, 1).expect("buffer")).collect();
        let destinations: Vec<_> = outputs.iter_mut().zip(&added).map(|(o, a)| Destination::new(o).residual(a)).collect();
        let what = ReduceScatter::new(ReduceOp::Sum).factor(factor);
        comm.reduce_scatter_fused(&inputs, destinations, what).expect("launch").wait().expect("outcome");
        outputs[1].to_vec().expect("read")[0].to_f32()
    };
    assert_eq!(run([2048.0, 1.0], 1.0, 1.0), 2050.0);
    assert_eq!(run([65504.0, 65504.0], 0.5, 0.0), 65504.0);
    assert_eq!(run([65504.0, 65504.0], 1.0, -65504.0), 65504.0);
}

/// The factor goes with the plain call as well, in place, along any axis and in groups of one.
#[rstest]
fn a_factor_needs_no_other_call(#[values(1, 2, 4)] group: usize) {
    needs_device!();
    let comm = communicator::<B>(4);
    let mut buffers: Vec<_> = (0..4).map(|r| comm.buffer_from(r, &[r as f32 + 1.0; 12]).expect("buffer")).collect();
    let what = ReduceScatter::new(ReduceOp::Sum).group_size(group).factor(0.5);
    comm.reduce_scatter_in_place(&mut buffers, what.clone()).expect("launch").wait().expect("outcome");
    for (rank, buffer) in buffers.iter().enumerate() {
        let part = comm.part(rank, 12, what.clone()).expect("part");
        let first = rank / group * group;
        let sum: f32 = (first..first + group).map(|r| r as f32 + 1.0).sum();
        for (i, x) in buffer.to_vec().expect("read").into_iter().enumerate() {
            let mine = (part.offset..part.offset + part.count()).contains(&(i as u64));
            assert_eq!(x, if mine { sum * 0.5 } else { rank as f32 + 1.0 }, "rank {rank}, element {i}");
        }
    }
}

/// Groups of one rank have epochs of their own: a world call behind a fused one finds its own.
#[rstest]
fn groups_of_one_do_not_disturb_the_world() {
    needs_device!();
    let comm = communicator::<B>(3);
    let inputs: Vec<_> = (0..3).map(|r| comm.buffer_from(r, &[r as f32; 6]).expect("buffer")).collect();
    for round in 1..=3 {
        let mut alone: Vec<_> = (0..3).map(|r| comm.buffer::<bf16>(r, 6).expect("buffer")).collect();
        let what = ReduceScatter::new(ReduceOp::Sum).group_size(1).factor(f64::from(round));
        if round != 2 {
            comm.reduce_scatter_fused(&inputs, &mut alone, what).expect("launch").wait().expect("outcome");
            assert_eq!(alone[2].to_vec().expect("read"), [bf16::from_f32(2.0 * round as f32); 6]);
        }
        let mut all: Vec<_> = (0..3).map(|r| comm.buffer::<f32>(r, 2).expect("buffer")).collect();
        comm.reduce_scatter(&inputs, &mut all, ReduceOp::Sum).expect("launch").wait().expect("outcome");
        assert!(all.iter().all(|b| b.to_vec().expect("read") == [3.0; 2]));
    }
}

#[rstest]
#[case::even(&[2, 2, 2])]
#[case::uneven(&[1, 4, 1])]
#[case::some_empty(&[0, 6, 0])]
#[case::last(&[0, 0, 6])]
fn lengths_along_any_axis(#[case] lengths: &[usize], #[values(0, 1, 2)] axis: usize, #[values(1, 700)] inner: usize) {
    needs_device!();
    let comm = communicator::<B>(3);
    let mut shape = vec![3, inner];
    shape.insert(axis, 6);
    let count = shape.iter().product();
    for dtype in [DType::F32, DType::I8] {
        let data: Vec<Vec<u8>> = (0..3).map(|r| Random(r).elements(dtype, count)).collect();
        let stream = |rank: usize| comm.stream(rank).expect("a rank");
        let inputs: Vec<_> = data.iter().enumerate().map(|(r, d)| Guarded::<B>::with(stream(r), dtype, d, 1)).collect();
        let whole = oracle::reduce(dtype, ReduceOp::Sum, &data.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let expected: Vec<_> =
            (0..3).map(|r| oracle::part_of_lengths(&whole, dtype.size(), &shape, axis, lengths, r)).collect();
        let mut outputs: Vec<_> =
            expected.iter().enumerate().map(|(r, e)| Guarded::<B>::new(stream(r), dtype, e.len() / dtype.size(), 1)).collect();
        let what = ReduceScatter::new(ReduceOp::Sum).axis(axis as i64).shape(shape.clone()).lengths(lengths);
        comm.reduce_scatter(inputs.iter().map(Guarded::input), outputs.iter_mut().map(Guarded::output), what)
            .expect("launch")
            .wait()
            .expect("outcome");
        for rank in 0..3 {
            let name = format!("{dtype}, shape {shape:?}, axis {axis}, lengths {lengths:?}, rank {rank}");
            assert_same(&name, dtype, &outputs[rank].data(), &expected[rank]);
        }
    }
}

#[rstest]
fn lengths_may_differ_between_groups() {
    needs_device!();
    let comm = communicator::<B>(4);
    let inputs: Vec<_> = (0..4).map(|r| comm.buffer_from(r, &[10 * r as i32, 1, 2, 3, 4]).expect("buffer")).collect();
    let mut outputs: Vec<_> = [1, 4, 5, 0].iter().enumerate().map(|(r, n)| comm.buffer::<i32>(r, *n).expect("buffer")).collect();
    let what = ReduceScatter::new(ReduceOp::Sum).group_size(2).group_lengths([[1, 4], [5, 0]]);
    comm.reduce_scatter(&inputs, &mut outputs, what).expect("launch").wait().expect("outcome");
    let read: Vec<_> = outputs.iter().map(|o| o.to_vec().expect("read")).collect();
    assert_eq!(read, [vec![10], vec![2, 4, 6, 8], vec![50, 2, 4, 6, 8], vec![]]);
}

/// A launch that must be refused, and nothing of it done.
fn refused(count: usize, from: DType, to: DType, residual: bool, what: ReduceScatter) -> Error {
    let comm = communicator::<B>(2);
    let stream = |rank: usize| comm.stream(rank).expect("a rank");
    let inputs: Vec<_> = (0..2).map(|r| Guarded::<B>::new(stream(r), from, count, 0)).collect();
    let mut outputs: Vec<_> = (0..2).map(|r| Guarded::<B>::new(stream(r), to, count / 2, 0)).collect();
    let added: Vec<_> = (0..2).map(|r| Guarded::<B>::new(stream(r), to, count / 2, 0)).collect();
    let destinations: Vec<_> = (outputs.iter_mut().zip(&added))
        .map(|(o, a)| if residual { Destination::new(o.output()).residual(a.input()) } else { Destination::new(o.output()) })
        .collect();
    let error = comm.reduce_scatter_fused(inputs.iter().map(Guarded::input), destinations, what).expect_err("refused");
    assert!(outputs.iter().all(Guarded::is_untouched));
    error
}

/// Everything that README's table does not offer is refused, and the rest is not.
#[rstest]
fn what_is_not_offered_says_so() {
    needs_device!();
    for from in DType::ALL {
        for to in DType::ALL {
            for op in ReduceOp::ALL {
                for (residual, factor) in [(false, 1.0), (true, 1.0), (false, 2.0)] {
                    let plain = from == to && !residual && factor == 1.0;
                    let sums = matches!(op, ReduceOp::Sum | ReduceOp::Average);
                    if plain || (sums && PAIRS.contains(&(from, to))) {
                        continue;
                    }
                    let error = refused(8, from, to, residual, ReduceScatter::new(op).factor(factor));
                    assert!(matches!(error, Error::Unsupported { .. }), "{from} to {to}, {op}: {error}");
                }
            }
        }
    }
    let error = refused(8, DType::I32, DType::F32, false, ReduceScatter::new(ReduceOp::Sum));
    assert_eq!(
        error.to_string(),
        "reduce_scatter: f32 from i32 is not offered: f16, bf16 and f32 become each other, f64 stays f64, integers have no epilogue"
    );
    let error = refused(8, DType::F32, DType::BF16, false, ReduceScatter::new(ReduceOp::Max));
    assert_eq!(error.to_string(), "reduce_scatter: bf16 from f32 is offered for sum and average, not for max");
}

#[rstest]
fn factors_are_finite_in_the_accumulator() {
    needs_device!();
    for factor in [f64::NAN, f64::INFINITY, 1e39] {
        let error = refused(8, DType::F32, DType::F32, false, ReduceScatter::new(ReduceOp::Sum).factor(factor));
        assert!(matches!(error, Error::InvalidArgument { argument: "factor", .. }), "{error}");
    }
    let comm = communicator::<B>(2);
    check(&comm, DType::F64, DType::F64, ReduceOp::Sum, 1e39, Residual::None, 8, 0);
}

#[rstest]
#[case(vec![1, 2, 3], "one for each of the group's 2 ranks, 6 together")]
#[case(vec![6], "one for each of the group's 2 ranks")]
#[case(vec![3, 4], "6 together: axis 0 of the shape [6]")]
#[case(vec![usize::MAX, 7], "6 together")]
fn lengths_that_do_not_fit_are_refused(#[case] lengths: Vec<usize>, #[case] says: &str) {
    needs_device!();
    let error = refused(6, DType::F32, DType::F32, false, ReduceScatter::new(ReduceOp::Sum).lengths(lengths));
    assert!(matches!(error, Error::InvalidArgument { argument: "lengths", .. }), "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

/// By address: a residual may be the output, no other overlap; and it is for reduce-scatter alone.
#[rstest]
fn a_residual_overlaps_its_own_output_or_nothing() {
    needs_device!();
    let comm = communicator::<B>(2);
    let inputs: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[1.0f32; 8]).expect("buffer")).collect();
    let outputs: Vec<_> = (0..2).map(|r| comm.buffer_from(r, &[5.0f32; 5]).expect("buffer")).collect();
    let streams: Vec<_> = (0..2).map(|r| comm.stream(r).expect("a rank").clone()).collect();
    let run = |residual: [u64; 2]| -> Result<()> {
        let ranks: Vec<_> = (0..2)
            .map(|r| RawRank { residual: residual[r], ..RawRank::new(inputs[r].address(), outputs[r].address()) })
            .collect();
        // SAFETY: the buffers outlive the wait.
        let launched = unsafe { comm.reduce_scatter_raw(&ranks, &streams, &[8, 8], DType::F32, ReduceOp::Sum)? };
        launched.wait()
    };
    for bad in [[outputs[0].address() + 4, 0], [0, outputs[0].address()], [inputs[0].address() + 2, 0]] {
        let error = run(bad).expect_err("refused");
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert_eq!(outputs[0].to_vec().expect("read"), [5.0; 5]);
    }
    run([outputs[0].address(), inputs[1].address()]).expect("fits");
    assert_eq!(outputs[0].to_vec().expect("read"), [7.0, 7.0, 7.0, 7.0, 5.0]);
    assert_eq!(outputs[1].to_vec().expect("read"), [3.0, 3.0, 3.0, 3.0, 5.0]);

    let ranks = [RawRank { residual: 64, ..RawRank::new(inputs[0].address(), inputs[0].address()) }; 2];
    // SAFETY: refused before anything is launched.
    let error = unsafe { comm.broadcast_raw(&ranks, &streams, 8, DType::F32, 0) }.expect_err("refused");
    assert!(matches!(error, Error::InvalidArgument { argument: "residual" | "output", .. }), "{error}");
}

/// One handle a rank: what differs is named.
#[rstest]
#[case::lengths("parts", ReduceScatter::new(ReduceOp::Sum).lengths([4, 4]), ReduceScatter::new(ReduceOp::Sum).lengths([3, 5]), "[3, 5]")]
#[case::some_lengths("parts", ReduceScatter::new(ReduceOp::Sum).lengths([4, 4]), ReduceScatter::new(ReduceOp::Sum), "an even split")]
#[case::dtypes("output dtype", ReduceScatter::new(ReduceOp::Sum).output_dtype(DType::BF16), ReduceScatter::new(ReduceOp::Sum), "f32")]
fn c6_lengths_and_output_dtypes_that_differ(#[case] field: &str, #[case] first: ReduceScatter, #[case] second: ReduceScatter, #[case] value: &str) {
    needs_device!();
    let ranks = cells(rank_handles::<B>(2, std::time::Duration::from_secs(5)));
    let errors = on_threads(&ranks, |rank, comm| {
        let what = [&first, &second][rank].clone();
        let input = comm.buffer_from(&[1.0f32; 8]).expect("buffer");
        let output = comm.buffer::<f32>(8).expect("buffer");
        let raw = RawRank::new(input.address(), output.address());
        // SAFETY: the buffers outlive the wait, and the reset that follows an error.
        let launched = unsafe { comm.reduce_scatter_raw(raw, comm.stream(), 8, DType::F32, what) };
        let error = launched.and_then(|l| l.wait()).expect_err("they disagree");
        comm.reset(std::time::Duration::from_secs(5)).expect("reset");
        assert_eq!(output.to_vec().expect("read"), [0.0; 8]);
        error
    });
    for error in errors {
        match &error {
            Error::Mismatch { field: named, values, .. } => {
                assert_eq!(*named, field, "{error}");
                assert!(values.iter().any(|(_, v)| v == value), "{error}");
            }
            other => panic!("{other}"),
        }
    }
}

/// The plan does not change with the epilogue, and says so.
#[rstest]
fn plans_know_output_dtypes() {
    needs_device!();
    let comm = communicator::<B>(4);
    let what = ReduceScatter::new(ReduceOp::Sum).output_dtype(DType::BF16);
    let plan = comm.plan_reduce_scatter(0, 1000, DType::F32, what.clone()).expect("plan");
    assert!(matches!(plan.kernel, Kernel::ReduceScatter(DType::F32, _) | Kernel::ReduceScatterLowLatency(DType::F32, _)), "{plan}");
    assert!(comm.plan_reduce_scatter(0, 1000, DType::I32, what).is_err());
}
