//! Cases F: numbers.

use crossccl::{DType, ReduceOp, ReduceScatter};
use rstest::rstest;

use super::{
    super::reduce_scatter::{Place, check_at},
    B,
};
use crate::support::{Random, assert_same, communicator};

/// A type that is not offered has no name here, and whoever asks is told which there are.
fn not_offered(name: &str) {
    let text = format!("unknown dtype `{name}`; the dtypes are f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64");
    assert_eq!(name.parse::<DType>(), Err(text));
}

#[rstest]
fn f3_fp8_is_refused_by_name(#[values("e4m3", "fp8", "f8_e5m2")] name: &str) {
    needs_device!();
    not_offered(name);
}

/// Nor is it taken for u8, whose sums would be those of integers.
#[rstest]
fn f10_bool_is_refused_by_name(#[values("bool", "bytes")] name: &str) {
    needs_device!();
    not_offered(name);
}

/// Bytes of whatever type pass through a broadcast as they are.
#[rstest]
fn f10_opaque_bytes_can_be_broadcast(#[values(DType::U8, DType::I8)] dtype: DType) {
    needs_device!();
    let comm = communicator::<B>(3);
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let buffer = |r: usize| comm.buffer_with_dtype(r, dtype, 256).expect("buffer");
    let mut buffers: Vec<_> = (0..3).map(buffer).collect();
    buffers[2].write_bytes(&all).expect("write");
    comm.broadcast_in_place(&mut buffers, 2).expect("launch").wait().expect("outcome");
    for buffer in &buffers {
        let mut got = vec![0; 256];
        buffer.read_bytes(&mut got).expect("read");
        assert_same("every byte", dtype, &got, &all);
    }
}

/// Sums that depend on the order have one right answer here, that of rank order, so they are compared by bits. The
/// oracle sees the difference: in reverse order it gives others.
#[rstest]
fn f11_sums_that_depend_on_the_order(
    #[values(DType::F32, DType::F64, DType::BF16)] dtype: DType,
    #[values(3, 4, 8)] ranks: usize,
) {
    needs_device!();
    let comm = communicator(ranks);
    for op in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Product] {
        check_at(&comm, dtype, op, &[vec![10_007]], 0, ReduceScatter::new(op), Place::Apart(0, 0));
    }
    let mut random = Random(11);
    let inputs: Vec<_> = (0..ranks).map(|_| random.elements(dtype, 10_007)).collect();
    let mut order: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let forward = crate::support::oracle::reduce(dtype, ReduceOp::Sum, &order);
    order.reverse();
    assert!(forward != crate::support::oracle::reduce(dtype, ReduceOp::Sum, &order), "the data do not show the order");
}
