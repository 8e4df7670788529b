// The CPU's entry points: one function per line of kernel_list.def and a table to find it by name.
#include "target_cpu.h"

#include <fenv.h>
#include <stddef.h>

namespace crossccl {
namespace {

using Entry = void (*)(const Arguments*, uint32_t block, uint32_t blocks);

#define CROSSCCL_BARE(...) __VA_ARGS__
#define CROSSCCL_KERNEL(name, function) \
  void name##_entry(const Arguments* a, uint32_t block, uint32_t blocks) { CROSSCCL_BARE function(Block{block, blocks}, *a); }
#include "../kernels-common/kernel_list.def"
#undef CROSSCCL_KERNEL

struct Named {
  const char* name;
  Entry entry;
};
const Named kKernels[] = {
#define CROSSCCL_KERNEL(name, function) {#name, name##_entry},
#include "../kernels-common/kernel_list.def"
#undef CROSSCCL_KERNEL
};

}  // namespace
}  // namespace crossccl

extern "C" {

size_t crossccl_cpu_kernel_count() { return sizeof crossccl::kKernels / sizeof *crossccl::kKernels; }
const char* crossccl_cpu_kernel_name(size_t index) { return crossccl::kKernels[index].name; }
crossccl::Entry crossccl_cpu_kernel_entry(size_t index) { return crossccl::kKernels[index].entry; }

// A thread inherits its creator's floating-point mode; flush-to-zero there must not change results.
void crossccl_cpu_thread_begin() { fesetenv(FE_DFL_ENV); }

// The same for a while on a thread of the caller's. Mostly it has the mode already: to look takes nanoseconds, to keep and
// set all of it as long as the host's part of a short call.
static bool mode_is_default() {
#if defined(__x86_64__)
  uint32_t mode;
  __asm__ __volatile__("stmxcsr %0" : "=m"(mode));
  // But for the flags of what has happened. Kernels use nothing else that has a mode.
  return (mode & ~0x3fu) == 0x1f80;
#else
  return false;
#endif
}
size_t crossccl_cpu_mode_bytes() { return sizeof(fenv_t) + 1; }
void crossccl_cpu_mode_default(uint8_t* before) {
  before[sizeof(fenv_t)] = !mode_is_default();
  if (!before[sizeof(fenv_t)]) return;
  fegetenv((fenv_t*)before);
  fesetenv(FE_DFL_ENV);
}
void crossccl_cpu_mode_restore(const uint8_t* before) {
  if (before[sizeof(fenv_t)]) fesetenv((const fenv_t*)before);
}

// For the tests of src/abi.rs: sizes, offsets, limits, layout and chunk arithmetic as this side sees them.
uint64_t crossccl_cpu_probe(uint32_t what, uint64_t x, uint32_t y, uint32_t z) {
  using namespace crossccl;
  switch (what) {
    case 0: return sizeof(Arguments);
    case 1: return sizeof(Control);
    case 2: return sizeof(Failure);
    case 3: return sizeof(Record);
    case 4: return kMaxRanks;
    case 5: return kMaxBlocks;
    case 6: return kVector;
    case 7: return kTile;
    case 8: return kLeastTile;
    case 10: return offsetof(Arguments, control);
    case 11: return offsetof(Arguments, rank);
    case 12: return offsetof(Arguments, strict);
    case 13: return offsetof(Arguments, call);
    case 14: return offsetof(Arguments, fingerprint);
    case 15: return offsetof(Arguments, bytes);
    case 16: return offsetof(Arguments, rounds);
    case 17: return offsetof(Arguments, outer);
    case 18: return offsetof(Arguments, average);
    case 19: return offsetof(Arguments, factor);
    case 20: return offsetof(Control, abort);
    case 21: return offsetof(Control, failure);
    case 22: return offsetof(Control, observed);
    case 23: return offsetof(Failure, missing);
    case 24: return offsetof(Failure, kind);
    case 25: return offsetof(Failure, rank);
    case 26: return offsetof(Observed, packed);
    case 27: return kToF16;
    case 28: return kToBF16;
    case 29: return kToF32;
    case 35: return kToF64;
    case 36: return offsetof(Arguments, overlap);
    case 37: return kReleaseAtEnd;
    case 38: return kReleaseAtBeginning;
    case 39: return kReleaseAtEndWithoutWait;
    case 30: return signal_layout(uint32_t(x), y, z).cause;
    case 31: return signal_layout(uint32_t(x), y, z).probe;
    case 32: return signal_layout(uint32_t(x), y, z).domain;
    case 33: return signal_layout(uint32_t(x), y, z).domain_stride;
    case 34: return signal_layout(uint32_t(x), y, z).payload;
    case 44: return offsetof(Arguments, cuts);
    case 45: return kInboxSlots;
    case 46: return kUnit;
    case 47: return kHeaderUnits;
    case 48: return signal_layout(uint32_t(x), y, z).inbox;
    case 49: return signal_layout(uint32_t(x), y, z).slot;
    case 50: return packet_bytes(uint32_t(x));
    case 51: return signal_layout(uint32_t(x), y, z).records;
    case 52: return signal_layout(uint32_t(x), y, z).flags;
    case 55: return offsetof(Arguments, at);
    case 60:
    case 61:
    case 62:
    case 63:
    case 64:
    case 65:
    case 66:
    case 67: {
      // Ranks and domains in x, a domain in y, blocks in z.
      const Places at = places(signal_layout(uint32_t(x >> 32), uint32_t(x), z), y);
      const uint64_t all[] = {at.cause, at.probe, at.domain, at.records, at.flags, at.inbox, at.slot, at.payload};
      return all[what - 60];
    }
    case 40: return balanced(x, y, z).begin;
    case 41: return balanced(x, y, z).end;
    case 42: return chunk(x, y, z).begin;
    case 43: return chunk(x, y, z).end;
    default: return ~uint64_t(0);
  }
}
}
