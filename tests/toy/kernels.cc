// The toy's target and its entry points. A block is one thread, as the CPU's, and all else is different: vectors must be
// aligned, tiles are small, the clock ticks in microseconds, the conversions are those of the textbook.
#include <fenv.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CROSSCCL_DEVICE static inline
#define CROSSCCL_METHOD inline
#define CROSSCCL_UNROLL
#define CROSSCCL_ROLLED
#define CROSSCCL_PLANTED 0
#define CROSSCCL_UNCHECKED 0

#include "abi.h"
#include "target.h"
#include "planted.h"

namespace crossccl {

CROSSCCL_DEVICE uint64_t load_relaxed(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
CROSSCCL_DEVICE uint64_t load_acquire(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
CROSSCCL_DEVICE void store_relaxed(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
CROSSCCL_DEVICE void store_release(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
constexpr bool kRelaxedCredits = false;
CROSSCCL_DEVICE void load_packets(uint64_t* w, const uint64_t* p) {
  // The other way round than they are stored: nobody may count on it.
  w[1] = load_relaxed(p + 1);
  w[0] = load_relaxed(p);
}
CROSSCCL_DEVICE void store_packets(uint64_t* p, uint64_t v, uint64_t w) {
  store_relaxed(p, v);
  store_relaxed(p + 1, w);
}
CROSSCCL_DEVICE void publish_launches() { __atomic_thread_fence(__ATOMIC_RELEASE); }
CROSSCCL_DEVICE void store_published(uint64_t* p, uint64_t v, uint64_t w) { store_packets(p, v, w); }
CROSSCCL_DEVICE void load_published(uint64_t* w, const uint64_t* p) { load_packets(w, p); }
CROSSCCL_DEVICE void see_published(const uint64_t*) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }

CROSSCCL_DEVICE bool claim(uint64_t* p, uint64_t v) {
  uint64_t none = 0;
  return __atomic_compare_exchange_n(p, &none, v, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}
CROSSCCL_DEVICE uint64_t add_ticket(uint64_t* p) { return __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL); }
CROSSCCL_DEVICE void await_previous() {}
CROSSCCL_DEVICE void release_next() {}

struct Block {
  uint32_t block, blocks;
  static constexpr uint32_t thread = 0, threads = 1;
  CROSSCCL_METHOD void sync() const {}
  CROSSCCL_METHOD bool any(bool x) const { return x; }
};

template <class T, uint32_t N> constexpr uint32_t kBatch = 1;
constexpr bool kUnalignedVectors = false;
// What a device does that is given an address it cannot take.
CROSSCCL_DEVICE void must_be_aligned(const void* p, uint64_t bytes) {
  if ((uint64_t)p % (bytes < kVector ? bytes : kVector) != 0) abort();
}
template <uint32_t K, uint32_t V, class T> CROSSCCL_DEVICE void load_pieces(T* x, const T* from, uint64_t step) {
  for (uint32_t k = 0; k < K; ++k) {
    must_be_aligned(from + k * step, V * sizeof(T));
    memcpy(x + k * V, from + k * step, V * sizeof(T));
  }
}
template <uint32_t K, uint32_t V, class T> CROSSCCL_DEVICE void store_pieces(T* to, const T* x, uint64_t step) {
  for (uint32_t k = 0; k < K; ++k) {
    must_be_aligned(to + k * step, V * sizeof(T));
    memcpy(to + k * step, x + k * V, V * sizeof(T));
  }
}
// The backend says both to the planner (src/lib.rs).
constexpr uint64_t kTile = 4 * 1024, kLeastTile = 1024;

CROSSCCL_DEVICE uint64_t anew(uint64_t x) { return x; }
CROSSCCL_DEVICE uint32_t lowest_bit(uint64_t bits) {
  uint32_t at = 0;
  while ((bits >> at & 1) == 0) ++at;
  return at;
}

// Microseconds.
CROSSCCL_DEVICE uint64_t clock_ticks() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000u + uint64_t(t.tv_nsec) / 1000u;
}
constexpr uint64_t kSlowLook = 20;
constexpr uint32_t kTriesPerLook = 1, kLooksPerHostLook = 1;
CROSSCCL_DEVICE void relax(uint32_t tries) {
  if (tries < 1000) {
    sched_yield();
  } else {
    struct timespec t = {0, 50000};
    nanosleep(&t, nullptr);
  }
}

CROSSCCL_DEVICE float bf16_to_float(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
CROSSCCL_DEVICE uint16_t float_to_bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if (f != f) return uint16_t(bits >> 16 | 0x40);
  const uint32_t half = bits & 0xffff, odd = bits >> 16 & 1;
  return uint16_t((bits >> 16) + (half > 0x8000 || (half == 0x8000 && odd)));
}
CROSSCCL_DEVICE float half_to_float(uint16_t x) {
  const int exponent = x >> 10 & 31, mantissa = x & 0x3ff;
  float f;
  if (exponent == 31) {
    const uint32_t bits = 0x7f800000u | uint32_t(mantissa) << 13;
    memcpy(&f, &bits, 4);
  } else if (exponent == 0) {
    f = float(mantissa) * 0x1p-24f;
  } else {
    const uint32_t bits = uint32_t(exponent - 15 + 127) << 23 | uint32_t(mantissa) << 13;
    memcpy(&f, &bits, 4);
  }
  return __builtin_copysignf(f, x >> 15 ? -1.0f : 1.0f);
}
CROSSCCL_DEVICE uint16_t float_to_half(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const uint32_t sign = bits >> 16 & 0x8000;
  const float a = __builtin_fabsf(f);
  if (a != a) return uint16_t(sign | 0x7e00);
  // Half of the last place above the largest half: it and all above round to infinity.
  if (a >= 65520.0f) return uint16_t(sign | 0x7c00);
  // The last place of a half beside `a` as a power of two; the sum is rounded there, to even.
  const int exponent = int(bits >> 23 & 255) - 127;
  const int place = exponent < -14 ? -24 : exponent - 10;
  uint32_t unit_bits = uint32_t(place + 23 + 127) << 23;
  float unit;
  memcpy(&unit, &unit_bits, 4);
  const volatile float sum = a + unit;
  const float rounded = sum - unit;
  // Exact: a multiple of the last place. As an integer of such places it is the half's bits, the exponent aside.
  uint32_t scale_bits = uint32_t(127 - place) << 23;
  float scale;
  memcpy(&scale, &scale_bits, 4);
  const uint32_t places = uint32_t(rounded * scale);
  // An exponent's first half has 2^10 places: what rounded up to the next one carries into it.
  return uint16_t(sign | (exponent < -14 ? places : uint32_t(exponent + 14) * 1024 + places));
}

}  // namespace crossccl

#include "vectors.h"

namespace crossccl {
CROSSCCL_DEVICE void copy_tile(const Block& b, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  copy_tile_by_vectors(b, to, from, bytes);
}
}  // namespace crossccl

#include "rendezvous.h"
#include "copy.h"
#include "reduce.h"
#include "packets.h"
#include "broadcast.h"
#include "reduce_scatter.h"
#include "self_test.h"

namespace crossccl {
namespace {

using Entry = void (*)(const Arguments*, uint32_t block, uint32_t blocks);

#define CROSSCCL_BARE(...) __VA_ARGS__
#define CROSSCCL_KERNEL(name, function)                                      \
  void name##_entry(const Arguments* a, uint32_t block, uint32_t blocks) {   \
    /* A thread inherits the mode of whoever began it. */                    \
    fesetenv(FE_DFL_ENV);                                                    \
    CROSSCCL_BARE function(Block{block, blocks}, *a);                        \
  }
#include "kernel_list.def"
#undef CROSSCCL_KERNEL

}  // namespace
}  // namespace crossccl

extern "C" {

// The kernel of that name, or null.
crossccl::Entry crossccl_toy_kernel(const char* name) {
#define CROSSCCL_KERNEL(known, function) \
  if (strcmp(name, #known) == 0) return crossccl::known##_entry;
#include "kernel_list.def"
#undef CROSSCCL_KERNEL
  return nullptr;
}
size_t crossccl_toy_arguments_bytes() { return sizeof(crossccl::Arguments); }
}
