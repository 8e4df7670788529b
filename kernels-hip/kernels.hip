// The entry points: one kernel per line of kernel_list.def, under the list's names. The number of blocks is a second
// argument: in registers the hardware gives none, and what the runtime would pass for it differs between code object
// versions.
#include "target_hip.h"

namespace crossccl {

#define CROSSCCL_BARE(...) __VA_ARGS__
#define CROSSCCL_KERNEL(name, function)                                                                  \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(kThreads, kThreads))) void name(         \
      const Arguments a, uint32_t blocks) {                                                              \
    CROSSCCL_BARE function(this_block(blocks), a);                                                       \
  }
#include "../kernels-common/kernel_list.def"
#undef CROSSCCL_KERNEL

}  // namespace crossccl
