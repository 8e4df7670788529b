//! The numerics contract in examples whose results are known by hand.

use crossccl::{
    Element, ReduceOp, ReduceScatter,
    half::{bf16, f16},
};
use rstest::rstest;

use super::B;
use crate::support::communicator;

/// Every rank gives `values[rank]` in every element of its tensor; the reduction, on every rank.
fn reduce<T: Element + PartialEq>(op: ReduceOp, values: &[T]) -> T {
    let ranks = values.len();
    let comm = communicator::<B>(ranks);
    let inputs: Vec<_> = values.iter().enumerate().map(|(r, v)| comm.buffer_from(r, &vec![*v; 9 * ranks]).expect("buffer")).collect();
    let mut outputs: Vec<_> = (0..ranks).map(|r| comm.buffer::<T>(r, 9).expect("buffer")).collect();
    comm.reduce_scatter(&inputs, &mut outputs, op).expect("launch").wait().expect("outcome");
    let results: Vec<T> = outputs.iter().flat_map(|o| o.to_vec().expect("read")).collect();
    // By bits: NaN is equal to itself, the zeros are not equal.
    assert!(results.iter().all(|r| bytemuck::bytes_of(r) == bytemuck::bytes_of(&results[0])), "{results:?}");
    results[0]
}

#[rstest]
fn f1_bf16_sums_keep_small_addends() {
    needs_device!();
    let mut values = [bf16::from_f32(1.0); 8];
    values[0] = bf16::from_f32(256.0);
    // 263 exactly; the nearest bf16 values are 262 and 264, and 264 is the even one.
    assert_eq!(reduce(ReduceOp::Sum, &values).to_f32(), 264.0);
}

#[rstest]
fn f2_f16_does_not_overflow_in_the_middle() {
    needs_device!();
    let values = [60000.0, 60000.0, -60000.0].map(f16::from_f32);
    assert_eq!(reduce(ReduceOp::Sum, &values), f16::from_f32(60000.0));
}

/// The order is rank 0, 1, 2, 3 on whichever rank owns the element: 2^24 + c goes to an even number first.
#[rstest]
fn f4_one_order_on_every_rank(#[values(1, 2, 3)] c: usize, #[values(0.0, 1.0)] d: f32) {
    needs_device!();
    let big = (1 << 24) as f32;
    let rounded = [0.0, 0.0, 2.0, 4.0][c];
    assert_eq!(reduce(ReduceOp::Sum, &[big, c as f32, -big, -d]), rounded - d);
}

#[rstest]
fn f7_integers_wrap() {
    needs_device!();
    assert_eq!(reduce(ReduceOp::Sum, &[120i8, 100]), -36);
    assert_eq!(reduce(ReduceOp::Sum, &[200u8, 100]), 44);
    assert_eq!(reduce(ReduceOp::Product, &[100i8, 3]), 44);
    assert_eq!(reduce(ReduceOp::Sum, &[i64::MAX, 1]), i64::MIN);
    assert_eq!(reduce(ReduceOp::Product, &[u64::MAX, u64::MAX]), 1);
}

#[rstest]
fn integer_averages_truncate_toward_zero() {
    needs_device!();
    assert_eq!(reduce(ReduceOp::Average, &[-7i8, 0]), -3);
    assert_eq!(reduce(ReduceOp::Average, &[7i8, 0]), 3);
    // Over the exact sum, where the sum itself would wrap.
    assert_eq!(reduce(ReduceOp::Average, &[127i8, 127, 127]), 127);
    assert_eq!(reduce(ReduceOp::Average, &[i32::MIN, i32::MIN]), i32::MIN);
    assert_eq!(reduce(ReduceOp::Average, &[u32::MAX, u32::MAX]), u32::MAX);
    // 64 bits: over the wrapped sum.
    assert_eq!(reduce(ReduceOp::Average, &[i64::MAX, 1]), i64::MIN / 2);
    assert_eq!(reduce(ReduceOp::Average, &[u64::MAX, 3]), 1);
}

#[rstest]
fn averages_divide_before_the_rounding() {
    needs_device!();
    // In f16 the sum 2 x 65504 would be infinite.
    assert_eq!(reduce(ReduceOp::Average, &[f16::MAX, f16::MAX]), f16::MAX);
    assert_eq!(reduce(ReduceOp::Average, &[1.0f32, 0.0, 0.0]).to_bits(), (1.0f32 / 3.0).to_bits());
}

#[rstest]
fn f9_denormals_are_kept() {
    needs_device!();
    assert_eq!(reduce(ReduceOp::Sum, &[1e-40f32, 1e-40]).to_bits(), (1e-40f32 + 1e-40).to_bits());
    assert_eq!(reduce(ReduceOp::Sum, &[f16::from_bits(1), f16::from_bits(2)]), f16::from_bits(3));
    assert_eq!(reduce(ReduceOp::Sum, &[bf16::from_bits(1), bf16::from_bits(2)]), bf16::from_bits(3));
    assert_eq!(reduce(ReduceOp::Sum, &[5e-324f64, 5e-324]), 1e-323);
}

#[rstest]
fn e8_negative_zero_stays_negative() {
    needs_device!();
    assert_eq!(reduce(ReduceOp::Sum, &[-0.0f32, -0.0]).to_bits(), (-0.0f32).to_bits());
    assert_eq!(reduce(ReduceOp::Sum, &[-0.0f32, 0.0]).to_bits(), 0);
    for (a, b) in [(-0.0f32, 0.0f32), (0.0, -0.0)] {
        assert_eq!(reduce(ReduceOp::Min, &[a, b]).to_bits(), (-0.0f32).to_bits());
        assert_eq!(reduce(ReduceOp::Max, &[a, b]).to_bits(), 0);
    }
}

#[rstest]
fn nan_is_propagated_and_canonical(#[values(ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product, ReduceOp::Average)] op: ReduceOp) {
    needs_device!();
    let odd = f32::from_bits(0xffc1_2345);
    for values in [[odd, 1.0], [1.0, odd], [odd, odd]] {
        assert_eq!(reduce(op, &values).to_bits(), 0x7fc0_0000, "{op} {values:?}");
    }
    assert_eq!(reduce(op, &[f64::NAN, -1.0]).to_bits(), 0x7ff8_0000_0000_0000);
    assert_eq!(reduce(op, &[f16::from_bits(0xfe01), f16::ONE]).to_bits(), 0x7e00);
    assert_eq!(reduce(op, &[bf16::ONE, bf16::from_bits(0xff81)]).to_bits(), 0x7fc0);
    assert_eq!(reduce(ReduceOp::Sum, &[f32::INFINITY, f32::NEG_INFINITY]).to_bits(), 0x7fc0_0000);
}

/// Every f16 and bf16 value goes through the accumulator and back unchanged, and every pair of
/// neighbours rounds as the `half` crate does.
#[rstest]
fn every_16_bit_value_round_trips() {
    needs_device!();
    let comm = communicator::<B>(2);
    let all: Vec<u16> = (0..=u16::MAX).collect();
    macro_rules! check {
        ($t:ty, $zero:expr, $half_ulp:expr) => {
            let values: Vec<$t> = all.iter().map(|b| <$t>::from_bits(*b)).collect();
            for other in [$zero, $half_ulp] {
                let inputs = [comm.buffer_from(0, &values).expect("buffer"), comm.buffer_from(1, &vec![other; 1 << 16]).expect("buffer")];
                let mut outputs = [0, 1].map(|r| comm.buffer::<$t>(r, 1 << 15).expect("buffer"));
                comm.reduce_scatter(&inputs, &mut outputs, ReduceOp::Sum).expect("launch").wait().expect("outcome");
                let got = outputs.iter().flat_map(|o| o.to_vec().expect("read"));
                for (value, got) in values.iter().zip(got) {
                    let expected = <$t>::from_f32(value.to_f32() + other.to_f32());
                    if !expected.is_nan() {
                        assert_eq!(got.to_bits(), expected.to_bits(), "{value:?} + {other:?}");
                    }
                }
            }
        };
    }
    check!(f16, f16::NEG_ZERO, f16::from_f32(0.000_488_5));
    check!(bf16, bf16::NEG_ZERO, bf16::from_f32(0.0039));
}

/// Case F5: one result, whatever the blocks, the run, or other communicators at work.
#[rstest]
fn f5_the_same_bits_every_time() {
    needs_device!();
    let mut random = crate::support::Random(5);
    let data: Vec<Vec<f32>> = (0..8)
        .map(|_| (0..40_000).map(|_| (random.next() as f32 / u64::MAX as f32 - 0.5) * 1e6).collect())
        .collect();
    let mut first: Option<Vec<u32>> = None;
    for run in 0..100 {
        let others: Vec<_> = (0..run % 4).map(|_| communicator::<B>(2)).collect();
        let comm = communicator::<B>(8);
        let inputs: Vec<_> = data.iter().enumerate().map(|(r, d)| comm.buffer_from(r, d).expect("buffer")).collect();
        let mut outputs: Vec<_> = (0..8).map(|r| comm.buffer::<f32>(r, 5000).expect("buffer")).collect();
        let what = ReduceScatter::new(ReduceOp::Sum).max_blocks([1, 7, 64][run % 3]);
        comm.reduce_scatter(&inputs, &mut outputs, what).expect("launch").wait().expect("outcome");
        let bits: Vec<u32> = outputs.iter().flat_map(|o| o.to_vec().expect("read")).map(f32::to_bits).collect();
        assert!(first.get_or_insert_with(|| bits.clone()) == &bits, "run {run}");
        drop(others);
    }
}
