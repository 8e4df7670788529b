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
#define CROSSCCL_ROLLED
#ifndef CROSSCCL_PLANTED
#define CROSSCCL_PLANTED 0
#endif
#ifndef CROSSCCL_UNCHECKED
#define CROSSCCL_UNCHECKED 0
#endif

#include "../kernels-common/abi.h"
#include "../kernels-common/target.h"
#include "../kernels-common/planted.h"

namespace crossccl {

CROSSCCL_DEVICE uint64_t load_relaxed(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
CROSSCCL_DEVICE uint64_t load_acquire(const uint64_t* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
CROSSCCL_DEVICE void store_relaxed(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
CROSSCCL_DEVICE void store_release(uint64_t* p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
CROSSCCL_DEVICE void load_packets(uint64_t* w, const uint64_t* p) { w[0] = load_relaxed(p), w[1] = load_relaxed(p + 1); }
CROSSCCL_DEVICE void store_packets(uint64_t* p, uint64_t v, uint64_t w) { store_relaxed(p, v), store_relaxed(p + 1, w); }
// Each word for itself: a fence before them ThreadSanitizer does not understand, and a release is a plain store on x86.
CROSSCCL_DEVICE void publish_launches() {}
CROSSCCL_DEVICE void store_published(uint64_t* p, uint64_t v, uint64_t w) {
  if (planted(kRelaxedRecord)) return store_packets(p, v, w);
  store_release(p, v), store_release(p + 1, w);
}
CROSSCCL_DEVICE void load_published(uint64_t* w, const uint64_t* p) { w[0] = load_acquire(p), w[1] = load_acquire(p + 1); }
CROSSCCL_DEVICE void see_published(const uint64_t*) {}
CROSSCCL_DEVICE bool claim(uint64_t* p, uint64_t v) {
  uint64_t none = 0;
  return __atomic_compare_exchange_n(p, &none, v, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}
CROSSCCL_DEVICE uint64_t add_ticket(uint64_t* p) { return __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL); }
// A release is a plain store here.
constexpr bool kRelaxedCredits = false;
CROSSCCL_DEVICE void await_previous() {}
CROSSCCL_DEVICE void release_next() {}

#ifdef CROSSCCL_BLOCK_OF_THREADS
// Tests put blocks as GPUs have them in place of the CPU's own.
}  // namespace crossccl
#include "../tests/cpp/block_of_threads.h"
namespace crossccl {
#else
struct Block {
  uint32_t block, blocks;
  // Known to the compiler, so that loops strided by threads are loops over neighbours.
  static constexpr uint32_t thread = 0, threads = 1;
  CROSSCCL_METHOD void sync() const {}
  CROSSCCL_METHOD bool any(bool x) const { return x; }
};

constexpr bool kUnalignedVectors = true;
// 64 bytes: of 4, 8 and 16 vectors the fastest f32 sum with g++ 12 (39, 23, 23 GB/s read from cache, AMD
// EPYC, 2026-11-29).
template <class T, uint32_t N> constexpr uint32_t kBatch = 4;
// One thread's pieces are neighbours. Wide elements go one by one: with memcpy, whether they stayed in
// registers or went through memory hung on unrelated code. Narrow ones are slower one by one.
template <uint32_t K, uint32_t V, class T> CROSSCCL_DEVICE void load_pieces(T* x, const T* from, uint64_t) {
  if constexpr (sizeof(T) < 4) {
    memcpy(x, from, K * V * sizeof(T));
  } else {
    for (uint32_t i = 0; i < K * V; ++i) x[i] = from[i];
  }
}
template <uint32_t K, uint32_t V, class T> CROSSCCL_DEVICE void store_pieces(T* to, const T* x, uint64_t) {
  if constexpr (sizeof(T) < 4) {
    memcpy(to, x, K * V * sizeof(T));
  } else {
    for (uint32_t i = 0; i < K * V; ++i) to[i] = x[i];
  }
}

// Half of a small L1 cache, so that a tile stored twice is read from memory once.
constexpr uint64_t kTile = 16 * 1024, kLeastTile = kTile;
CROSSCCL_DEVICE void copy_tile(const Block&, uint8_t* to, const uint8_t* from, uint64_t bytes) { memcpy(to, from, bytes); }
#endif

CROSSCCL_DEVICE uint64_t anew(uint64_t x) { return x; }
CROSSCCL_DEVICE uint32_t lowest_bit(uint64_t bits) { return uint32_t(__builtin_ctzll(bits)); }

// Nanoseconds.
CROSSCCL_DEVICE uint64_t clock_ticks() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
}
constexpr uint64_t kSlowLook = 20000;
constexpr uint32_t kTriesPerLook = 1, kLooksPerHostLook = 1;

// Spin shortly, then let others run: with more ranks than cores the peer that is waited for needs
// this very core. After about a millisecond of that, sleep. 4 spins: as fast as 64 where each rank has a core (1 KiB by
// 2 ranks, 1.05 us), and where 4 ranks have 2, 8.0 us instead of 13.1 for a broadcast, 11 instead of 22 for a
// reduce-scatter (inline streams, AMD EPYC, 2026-11-30, in turn); without any spin 2 ranks take 1.6 us and more.
CROSSCCL_DEVICE void relax(uint32_t tries) {
  if (tries < 4) {
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
  const uint32_t rounded = b + 0x7fffu + ((b >> 16) & 1);
  return uint16_t(rounded >> 16);
}
CROSSCCL_DEVICE float half_to_float(uint16_t x) {
  // Exponent and mantissa in f32's places, times 2^112 to move the bias: exact for denormals too.
  const int32_t magnitude = int32_t(x & 0x7fff) << 13;
  const int32_t finite = int32_t(float_bits(float_from_bits(uint32_t(magnitude)) * float_from_bits((127 + 112) << 23)));
  const int32_t special = -int32_t(magnitude >= (0x7c00 << 13));
  const int32_t bits = finite | (special & (magnitude | 0x7f800000));
  return float_from_bits(uint32_t(bits) | uint32_t(x & 0x8000) << 16);
}
CROSSCCL_DEVICE uint16_t float_to_half(float f) {
  const int32_t b = int32_t(float_bits(f)), a = b & 0x7fffffff;
  // Below 2^-14 the result is denormal: adding 0.5 puts its last place where f32 rounds.
  const int32_t denormal = int32_t(float_bits(float_from_bits(uint32_t(a)) + 0.5f) - float_bits(0.5f));
  const int32_t normal = (a + 0xfff + ((a >> 13) & 1) - (112 << 23)) >> 13;
  const int32_t small = -int32_t(a < (113 << 23)), large = -int32_t(a >= 0x477ff000), nan = -int32_t(a > 0x7f800000);
  int32_t half = (denormal & small) | (normal & ~small);
  half = (half & ~large) | (0x7c00 & large) | (0x0200 & nan);
  return uint16_t(half | ((b >> 16) & 0x8000));
}

}  // namespace crossccl

#include "../kernels-common/rendezvous.h"
#include "../kernels-common/copy.h"
#include "../kernels-common/reduce.h"
#include "../kernels-common/packets.h"
#include "../kernels-common/broadcast.h"
#include "../kernels-common/reduce_scatter.h"
#include "../kernels-common/self_test.h"
