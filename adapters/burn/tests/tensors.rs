//! The adapter against burn's own arithmetic, one thread a rank and one thread for all.

use std::time::{Duration, Instant};

use burn_flex::{Flex, FlexTensor, Layout};
use burn_tensor::{DType, Device, Distribution, Float, Int, Tensor, TensorData, kind::Numeric};
use crossccl::{Cpu, Error, Rank, RankComm, ReduceOp, ReduceScatter};
use crossccl_burn::{Numbers, broadcast, reduce_scatter};
use rstest::rstest;

#[path = "../../tensors/testing.rs"]
mod testing;
use testing::{
    Threads::{self, Each, One},
    call, ranks, ranks_with_limit,
};

/// Small whole numbers, of which no sum of a few is rounded in any dtype, and a different tensor for each rank.
fn tensors<const D: usize, K: Numbers>(ranks: usize, shape: [usize; D], dtype: DType) -> Vec<Tensor<D, K>> {
    let count = shape.iter().product::<usize>() as i32;
    let numbers = |rank: i32| (0..count).map(move |i| (i * 7 + rank * 3) % 13).collect();
    let tensor = |rank| Tensor::from_data(TensorData::new::<i32, _>(numbers(rank), shape), (&Device::flex(), dtype));
    (0..ranks as i32).map(tensor).collect()
}

/// Elements, shape and dtype are the same.
#[track_caller]
fn assert_same<const D: usize, K: Numbers>(got: &Tensor<D, K>, wanted: &Tensor<D, K>) {
    assert_eq!(got.to_data(), wanted.to_data());
}

/// burn's sum in rank order, of which each rank has its part along the axis.
fn parts<const D: usize, K: Numbers + Numeric>(tensors: &[Tensor<D, K>], axis: usize) -> Vec<Tensor<D, K>> {
    let sum = tensors[1..].iter().fold(tensors[0].clone(), |sum, t| sum + t.clone());
    let (extent, ranks) = (sum.dims()[axis], tensors.len());
    let length = |rank| extent / ranks + usize::from(rank < extent % ranks);
    (0..ranks).map(|r| sum.clone().narrow(axis, (0..r).map(length).sum(), length(r))).collect()
}

fn broadcasts_from_every_root<K: Numbers>(threads: Threads, dtype: DType) {
    let mut ranks = ranks(3);
    let tensors = tensors::<2, K>(3, [5, 301], dtype);
    for root in 0..3 {
        let copies = call(threads, &mut ranks, &tensors, |ranks, tensors| broadcast(ranks, tensors, root));
        assert_eq!(copies.len(), 3);
        copies.iter().for_each(|copy| assert_same(copy, &tensors[root]));
        assert_eq!(copies[0].dtype(), dtype);
    }
}

#[rstest]
fn broadcasts_floats(
    #[values(One, Each)] threads: Threads,
    #[values(DType::F16, DType::BF16, DType::F32, DType::F64)] dtype: DType,
) {
    broadcasts_from_every_root::<Float>(threads, dtype);
}

#[rstest]
fn broadcasts_ints(
    #[values(One, Each)] threads: Threads,
    #[values(DType::I8, DType::U8, DType::I32, DType::U32, DType::I64, DType::U64)] dtype: DType,
) {
    broadcasts_from_every_root::<Int>(threads, dtype);
}

fn reduces_and_scatters<K: Numbers + Numeric>(threads: Threads, dtype: DType, axis: usize) {
    let mut ranks = ranks(3);
    // No axis is divided evenly.
    let tensors = tensors::<3, K>(3, [4, 5, 70], dtype);
    let sums =
        call(threads, &mut ranks, &tensors, |ranks, tensors| reduce_scatter(ranks, tensors, axis, ReduceOp::Sum));
    assert_eq!(sums.len(), 3);
    sums.iter().zip(parts(&tensors, axis)).for_each(|(sum, part)| assert_same(sum, &part));
}

#[rstest]
fn reduces_and_scatters_floats(
    #[values(One, Each)] threads: Threads,
    #[values(DType::F16, DType::BF16, DType::F32, DType::F64)] dtype: DType,
    #[values(0, 1, 2)] axis: usize,
) {
    reduces_and_scatters::<Float>(threads, dtype, axis);
}

#[rstest]
fn reduces_and_scatters_ints(
    #[values(One, Each)] threads: Threads,
    #[values(DType::I8, DType::U8, DType::I32, DType::U32, DType::I64, DType::U64)] dtype: DType,
    #[values(0, 1, 2)] axis: usize,
) {
    reduces_and_scatters::<Int>(threads, dtype, axis);
}

/// Sums that are rounded are those of burn in rank order, bit for bit.
#[test]
fn rounds_as_burn_in_rank_order() {
    let random = |_| Tensor::<2>::random([8, 99], Distribution::Normal(0., 1e3), &Device::flex());
    let mut tensors: Vec<_> = (0..4).map(random).collect();
    let sums = reduce_scatter(&ranks(4), &tensors, 0, ReduceOp::Sum).expect("outcome");
    sums.iter().zip(parts(&tensors, 0)).for_each(|(sum, part)| assert_same(sum, &part));
    tensors.reverse();
    let differs = |(a, b): (&Tensor<2>, Tensor<2>)| a.to_data() != b.into_data();
    assert!(sums.iter().zip(parts(&tensors, 0)).any(differs), "the order does not show in these numbers");
}

/// What else a reduce-scatter can be asked for goes through: groups, lengths, a factor.
#[test]
fn takes_groups_lengths_and_factors() {
    let (ranks, tensors) = (ranks(4), tensors::<2, Float>(4, [3, 6], DType::F32));
    let what = ReduceScatter::new(ReduceOp::Average).group_size(2).lengths([1, 5]).factor(4.0);
    let got = reduce_scatter(&ranks, &tensors, 1, what).expect("outcome");
    for (rank, got) in got.iter().enumerate() {
        let group = &tensors[rank / 2 * 2..][..2];
        let wanted = (group[0].clone() + group[1].clone()) * 2.0;
        let (start, length) = [(0, 1), (1, 5)][rank % 2];
        assert_same(got, &wanted.narrow(1, start, length));
    }
}

/// A row of a larger tensor is read where it lies; an input stays as it was.
#[test]
fn reads_views_at_an_offset() {
    let whole = tensors::<2, Float>(1, [3, 50], DType::F32).remove(0);
    let rows: Vec<_> = (1..3).map(|row| whole.clone().narrow(0, row, 1)).collect();
    let before = whole.to_data();
    let sums = reduce_scatter(&ranks(2), &rows, 1, ReduceOp::Sum).expect("outcome");
    sums.iter().zip(parts(&rows, 1)).for_each(|(sum, part)| assert_same(sum, &part));
    assert_eq!(whole.to_data(), before);
}

/// One tensor may be several ranks' input.
#[test]
fn ranks_may_share_a_tensor() {
    let tensor = tensors::<1, Int>(1, [9], DType::I64).remove(0);
    let copies = broadcast(&ranks(3), &vec![tensor.clone(); 3], 2).expect("outcome");
    copies.iter().for_each(|copy| assert_same(copy, &tensor));
}

#[rstest]
fn takes_tensors_without_elements(#[values(0, 1)] axis: usize) {
    let tensors = vec![Tensor::<2>::zeros([0, 4], &Device::flex()); 2];
    let sums = reduce_scatter(&ranks(2), &tensors, axis, ReduceOp::Sum).expect("outcome");
    assert_eq!(sums[1].dims(), if axis == 0 { [0, 4] } else { [0, 2] });
    assert_eq!(broadcast(&ranks(2), &tensors, 1).expect("outcome")[0].dims(), [0, 4]);
}

/// Errors before anything is launched, with their texts; afterwards the ranks work.
#[test]
fn tensors_that_do_not_fit() {
    let (ranks, good) = (ranks(2), tensors::<2, Float>(2, [3, 4], DType::F32));
    let with = |other: Tensor<2>| vec![good[0].clone(), other];
    let expected = "a contiguous tensor of one of crossccl's dtypes on the rank's device, cpu 1";
    let first = "f32 [3, 4], as the first handle's";
    let transposed = tensors::<2, Float>(1, [4, 3], DType::F32).remove(0).transpose();
    let cases = [
        (None, "one for each of the 2 handles, and a handle at least", "1", vec![good[0].clone()]),
        (Some(Rank(1)), expected, "strides [1, 3]", with(transposed)),
        (Some(Rank(1)), first, "f64 [3, 4]", with(good[1].clone().cast(DType::F64))),
        (Some(Rank(1)), first, "f32 [4, 3]", with(good[1].clone().reshape([4, 3]))),
    ];
    for (rank, expected, got, tensors) in cases {
        let error = |operation| Error::InvalidArgument {
            operation,
            rank,
            argument: "tensors",
            expected: expected.into(),
            got: got.into(),
        };
        assert_eq!(broadcast(&ranks, &tensors, 0).map(drop), Err(error("broadcast")));
        let call = reduce_scatter(&ranks, &tensors, 0, ReduceOp::Sum).map(drop);
        assert_eq!(call, Err(error("reduce_scatter")));
    }
    let error = broadcast(&ranks, &tensors::<1, Int>(2, [3], DType::I16), 0).map(drop).expect_err("no such dtype");
    assert!(error.to_string().contains("unknown dtype `i16`; the dtypes are f32, f64"), "{error}");
    let short =
        FlexTensor::new(TensorData::new(vec![0f32; 3], [3]).into_bytes(), Layout::contiguous([4].into()), DType::F32);
    let short = vec![Tensor::<1>::from_primitive::<Flex>(short); 2];
    let error = broadcast(&ranks, &short, 0).map(drop).expect_err("3 of 4 elements");
    assert!(error.to_string().contains("one that is larger than its memory"), "{error}");
    // What crossccl sees itself.
    let error = broadcast(&ranks, &good, 2).map(drop).expect_err("no such root");
    assert!(matches!(&error, Error::InvalidArgument { argument: "root", .. }), "{error}");
    let error = reduce_scatter(&ranks, &good, 2, ReduceOp::Sum).map(drop).expect_err("no such axis");
    assert!(matches!(&error, Error::InvalidArgument { argument: "axis", .. }), "{error}");
    assert_eq!(ranks[0].failure(), None);
    assert!(broadcast(&ranks, &good, 0).is_ok());
}

/// A rank that does not come is named, and when the others are told, nobody reads their tensors: they are let go. After a
/// reset of all handles work goes on.
#[test]
fn after_a_failure_the_tensors_are_free() {
    let mut ranks = ranks_with_limit(3, Duration::from_millis(500));
    let begin = Instant::now();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (ranks[..2].chunks_mut(1))
            .map(|rank| {
                scope.spawn(move || {
                    let tensor = Tensor::<1>::zeros([1 << 16], &Device::flex());
                    let outcome = reduce_scatter(rank, std::slice::from_ref(&tensor), 0, ReduceOp::Sum).map(drop);
                    // Nobody else has it: burn would copy it before it writes.
                    assert!(tensor.can_mut());
                    outcome
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
    for outcome in outcomes {
        assert!(matches!(&outcome, Err(Error::Timeout { missing, .. }) if missing[..] == [Rank(2)]), "{outcome:?}");
    }
    std::thread::scope(|scope| {
        let reset = |rank: &mut RankComm<Cpu>| rank.reset(Duration::from_secs(10)).expect("reset");
        ranks.iter_mut().for_each(|rank| drop(scope.spawn(move || reset(rank))));
    });
    let tensors = tensors::<1, Float>(3, [30], DType::F32);
    let sums = reduce_scatter(&ranks, &tensors, 0, ReduceOp::Sum).expect("outcome");
    sums.iter().zip(parts(&tensors, 0)).for_each(|(sum, part)| assert_same(sum, &part));
}
