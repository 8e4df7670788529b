// The AMD target: a block is a work-group of kThreads work-items, on one compute unit (on a pair of them with RDNA).
// See ../kernels-common/target.h for the contract. No header and no library of ROCm is needed: the compiler's builtins
// are all. scripts/check-hip looks at what the compiler makes of it.
#pragma once

#include <stdint.h>

#define CROSSCCL_DEVICE static __attribute__((device, always_inline)) inline
#define CROSSCCL_METHOD __attribute__((device, always_inline)) inline
#define CROSSCCL_UNROLL _Pragma("unroll")
#define CROSSCCL_ROLLED _Pragma("unroll 1")
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

// Bugs that only machine code shows, for scripts/check-hip; planted like those of planted.h.
enum PlantedHere : uint32_t {
  kReleaseAsCompiled = 100,  // a release store as the compiler makes it: the wait for the write-back may be missing
  kDeviceScope = 101,        // flags that peers on other devices need not see
  kNarrowVectors = 102,      // four loads of 4 bytes
  kOnTheStack = 103,         // vectors pass through memory of the work-item
  kOneWaveReleases = 104,    // the waves that wrote do not write back before the barrier
  kOneWaveAcquires = 105,    // the waves that did not poll do not invalidate after the barrier
  kReadOnlyLoads = 106,      // pointers out of records through the scalar cache
  kAnyAddressSpace = 107,    // flat accesses
  kPollAlone = 108,          // a poll without its invalidation
  kTicketAsCompiled = 109,   // a ticket as the compiler makes it, as with 100
  kWideWave = 110,           // waves of another width, for which the compiler needs an option as well
  kPacketsOfDevice = 111,    // packets that peers on other devices need not see
};
CROSSCCL_DEVICE constexpr bool planted(PlantedHere bug) { return CROSSCCL_PLANTED == bug; }

// Threads of a block, always: the kernels are compiled for it and the host launches no other number (it
// reads this line, build/hip.rs). 512 leaves a thread 256 registers with CDNA, and RDNA's 256 as well.
constexpr uint32_t kThreads = 512;
// Lanes of a wave: 64 with CDNA (GFX9), 32 with RDNA.
#if defined(__GFX9__)
constexpr uint32_t kLanesOfWave = 64;
#else
constexpr uint32_t kLanesOfWave = 32;
#endif
constexpr uint32_t kWaves = kThreads / kLanesOfWave;

// Device memory, a peer's included, and host memory: never the work-group's or the work-item's own, which a flat
// access would have to ask about.
#define CROSSCCL_GLOBAL __attribute__((address_space(1)))
template <class T> CROSSCCL_DEVICE CROSSCCL_GLOBAL T* global(T* p) { return (CROSSCCL_GLOBAL T*)p; }

// What this wave wrote reaches memory that all devices and the host see. The compiler's fence starts the write-back
// of the cache between them, but then forgets to wait for it if it believes that nothing else is on its way (clang 19
// to 22): hence the wait, said by hand. What needs no write-back (GFX11) waits for its stores.
CROSSCCL_DEVICE void write_back() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
#if defined(__GFX12__)
  asm volatile("s_wait_storecnt 0x0" ::: "memory");
#elif defined(__GFX11__) || defined(__GFX10__)
  asm volatile("s_waitcnt_vscnt null, 0x0" ::: "memory");
#else
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
}
// The same between the blocks of one device, which may have several caches of the second level (one a die).
CROSSCCL_DEVICE void write_back_for_the_device() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
#if defined(__GFX12__)
  asm volatile("s_wait_storecnt 0x0" ::: "memory");
#elif defined(__GFX11__) || defined(__GFX10__)
  asm volatile("s_waitcnt_vscnt null, 0x0" ::: "memory");
#else
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
}
// What this wave reads from now on comes from there.
CROSSCCL_DEVICE void invalidate() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, ""); }

struct Block {
  uint32_t block, blocks, thread;
  static constexpr uint32_t threads = kThreads;
  // Each wave writes back what it wrote itself: a write-back by the wave that sets the flag would cover the others'
  // stores only by an argument about caches that keep their order.
  CROSSCCL_METHOD void sync() const {
    if (!planted(kOneWaveReleases)) write_back();
    barrier();
  }
  // Each wave invalidates for itself: `any` is how the threads that polled tell the others.
  CROSSCCL_METHOD bool any(bool x) const {
    static __attribute__((shared)) uint32_t waves[kWaves];
    const uint32_t lane = thread % kLanesOfWave;
    const bool mine = in_wave(x);
    if (lane == 0) waves[thread / kLanesOfWave] = mine;
    barrier();
    const bool all = in_wave(waves[lane % kWaves] != 0);
    // The next one writes the same words.
    barrier();
    if (!planted(kOneWaveAcquires)) invalidate();
    return all;
  }

 private:
  CROSSCCL_METHOD static void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  }
  CROSSCCL_METHOD static bool in_wave(bool x) {
#if defined(__GFX9__) || CROSSCCL_PLANTED == 110
    return __builtin_amdgcn_ballot_w64(x) != 0;
#else
    return __builtin_amdgcn_ballot_w32(x) != 0;
#endif
  }
};
CROSSCCL_DEVICE Block this_block(uint32_t blocks) {
  return Block{uint32_t(__builtin_amdgcn_workgroup_id_x()), blocks, uint32_t(__builtin_amdgcn_workitem_id_x())};
}

// The proven form: what the other would save was not measured.
constexpr bool kRelaxedCredits = false;

// A launch begins when the one before it in the stream is over, and what that wrote is seen.
CROSSCCL_DEVICE void await_previous() {}
CROSSCCL_DEVICE void release_next() {}

// System scope: peers and the host.
CROSSCCL_DEVICE uint64_t load_relaxed(const uint64_t* p) {
  if (planted(kReadOnlyLoads)) return *(const __attribute__((address_space(4))) uint64_t*)p;
  return __hip_atomic_load(global(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
CROSSCCL_DEVICE uint64_t load_acquire(const uint64_t* p) {
  const uint64_t v = load_relaxed(p);
  if (!planted(kPollAlone)) invalidate();
  return v;
}
CROSSCCL_DEVICE void store_relaxed(uint64_t* p, uint64_t v) {
  __hip_atomic_store(global(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
CROSSCCL_DEVICE void store_release(uint64_t* p, uint64_t v) {
  if (planted(kReleaseAsCompiled)) return __hip_atomic_store(global(p), v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
  if (planted(kDeviceScope)) {
    write_back_for_the_device();
    return __hip_atomic_store(global(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  }
  write_back();
  store_relaxed(p, v);
}
// Two accesses of 64 bits: nothing promises that one of 128 is whole, or its halves are.
CROSSCCL_DEVICE void load_packets(uint64_t* w, const uint64_t* p) { w[0] = load_relaxed(p), w[1] = load_relaxed(p + 1); }
CROSSCCL_DEVICE void store_packets(uint64_t* p, uint64_t v, uint64_t w) {
  if (planted(kPacketsOfDevice)) {
    __hip_atomic_store(global(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    __hip_atomic_store(global(p + 1), w, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    return;
  }
  store_relaxed(p, v), store_relaxed(p + 1, w);
}
// As a release and an acquire: a write-back, once for all records, and an invalidation, once they are there.
CROSSCCL_DEVICE void publish_launches() {
  if (!planted(kRelaxedRecord)) write_back();
}
CROSSCCL_DEVICE void store_published(uint64_t* p, uint64_t v, uint64_t w) { store_packets(p, v, w); }
CROSSCCL_DEVICE void load_published(uint64_t* w, const uint64_t* p) { load_packets(w, p); }
CROSSCCL_DEVICE void see_published(const uint64_t*) {
  if (!planted(kPollAlone)) invalidate();
}
// Between blocks of one rank, which are on one device.
CROSSCCL_DEVICE bool claim(uint64_t* p, uint64_t v) {
  uint64_t none = 0;
  write_back_for_the_device();
  const bool won = __hip_atomic_compare_exchange_strong(global(p), &none, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                                        __HIP_MEMORY_SCOPE_AGENT);
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  return won;
}
CROSSCCL_DEVICE uint64_t add_ticket(uint64_t* p) {
  if (planted(kTicketAsCompiled))
    return __hip_atomic_fetch_add(global(p), uint64_t(1), __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
  write_back_for_the_device();
  const uint64_t old = __hip_atomic_fetch_add(global(p), uint64_t(1), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  return old;
}

constexpr bool kUnalignedVectors = false;
// As on NVIDIA; not measured, and registers are more here.
template <class T, uint32_t N>
constexpr uint32_t kBatch = N > 4 || sizeof(T) == 1 || (N == 0 && sizeof(T) == 2) ? 1 : N == 2 && sizeof(T) >= 4 ? 4 : 2;
// What is moved at once: an element, half a vector, a vector. Elements are structures, some of them, which address
// spaces do not take; memory is read as one type and written as another.
template <uint32_t bytes> struct Word;
#define CROSSCCL_WORD(bytes, type, ...) \
  template <> struct Word<bytes> { typedef type is __attribute__((may_alias __VA_ARGS__)); };
CROSSCCL_WORD(1, uint8_t)
CROSSCCL_WORD(2, uint16_t)
CROSSCCL_WORD(4, uint32_t)
CROSSCCL_WORD(8, uint32_t, , ext_vector_type(2))
CROSSCCL_WORD(16, uint32_t, , ext_vector_type(4))
#undef CROSSCCL_WORD
// Whole words go into a thread's array by memcpy: clang 19 and 22 take element 0 of a vector for every element that
// __builtin_bit_cast is asked for.
template <uint32_t bytes> CROSSCCL_DEVICE void load_word(void* x, const void* from) {
  typedef typename Word<bytes>::is W;
  if (planted(kNarrowVectors) && bytes == kVector) {
    CROSSCCL_UNROLL for (uint32_t i = 0; i < bytes; i += 4) {
      load_word<4>((uint8_t*)x + i, (const uint8_t*)from + i);
      // Or they would be joined.
      asm volatile("" ::: "memory");
    }
    return;
  }
  if (planted(kOnTheStack)) {
    volatile uint32_t w[4] = {1, 2, 3, 4};
    const uint32_t one = w[(uint64_t)from / kVector % 4];
    __builtin_memcpy(x, &one, bytes < 4 ? bytes : 4);
    return;
  }
  const W v = planted(kAnyAddressSpace) ? *(const W*)from : *global((const W*)from);
  __builtin_memcpy(x, &v, bytes);
}
template <uint32_t bytes> CROSSCCL_DEVICE void store_word(void* to, const void* x) {
  typedef typename Word<bytes>::is W;
  W v;
  __builtin_memcpy(&v, x, bytes);
  *global((W*)to) = v;
}
template <uint32_t K, uint32_t V, class T> CROSSCCL_DEVICE void load_pieces(T* x, const T* from, uint64_t step) {
  constexpr uint32_t bytes = V * sizeof(T) < kVector ? V * sizeof(T) : kVector, n = bytes / sizeof(T);
  CROSSCCL_UNROLL for (uint32_t k = 0; k < K; ++k)
    CROSSCCL_UNROLL for (uint32_t i = 0; i < V; i += n) load_word<bytes>(x + k * V + i, from + k * step + i);
}
template <uint32_t K, uint32_t V, class T> CROSSCCL_DEVICE void store_pieces(T* to, const T* x, uint64_t step) {
  constexpr uint32_t bytes = V * sizeof(T) < kVector ? V * sizeof(T) : kVector, n = bytes / sizeof(T);
  CROSSCCL_UNROLL for (uint32_t k = 0; k < K; ++k)
    CROSSCCL_UNROLL for (uint32_t i = 0; i < V; i += n) store_word<bytes>(to + k * step + i, x + k * V + i);
}

// Four vectors a thread, as on NVIDIA; not measured.
constexpr uint64_t kTile = 32 * 1024;
// A smaller one was not measured.
constexpr uint64_t kLeastTile = 32 * 1024;

CROSSCCL_DEVICE uint64_t anew(uint64_t x) {
  asm volatile("" : "+v"(x));
  return x;
}
CROSSCCL_DEVICE uint32_t lowest_bit(uint64_t bits) { return uint32_t(__builtin_ctzll(bits)); }

// The device's clock of constant rate: 10 ns a tick on the targets of the default list; the host asks the driver
// (wall clock rate).
CROSSCCL_DEVICE uint64_t clock_ticks() {
#if defined(__GFX9__) || defined(__GFX10__)
  return __builtin_amdgcn_s_memrealtime();
#else
  return __builtin_amdgcn_s_sendmsg_rtnl(0x83);  // MSG_RTN_GET_REALTIME
#endif
}
constexpr uint64_t kSlowLook = 2000;
// As on NVIDIA; not measured.
constexpr uint32_t kTriesPerLook = 16;
constexpr uint32_t kLooksPerHostLook = 50;

// A flag that has not come after 64 polls is one of a long copy, which polls would slow down. 64 clocks a unit: some
// 200 ns.
CROSSCCL_DEVICE void relax(uint32_t tries) {
  if (tries >= 64) __builtin_amdgcn_s_sleep(7);
}

CROSSCCL_DEVICE float float_from_bits(uint32_t b) {
  float f;
  __builtin_memcpy(&f, &b, sizeof f);
  return f;
}
CROSSCCL_DEVICE uint32_t float_bits(float f) {
  uint32_t b;
  __builtin_memcpy(&b, &f, sizeof b);
  return b;
}
CROSSCCL_DEVICE float bf16_to_float(uint16_t x) { return float_from_bits(uint32_t(x) << 16); }
CROSSCCL_DEVICE uint16_t float_to_bf16(float f) {
  const uint32_t b = float_bits(f);
  return uint16_t((b + 0x7fffu + ((b >> 16) & 1)) >> 16);
}
// By the hardware's conversions, in the rounding and denormal modes that kernels start with.
CROSSCCL_DEVICE float half_to_float(uint16_t x) {
  _Float16 h;
  __builtin_memcpy(&h, &x, sizeof h);
  return float(h);
}
// Which NaN the instruction makes is not asked; the contract's has one bit.
CROSSCCL_DEVICE uint16_t float_to_half(float f) {
  const _Float16 h = _Float16(f);
  uint16_t x;
  __builtin_memcpy(&x, &h, sizeof x);
  const uint32_t b = float_bits(f);
  return (b & 0x7fffffff) > 0x7f800000 ? uint16_t((b >> 16 & 0x8000) | 0x7e00) : x;
}

}  // namespace crossccl

#include "../kernels-common/vectors.h"

namespace crossccl {
CROSSCCL_DEVICE void copy_tile(const Block& b, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  copy_tile_by_vectors(b, to, from, bytes);
}
}  // namespace crossccl

#include "../kernels-common/rendezvous.h"
#include "../kernels-common/copy.h"
#include "../kernels-common/reduce.h"
#include "../kernels-common/packets.h"
#include "../kernels-common/broadcast.h"
#include "../kernels-common/reduce_scatter.h"
#include "../kernels-common/self_test.h"
