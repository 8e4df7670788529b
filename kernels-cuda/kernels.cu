// The entry points: one kernel per line of kernel_list.def, under the list's names. Arguments come by
// value and are read where they lie, in constant memory: without __grid_constant__ the compiler copies
// them to the stack (I12), since ranks index the signal buffers at run time.
//
// One block a multiprocessor is promised: without the 1, ptxas aims at two, 64 registers a thread, and spills.
#include "target_cuda.h"

namespace crossccl {

#define CROSSCCL_BARE(...) __VA_ARGS__
#define CROSSCCL_KERNEL(name, function)                                                                 \
  extern "C" __global__ void __launch_bounds__(kThreads, 1) name(const __grid_constant__ Arguments a) { \
    CROSSCCL_BARE function(this_block(), a);                                                            \
  }
#include "../kernels-common/kernel_list.def"
#undef CROSSCCL_KERNEL

}  // namespace crossccl
