//! What the inputs hold: every element is a pure function of seed, rank and position, so that a checker
//! can ask for any of them again and nobody keeps copies.

use crossccl::half::{bf16, f16};

/// Which values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Every bit pattern: for broadcast, which must not look at them.
    Bits,
    /// Floats of 1 to 2 and either sign. For timing: sums over many calls stay normal numbers, and
    /// subnormal ones, which are slow on some machines, do not occur.
    Plain,
    /// Floats that round, and NaN, infinities, zeros and subnormal numbers where they can meet.
    Hard,
}

/// The inputs of all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) seed: u64,
    pub(crate) values: Values,
}

/// Every so many elements all ranks may have a special value in [`Values::Hard`]: at the same place, so
/// that -0 meets +0 and infinity meets NaN.
const SPECIAL: u64 = 61;

impl Source {
    pub(crate) fn element<T: Number>(self, rank: usize, index: u64) -> T {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let key = mix(self.seed.wrapping_add(STEP.wrapping_mul(rank as u64 + 1)));
        let word = mix(key.wrapping_add(STEP.wrapping_mul(index)));
        match self.values {
            Values::Bits => T::from_bits(word),
            Values::Plain => T::ordinary(word, 0),
            Values::Hard if index % SPECIAL == 7 && word >> 63 == 0 => T::special(word),
            Values::Hard => T::ordinary(word, 2),
        }
    }

    /// The elements of `rank` from `first` on, as bytes: as many as `out` has room for.
    pub(crate) fn write<T: Number>(self, rank: usize, first: u64, out: &mut [u8]) {
        for (index, bytes) in (first..).zip(out.chunks_exact_mut(T::SIZE)) {
            self.element::<T>(rank, index).write(bytes);
        }
    }
}

/// The output function of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// An element type, with the arithmetic that the library promises: sums and products in `Acc`, one
/// rounding in `narrow`.
pub(crate) trait Number: Copy {
    type Acc: Copy;
    const SIZE: usize;

    fn from_bits(word: u64) -> Self;
    /// A number; `spread` bits of `word` choose a float's exponent.
    fn ordinary(word: u64, spread: u32) -> Self;
    fn special(word: u64) -> Self;
    fn write(self, out: &mut [u8]);

    fn widen(self) -> Self::Acc;
    fn narrow(x: Self::Acc) -> Self;
    fn sum(x: Self::Acc, y: Self::Acc) -> Self::Acc;
    fn product(x: Self::Acc, y: Self::Acc) -> Self::Acc;
    // Not `min` and `max`: floats have methods of these names that drop NaN, and those would be called.
    fn least(x: Self::Acc, y: Self::Acc) -> Self::Acc;
    fn greatest(x: Self::Acc, y: Self::Acc) -> Self::Acc;
    fn divide(x: Self::Acc, n: usize) -> Self::Acc;
}

// The casts cut: an accumulator of 64 bits holds the sum of any number of ranks exactly for types of up
// to 32 bits, and wraps as the type does for 64.
macro_rules! integers {
    ($($t:ty, $acc:ty;)*) => { $(
        impl Number for $t {
            type Acc = $acc;
            const SIZE: usize = size_of::<$t>();

            fn from_bits(word: u64) -> Self {
                word as $t
            }
            fn ordinary(word: u64, _spread: u32) -> Self {
                word as $t
            }
            fn special(word: u64) -> Self {
                [<$t>::MIN, <$t>::MAX, 0, 1][word as usize % 4]
            }
            fn write(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_ne_bytes());
            }

            fn widen(self) -> $acc {
                <$acc>::from(self)
            }
            fn narrow(x: $acc) -> Self {
                x as $t
            }
            fn sum(x: $acc, y: $acc) -> $acc {
                x.wrapping_add(y)
            }
            fn product(x: $acc, y: $acc) -> $acc {
                x.wrapping_mul(y)
            }
            fn least(x: $acc, y: $acc) -> $acc {
                Ord::min(x, y)
            }
            fn greatest(x: $acc, y: $acc) -> $acc {
                Ord::max(x, y)
            }
            fn divide(x: $acc, n: usize) -> $acc {
                x / n as $acc
            }
        }
    )* };
}
integers! {
    i8, i64;
    u8, u64;
    i32, i64;
    u32, u64;
    i64, i64;
    u64, u64;
}

macro_rules! floats {
    ($($t:ty, $bits:ty, $mantissa:literal, $nan:literal, $acc:ty, $widen:expr, $round:expr;)*) => { $(
        impl Number for $t {
            type Acc = $acc;
            const SIZE: usize = size_of::<$t>();

            fn from_bits(word: u64) -> Self {
                <$t>::from_bits(word as $bits)
            }
            fn ordinary(word: u64, spread: u32) -> Self {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                const FRACTION: $bits = (1 << $mantissa) - 1;
                // The exponent of numbers from 1 to 2.
                const ONE: $bits = (1 << (<$bits>::BITS - 2 - $mantissa)) - 1;
                // From bits that the fraction and the sign do not use, or use for wide types only.
                let lower = (word >> 53) as $bits & ((1 << spread) - 1);
                let sign = if word & (1 << 62) != 0 { SIGN } else { 0 };
                <$t>::from_bits(sign | (ONE - lower) << $mantissa | (word as $bits & FRACTION))
            }
            fn special(word: u64) -> Self {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                const INFINITY: $bits = (SIGN - 1) >> $mantissa << $mantissa;
                let sign = if word & (1 << 52) != 0 { SIGN } else { 0 };
                let fraction = word as $bits & ((1 << $mantissa) - 1);
                <$t>::from_bits(match word >> 60 {
                    0..=2 => sign,
                    3 => sign | INFINITY,
                    4 => sign | INFINITY | fraction | 1,
                    5 => sign | fraction,
                    _ => word as $bits,
                })
            }
            fn write(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_ne_bytes());
            }

            fn widen(self) -> $acc {
                ($widen)(self)
            }
            fn narrow(x: $acc) -> Self {
                if x.is_nan() { <$t>::from_bits($nan) } else { ($round)(x) }
            }
            fn sum(x: $acc, y: $acc) -> $acc {
                x + y
            }
            fn product(x: $acc, y: $acc) -> $acc {
                x * y
            }
            // `total_cmp` puts -0 below +0.
            fn least(x: $acc, y: $acc) -> $acc {
                if x.is_nan() || y.is_nan() {
                    <$acc>::NAN
                } else if x.total_cmp(&y).is_le() {
                    x
                } else {
                    y
                }
            }
            fn greatest(x: $acc, y: $acc) -> $acc {
                if x.is_nan() || y.is_nan() {
                    <$acc>::NAN
                } else if x.total_cmp(&y).is_ge() {
                    x
                } else {
                    y
                }
            }
            fn divide(x: $acc, n: usize) -> $acc {
                x / n as $acc
            }
        }
    )* };
}
floats! {
    f16, u16, 10, 0x7e00, f32, f16::to_f32, f16::from_f32;
    bf16, u16, 7, 0x7fc0, f32, bf16::to_f32, bf16::from_f32;
    f32, u32, 23, 0x7fc0_0000, f32, std::convert::identity, std::convert::identity;
    f64, u64, 52, 0x7ff8_0000_0000_0000, f64, std::convert::identity, std::convert::identity;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<T: Number>(values: Values) -> Vec<T> {
        let source = Source { seed: 1, values };
        (0..20_000).map(|i| source.element(0, i)).collect()
    }

    #[test]
    fn plain_values_are_what_they_promise() {
        assert!(all::<f32>(Values::Plain).iter().all(|x| (1.0..2.0).contains(&x.abs())));
        assert!(all::<f64>(Values::Plain).iter().all(|x| (1.0..2.0).contains(&x.abs())));
        assert!(all::<f16>(Values::Plain).iter().all(|x| (1.0..2.0).contains(&x.to_f32().abs())));
        assert!(all::<bf16>(Values::Plain).iter().all(|x| (1.0..2.0).contains(&x.to_f32().abs())));
        assert!(all::<f32>(Values::Plain).iter().any(|x| *x < 0.0));
    }

    #[test]
    fn hard_values_have_every_special_one() {
        macro_rules! check {
            ($($t:ty),*) => { $(
                let values = all::<$t>(Values::Hard);
                assert!(values.iter().any(|x| x.is_nan()));
                assert!(values.iter().any(|x| x.is_infinite()));
                assert!(values.iter().any(|x| x.to_bits() == 0));
                assert!(values.iter().any(|x| x.to_bits() == 1 << (8 * size_of::<$t>() - 1)));
                assert!(values.iter().any(|x| x.classify() == std::num::FpCategory::Subnormal));
            )* };
        }
        check!(f16, bf16, f32, f64);
    }

    #[test]
    fn ranks_and_seeds_differ() {
        let [a, b] = [1, 2].map(|seed| Source { seed, values: Values::Bits });
        let same = |x: &dyn Fn(u64) -> u64, y: &dyn Fn(u64) -> u64| (0..100).filter(|i| x(*i) == y(*i)).count();
        assert_eq!(same(&|i| a.element(0, i), &|i| b.element(0, i)), 0);
        assert_eq!(same(&|i| a.element(0, i), &|i| a.element(1, i)), 0);
    }

    #[test]
    fn a_piece_is_the_same_wherever_it_starts() {
        let source = Source { seed: 3, values: Values::Hard };
        let (mut whole, mut piece) = (vec![0; 400], vec![0; 40]);
        source.write::<f32>(2, 0, &mut whole);
        source.write::<f32>(2, 50, &mut piece);
        assert_eq!(whole[200..240], piece);
    }
}
