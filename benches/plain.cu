// What a collective on one device is measured against: kernels that move the same bytes with the whole device and no
// rendezvous, and one that does nothing. Compiled by `scripts/gpu-tests pack`, loaded by benches/gpu.rs.
#include <stdint.h>

// Two bytes. NVIDIA's header of the type needs a library of headers that the compiler's wheels do not bring.
struct Bf16 {
  uint16_t bits;
};

struct Plain {
  uint64_t from[8], to[8], bytes;
  uint64_t unused[72];  // As large as the argument of the collectives' kernels.
};

// Reads once, writes N times.
template <int N> static __device__ void fan_out(const Plain& a) {
  const uint64_t step = uint64_t(gridDim.x) * blockDim.x, vectors = a.bytes / 16;
  for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors; i += 4 * step) {
    uint4 x[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k * step < vectors) x[k] = ((const uint4*)a.from[0])[i + k * step];
#pragma unroll
    for (int p = 0; p < N; ++p)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (i + k * step < vectors) ((uint4*)a.to[p])[i + k * step] = x[k];
  }
}

static __device__ void add(float* sum, uint4 x, float) {
  const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] += __uint_as_float(w[i]);
}
static __device__ void add(float* sum, uint4 x, Bf16) {
  const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[2 * i] += __uint_as_float(w[i] << 16);
    sum[2 * i + 1] += __uint_as_float(w[i] & 0xffff0000u);
  }
}
static __device__ uint4 rounded(const float* s, float) {
  return uint4{__float_as_uint(s[0]), __float_as_uint(s[1]), __float_as_uint(s[2]), __float_as_uint(s[3])};
}
static __device__ uint4 rounded(const float* s, Bf16) {
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(s[2 * i + 1]), "f"(s[2 * i]));
  }
  return uint4{w[0], w[1], w[2], w[3]};
}

// Reads N inputs of a.bytes, writes their sum, as N ranks do with a part each.
template <class T, int N> static __device__ void fan_in(const Plain& a) {
  const uint64_t step = uint64_t(gridDim.x) * blockDim.x, vectors = a.bytes / 16;
  for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors; i += 2 * step) {
    uint4 x[2][N];
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int p = 0; p < N; ++p)
        if (i + k * step < vectors) x[k][p] = ((const uint4*)a.from[p])[i + k * step];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (i + k * step >= vectors) continue;
      float sum[16 / sizeof(T)] = {};
#pragma unroll
      for (int p = 0; p < N; ++p) add(sum, x[k][p], T());
      ((uint4*)a.to[0])[i + k * step] = rounded(sum, T());
    }
  }
}

extern "C" {
__global__ void plain_empty(const __grid_constant__ Plain a) {}
#define PLAIN(N)                                                                                                    \
  __global__ void plain_fan_out_##N(const __grid_constant__ Plain a) { fan_out<N>(a); }                             \
  __global__ void plain_fan_in_f32_##N(const __grid_constant__ Plain a) { fan_in<float, N>(a); }                    \
  __global__ void plain_fan_in_bf16_##N(const __grid_constant__ Plain a) { fan_in<Bf16, N>(a); }
PLAIN(1) PLAIN(2) PLAIN(3) PLAIN(4) PLAIN(7) PLAIN(8)
}
