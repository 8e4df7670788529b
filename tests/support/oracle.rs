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
    let inner: usize = shape[axis + 1..].iter().product();
    let extent = shape[axis];
    // Who owns each index along the axis: even shares, one more for the lower ranks.
    let owner: Vec<usize> =
        (0..ranks).flat_map(|r| vec![r; extent / ranks + usize::from(r < extent % ranks)]).collect();
    let mut part = Vec::new();
    for i in 0..tensor.len() / size {
        if owner[i / inner % extent] == rank {
            part.extend(&tensor[i * size..(i + 1) * size]);
        }
    }
    part
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
