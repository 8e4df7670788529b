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

struct Fact {
  const char* name;
  uint64_t value;
};
#define CONSTANT(name) {#name, uint64_t(name)}
#define SIZE(type) {"sizeof(" #type ")", sizeof(type)}
#define FIELD(type, field) {#type "::" #field, offsetof(type, field)}
const Fact kFacts[] = {
    CONSTANT(kMaxRanks), CONSTANT(kMaxBlocks), CONSTANT(kRecordSlots), CONSTANT(kLine), CONSTANT(kVector),
    CONSTANT(kInboxSlots), CONSTANT(kUnit), CONSTANT(kHeaderUnits), CONSTANT(kMostPacketBytes), CONSTANT(kTunedRanks),
    CONSTANT(kRestamp), CONSTANT(kStaged), CONSTANT(kDone), CONSTANT(kPhases), CONSTANT(kForHeader), CONSTANT(kForPackets),
    CONSTANT(kForAck), CONSTANT(kBroadcast), CONSTANT(kReduceScatter), CONSTANT(kPlain), CONSTANT(kToF16), CONSTANT(kToBF16),
    CONSTANT(kToF32), CONSTANT(kToF64), CONSTANT(kNoOverlap), CONSTANT(kReleaseAtEnd), CONSTANT(kReleaseAtBeginning),
    CONSTANT(kReleaseAtEndWithoutWait), CONSTANT(kNone), CONSTANT(kTimeout), CONSTANT(kMismatch), CONSTANT(kAborted),
    CONSTANT(kPoisoned), CONSTANT(kFingerprint), CONSTANT(kCount), CONSTANT(kShapeHash), CONSTANT(kPacked), CONSTANT(kInput),
    CONSTANT(kOutput), CONSTANT(kFields),
    // Of the target.
    CONSTANT(kTile), CONSTANT(kLeastTile),
    SIZE(Record), FIELD(Record, words),
    SIZE(Failure), FIELD(Failure, call), FIELD(Failure, epoch), FIELD(Failure, wanted), FIELD(Failure, seen),
    FIELD(Failure, missing), FIELD(Failure, ticks), FIELD(Failure, kind), FIELD(Failure, peer), FIELD(Failure, phase),
    FIELD(Failure, domain), FIELD(Failure, block), FIELD(Failure, rank),
    SIZE(Observed), FIELD(Observed, stamp), FIELD(Observed, count), FIELD(Observed, shape_hash), FIELD(Observed, packed),
    SIZE(Control), FIELD(Control, state), FIELD(Control, pad), FIELD(Control, abort), FIELD(Control, pad2),
    FIELD(Control, failure), FIELD(Control, observed),
    SIZE(Places), FIELD(Places, cause), FIELD(Places, probe), FIELD(Places, domain), FIELD(Places, records),
    FIELD(Places, flags), FIELD(Places, inbox), FIELD(Places, slot), FIELD(Places, payload),
    SIZE(Arguments), FIELD(Arguments, signal), FIELD(Arguments, control), FIELD(Arguments, at), FIELD(Arguments, rank),
    FIELD(Arguments, ranks), FIELD(Arguments, domain), FIELD(Arguments, max_blocks), FIELD(Arguments, world),
    FIELD(Arguments, world_rank), FIELD(Arguments, strict), FIELD(Arguments, call), FIELD(Arguments, limit),
    FIELD(Arguments, input), FIELD(Arguments, output), FIELD(Arguments, count), FIELD(Arguments, shape_hash),
    FIELD(Arguments, packed), FIELD(Arguments, fingerprint), FIELD(Arguments, bytes), FIELD(Arguments, segment),
    FIELD(Arguments, payload_half), FIELD(Arguments, rounds), FIELD(Arguments, root), FIELD(Arguments, outer),
    FIELD(Arguments, run), FIELD(Arguments, stride), FIELD(Arguments, offset), FIELD(Arguments, average),
    FIELD(Arguments, form), FIELD(Arguments, residual), FIELD(Arguments, factor), FIELD(Arguments, overlap),
    FIELD(Arguments, cuts),
};
#undef CONSTANT
#undef SIZE
#undef FIELD

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

// For the tests of src/abi.rs: every constant, size and offset of abi.h as this side sees it, by name.
size_t crossccl_cpu_fact_count() { return sizeof crossccl::kFacts / sizeof *crossccl::kFacts; }
const char* crossccl_cpu_fact_name(size_t index) { return crossccl::kFacts[index].name; }
uint64_t crossccl_cpu_fact_value(size_t index) { return crossccl::kFacts[index].value; }

// For the same: layout and chunk arithmetic.
uint64_t crossccl_cpu_probe(uint32_t what, uint64_t x, uint32_t y, uint32_t z) {
  using namespace crossccl;
  switch (what) {
    case 30: return signal_layout(uint32_t(x), y, z).cause;
    case 31: return signal_layout(uint32_t(x), y, z).probe;
    case 32: return signal_layout(uint32_t(x), y, z).domain;
    case 33: return signal_layout(uint32_t(x), y, z).domain_stride;
    case 34: return signal_layout(uint32_t(x), y, z).payload;
    case 48: return signal_layout(uint32_t(x), y, z).inbox;
    case 49: return signal_layout(uint32_t(x), y, z).slot;
    case 50: return packet_bytes(uint32_t(x));
    case 51: return signal_layout(uint32_t(x), y, z).records;
    case 52: return signal_layout(uint32_t(x), y, z).flags;
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
