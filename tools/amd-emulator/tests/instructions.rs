//! Instructions as the compiler uses them, against the host's arithmetic.

#![allow(missing_docs)]

mod support;

use amdhip64::*;
use half::f16;
use support::{Random, compile, function, launch, memory, ok, read, stream, turn, write};

#[repr(C)]
struct Arguments {
    a: u64,
    b: u64,
    c: u64,
    out: u64,
    count: u32,
}

const COUNT: usize = 20_000;

/// A result, and what of it is compared: NaN of either side are equal, whatever their bits.
#[derive(Clone, Copy)]
enum Kind {
    Bits,
    Single,
    Double,
    Half,
}

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}
fn d(x: u64) -> f64 {
    f64::from_bits(x)
}
fn single(x: f32) -> u64 {
    x.to_bits().into()
}
/// As `fminf` of IEEE 754-2008 has it, with -0 below +0.
fn extreme(a: f32, b: f32, larger: bool) -> f32 {
    let quiet = |x: f32| f32::from_bits(x.to_bits() | 1 << 22);
    match (a.is_nan(), b.is_nan()) {
        (true, _) => {
            if b.is_nan() {
                quiet(a)
            } else {
                b
            }
        }
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() != larger {
                a
            } else {
                b
            }
        }
        _ => {
            if (a < b) != larger {
                a
            } else {
                b
            }
        }
    }
}

type Operation = (&'static str, Kind, fn(u64, u64, u64) -> u64);

const OPERATIONS: &[Operation] = &[
    ("add_u64", Kind::Bits, |a, b, _| a.wrapping_add(b)),
    ("sub_u64", Kind::Bits, |a, b, _| a.wrapping_sub(b)),
    ("mul_u64", Kind::Bits, |a, b, _| a.wrapping_mul(b)),
    ("mulhi_u64", Kind::Bits, |a, b, _| ((u128::from(a) * u128::from(b)) >> 64) as u64),
    ("div_u64", Kind::Bits, |a, b, _| a / (b | 1)),
    ("rem_u64", Kind::Bits, |a, b, _| a % (b >> 40 | 1)),
    ("div_i64", Kind::Bits, |a, b, _| (a as i64).wrapping_div((b as i64) >> 20 | 1) as u64),
    ("div_u32", Kind::Bits, |a, b, _| u64::from(a as u32 / ((b as u32) >> 7 | 1))),
    ("rem_u32", Kind::Bits, |a, b, _| u64::from(a as u32 % (b as u32 | 1))),
    ("div_i32", Kind::Bits, |a, b, _| (a as i32).wrapping_div((b as i32) >> 3 | 1) as i64 as u64),
    ("shl_u64", Kind::Bits, |a, b, _| a << (b & 63)),
    ("shr_u64", Kind::Bits, |a, b, _| a >> (b & 63)),
    ("sar_i64", Kind::Bits, |a, b, _| ((a as i64) >> (b & 63)) as u64),
    ("shl_u32", Kind::Bits, |a, b, _| u64::from((a as u32) << (b & 31))),
    ("sar_i32", Kind::Bits, |a, b, _| i64::from((a as i32) >> (b & 31)) as u64),
    ("less_u64", Kind::Bits, |a, b, _| {
        let all = [a < b, (a as i64) < b as i64, (a as u32) < b as u32, (a as i32) < b as i32];
        flags(&all)
    }),
    ("bits", Kind::Bits, |a, b, c| {
        let zeros = (u64::from((b | 1).leading_zeros()), u64::from((c | 1 << 63).trailing_zeros()));
        u64::from(a.count_ones()) | zeros.0 << 8 | zeros.1 << 16
    }),
    ("funnel", Kind::Bits, |a, b, c| {
        let low = (a << 32 | u64::from(b as u32)) >> (c & 31);
        u64::from(low as u32) | u64::from((a as u32).swap_bytes()) << 32
    }),
    ("bytes", Kind::Bits, |a, b, _| {
        (i64::from(a as i8) + i64::from((a >> 8) as i8)).wrapping_add((b >> 24 & 255) as i64) as u64
    }),
    ("add_f32", Kind::Single, |a, b, _| single(f(a) + f(b))),
    ("mul_f32", Kind::Single, |a, b, _| single(f(a) * f(b))),
    ("fma_f32", Kind::Single, |a, b, c| single(f(a).mul_add(f(b), f(c)))),
    ("div_f32_by_few", Kind::Single, |a, b, _| single(f(a) / (2 + b % 63) as f32)),
    ("min_f32", Kind::Single, |a, b, _| single(extreme(f(a), f(b), false))),
    ("max_f32", Kind::Single, |a, b, _| single(extreme(f(a), f(b), true))),
    ("less_f32", Kind::Bits, |a, b, _| {
        let (a, b) = (f(a), f(b));
        let less = a < b;
        let not_less = a >= b;
        flags(&[less, a <= b, a == b, a != b, !less, !not_less, a.is_nan()])
    }),
    ("add_f64", Kind::Double, |a, b, _| (d(a) + d(b)).to_bits()),
    ("mul_f64", Kind::Double, |a, b, _| (d(a) * d(b)).to_bits()),
    ("div_f64_by_few", Kind::Double, |a, b, _| (d(a) / (2 + b % 63) as f64).to_bits()),
    ("less_f64", Kind::Bits, |a, b, _| {
        let (a, b) = (d(a), d(b));
        let more = a > b;
        flags(&[a < b, a >= b, a == b, !more])
    }),
    ("f16_of_f32", Kind::Half, |a, _, _| f16::from_f32(f(a)).to_bits().into()),
    ("f32_of_f16", Kind::Single, |a, _, _| single(f16::from_bits(a as u16).to_f32())),
    ("bf16_of_f32", Kind::Bits, |a, _, _| {
        let a = a as u32;
        u64::from((a.wrapping_add(0x7fff + (a >> 16 & 1)) >> 16) as u16)
    }),
    ("f32_of_u32", Kind::Single, |a, _, _| single(a as u32 as f32)),
    ("f32_of_i32", Kind::Single, |a, _, _| single(a as i32 as f32)),
    ("f64_of_u32", Kind::Double, |a, b, _| (f64::from(a as u32) + f64::from(b as i32)).to_bits()),
    ("f32_of_f64", Kind::Single, |a, _, _| single(d(a) as f32)),
    ("f64_of_f32", Kind::Double, |a, _, _| f64::from(f(a)).to_bits()),
];

/// Divisions by any number: those whose quotient or reciprocal is denormal are left out, since AMD's text about them
/// contradicts itself.
const DIVISIONS: &[Operation] = &[
    ("div_f32", Kind::Single, |a, b, _| single(f(a) / f(b))),
    ("div_f64", Kind::Double, |a, b, _| (d(a) / d(b)).to_bits()),
];

fn flags(all: &[bool]) -> u64 {
    all.iter().enumerate().map(|(k, flag)| u64::from(*flag) << k).sum()
}

fn same(kind: Kind, got: u64, expected: u64) -> bool {
    got == expected
        || match kind {
            Kind::Bits => false,
            Kind::Single => f(got).is_nan() && f(expected).is_nan() && got >> 32 == 0,
            Kind::Double => d(got).is_nan() && d(expected).is_nan(),
            Kind::Half => f16::from_bits(got as u16).is_nan() && f16::from_bits(expected as u16).is_nan(),
        }
}

/// Any bits, and often what is special: zeros, ones, small numbers, floats near one, denormal ones, infinities.
fn operands(random: &mut Random) -> Vec<u64> {
    let one = |random: &mut Random| {
        let bits = random.next();
        let word = |bits: u64| match bits % 8 {
            0 => bits >> 32 & 0x8000_0000,
            1 => bits >> 32 & 0x807f_ffff,
            2 => bits >> 32 & 0x8000_0000 | 0x7f80_0000,
            3 => 0x3f80_0000 + (bits >> 40),
            4 => bits >> 60,
            5 => 0xffff_ffff,
            _ => bits >> 32,
        };
        match bits >> 61 {
            0 => word(bits),
            1 => word(bits) | word(random.next()) << 32,
            2 => (bits & 0x800f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000,
            3 => bits & 0x800f_ffff_ffff_ffff,
            _ => random.next(),
        }
    };
    (0..COUNT).map(|_| one(random)).collect()
}

fn compare(operations: &[Operation], keep: fn(u64, u64, Kind) -> bool) {
    let _turn = turn();
    let object = compile("instructions", &[]);
    let mut random = Random(7);
    let inputs: [Vec<u64>; 3] = std::array::from_fn(|_| operands(&mut random));
    let places: [_; 3] = std::array::from_fn(|_| memory(0, COUNT * 8));
    places.iter().zip(&inputs).for_each(|(place, input)| write(*place, input));
    let (out, stream) = (memory(0, COUNT * 8), stream(0));
    for (name, kind, expected) in operations {
        let [a, b, c] = places.map(|p| p as u64);
        let arguments = Arguments { a, b, c, out: out as u64, count: COUNT as u32 };
        assert_eq!(launch(function(0, &object, name), 4, 256, stream, &arguments), 0);
        ok!(hipStreamSynchronize(stream));
        let got = read::<u64>(out, COUNT);
        for (i, got) in got.into_iter().enumerate() {
            let [a, b, c] = [0, 1, 2].map(|k| inputs[k][i]);
            let expected = expected(a, b, c);
            assert!(
                !keep(a, b, *kind) || same(*kind, got, expected),
                "{name}({a:#x}, {b:#x}, {c:#x}): got {got:#x}, expected {expected:#x}"
            );
        }
    }
}

#[test]
fn operations_are_the_hosts() {
    compare(OPERATIONS, |_, _, _| true);
}

#[test]
fn divisions_are_the_hosts() {
    compare(DIVISIONS, |a, b, kind| match kind {
        Kind::Single => !((1.0 / f(b)).is_subnormal() && (f(a) / f(b)).abs() < 1e-30),
        _ => !((1.0 / d(b)).is_subnormal() && (d(a) / d(b)).abs() < 1e-300),
    });
}
