//! The naive reduce-scatter: one element after the other, in rank order, by the numerics contract.

use crossccl::{
    DType, ReduceOp,
    half::{bf16, f16},
};

/// The reduction of whole tensors, element by element; `inputs` are one a rank, little endian.
pub(crate) fn reduce(dtype: DType, op: ReduceOp, inputs: &[&[u8]]) -> Vec<u8> {
    if let [alone] = inputs {
        return alone.to_vec();
    }
    macro_rules! with {
        ($t:ty) => {
            per_element::<$t, { size_of::<$t>() }>(inputs, |values| <$t as Naive>::reduce(op, values))
        };
    }
    match dtype {
        DType::F32 => with!(f32),
        DType::F64 => with!(f64),
        DType::F16 => with!(f16),
        DType::BF16 => with!(bf16),
        DType::I8 => with!(i8),
        DType::U8 => with!(u8),
        DType::I32 => with!(i32),
        DType::U32 => with!(u32),
        DType::I64 => with!(i64),
        DType::U64 => with!(u64),
        other => panic!("the oracle does not know {other}"),
    }
}

/// Part `rank` of a row-major tensor cut along `axis`, gathered element by element.
pub(crate) fn part(tensor: &[u8], size: usize, shape: &[usize], axis: usize, ranks: usize, rank: usize) -> Vec<u8> {
    // Even shares, one more for the lower ranks.
    let extent = shape[axis];
    let lengths: Vec<usize> = (0..ranks).map(|r| extent / ranks + usize::from(r < extent % ranks)).collect();
    part_of_lengths(tensor, size, shape, axis, &lengths, rank)
}

fn per_element<T: Naive + bytemuck::Pod, const SIZE: usize>(inputs: &[&[u8]], reduce: impl Fn(&[T]) -> T) -> Vec<u8> {
    // Without an allocation for each element: case B5 has ten millions of them on eight ranks.
    let mut result = Vec::with_capacity(inputs[0].len());
    let mut values = Vec::with_capacity(inputs.len());
    for at in (0..inputs[0].len()).step_by(SIZE) {
        values.clear();
        values.extend(inputs.iter().map(|b| bytemuck::pod_read_unaligned::<T>(&b[at..at + SIZE])));
        result.extend_from_slice(bytemuck::bytes_of(&reduce(&values)));
    }
    result
}

trait Naive: Copy {
    fn reduce(op: ReduceOp, values: &[Self]) -> Self;
}

macro_rules! integers {
    ($($t:ty: $wide:ty),*) => { $(
        impl Naive for $t {
            fn reduce(op: ReduceOp, values: &[$t]) -> $t {
                let wide = values.iter().map(|v| *v as $wide);
                match op {
                    ReduceOp::Sum => wide.fold(0, <$wide>::wrapping_add) as $t,
                    ReduceOp::Product => wide.fold(1, <$wide>::wrapping_mul) as $t,
                    ReduceOp::Average => (wide.fold(0, <$wide>::wrapping_add) / values.len() as $wide) as $t,
                    ReduceOp::Min => *values.iter().min().expect("a rank"),
                    ReduceOp::Max => *values.iter().max().expect("a rank"),
                    other => panic!("the oracle does not know {other}"),
                }
            }
        }
    )* };
}
// Exact sums up to 32 bits; 64-bit types wrap, the average included.
integers!(i8: i64, u8: u64, i32: i64, u32: u64, i64: i64, u64: u64);

macro_rules! floats {
    ($($t:ty: $acc:ty, $widen:expr, $narrow:expr, $nan:expr);*) => { $(
        impl Naive for $t {
            fn reduce(op: ReduceOp, values: &[$t]) -> $t {
                let mut acc: $acc = $widen(values[0]);
                for v in &values[1..] {
                    let v: $acc = $widen(*v);
                    acc = match op {
                        ReduceOp::Sum | ReduceOp::Average => acc + v,
                        ReduceOp::Product => acc * v,
                        _ if acc.is_nan() || v.is_nan() => <$acc>::NAN,
                        ReduceOp::Min => if v.total_cmp(&acc).is_lt() { v } else { acc },
                        ReduceOp::Max => if v.total_cmp(&acc).is_gt() { v } else { acc },
                        other => panic!("the oracle does not know {other}"),
                    };
                }
                if op == ReduceOp::Average {
                    acc /= values.len() as $acc;
                }
                if acc.is_nan() { <$t>::from_bits($nan) } else { $narrow(acc) }
            }
        }
    )* };
}
floats! {
    f32: f32, |x| x, |x| x, 0x7fc0_0000;
    f64: f64, |x| x, |x| x, 0x7ff8_0000_0000_0000;
    f16: f32, f16::to_f32, f16::from_f32, 0x7e00;
    bf16: f32, bf16::to_f32, bf16::from_f32, 0x7fc0
}

/// The fused reduction of whole tensors: sum or average, times `factor`, plus `residual` of dtype `to`,
/// rounded once to `to`.
pub(crate) fn fused(
    dtype: DType,
    op: ReduceOp,
    inputs: &[&[u8]],
    factor: f64,
    residual: Option<&[u8]>,
    to: DType,
) -> Vec<u8> {
    let at = |bytes: &[u8], dtype: DType, i: usize| bytes[i * dtype.size()..][..dtype.size()].to_vec();
    let count = inputs[0].len() / dtype.size();
    (0..count)
        .flat_map(|i| {
            let residual = residual.map(|r| at(r, to, i));
            if dtype == DType::F64 {
                let mut acc = f64_of(&at(inputs[0], dtype, i));
                inputs[1..].iter().for_each(|input| acc += f64_of(&at(input, dtype, i)));
                if op == ReduceOp::Average {
                    acc /= inputs.len() as f64;
                }
                acc *= factor;
                acc += residual.map_or(-0.0, |r| f64_of(&r));
                return if acc.is_nan() { 0x7ff8_0000_0000_0000u64 } else { acc.to_bits() }.to_le_bytes().to_vec();
            }
            let mut acc = f32_of(dtype, &at(inputs[0], dtype, i));
            inputs[1..].iter().for_each(|input| acc += f32_of(dtype, &at(input, dtype, i)));
            if op == ReduceOp::Average {
                acc /= inputs.len() as f32;
            }
            acc *= factor as f32;
            // Adding -0 changes nothing.
            acc += residual.map_or(-0.0, |r| f32_of(to, &r));
            match to {
                DType::F32 => if acc.is_nan() { 0x7fc0_0000 } else { acc.to_bits() }.to_le_bytes().to_vec(),
                DType::F16 => if acc.is_nan() { 0x7e00 } else { f16::from_f32(acc).to_bits() }.to_le_bytes().to_vec(),
                DType::BF16 => if acc.is_nan() { 0x7fc0 } else { bf16::from_f32(acc).to_bits() }.to_le_bytes().to_vec(),
                other => panic!("the oracle rounds no sum to {other}"),
            }
        })
        .collect()
}

fn f64_of(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

fn f32_of(dtype: DType, bytes: &[u8]) -> f32 {
    match dtype {
        DType::F32 => f32::from_le_bytes(bytes.try_into().expect("4 bytes")),
        DType::F16 => f16::from_le_bytes(bytes.try_into().expect("2 bytes")).to_f32(),
        DType::BF16 => bf16::from_le_bytes(bytes.try_into().expect("2 bytes")).to_f32(),
        other => panic!("the oracle accumulates no {other} in f32"),
    }
}

/// Part `rank` of a row-major tensor cut along `axis` by given lengths, gathered element by element.
pub(crate) fn part_of_lengths(
    tensor: &[u8],
    size: usize,
    shape: &[usize],
    axis: usize,
    lengths: &[usize],
    rank: usize,
) -> Vec<u8> {
    let inner: usize = shape[axis + 1..].iter().product();
    let owner: Vec<usize> = lengths.iter().enumerate().flat_map(|(r, l)| vec![r; *l]).collect();
    (0..tensor.len() / size)
        .filter(|i| owner[i / inner % shape[axis]] == rank)
        .flat_map(|i| tensor[i * size..(i + 1) * size].to_vec())
        .collect()
}
