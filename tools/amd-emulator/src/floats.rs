//! Floating point as the instructions define it, where the host's operators do not do.
//!
//! `v_rcp` is promised to one unit in the last place for f32 and far less for f64; results here are made as wrong as
//! that on purpose, so that a division that relied on more would differ from the host's.

/// A few bits that depend on all of `x`.
fn scatter(x: u64) -> u64 {
    let x = (x ^ x >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x >> 40
}

pub(crate) fn reciprocal(x: f32) -> f32 {
    let exact = 1.0 / f64::from(x);
    let near = exact as f32;
    if !near.is_normal() || f64::from(near) == exact || scatter(x.to_bits().into()) & 1 == 0 {
        return near;
    }
    // The neighbour on the other side. Compilers divide integers by this, and rely on one unit of the true value.
    let other = if (f64::from(near) < exact) == (exact > 0.0) { near.to_bits() + 1 } else { near.to_bits() - 1 };
    let other = f32::from_bits(other);
    if other.is_normal() { other } else { near }
}

pub(crate) fn reciprocal_double(x: f64) -> f64 {
    let exact = 1.0 / x;
    if !exact.is_normal() || x.to_bits() & 0x000f_ffff_ffff_ffff == 0 {
        return exact;
    }
    // 2^28 units in the last place, below the promised 2^29.
    let wrong = scatter(x.to_bits()) & 0xf_ffff;
    f64::from_bits((exact.to_bits() & !0x0fff_ffff) | wrong << 8)
}

/// IEEE mode: a signalling NaN becomes a quiet one, a quiet one loses against a number; -0 is below +0.
macro_rules! extremes {
    ($min:ident, $max:ident, $float:ty, $quiet:expr) => {
        pub(crate) fn $min(a: $float, b: $float) -> $float {
            if let Some(nan) = with_nan!(a, b, $quiet, $float) {
                return nan;
            }
            if a < b || (a == b && a.is_sign_negative()) { a } else { b }
        }
        pub(crate) fn $max(a: $float, b: $float) -> $float {
            if let Some(nan) = with_nan!(a, b, $quiet, $float) {
                return nan;
            }
            if a > b || (a == b && a.is_sign_positive()) { a } else { b }
        }
    };
}
macro_rules! with_nan {
    ($a:ident, $b:ident, $quiet:expr, $float:ty) => {{
        let signals = |x: $float| x.is_nan() && x.to_bits() & $quiet == 0;
        if signals($a) {
            Some(<$float>::from_bits($a.to_bits() | $quiet))
        } else if signals($b) {
            Some(<$float>::from_bits($b.to_bits() | $quiet))
        } else if $a.is_nan() {
            Some($b)
        } else if $b.is_nan() {
            Some($a)
        } else {
            None
        }
    }};
}
extremes!(min, max, f32, 1 << 22);
extremes!(min_double, max_double, f64, 1 << 51);

/// `v_mad_f32` and its like: rounded twice, and denormal numbers are zeros.
pub(crate) fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    let flush = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    flush(flush(flush(a) * flush(b)) + flush(c))
}

pub(crate) fn scale(x: f32, by: i32) -> f32 {
    // Exact in f64, then rounded once.
    (f64::from(x) * 2f64.powi(by.clamp(-400, 400))) as f32
}

/// `x` times 2^`by`, rounded once.
pub(crate) fn scale_double(x: f64, by: i32) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // Up in steps that are exact as long as the result is finite; down in one that rounds.
    let (mut x, mut by) = (x, by.clamp(-4400, 4400));
    while by > 1000 {
        x *= 2f64.powi(1000);
        by -= 1000;
    }
    if by >= 0 {
        return x * 2f64.powi(by);
    }
    // As small as it gets without becoming denormal, exactly.
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i32;
    if exponent == 0 {
        x *= 2f64.powi(54);
        by -= 54;
    }
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i32;
    let exact = (-by).min(exponent - 1).max(0);
    let mut left = exact;
    while left > 0 {
        let step = left.min(1000);
        x *= 2f64.powi(-step);
        left -= step;
    }
    let rest = -by - exact;
    if rest > 1000 { x * 0.0 } else { x * 2f64.powi(-rest) }
}

fn exponent(x: f32) -> i32 {
    (x.to_bits() >> 23 & 0xff) as i32
}
fn exponent_double(x: f64) -> i32 {
    (x.to_bits() >> 52 & 0x7ff) as i32
}

/// `v_div_scale_f32` of `x`, which is the denominator or the numerator: it, scaled, and whether the quotient must be
/// scaled back. As AMD's manual has it.
pub(crate) fn division_scale(x: f32, denominator: f32, numerator: f32) -> (f32, bool) {
    let is_denominator = x.to_bits() == denominator.to_bits();
    let is_numerator = x.to_bits() == numerator.to_bits();
    let quotient_is_denormal = |q: f64| q != 0.0 && q.abs() < f64::from(f32::MIN_POSITIVE);
    let reciprocal = 1.0 / f64::from(denominator);
    let quotient = f64::from(numerator) / f64::from(denominator);
    if numerator == 0.0 || denominator == 0.0 {
        (f32::NAN, false)
    } else if exponent(numerator) - exponent(denominator) >= 96 {
        (if is_denominator { scale(x, 64) } else { x }, true)
    } else if denominator.is_subnormal() {
        (scale(x, 64), false)
    } else if quotient_is_denormal(reciprocal) && quotient_is_denormal(quotient) {
        (if is_denominator { scale(x, 64) } else { x }, true)
    } else if quotient_is_denormal(reciprocal) {
        (scale(x, -64), false)
    } else if quotient_is_denormal(quotient) {
        (if is_numerator { scale(x, 64) } else { x }, true)
    } else if exponent(numerator) <= 23 {
        (scale(x, 64), false)
    } else {
        (x, false)
    }
}

/// `v_div_scale_f64`.
pub(crate) fn division_scale_double(x: f64, denominator: f64, numerator: f64) -> (f64, bool) {
    let is_denominator = x.to_bits() == denominator.to_bits();
    let is_numerator = x.to_bits() == numerator.to_bits();
    // Of quotients, by the numbers' exponents: the quotient itself may be rounded to a normal number or to none.
    let tiny = |n: f64, d: f64| {
        let up = if n.is_subnormal() { 100 } else { 0 };
        let n = scale_double(n, up);
        let below = i32::from((n.to_bits() & FRACTION) < (d.to_bits() & FRACTION));
        exponent_double(n) - up - exponent_double(d) - below < -1022
    };
    const FRACTION: u64 = 0x000f_ffff_ffff_ffff;
    if numerator == 0.0 || denominator == 0.0 {
        (f64::NAN, false)
    } else if exponent_double(numerator) - exponent_double(denominator) >= 768 {
        (if is_denominator { scale_double(x, 128) } else { x }, true)
    } else if denominator.is_subnormal() {
        (scale_double(x, 128), false)
    } else if tiny(1.0, denominator) && tiny(numerator, denominator) {
        (if is_denominator { scale_double(x, 128) } else { x }, true)
    } else if tiny(1.0, denominator) {
        (scale_double(x, -128), false)
    } else if tiny(numerator, denominator) {
        (if is_numerator { scale_double(x, 128) } else { x }, true)
    } else if exponent_double(numerator) <= 53 {
        (scale_double(x, 128), false)
    } else {
        (x, false)
    }
}

/// a * b + c rounded to nearest, and what that left out, rounded too: its sign is right.
fn fused_with_rest(a: f64, b: f64, c: f64) -> (f64, f64) {
    let sum = a.mul_add(b, c);
    // Exact product, exact sum.
    let product = a * b;
    let product_rest = a.mul_add(b, -product);
    let high = product + c;
    let part = high - product;
    let sum_rest = (product - (high - part)) + (c - part);
    (sum, (high - sum) + (sum_rest + product_rest))
}

/// a * b + c in f64, rounded to odd: rounding that again, to two bits less or fewer, is as if rounded once.
fn fused_odd(a: f64, b: f64, c: f64) -> f64 {
    let (sum, rest) = fused_with_rest(a, b, c);
    if !sum.is_finite() || rest == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    // Toward the rest: up in magnitude if both have one sign.
    let bits = sum.to_bits();
    f64::from_bits(if (rest > 0.0) == (sum > 0.0) { bits + 1 } else { bits - 1 })
}

/// `v_div_fmas_f32`: a fused multiply-add whose result is scaled, where the flag says so, before it is rounded.
pub(crate) fn division_fused(a: f32, b: f32, c: f32, scaled: bool) -> f32 {
    if !scaled {
        return a.mul_add(b, c);
    }
    let by = if exponent(c) > 127 { 64 } else { -64 };
    (fused_odd(a.into(), b.into(), c.into()) * 2f64.powi(by)) as f32
}

/// `v_div_fmas_f64`.
pub(crate) fn division_fused_double(a: f64, b: f64, c: f64, scaled: bool) -> f64 {
    if !scaled {
        return a.mul_add(b, c);
    }
    let by = if exponent_double(c) > 1023 { 128 } else { -128 };
    let (sum, rest) = fused_with_rest(a, b, c);
    let exponent = exponent_double(sum) + by;
    // Exact, unless the result is denormal.
    if exponent > 0 || sum == 0.0 {
        return scale_double(sum, by);
    }
    let mantissa = sum.to_bits() & 0x000f_ffff_ffff_ffff | 1 << 52;
    let shift = (1 - exponent) as u32;
    if shift > 54 {
        return 0f64.copysign(sum);
    }
    let (kept, cut, half) = (mantissa >> shift, mantissa & ((1 << shift) - 1), 1u64 << (shift - 1));
    // AMD's manual does not say how often a denormal quotient is rounded. IEEE's quotient comes out if a rest that only
    // the reciprocal's own rounding left is none.
    let unit = f64::from_bits(sum.to_bits() & !0x000f_ffff_ffff_ffff) * f64::EPSILON;
    let rest = if rest.abs() < unit.abs() * 1e-12 { 0.0 } else { rest };
    let rest = if sum < 0.0 { -rest } else { rest };
    let up = cut > half || (cut == half && (rest > 0.0 || (rest == 0.0 && kept & 1 == 1)));
    f64::from_bits(kept + u64::from(up)).copysign(sum)
}

/// `v_div_fixup`: the quotient, or what zeros, infinities and NaN make of it.
macro_rules! fixup {
    ($name:ident, $float:ty, $exponent:ident, $quiet:expr, $lowest:expr) => {
        pub(crate) fn $name(quotient: $float, denominator: $float, numerator: $float) -> $float {
            let sign = if denominator.is_sign_negative() != numerator.is_sign_negative() { -1.0 } else { 1.0 };
            if numerator.is_nan() {
                <$float>::from_bits(numerator.to_bits() | $quiet)
            } else if denominator.is_nan() {
                <$float>::from_bits(denominator.to_bits() | $quiet)
            } else if (denominator == 0.0 && numerator == 0.0) || (denominator.is_infinite() && numerator.is_infinite())
            {
                -<$float>::NAN.copysign(1.0)
            } else if denominator == 0.0 || numerator.is_infinite() {
                <$float>::INFINITY.copysign(sign)
            } else if denominator.is_infinite() || numerator == 0.0 {
                (0.0 as $float).copysign(sign)
            } else if $exponent(numerator) - $exponent(denominator) < $lowest {
                (0.0 as $float).copysign(sign)
            } else if quotient.is_nan() {
                // It was too large on the way.
                <$float>::INFINITY.copysign(sign)
            } else {
                quotient.copysign(sign)
            }
        }
    };
}
fixup!(division_fixup, f32, exponent, 1 << 22, -150);
fixup!(division_fixup_double, f64, exponent_double, 1 << 51, -1075);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_order_zeros_and_lose_quiet_nan() {
        assert!(min(-0.0, 0.0).is_sign_negative() && min(0.0, -0.0).is_sign_negative());
        assert!(max(-0.0, 0.0).is_sign_positive() && max_double(0.0, -0.0).is_sign_positive());
        assert_eq!(min(f32::NAN, 3.0), 3.0);
        assert_eq!(max_double(3.0, f64::NAN), 3.0);
        assert_eq!(min(f32::from_bits(0x7f80_0001), 3.0).to_bits(), 0x7fc0_0001, "a signalling NaN wins, quietened");
    }

    #[test]
    fn scaling_rounds_once() {
        assert_eq!(scale_double(1.0, -1074), f64::from_bits(1));
        assert_eq!(scale_double(3.0, -1075), f64::from_bits(2), "a tie, to even");
        assert_eq!(scale_double(f64::from_bits(1), 1074), 1.0);
        assert_eq!(scale_double(1.5, 2000), f64::INFINITY);
        assert_eq!(scale(f32::from_bits(3), 3), f32::from_bits(24));
    }

    /// The sequence that compilers make of a division, here in Rust: it must give the host's quotient.
    #[test]
    fn the_helpers_divide() {
        let mut random = crate::random::Random::new(1);
        for k in 0..2_000_000 {
            let (n, d) = (f32::from_bits(random.next() as u32 >> (k % 3 * 8)), [3.0, 6.0, 64.0, 10.0, 1e30][k % 5]);
            let d = if k % 7 == 0 { f32::from_bits((random.next() as u32 & 0x807f_ffff) | 0x3f00_0000) } else { d };
            let (ds, _) = division_scale(d, d, n);
            let (ns, flag) = division_scale(n, d, n);
            let r = reciprocal(ds);
            let e = (-ds).mul_add(r, 1.0);
            let r = e.mul_add(r, r);
            let q = ns * r;
            let e = (-ds).mul_add(q, ns);
            let q = e.mul_add(r, q);
            let e = (-ds).mul_add(q, ns);
            let got = division_fixup(division_fused(e, r, q, flag), d, n);
            let expected = n / d;
            assert!(
                got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()),
                "{n:e} / {d:e}: {got:e}, not {expected:e}"
            );
        }
    }

    #[test]
    fn the_helpers_divide_doubles() {
        let mut random = crate::random::Random::new(2);
        for k in 0..2_000_000 {
            let (n, d) = (f64::from_bits(random.next() >> (k % 3 * 11)), [3.0, 7.0, 64.0, 10.0, 48.0][k % 5]);
            let (ds, _) = division_scale_double(d, d, n);
            let (ns, flag) = division_scale_double(n, d, n);
            let r = reciprocal_double(ds);
            let r = (-ds).mul_add(r, 1.0).mul_add(r, r);
            let r = (-ds).mul_add(r, 1.0).mul_add(r, r);
            let q = ns * r;
            let e = (-ds).mul_add(q, ns);
            let got = division_fixup_double(division_fused_double(e, r, q, flag), d, n);
            let expected = n / d;
            assert!(
                got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()),
                "{n:e} / {d:e}: {got:e}, not {expected:e}"
            );
        }
    }
}
