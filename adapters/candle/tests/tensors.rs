//! The adapter against candle's own arithmetic, one thread a rank and one thread for all.

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor, Var};
use crossccl::{Broadcast, Cpu, Error, Rank, RankComm, ReduceOp, ReduceScatter};
#[cfg(not(feature = "cuda"))]
use crossccl_candle::Home;
use crossccl_candle::{broadcast, reduce_scatter};
use rstest::rstest;

#[path = "../../tensors/testing.rs"]
mod testing;
use testing::{
    Threads::{self, Each, One},
    call, ranks, ranks_with_limit,
};

/// Small whole numbers, of which no sum of a few is rounded in any dtype, and a different tensor for each rank.
fn tensors(ranks: usize, shape: &[usize], dtype: DType) -> Vec<Tensor> {
    let count = shape.iter().product::<usize>() as u32;
    let numbers = |rank: u32| (0..count).map(move |i| (i * 7 + rank * 3) % 13).collect::<Vec<_>>();
    let tensor = |rank| Tensor::from_vec(numbers(rank), shape, &Device::Cpu)?.to_dtype(dtype);
    (0..ranks as u32).map(tensor).collect::<Result<_, _>>().expect("tensors")
}

/// Elements and shape are the same.
#[track_caller]
fn assert_same(got: &Tensor, wanted: &Tensor) {
    assert_eq!((got.dims(), got.dtype()), (wanted.dims(), wanted.dtype()));
    let elements = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>();
    assert_eq!(elements(got).expect("elements"), elements(wanted).expect("elements"));
}

/// Candle's sum in rank order, of which each rank has its part along the axis.
fn parts(tensors: &[Tensor], axis: usize) -> Vec<Tensor> {
    let sum = tensors[1..].iter().try_fold(tensors[0].clone(), |sum, t| sum + t).expect("sum");
    let (extent, ranks) = (sum.dims()[axis], tensors.len());
    let length = |rank| extent / ranks + usize::from(rank < extent % ranks);
    (0..ranks).map(|r| sum.narrow(axis, (0..r).map(length).sum(), length(r)).expect("part")).collect()
}

#[rstest]
fn broadcasts(
    #[values(One, Each)] threads: Threads,
    #[values(DType::U8, DType::U32, DType::I32, DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64)]
    dtype: DType,
) {
    let mut ranks = ranks(3);
    let tensors = tensors(3, &[5, 301], dtype);
    for root in 0..3 {
        let copies = call(threads, &mut ranks, &tensors, |ranks, tensors| broadcast(ranks, tensors, root));
        assert_eq!(copies.len(), 3);
        copies.iter().for_each(|copy| assert_same(copy, &tensors[root]));
    }
}

#[rstest]
fn reduces_and_scatters(
    #[values(One, Each)] threads: Threads,
    #[values(DType::U8, DType::U32, DType::I32, DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64)]
    dtype: DType,
    #[values(0, 1, 2)] axis: usize,
) {
    let mut ranks = ranks(3);
    // No axis is divided evenly.
    let tensors = tensors(3, &[4, 5, 70], dtype);
    let sums =
        call(threads, &mut ranks, &tensors, |ranks, tensors| reduce_scatter(ranks, tensors, axis, ReduceOp::Sum));
    sums.iter().zip(parts(&tensors, axis)).for_each(|(sum, part)| assert_same(sum, &part));
    assert_eq!(sums.len(), 3);
}

/// Sums that are rounded are those of candle in rank order, bit for bit.
#[test]
fn rounds_as_candle_in_rank_order() {
    let tensors: Vec<_> = (0..4).map(|_| Tensor::randn(0f32, 1e3, (8, 99), &Device::Cpu).expect("tensor")).collect();
    let sums = reduce_scatter(&ranks(4), &tensors, 0, ReduceOp::Sum).expect("outcome");
    sums.iter().zip(parts(&tensors, 0)).for_each(|(sum, part)| assert_same(sum, &part));
    let reversed: Vec<_> = tensors.into_iter().rev().collect();
    let others = parts(&reversed, 0);
    let differs = |(a, b): (&Tensor, &Tensor)| a.to_vec2::<f32>().ok() != b.to_vec2::<f32>().ok();
    assert!(sums.iter().zip(&others).any(differs), "the order does not show in these numbers");
}

/// What else a reduce-scatter can be asked for goes through: groups, lengths, a factor.
#[test]
fn takes_groups_lengths_and_factors() {
    let (ranks, tensors) = (ranks(4), tensors(4, &[3, 6], DType::F32));
    let what = ReduceScatter::new(ReduceOp::Average).group_size(2).lengths([1, 5]).factor(4.0);
    let got = reduce_scatter(&ranks, &tensors, 1, what).expect("outcome");
    for (rank, got) in got.iter().enumerate() {
        let group = &tensors[rank / 2 * 2..][..2];
        let wanted = ((&group[0] + &group[1]).expect("sum") * 2.0).expect("product");
        let (start, length) = [(0, 1), (1, 5)][rank % 2];
        assert_same(got, &wanted.narrow(1, start, length).expect("part"));
    }
}

/// A dtype of the caller's would not fit the memory that is made for it.
#[test]
fn the_output_has_the_dtype_of_the_tensors() {
    let tensors = tensors(2, &[10], DType::F32);
    let what = ReduceScatter::new(ReduceOp::Sum).output_dtype(crossccl::DType::BF16);
    let sums = reduce_scatter(&ranks(2), &tensors, 0, what).expect("outcome");
    sums.iter().zip(parts(&tensors, 0)).for_each(|(sum, part)| assert_same(sum, &part));
}

/// A row of a larger tensor is read where it lies; an input stays as it was.
#[test]
fn reads_views_at_an_offset() {
    let whole = tensors(1, &[3, 50], DType::F32).remove(0);
    let rows: Vec<_> = (1..3).map(|row| whole.narrow(0, row, 1).expect("row")).collect();
    let before = whole.to_vec2::<f32>().expect("elements");
    let sums = reduce_scatter(&ranks(2), &rows, 1, ReduceOp::Sum).expect("outcome");
    sums.iter().zip(parts(&rows, 1)).for_each(|(sum, part)| assert_same(sum, &part));
    assert_eq!(whole.to_vec2::<f32>().expect("elements"), before);
}

/// One tensor may be several ranks' input.
#[test]
fn ranks_may_share_a_tensor() {
    let tensor = tensors(1, &[9], DType::I64).remove(0);
    let copies = broadcast(&ranks(3), &vec![tensor.clone(); 3], 2).expect("outcome");
    copies.iter().for_each(|copy| assert_same(copy, &tensor));
}

/// Results are new: writing to one in place changes no other, nor an input.
#[test]
fn results_share_nothing() {
    let inputs = tensors(2, &[4], DType::F32);
    let copies = broadcast(&ranks(2), &inputs, 0).expect("outcome");
    let wanted = inputs[0].copy().expect("copy");
    copies[0].slice_set(&Tensor::ones(4, DType::F32, &Device::Cpu).expect("ones"), 0, 0).expect("write");
    assert_same(&copies[1], &wanted);
    assert_same(&inputs[0], &wanted);
}

#[rstest]
fn takes_tensors_without_elements(#[values(0, 1)] axis: usize) {
    let tensors = vec![Tensor::zeros((0, 4), DType::F32, &Device::Cpu).expect("tensor"); 2];
    let sums = reduce_scatter(&ranks(2), &tensors, axis, ReduceOp::Sum).expect("outcome");
    assert_eq!(sums[1].dims(), if axis == 0 { [0, 4] } else { [0, 2] });
    assert_eq!(broadcast(&ranks(2), &tensors, 1).expect("outcome")[0].dims(), [0, 4]);
}

/// Errors before anything is launched, with their texts; afterwards the ranks work.
#[test]
fn tensors_that_do_not_fit() {
    let (ranks, good) = (ranks(2), tensors(2, &[3, 4], DType::F32));
    let with = |other: Tensor| [good[0].clone(), other];
    let expected = "a contiguous tensor of one of crossccl's dtypes on the rank's device, cpu 1";
    let expected_0 = expected.replace("cpu 1", "cpu 0");
    let first = "f32 [3, 4], as the first handle's";
    let cases = [
        (None, "one for each of the 2 handles, and a handle at least", "1", vec![good[0].clone()]),
        (
            Some(Rank(1)),
            expected,
            "strides [1, 3]",
            with(tensors(1, &[4, 3], DType::F32).remove(0).t().expect("t")).into(),
        ),
        (Some(Rank(1)), first, "f64 [3, 4]", with(good[1].to_dtype(DType::F64).expect("f64")).into()),
        (Some(Rank(1)), first, "f32 [12]", with(good[1].flatten_all().expect("flat")).into()),
        (
            Some(Rank(0)),
            &expected_0,
            "unknown dtype `i16`; the dtypes are f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64",
            good.iter().map(|t| t.to_dtype(DType::I16).expect("i16")).collect(),
        ),
    ];
    for (rank, expected, got, tensors) in cases {
        let error = |operation| Error::InvalidArgument {
            operation,
            rank,
            argument: "tensors",
            expected: expected.into(),
            got: got.into(),
        };
        let call = broadcast(&ranks, &tensors, 0).map(drop);
        assert_eq!(call, Err(error("broadcast")));
        let call = reduce_scatter(&ranks, &tensors, 0, ReduceOp::Sum).map(drop);
        assert_eq!(call, Err(error("reduce_scatter")));
    }
    let error = broadcast(&[] as &[RankComm<Cpu>], &[], 0).map(drop).expect_err("no handles");
    assert!(matches!(&error, Error::InvalidArgument { argument: "tensors", .. }), "{error}");
    // What crossccl sees itself.
    let error = broadcast(&ranks, &good, 2).map(drop).expect_err("no such root");
    assert!(matches!(&error, Error::InvalidArgument { argument: "root", .. }), "{error}");
    let error = reduce_scatter(&ranks, &good, 2, ReduceOp::Sum).map(drop).expect_err("no such axis");
    assert!(matches!(&error, Error::InvalidArgument { argument: "axis", .. }), "{error}");
    let what = ReduceScatter::new(ReduceOp::Sum).lengths([1, 1]);
    let error = reduce_scatter(&ranks, &good, 0, what).map(drop).expect_err("3 is not 1 + 1");
    assert!(matches!(&error, Error::InvalidArgument { argument: "lengths", .. }), "{error}");
    let what = Broadcast::from_root(0).max_blocks(0);
    let error = broadcast(&ranks, &good, what).map(drop).expect_err("no blocks");
    assert!(matches!(&error, Error::InvalidArgument { argument: "max_blocks", .. }), "{error}");
    assert_eq!(ranks[0].failure(), None);
    assert!(broadcast(&ranks, &good, 0).is_ok());
}

/// A rank that does not come is named. When the others are told, nobody reads their tensors: they can be written to in place
/// and let go. After a reset of all handles work goes on.
#[test]
fn after_a_failure_the_tensors_are_free() {
    let mut ranks = ranks_with_limit(3, Duration::from_millis(500));
    let begin = Instant::now();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (ranks[..2].chunks_mut(1))
            .map(|rank| {
                scope.spawn(move || {
                    let tensor = Var::zeros(1 << 16, DType::F32, &Device::Cpu).expect("tensor");
                    let outcome = reduce_scatter(rank, &[tensor.as_tensor().clone()], 0, ReduceOp::Sum).map(drop);
                    tensor.set(&tensor.ones_like().expect("ones")).expect("not locked");
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
    let late = broadcast(&ranks[2..], &tensors(1, &[4], DType::F32), 2).map(drop).expect_err("poisoned");
    assert!(matches!(&late, Error::Poisoned { .. }), "{late}");

    std::thread::scope(|scope| {
        let reset = |rank: &mut RankComm<Cpu>| rank.reset(Duration::from_secs(10)).expect("reset");
        ranks.iter_mut().for_each(|rank| drop(scope.spawn(move || reset(rank))));
    });
    let tensors = tensors(3, &[30], DType::F32);
    let sums = reduce_scatter(&ranks, &tensors, 0, ReduceOp::Sum).expect("outcome");
    sums.iter().zip(parts(&tensors, 0)).for_each(|(sum, part)| assert_same(sum, &part));
}

/// Handles that have nothing to do with each other: where one fails, what the other has launched is ended as well, since it
/// reads tensors that are let go.
#[test]
fn handles_of_two_communicators() {
    let [mut short, mut long] =
        [Duration::from_millis(200), Duration::from_secs(20)].map(|limit| ranks_with_limit(2, limit));
    let handles = [short.remove(0), long.remove(1)];
    let begin = Instant::now();
    let error = reduce_scatter(&handles, &tensors(2, &[8], DType::F32), 0, ReduceOp::Sum).map(drop).expect_err("alone");
    assert!(matches!(&error, Error::Timeout { missing, .. } if missing[..] == [Rank(1)]), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
    assert_eq!(handles[1].failure(), Some(Error::Aborted));
}

/// A rank of the CPU takes no tensors of another device.
#[cfg(not(feature = "cuda"))]
#[test]
fn tensors_of_another_device() {
    let cuda = Device::Cuda(candle_core::CudaDevice);
    assert!(Cpu::stream(ranks(1)[0].stream(), &cuda).is_none());
    assert!(Cpu::stream(ranks(1)[0].stream(), &Device::Cpu).is_some());
}

/// Who writes to a tensor in place waits while it is read.
#[test]
fn writers_wait_while_a_call_runs() {
    let mut ranks = ranks(2);
    let (first, second) = ranks.split_at_mut(1);
    let tensor = Var::ones(1000, DType::F32, &Device::Cpu).expect("tensor");
    let zeros = tensor.zeros_like().expect("zeros");
    let copies = std::thread::scope(|scope| {
        let read = [tensor.as_tensor().clone()];
        let root = scope.spawn(move || broadcast(first, &read, 0));
        std::thread::sleep(Duration::from_millis(200));
        let writer = scope.spawn(|| tensor.set(&zeros));
        std::thread::sleep(Duration::from_millis(200));
        let copies = broadcast(second, std::slice::from_ref(&zeros), 0).expect("outcome");
        root.join().expect("no panic").expect("outcome");
        writer.join().expect("no panic").expect("written");
        copies
    });
    assert_same(&copies[0], &zeros.ones_like().expect("ones"));
    assert_same(&tensor, &zeros);
}
