// The NVIDIA target: a block is a thread block of kThreads threads. See ../kernels-common/target.h for
// the contract. Memory orders are written in PTX, so that the machine code says what the contract says;
// scripts/check-ptx looks.
#pragma once

#include <stdint.h>
#include <string.h>

#define CROSSCCL_DEVICE static __device__ __forceinline__
#define CROSSCCL_METHOD __device__ __forceinline__
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

// Bugs that only machine code shows, for scripts/check-ptx; planted like those of planted.h.
enum PlantedHere : uint32_t {
  kReadOnlyLoads = 100,  // peers' data through the read-only path
  kDeviceScope = 101,    // releases that peers on other devices need not see
  kNarrowVectors = 102,  // four loads of 4 bytes
  kOnTheStack = 103,     // vectors pass through memory of the thread
  kWeakPackets = 106,    // packets are loaded as if nobody wrote them
};
CROSSCCL_DEVICE constexpr bool planted(PlantedHere bug) { return CROSSCCL_PLANTED == bug; }

// Threads of a block, always: the kernels are compiled for it and the host launches no other number (it
// reads this line, build/cuda.rs). 512 leaves a thread 128 registers; with 1024 threads and 64 registers
// kernels spill (I12), and 32 to 64 blocks of 512 fill a link between two H200.
constexpr uint32_t kThreads = 512;

struct Block {
  uint32_t block, blocks, thread;
  static constexpr uint32_t threads = kThreads;
  CROSSCCL_METHOD void sync() const { __syncthreads(); }
  CROSSCCL_METHOD bool any(bool x) const { return __syncthreads_or(x) != 0; }
};
CROSSCCL_DEVICE Block this_block() { return Block{blockIdx.x, gridDim.x, threadIdx.x}; }

// System scope: peers and the host. Relaxed accesses order nothing, so they are no barrier to the
// compiler either; all are volatile, none is repeated or left out.
template <class T> CROSSCCL_DEVICE uint64_t global(T* p) { return __cvta_generic_to_global(p); }
CROSSCCL_DEVICE uint64_t load_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(global(p)));
  return v;
}
CROSSCCL_DEVICE uint64_t load_acquire(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(global(p)) : "memory");
  return v;
}
CROSSCCL_DEVICE void store_relaxed(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(global(p)), "l"(v));
}
// A load has its value when the value is stored, which it was before the barrier, so a credit that comes after has
// nothing to wait for, and a release would wait for the stores. PTX does not prove it, since a read is not ordered before a
// relaxed write by it; NCCL relies on it. Worth 0.5 us of each collective on one H200 and 0.6 to 1.3 on two (2026-11-29,
// kernels that differed in this alone, one after the other).
constexpr bool kRelaxedCredits = true;
// Cumulative: what the block's other threads did before the barrier in front of it is released too.
CROSSCCL_DEVICE void store_release(uint64_t* p, uint64_t v) {
  if (planted(kDeviceScope)) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(global(p)), "l"(v) : "memory");
    return;
  }
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(global(p)), "l"(v) : "memory");
}
// By PTX's memory model an access of a vector is one of each element, in no order, and strong accesses of 64 bits are
// whole (Memory Consistency Model: Vector Data-types, Scalar Data-types). A volatile one promises no less on paper, but
// only as a relaxed one of the same scope, and a weak one nothing.
CROSSCCL_DEVICE void load_packets(uint64_t* w, const uint64_t* p) {
  if (planted(kWeakPackets)) {
    asm volatile("ld.global.v2.b64 {%0, %1}, [%2];" : "=l"(w[0]), "=l"(w[1]) : "l"(global(p)));
    return;
  }
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(w[0]), "=l"(w[1]) : "l"(global(p)));
}
CROSSCCL_DEVICE void store_packets(uint64_t* p, uint64_t v, uint64_t w) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(global(p)), "l"(v), "l"(w));
}
// A fence and relaxed stores behind it release, a relaxed load and an acquire of the same word acquire (Memory Consistency
// Model: Release and Acquire Patterns). Without the fence, on the strength of the end of the launch before alone, two H200
// took 0.5 us less when it stood right in front of the records (2026-11-30).
CROSSCCL_DEVICE void publish_launches() {
  if (planted(kRelaxedRecord)) return;
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
CROSSCCL_DEVICE void store_published(uint64_t* p, uint64_t v, uint64_t w) { store_packets(p, v, w); }
CROSSCCL_DEVICE void load_published(uint64_t* w, const uint64_t* p) { load_packets(w, p); }
CROSSCCL_DEVICE void see_published(const uint64_t* p) { load_acquire(p); }
// Between blocks of one rank, which are on one device.
CROSSCCL_DEVICE bool claim(uint64_t* p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], 0, %2;" : "=l"(old) : "l"(global(p)), "l"(v) : "memory");
  return old == 0;
}
// Behind loads alone, as a credit: in order it waited for all stores in front of it, packets on their way to a peer among
// them.
CROSSCCL_DEVICE uint64_t add_ticket(uint64_t* p) {
  uint64_t old;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;" : "=l"(old) : "l"(global(p)) : "memory");
  return old;
}

// Of a launch with the attribute (programmatic dependent launch); without it, and on older devices, nothing. The host
// sets it only for code in which the wait is.
CROSSCCL_DEVICE void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
CROSSCCL_DEVICE void release_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

constexpr bool kUnalignedVectors = false;
// A thread has as many loads in flight as there are ranks anyway. More would be 32 accumulators for bytes, and
// at 8 ranks, or narrow types over a number of ranks that is not known, come near the limit of registers.
template <class T, uint32_t N>
constexpr uint32_t kBatch = N > 4 || sizeof(T) == 1 || (N == 0 && sizeof(T) == 2) ? 1 : N == 2 ? 4 : 2;
// In PTX, since from C++ the compiler makes what it likes: four stores of 4 bytes out of one of 16, and a load
// through the read-only path out of one that nobody writes in this kernel (I11: a peer may).
CROSSCCL_DEVICE uint4 load_vector(const void* from) {
  if (planted(kReadOnlyLoads)) return __ldg((const uint4*)from);
  if (planted(kNarrowVectors)) {
    const volatile uint32_t* w = (const uint32_t*)from;
    return uint4{w[0], w[1], w[2], w[3]};
  }
  if (planted(kOnTheStack)) {
    volatile uint32_t w[4] = {1, 2, 3, 4};
    return uint4{w[(uint64_t)from & 3], w[1], w[2], w[3]};
  }
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global(from))
               : "memory");
  return v;
}
CROSSCCL_DEVICE void store_vector(void* to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global(to)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
// Half a vector: what a vector becomes in a type of half the width. A quarter: what half of one becomes.
CROSSCCL_DEVICE uint2 load_half_vector(const void* from) {
  uint2 v;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(global(from)) : "memory");
  return v;
}
CROSSCCL_DEVICE void store_half_vector(void* to, uint2 v) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(global(to)), "r"(v.x), "r"(v.y) : "memory");
}
template <uint32_t K, uint32_t V, class T> CROSSCCL_DEVICE void load_pieces(T* x, const T* from, uint64_t step) {
  constexpr uint32_t lanes = kVector / sizeof(T);
  CROSSCCL_UNROLL for (uint32_t k = 0; k < K; ++k) {
    if (V == 1) x[k] = from[k * step];
    if (V != 1 && V * 2 == lanes) {
      const uint2 v = load_half_vector(from + k * step);
      memcpy(x + k * V, &v, sizeof v);
    }
    if (V != 1 && V * 4 == lanes) {
      uint32_t v;
      asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(global(from + k * step)) : "memory");
      memcpy(x + k * V, &v, sizeof v);
    }
    if constexpr (V >= lanes) CROSSCCL_UNROLL for (uint32_t i = 0; i < V / lanes; ++i) {
      const uint4 v = load_vector(from + k * step + i * lanes);
      memcpy(x + k * V + i * lanes, &v, sizeof v);
    }
  }
}
template <uint32_t K, uint32_t V, class T> CROSSCCL_DEVICE void store_pieces(T* to, const T* x, uint64_t step) {
  constexpr uint32_t lanes = kVector / sizeof(T);
  CROSSCCL_UNROLL for (uint32_t k = 0; k < K; ++k) {
    if (V == 1) to[k * step] = x[k];
    if (V != 1 && V * 2 == lanes) {
      uint2 v;
      memcpy(&v, x + k * V, sizeof v);
      store_half_vector(to + k * step, v);
    }
    if (V != 1 && V * 4 == lanes) {
      uint32_t v;
      memcpy(&v, x + k * V, sizeof v);
      asm volatile("st.global.u32 [%0], %1;" ::"l"(global(to + k * step)), "r"(v) : "memory");
    }
    if constexpr (V >= lanes) CROSSCCL_UNROLL for (uint32_t i = 0; i < V / lanes; ++i) {
      uint4 v;
      memcpy(&v, x + k * V + i * lanes, sizeof v);
      store_vector(to + k * step + i * lanes, v);
    }
  }
}

// Four vectors a thread: 64 blocks have 2 MiB in flight then, and fill a link between two H200.
constexpr uint64_t kTile = 32 * 1024;
// One vector a thread: the latency of a read decides then, and more multiprocessors hide it.
constexpr uint64_t kLeastTile = 8 * 1024;

CROSSCCL_DEVICE uint64_t anew(uint64_t x) {
  asm volatile("" : "+l"(x));
  return x;
}
CROSSCCL_DEVICE uint32_t lowest_bit(uint64_t bits) { return uint32_t(__ffsll((long long)bits)) - 1; }

// Nanoseconds. The hardware advances it in steps, of 32 ns up to about 1 us by device and driver: enough for deadlines and slow
// looks, too coarse to time one flag.
CROSSCCL_DEVICE uint64_t clock_ticks() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
constexpr uint64_t kSlowLook = 20000;
// The clock is the device's one, and the host's word is behind the bus: a rank whose every block read both at each
// turn made the copy that it waited for take up to eight times as long.
constexpr uint32_t kTriesPerLook = 16;
constexpr uint32_t kLooksPerHostLook = 50;

// A flag that has not come after 64 polls is one of a long copy, which polls would slow down.
CROSSCCL_DEVICE void relax(uint32_t tries) {
  if (tries >= 64) __nanosleep(200);
}

CROSSCCL_DEVICE float bf16_to_float(uint16_t x) { return __uint_as_float(uint32_t(x) << 16); }
CROSSCCL_DEVICE uint16_t float_to_bf16(float f) {
  const uint32_t b = __float_as_uint(f);
  return uint16_t((b + 0x7fffu + ((b >> 16) & 1)) >> 16);
}
CROSSCCL_DEVICE float half_to_float(uint16_t x) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
  return f;
}
// The instruction's NaN is 0x7fff; the contract's has one bit.
CROSSCCL_DEVICE uint16_t float_to_half(float f) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  const uint32_t b = __float_as_uint(f);
  return (b & 0x7fffffff) > 0x7f800000 ? uint16_t((b >> 16 & 0x8000) | 0x7e00) : h;
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
