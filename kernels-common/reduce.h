// Element types and operations: what is accumulated in what, and when it is rounded.
//
//   f16, bf16     in f32, rounded once          f32, f64      in themselves
//   i8 i32 u8 u32 sums in a type that holds 64 of them exactly, wrapped to the type at the end
//   i64 u64       wrap
//   average       divides in the accumulator, before the rounding; integers truncate toward zero
//   min, max      propagate NaN; -0 < +0
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
};

// Floats in an accumulator A with sign-magnitude bits I.
template <class A, class I> struct FloatNumeric {
  using Acc = A;
  CROSSCCL_DEVICE Acc sum(Acc x, Acc y) { return x + y; }
  CROSSCCL_DEVICE Acc product(Acc x, Acc y) { return x * y; }
  // The bits as an integer that orders like the value, -0 below +0.
  CROSSCCL_DEVICE I order(Acc x) {
    I i = bits_as<I>(x);
    return i < 0 ? I(i ^ ((I(1) << (8 * sizeof(I) - 2)) - 1 + (I(1) << (8 * sizeof(I) - 2)))) : i;
  }
  CROSSCCL_DEVICE Acc min(Acc x, Acc y) { return x != x || y != y ? x + y : order(x) < order(y) ? x : y; }
  CROSSCCL_DEVICE Acc max(Acc x, Acc y) { return x != x || y != y ? x + y : order(x) < order(y) ? y : x; }
  CROSSCCL_DEVICE Acc divide(Acc x, uint32_t n) { return x / Acc(n); }
};

template <class T> struct Numeric;
template <> struct Numeric<int8_t> : IntegerNumeric<int8_t, int32_t, uint32_t> {};
template <> struct Numeric<uint8_t> : IntegerNumeric<uint8_t, uint32_t, uint32_t> {};
template <> struct Numeric<int32_t> : IntegerNumeric<int32_t, int64_t, uint64_t> {};
template <> struct Numeric<uint32_t> : IntegerNumeric<uint32_t, uint64_t, uint64_t> {};
template <> struct Numeric<int64_t> : IntegerNumeric<int64_t, int64_t, uint64_t> {};
template <> struct Numeric<uint64_t> : IntegerNumeric<uint64_t, uint64_t, uint64_t> {};
template <> struct Numeric<float> : FloatNumeric<float, int32_t> {
  CROSSCCL_DEVICE float widen(float x) { return x; }
  CROSSCCL_DEVICE float narrow(float x) { return x != x ? bits_as<float>(0x7fc00000u) : x; }
};
template <> struct Numeric<double> : FloatNumeric<double, int64_t> {
  CROSSCCL_DEVICE double widen(double x) { return x; }
  CROSSCCL_DEVICE double narrow(double x) { return x != x ? bits_as<double>(uint64_t(0x7ff8000000000000u)) : x; }
};
template <> struct Numeric<F16> : FloatNumeric<float, int32_t> {
  CROSSCCL_DEVICE float widen(F16 x) { return half_to_float(x.bits); }
  CROSSCCL_DEVICE F16 narrow(float x) { return F16{x != x ? uint16_t(0x7e00) : float_to_half(x)}; }
};
template <> struct Numeric<BF16> : FloatNumeric<float, int32_t> {
  CROSSCCL_DEVICE float widen(BF16 x) { return bf16_to_float(x.bits); }
  CROSSCCL_DEVICE BF16 narrow(float x) { return BF16{x != x ? uint16_t(0x7fc0) : float_to_bf16(x)}; }
};

struct Sum {
  template <class N> CROSSCCL_DEVICE typename N::Acc apply(typename N::Acc x, typename N::Acc y) { return N::sum(x, y); }
};
struct Product {
  template <class N> CROSSCCL_DEVICE typename N::Acc apply(typename N::Acc x, typename N::Acc y) { return N::product(x, y); }
};
struct Min {
  template <class N> CROSSCCL_DEVICE typename N::Acc apply(typename N::Acc x, typename N::Acc y) { return N::min(x, y); }
};
struct Max {
  template <class N> CROSSCCL_DEVICE typename N::Acc apply(typename N::Acc x, typename N::Acc y) { return N::max(x, y); }
};

// 16 bytes of elements.
template <class T> struct alignas(kVector) Vec {
  static constexpr uint32_t n = kVector / sizeof(T);
  T e[n];
};

}  // namespace crossccl
