// A few kernels for scripts/check-hip, which compiles them with each planted bug: one of each kind, and the
// steps of a rendezvous alone, so that a look at the machine code can tell a flag from other words.
#include "../../kernels-hip/target_hip.h"

namespace crossccl {

// 120: a lane has 24 registers.
#if CROSSCCL_PLANTED == 120
#define CROSSCCL_REGISTERS amdgpu_num_vgpr(24)
#else
#define CROSSCCL_REGISTERS
#endif
#define CROSSCCL_PROBE(name, ...)                                                                                \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(kThreads, kThreads), CROSSCCL_REGISTERS)) void   \
      name(const Arguments a, uint32_t blocks) {                                                                 \
    __VA_ARGS__;                                                                                                 \
  }
CROSSCCL_PROBE(broadcast_two_stage_direct, broadcast_two_stage_direct(this_block(blocks), a))
CROSSCCL_PROBE(reduce_scatter_f32_sum_8, reduce_scatter<float, Sum, 8>(this_block(blocks), a))
CROSSCCL_PROBE(reduce_scatter_f16_max_n, reduce_scatter<F16, Max, 0>(this_block(blocks), a))
CROSSCCL_PROBE(broadcast_low_latency, broadcast_low_latency(this_block(blocks), a))
CROSSCCL_PROBE(reduce_scatter_low_latency_bf16_sum_n, reduce_scatter_low_latency<BF16, Sum>(this_block(blocks), a))
// Every store is a flag.
CROSSCCL_PROBE(probe_signal, Rendezvous(a, this_block(blocks)).signal(kStaged, 0, [](uint32_t) { return true; }))
// Polls and what a wait looks at besides.
CROSSCCL_PROBE(probe_await, Rendezvous(a, this_block(blocks)).await(kStaged, 0, [](uint32_t) { return true; }))
// What passes between the blocks of one device.
CROSSCCL_PROBE(probe_ticket, add_ticket((uint64_t*)a.output + blocks))
// What a compiler would like to make one operation of.
CROSSCCL_PROBE(probe_multiply_add, float x[4]; const Block b = this_block(blocks);
               load_pieces<1, 4>(x, (const float*)a.input + 4 * b.thread, 4);
               x[0] = Numeric<float>::sum(Numeric<float>::product(x[0], x[1]), x[2]);
               store_pieces<1, 1>((float*)a.output + b.thread, x, 1))

#if CROSSCCL_PLANTED == 121
// A maximum of floats, which takes a number for NaN and either zero for the other.
CROSSCCL_PROBE(reduce_scatter_float_max, float* out = (float*)a.output; *global(out) = __builtin_fmaxf(out[1], out[2]);
               broadcast_one_stage(this_block(blocks), a))
#endif
#if CROSSCCL_PLANTED == 122
// Asks the runtime for the number of blocks.
CROSSCCL_PROBE(probe_hidden, store_release((uint64_t*)a.output, *(const uint32_t*)__builtin_amdgcn_implicitarg_ptr() + blocks))
#endif

}  // namespace crossccl
