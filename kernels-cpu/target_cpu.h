// The CPU target: a block is one OS thread, its `threads` is 1. See ../kernels-common/target.h for
// the contract. Memory orders are the compiler's atomics, so ThreadSanitizer sees the protocol.
#pragma once

#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define CROSSCCL_DEVICE static inline
#define CROSSCCL_METHOD inline
#define CROSSCCL_UNROLL
#ifndef CROSSCCL_PLANTED
#define CROSSCCL_PLANTED 0
#endif

#include "../kernels-common/abi.h"
#include "../kernels-common/target.h"
#include "../kernels-common/planted.h"

namespace crossccl {

struct Block {
  uint32_t block, blocks, thread, threads;
  CROSSCCL_METHOD void sync() const {}
  CROSSCCL_METHOD bool any(bool x) const { return x; }
};

CROSSCCL_DEVICE uint64_t load_relaxed(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
CROSSCCL_DEVICE uint64_t load_acquire(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
CROSSCCL_DEVICE void store_relaxed(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
CROSSCCL_DEVICE void store_release(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
CROSSCCL_DEVICE bool claim(uint64_t* p, uint64_t v) {
  uint64_t none = 0;
  return __atomic_compare_exchange_n(p, &none, v, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}
CROSSCCL_DEVICE uint64_t add_ticket(uint64_t* p) { return __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL); }

constexpr bool kUnalignedVectors = true;
template <class V> CROSSCCL_DEVICE V load16(const void* p) {
  V v;
  memcpy(&v, p, 16);
  return v;
}
template <class V> CROSSCCL_DEVICE void store16(void* p, const V& v) { memcpy(p, &v, 16); }

// Half of a small L1 cache, so that a tile stored twice is read from memory once.
constexpr uint64_t kTile = 16 * 1024;
CROSSCCL_DEVICE void copy_tile(const Block&, uint8_t* to, const uint8_t* from, uint64_t bytes) { memcpy(to, from, bytes); }

CROSSCCL_DEVICE uint32_t lowest_bit(uint64_t bits) { return uint32_t(__builtin_ctzll(bits)); }

// Nanoseconds.
CROSSCCL_DEVICE uint64_t clock_ticks() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}
constexpr uint64_t kSlowLook = 20000;

// Spin shortly, then let others run: with more ranks than cores the peer that is waited for needs
// this very core. After about a millisecond of that, sleep.
CROSSCCL_DEVICE void relax(uint32_t tries) {
  if (tries < 64) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
  } else if (tries < 2048) {
    sched_yield();
  } else {
    struct timespec t = {0, 50000};
    nanosleep(&t, nullptr);
  }
}

// The conversions are integer arithmetic without branches, so that loops over them vectorise and
// give the same bits with and without a processor's half instructions.
CROSSCCL_DEVICE float float_from_bits(uint32_t b) {
  float f;
  memcpy(&f, &b, 4);
  return f;
}
CROSSCCL_DEVICE uint32_t float_bits(float f) {
  uint32_t b;
  memcpy(&b, &f, 4);
  return b;
}
CROSSCCL_DEVICE float bf16_to_float(uint16_t x) { return float_from_bits(uint32_t(x) << 16); }
CROSSCCL_DEVICE uint16_t float_to_bf16(float f) {
  uint32_t b = float_bits(f);
  return uint16_t((b + 0x7fffu + ((b >> 16) & 1)) >> 16);
}
CROSSCCL_DEVICE float half_to_float(uint16_t x) {
  // Exponent and mantissa in f32's places, times 2^112 to move the bias: exact for denormals too.
  uint32_t magnitude = uint32_t(x & 0x7fff) << 13;
  uint32_t finite = float_bits(float_from_bits(magnitude) * float_from_bits((127 + 112) << 23));
  uint32_t bits = magnitude >= (0x7c00u << 13) ? (magnitude | 0x7f800000u) : finite;
  return float_from_bits(bits | uint32_t(x & 0x8000) << 16);
}
CROSSCCL_DEVICE uint16_t float_to_half(float f) {
  uint32_t b = float_bits(f), a = b & 0x7fffffffu;
  // Below 2^-14 the result is denormal: adding 0.5 puts its last place where f32 rounds.
  uint32_t denormal = float_bits(float_from_bits(a) + 0.5f) - float_bits(0.5f);
  uint32_t normal = (a + 0xfffu + ((a >> 13) & 1) - (112u << 23)) >> 13;
  uint32_t half = a < (113u << 23) ? denormal : normal;
  half = half > 0x7c00u || a >= 0x47800000u ? 0x7c00u : half;
  return uint16_t(half | (b >> 16 & 0x8000u));
}

}  // namespace crossccl

#include "../kernels-common/rendezvous.h"
#include "../kernels-common/copy.h"
#include "../kernels-common/reduce.h"
#include "../kernels-common/broadcast.h"
#include "../kernels-common/reduce_scatter.h"
#include "../kernels-common/self_test.h"
