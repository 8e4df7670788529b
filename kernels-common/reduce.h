// Element types and operations: what is accumulated in what, and when it is rounded.
//
//   f16, bf16     in f32, rounded once          f32, f64      in themselves
//   i8 i32 u8 u32 sums in a type that holds 64 of them exactly, wrapped to the type at the end
//   i64 u64       wrap
//   average       divides in the accumulator, before the rounding; integers truncate toward zero
//   min, max      propagate NaN; -0 < +0
//   epilogue      of float sums and averages: times the factor, plus the residual, each rounded in the
//                 accumulator, before the one rounding to the result's type
//   a NaN result  is one canonical NaN per type, so that all targets give the same bits (I7)
#pragma once

namespace crossccl {

template <class To, class From> CROSSCCL_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

struct F16 { uint16_t bits; };
struct BF16 { uint16_t bits; };

// Integers: Acc holds the sum of kMaxRanks values for widths up to 32 bits, U is Acc's unsigned
// twin, in which overflow is defined.
template <class T, class A, class U> struct IntegerNumeric {
  using Acc = A;
  CROSSCCL_DEVICE Acc widen(T x) { return Acc(x); }
  CROSSCCL_DEVICE T narrow(Acc x) { return T(U(x)); }
  CROSSCCL_DEVICE Acc sum(Acc x, Acc y) { return Acc(U(x) + U(y)); }
  CROSSCCL_DEVICE Acc product(Acc x, Acc y) { return Acc(U(x) * U(y)); }
  CROSSCCL_DEVICE Acc min(Acc x, Acc y) { return x < y ? x : y; }
  CROSSCCL_DEVICE Acc max(Acc x, Acc y) { return x < y ? y : x; }
  CROSSCCL_DEVICE Acc divide(Acc x, uint32_t n) { return x / Acc(n); }
  static constexpr bool kFloat = false;
};

// Floats in an accumulator A with sign-magnitude bits I.
template <class A, class I, I kInfinity> struct FloatNumeric {
  using Acc = A;
  static constexpr bool kFloat = true;
  CROSSCCL_DEVICE Acc sum(Acc x, Acc y) { return x + y; }
  CROSSCCL_DEVICE Acc product(Acc x, Acc y) { return x * y; }
  // Min and max compare integers, without a branch and without a floating-point comparison: those may
  // trap, and compilers then do not turn the loop into vector instructions.
  static constexpr I kMagnitude = I(~(I(1) << (8 * sizeof(I) - 1)));
  // The bits as an integer that orders like the value, -0 below +0; all NaN are above all else or below.
  CROSSCCL_DEVICE I order(I x) { return x ^ (x >> (8 * sizeof(I) - 1) & kMagnitude); }
  // All ones for NaN.
  CROSSCCL_DEVICE I is_nan(I x) { return -I((x & kMagnitude) > kInfinity); }
  CROSSCCL_DEVICE Acc choose(Acc x, Acc y, bool larger) {
    const I a = bits_as<I>(x), b = bits_as<I>(y);
    const I first = -I((order(a) < order(b)) != larger);
    const I nan = is_nan(a) | is_nan(b);
    return bits_as<Acc>(I(((a & first) | (b & ~first)) | nan));
  }
  CROSSCCL_DEVICE Acc min(Acc x, Acc y) { return choose(x, y, false); }
  CROSSCCL_DEVICE Acc max(Acc x, Acc y) { return choose(x, y, true); }
  CROSSCCL_DEVICE Acc canonical(Acc x, I nan) {
    const I i = bits_as<I>(x), which = is_nan(i);
    return bits_as<Acc>(I((i & ~which) | (nan & which)));
  }
  CROSSCCL_DEVICE Acc divide(Acc x, uint32_t n) { return x / Acc(n); }
};

template <class T> struct Numeric;
template <> struct Numeric<int8_t> : IntegerNumeric<int8_t, int32_t, uint32_t> {};
template <> struct Numeric<uint8_t> : IntegerNumeric<uint8_t, uint32_t, uint32_t> {};
template <> struct Numeric<int32_t> : IntegerNumeric<int32_t, int64_t, uint64_t> {};
template <> struct Numeric<uint32_t> : IntegerNumeric<uint32_t, uint64_t, uint64_t> {};
template <> struct Numeric<int64_t> : IntegerNumeric<int64_t, int64_t, uint64_t> {};
template <> struct Numeric<uint64_t> : IntegerNumeric<uint64_t, uint64_t, uint64_t> {};
template <> struct Numeric<float> : FloatNumeric<float, int32_t, 0x7f800000> {
  CROSSCCL_DEVICE float widen(float x) { return x; }
  CROSSCCL_DEVICE float narrow(float x) { return canonical(x, 0x7fc00000); }
};
template <> struct Numeric<double> : FloatNumeric<double, int64_t, 0x7ff0000000000000> {
  CROSSCCL_DEVICE double widen(double x) { return x; }
  CROSSCCL_DEVICE double narrow(double x) { return canonical(x, 0x7ff8000000000000); }
};
template <> struct Numeric<F16> : FloatNumeric<float, int32_t, 0x7f800000> {
  CROSSCCL_DEVICE float widen(F16 x) { return half_to_float(x.bits); }
  CROSSCCL_DEVICE F16 narrow(float x) { return F16{float_to_half(canonical(x, 0x7fc00000))}; }
};
template <> struct Numeric<BF16> : FloatNumeric<float, int32_t, 0x7f800000> {
  CROSSCCL_DEVICE float widen(BF16 x) { return bf16_to_float(x.bits); }
  CROSSCCL_DEVICE BF16 narrow(float x) { return BF16{float_to_bf16(canonical(x, 0x7fc00000))}; }
};

struct Sum {
  static constexpr bool kEpilogue = true;
  template <class N> CROSSCCL_DEVICE typename N::Acc apply(typename N::Acc x, typename N::Acc y) { return N::sum(x, y); }
};
struct Product {
  static constexpr bool kEpilogue = false;
  template <class N> CROSSCCL_DEVICE typename N::Acc apply(typename N::Acc x, typename N::Acc y) { return N::product(x, y); }
};
struct Min {
  static constexpr bool kEpilogue = false;
  template <class N> CROSSCCL_DEVICE typename N::Acc apply(typename N::Acc x, typename N::Acc y) { return N::min(x, y); }
};
struct Max {
  static constexpr bool kEpilogue = false;
  template <class N> CROSSCCL_DEVICE typename N::Acc apply(typename N::Acc x, typename N::Acc y) { return N::max(x, y); }
};

}  // namespace crossccl
