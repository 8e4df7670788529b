// A block as GPUs have it, out of OS threads: what the kernels do with many threads, barriers and vectors
// that must be aligned, under the sanitizers and without a GPU. target_cpu.h includes it for the tests.
#pragma once

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

namespace crossccl {

// Not a power of two, and few: ranks x blocks x threads run at once.
constexpr uint32_t kBlockThreads = 3;

// What the threads of a block share.
struct Meeting {
  pthread_barrier_t barrier;
  uint64_t said = 0;
  Meeting() { pthread_barrier_init(&barrier, nullptr, kBlockThreads); }
  ~Meeting() { pthread_barrier_destroy(&barrier); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
};

struct Block {
  uint32_t block, blocks, thread;
  Meeting* meeting;
  static constexpr uint32_t threads = kBlockThreads;
  void sync() const { pthread_barrier_wait(&meeting->barrier); }
  bool any(bool x) const {
    if (x) store_relaxed(&meeting->said, 1);
    sync();
    const bool said = load_relaxed(&meeting->said) != 0;
    sync();
    if (thread == 0) store_relaxed(&meeting->said, 0);
    sync();
    return said;
  }
};

constexpr bool kUnalignedVectors = false;
template <class T, uint32_t N> constexpr uint32_t kBatch = N > 4 || sizeof(T) == 1 ? 1 : 2;

inline void must_be_aligned(const void* p, uint64_t bytes) {
  if ((uint64_t)p % (bytes < kVector ? bytes : kVector) == 0) return;
  printf("FAILED: a piece of %llu bytes at %p\n", (unsigned long long)bytes, p);
  abort();
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

// Several tiles a block in every test, the last one short.
constexpr uint64_t kTile = 2 * 1024, kLeastTile = 512;

}  // namespace crossccl

#include "../../kernels-common/vectors.h"

namespace crossccl {
CROSSCCL_DEVICE void copy_tile(const Block& b, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  copy_tile_by_vectors(b, to, from, bytes);
}

}  // namespace crossccl
