//! What the results must be, the naive way: one element after the other, in rank order, with nothing of
//! the library's own. And how many of them are something else.

use std::ops::Range;

use crossccl::{
    DType, ReduceOp,
    half::{bf16, f16},
};

use super::values::{Number, Source};
use crate::error::CliError;

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) wrong: u64,
    pub(crate) checked: u64,
}

impl Tally {
    /// Compares two images of the same memory, element by element and bit for bit.
    pub(crate) fn compare(&mut self, want: &[u8], got: &[u8], element: usize) {
        self.checked += (want.len() / element) as u64;
        // Nearly always equal, and that is told fast.
        if want != got {
            let pairs = want.chunks(element).zip(got.chunks(element));
            self.wrong += pairs.filter(|(w, g)| w != g).count() as u64;
            self.wrong += (want.len().abs_diff(got.len()) / element) as u64;
        }
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.wrong += other.wrong;
        self.checked += other.checked;
    }
}

/// The part of one rank: `outer` runs of `run` elements, `stride` apart, from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) outer: usize,
    pub(crate) run: usize,
    pub(crate) stride: usize,
    pub(crate) offset: usize,
}

impl Part {
    /// `axis` is one of `shape`, whose elements can be counted; `rank` is below `ranks`.
    pub(crate) fn new(shape: &[usize], axis: usize, ranks: usize, rank: usize) -> Self {
        let inner: usize = shape[axis + 1..].iter().product();
        let (each, more) = (shape[axis] / ranks, shape[axis] % ranks);
        // The first `more` ranks have one more each.
        let start = rank * each + rank.min(more);
        Part {
            outer: shape[..axis].iter().product(),
            run: (each + usize::from(rank < more)) * inner,
            stride: shape[axis] * inner,
            offset: start * inner,
        }
    }

    pub(crate) fn count(self) -> usize {
        self.outer * self.run
    }
}

/// The values of one dtype and what one operation makes of them.
#[derive(Clone, Copy)]
pub(crate) struct Oracle {
    write: fn(Source, usize, u64, &mut [u8]),
    reduce: fn(Source, Range<usize>, u64, &mut [u8]),
}

impl Oracle {
    /// Without an operation (broadcast), `reduce` is not of use.
    pub(crate) fn new(dtype: DType, op: Option<ReduceOp>) -> Result<Self, CliError> {
        let op = op.unwrap_or(ReduceOp::Sum);
        let oracle = match dtype {
            DType::I8 => of::<i8>(op),
            DType::U8 => of::<u8>(op),
            DType::I32 => of::<i32>(op),
            DType::U32 => of::<u32>(op),
            DType::I64 => of::<i64>(op),
            DType::U64 => of::<u64>(op),
            DType::F16 => of::<f16>(op),
            DType::BF16 => of::<bf16>(op),
            DType::F32 => of::<f32>(op),
            DType::F64 => of::<f64>(op),
            _ => None,
        };
        oracle.ok_or_else(|| CliError::Usage(format!("cannot verify {op} of {dtype}; choose another")))
    }

    /// The input of `rank` from element `first` on.
    pub(crate) fn input(&self, source: Source, rank: usize, first: usize, out: &mut [u8]) {
        (self.write)(source, rank, first as u64, out);
    }

    /// The reduction over `group` from element `first` on. A group of one rank copies: not even a NaN changes.
    pub(crate) fn reduced(&self, source: Source, group: Range<usize>, first: usize, out: &mut [u8]) {
        match group.len() {
            1 => self.input(source, group.start, first, out),
            _ => (self.reduce)(source, group, first as u64, out),
        }
    }
}

fn of<T: Number>(op: ReduceOp) -> Option<Oracle> {
    let reduce: fn(Source, Range<usize>, u64, &mut [u8]) = match op {
        ReduceOp::Sum => |s, g, first, out| fold::<T>(s, g, first, out, T::sum, |x, _| x),
        ReduceOp::Average => |s, g, first, out| fold::<T>(s, g, first, out, T::sum, T::divide),
        ReduceOp::Product => |s, g, first, out| fold::<T>(s, g, first, out, T::product, |x, _| x),
        ReduceOp::Min => |s, g, first, out| fold::<T>(s, g, first, out, T::least, |x, _| x),
        ReduceOp::Max => |s, g, first, out| fold::<T>(s, g, first, out, T::greatest, |x, _| x),
        _ => return None,
    };
    Some(Oracle { write: |source, rank, first, out| source.write::<T>(rank, first, out), reduce })
}

fn fold<T: Number>(
    source: Source,
    group: Range<usize>,
    first: u64,
    out: &mut [u8],
    combine: impl Fn(T::Acc, T::Acc) -> T::Acc,
    finish: impl Fn(T::Acc, usize) -> T::Acc,
) {
    for (index, bytes) in (first..).zip(out.chunks_exact_mut(T::SIZE)) {
        let mut acc = source.element::<T>(group.start, index).widen();
        for rank in group.start + 1..group.end {
            acc = combine(acc, source.element::<T>(rank, index).widen());
        }
        T::narrow(finish(acc, group.len())).write(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::values::Values, *};

    #[test]
    fn planted_wrong_elements_are_counted() {
        let source = Source { seed: 9, values: Values::Hard };
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let oracle = Oracle::new(dtype, Some(op)).unwrap();
                let mut want = vec![0; 100 * dtype.size()];
                oracle.reduced(source, 0..3, 0, &mut want);
                let mut got = want.clone();
                let mut tally = Tally::default();
                tally.compare(&want, &got, dtype.size());
                assert_eq!(tally, Tally { wrong: 0, checked: 100 });
                // Two bits of one element are one wrong element.
                got[41 * dtype.size()] ^= 0x11;
                tally.compare(&want, &got, dtype.size());
                assert_eq!(tally, Tally { wrong: 1, checked: 200 });
                got[0] ^= 1;
                *got.last_mut().unwrap() ^= 0x80;
                tally.compare(&want, &got, dtype.size());
                assert_eq!(tally, Tally { wrong: 4, checked: 300 });
            }
        }
    }

    #[test]
    fn a_group_of_one_copies() {
        let source = Source { seed: 4, values: Values::Hard };
        let oracle = Oracle::new(DType::F16, Some(ReduceOp::Average)).unwrap();
        let (mut reduced, mut copied) = (vec![0; 8000], vec![0; 8000]);
        oracle.reduced(source, 2..3, 0, &mut reduced);
        oracle.input(source, 2, 0, &mut copied);
        assert_eq!(reduced, copied);
    }

    #[test]
    fn what_is_missing_is_wrong() {
        let mut tally = Tally::default();
        tally.compare(&[1, 2, 3, 4], &[1, 2], 2);
        assert_eq!(tally, Tally { wrong: 1, checked: 2 });
    }

    #[test]
    fn parts_are_those_of_a_hand_count() {
        let part = |shape: &[usize], axis, ranks, rank| {
            let p = Part::new(shape, axis, ranks, rank);
            (p.outer, p.run, p.stride, p.offset)
        };
        assert_eq!(part(&[10], 0, 4, 0), (1, 3, 10, 0));
        assert_eq!(part(&[10], 0, 4, 3), (1, 2, 10, 8));
        assert_eq!(part(&[2, 5, 3], 1, 2, 0), (2, 9, 15, 0));
        assert_eq!(part(&[2, 5, 3], 1, 2, 1), (2, 6, 15, 9));
        assert_eq!(part(&[2], 0, 4, 3), (1, 0, 2, 2));
    }

    /// The arithmetic where types differ from each other, by hand.
    #[test]
    fn arithmetic_by_hand() {
        fn reduce<T: Number>(values: &[T], combine: fn(T::Acc, T::Acc) -> T::Acc, average: bool) -> T {
            let acc = values.iter().map(|x| x.widen()).reduce(combine).unwrap();
            T::narrow(if average { T::divide(acc, values.len()) } else { acc })
        }
        // Integers wrap; their average does not, up to 32 bits.
        assert_eq!(reduce(&[100i8, 100], i8::sum, false), -56);
        assert_eq!(reduce(&[100i8, 100], i8::sum, true), 100);
        assert_eq!(reduce(&[-3i32, 0], i32::sum, true), -1);
        assert_eq!(reduce(&[i64::MAX, 1], i64::sum, true), i64::MIN / 2);
        assert_eq!(reduce(&[1u32 << 31, 2], u32::product, false), 0);
        // f16: 2048 + 1 + 1 is 2050 with one rounding, 2048 with two.
        let f = f16::from_f32;
        assert_eq!(reduce(&[f(2048.0), f(1.0), f(1.0)], f16::sum, false), f(2050.0));
        // 60000 + 60000 overflows f16, the average does not.
        assert_eq!(reduce(&[f(60000.0), f(60000.0)], f16::sum, true), f(60000.0));
        // Zeros and NaN.
        assert_eq!(reduce(&[0.0f32, -0.0], f32::least, false).to_bits(), 1 << 31);
        assert_eq!(reduce(&[-0.0f64, 0.0], f64::greatest, false).to_bits(), 0);
        let nan = f32::from_bits(0xffc0_1234);
        for op in [f32::least, f32::greatest, f32::sum] {
            assert_eq!(reduce(&[nan, 1.0], op, false).to_bits(), 0x7fc0_0000);
            assert_eq!(reduce(&[1.0, nan], op, false).to_bits(), 0x7fc0_0000);
        }
    }
}
