// A few kernels for scripts/check-ptx, which compiles them with each planted bug: one of each kind, and the
// steps of a rendezvous alone, so that a look at the machine code can tell a flag from other words.
#include "../../kernels-cuda/target_cuda.h"

namespace crossccl {

// 105: four blocks a multiprocessor leave a thread 32 registers.
#define CROSSCCL_PROBE(name, ...)                                                                             \
  extern "C" __global__ void __launch_bounds__(kThreads, CROSSCCL_PLANTED == 105 ? 4 : 1)                     \
      name(const __grid_constant__ Arguments a) {                                                             \
    __VA_ARGS__;                                                                                              \
  }
CROSSCCL_PROBE(broadcast_two_stage_direct, broadcast_two_stage_direct(this_block(), a))
CROSSCCL_PROBE(reduce_scatter_f32_sum_8, reduce_scatter<float, Sum, 8>(this_block(), a))
CROSSCCL_PROBE(reduce_scatter_f16_max_n, reduce_scatter<F16, Max, 0>(this_block(), a))
CROSSCCL_PROBE(broadcast_low_latency, broadcast_low_latency(this_block(), a))
CROSSCCL_PROBE(reduce_scatter_low_latency_bf16_sum_n, reduce_scatter_low_latency<BF16, Sum>(this_block(), a))
// Every store is a flag.
CROSSCCL_PROBE(probe_signal, Rendezvous(a, this_block()).signal(kStaged, 0, [](uint32_t) { return true; }))
// Polls and what a wait looks at besides.
CROSSCCL_PROBE(probe_await, Rendezvous(a, this_block()).await(kStaged, 0, [](uint32_t) { return true; }))

#if CROSSCCL_PLANTED == 104
// A maximum of floats, which takes a number for NaN and either zero for the other.
CROSSCCL_PROBE(reduce_scatter_float_max, float* out = (float*)a.output; out[0] = fmaxf(out[1], out[2]);
               broadcast_one_stage(this_block(), a))
#endif

}  // namespace crossccl
