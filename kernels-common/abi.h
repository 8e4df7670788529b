// The binary interface between the host (src/abi.rs, src/signal.rs) and the kernels.
//
// This header owns every limit, every structure that host and device share and the layout of the
// signal buffer. The Rust mirror is checked against it by the tests of `src/abi.rs` through a probe that the
// CPU target exports, so a change on one side alone fails the test suite.
//
// The target header defines CROSSCCL_DEVICE (how a function of the device is declared) before it
// includes this one.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace crossccl {

// Ranks of one communicator. 8 is the tuned range, 64 the width of the `missing` bit mask.
constexpr uint32_t kMaxRanks = 64;
// Blocks of one launch. Flags exist for this many, so it is checked on the host (case B10).
constexpr uint32_t kMaxBlocks = 128;
// A peer that I depend on waits for my credit, so it is never two launches ahead: two slots.
constexpr uint32_t kRecordSlots = 2;
// GPUs move 128-byte lines; on the CPU it is two 64-byte lines (adjacent-line prefetch).
constexpr uint32_t kLine = 128;
// Starts of chunks and slots inside a buffer are multiples of one vector.
constexpr uint32_t kVector = 16;

// Packets (packets.h): 32 bits of data under a flag of 32, one word that is stored and loaded whole. Two slots a pair of
// ranks, so that a launch need not wait for its predecessor's readers; a unit is what one access moves.
constexpr uint32_t kInboxSlots = 2;
constexpr uint32_t kUnit = 8;  // bytes of data, 16 of packets
// Units at the beginning of a slot that say what the sender does: the first fields of its record.
constexpr uint32_t kHeaderUnits = 4;
// Bytes of data that one slot takes in the tuned range. Beyond it slots shrink with the square of the ranks, so that all
// inboxes of a communicator together do not grow.
constexpr uint64_t kMostPacketBytes = 64 * 1024;
constexpr uint32_t kTunedRanks = 8;
// Flags repeat after 2^31 packet launches of a domain; each time this many are over every word is stamped anew, so that
// none is ever as old as that.
constexpr uint64_t kRestamp = uint64_t(1) << 30;

// Block flags: what block b of a peer has done, as a sequence number.
enum Phase : uint32_t {
  kStaged = 0,  // "my payload half holds the chunk of this round": release, carries data
  kDone = 1,    // "I have finished reading your memory of this round": a credit, carries no data
  kPhases = 2,
};
// Waits that are for no block flag, as a failure tells them: 0 is a record, 1 and 2 are the flags above.
enum Wait : uint32_t { kForHeader = 1 + kPhases, kForPackets, kForAck };

enum Collective : uint32_t { kBroadcast = 1, kReduceScatter = 2 };

// What a sum becomes: the input's type and nothing else, or the fused epilogue (a factor, a residual)
// and a result of the type named.
enum Form : uint32_t { kPlain = 0, kToF16 = 1, kToBF16 = 2, kToF32 = 3, kToF64 = 4 };

// How far a launch may overlap with its neighbours in the stream, where a target can. Every launch waits for the one
// before it, whose launch epoch it reads; so does the last of these, which exists for its name alone.
enum Overlap : uint64_t { kNoOverlap = 0, kReleaseAtEnd = 1, kReleaseAtBeginning = 2, kReleaseAtEndWithoutWait = 3 };

// Why a rank failed. The value is stored last, with release, into the status record and the
// poison words.
enum FailureKind : uint32_t {
  kNone = 0,
  kTimeout = 1,   // a peer did not come within the limit
  kMismatch = 2,  // a peer came with another operation
  kAborted = 3,   // the host set the abort word
  kPoisoned = 4,  // a peer had failed before
};

// What one rank is about to do, sent to every peer of the domain by each launch. Fields are units, as in packets: each of
// the two words of one is 32 bits of data under a flag made of the launch epoch, so that a record vouches for itself
// whatever part of it has arrived, or is overwritten by a later one.
enum Field : uint32_t {
  kFingerprint,  // 16 low bits of the epoch over 48 bits of descriptor hash
  kCount,
  kShapeHash,
  kPacked,
  kInput,  // addresses, which need not agree
  kOutput,
  kFields,
};
struct alignas(kLine) Record {
  uint64_t words[2 * kFields];
};

// The story of a failed launch, for the error message.
struct alignas(kLine) Failure {
  uint64_t call;     // the host's number of the failing launch of this rank
  uint64_t epoch;    // launch epoch in the domain
  uint64_t wanted;   // flag or epoch waited for
  uint64_t seen;     // flag or epoch found instead
  uint64_t missing;  // bit p: rank p of the domain had not come
  uint64_t ticks;    // how long was waited, in device clock ticks
  uint32_t kind;
  uint32_t peer;  // rank of the domain; for kPoisoned: rank of the communicator
  uint32_t phase;
  uint32_t domain;
  uint32_t block;
  uint32_t rank;  // who failed, rank of the domain
};

struct Observed {
  uint64_t stamp;
  uint64_t count;
  uint64_t shape_hash;
  uint64_t packed;
};

// One per rank, in memory that the host and the rank's device both reach while kernels run.
struct alignas(kLine) Control {
  uint64_t state;  // FailureKind; written by the device, once, last
  uint64_t pad[15];
  uint64_t abort;  // written by the host
  uint64_t pad2[15];
  Failure failure;
  Observed observed[kMaxRanks];  // the peers' records at the time of the failure
};

// Where a launch finds things in each signal buffer, in bytes; domain, records, flags and inbox are its domain's. The host
// says it: computed in the kernel, it stood in front of the first load.
struct Places {
  uint64_t cause, probe, domain, records, flags, inbox, slot, payload;
};

// Arguments of every kernel. Passed by value on a GPU (well under the 4 KiB that
// kernel parameters may have), by pointer on the CPU.
struct Arguments {
  // who
  uint64_t signal[kMaxRanks];  // signal buffers of the domain, by rank of the domain
  uint64_t control;            // Control of this rank
  Places at;
  uint32_t rank;   // in the domain
  uint32_t ranks;  // in the domain
  uint32_t domain;
  uint32_t max_blocks;  // that there are flags for
  uint32_t world;       // ranks of the communicator
  uint32_t world_rank;  // this rank in the communicator
  uint64_t strict;      // 1: wait for every record before anything is touched
  // what
  uint64_t call;
  uint64_t limit;  // ticks of the device clock; 0 waits for ever
  uint64_t input;
  uint64_t output;  // 0 where this rank has none
  uint64_t count;
  uint64_t shape_hash;
  uint64_t packed;
  uint64_t fingerprint;  // 48 bits
  // broadcast
  uint64_t bytes;
  uint64_t segment;       // bytes of one round over all chunks
  uint64_t payload_half;  // bytes of one payload half
  uint32_t rounds;        // flags each launch consumes, at least 1
  uint32_t root;          // in the domain
  // reduce-scatter: my part of the input, as `outer` runs
  uint64_t outer;   // runs
  uint64_t run;     // elements of one run
  uint64_t stride;  // elements from one run's start to the next
  uint64_t offset;  // elements before the first run
  uint32_t average;
  uint32_t form;      // Form
  uint64_t residual;  // of the output's shape and type; 0 where there is none
  uint64_t factor;    // bits of an f64; the accumulator holds it exactly
  uint64_t overlap;   // Overlap
  // by packets: elements of a run before each rank's part of it, and all of them behind the last rank
  uint32_t cuts[kMaxRanks + 2];
};

CROSSCCL_DEVICE constexpr uint64_t lines(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Where things stand in a signal buffer. One writer per word; every field starts on a line.
//
//   poison  u64[world]              written by a failing rank (and by its owner)
//   cause   Failure[world]          likewise
//   probe   u64[2][world]           peer self-test at set-up
//   for each domain:
//     epoch, sequence, ticket, packets    owner only; one line each
//     acks     u64[world]           written by peers: up to which packet launch they have read what I sent
//     records  Record[world][2]     written by peers
//     flags    u64[phase][block][world]
//   for each domain but the last and each rank of it:
//     inbox    units[2][slot]       written by that peer
//   payload 2 halves                written by the owner, read by peers
struct SignalLayout {
  uint64_t cause, probe, domain, domain_stride, records, flags, inbox, slot, payload;
  uint64_t world;
};

// Bytes of data that a slot takes: whole units.
CROSSCCL_DEVICE constexpr uint64_t packet_bytes(uint32_t world) {
  return world <= kTunedRanks ? kMostPacketBytes
                              : kMostPacketBytes * kTunedRanks * kTunedRanks / (uint64_t(world) * world) / kUnit * kUnit;
}

// Inboxes of the domains before `domain`. Domains are in the order of their size, which are divisors of the world: the
// k-th largest of them is at most the k-th part of it.
CROSSCCL_DEVICE uint64_t inboxes_before(uint32_t world, uint32_t domain) {
  uint64_t before = 0;
  CROSSCCL_ROLLED for (uint32_t k = 1; k <= domain; ++k) before += world / k;
  return before;
}

CROSSCCL_DEVICE SignalLayout signal_layout(uint32_t world, uint32_t domains, uint32_t max_blocks) {
  SignalLayout l;
  l.world = world;
  l.cause = lines(uint64_t(world) * 8);
  l.probe = l.cause + uint64_t(world) * sizeof(Failure);
  l.domain = l.probe + lines(uint64_t(world) * 16);
  l.records = 4 * kLine + lines(uint64_t(world) * 8);
  l.flags = l.records + uint64_t(world) * kRecordSlots * sizeof(Record);
  l.domain_stride = l.flags + lines(uint64_t(kPhases) * max_blocks * world * 8);
  l.inbox = l.domain + domains * l.domain_stride;
  l.slot = lines(2 * (kHeaderUnits * kUnit + packet_bytes(world)));
  // The last domain is that of groups of one rank, who sends nothing to anybody.
  l.payload = l.inbox + inboxes_before(world, domains - 1) * kInboxSlots * l.slot;
  return l;
}

static_assert(kInput == kHeaderUnits, "a header is a record without addresses");
CROSSCCL_DEVICE Places places(const SignalLayout& l, uint32_t domain) {
  const uint64_t at = l.domain + domain * l.domain_stride;
  const uint64_t inbox = l.inbox + inboxes_before(uint32_t(l.world), domain) * kInboxSlots * l.slot;
  return Places{l.cause, l.probe, at, at + l.records, at + l.flags, inbox, l.slot, l.payload};
}

static_assert(sizeof(Record) == 128, "host mirror: src/abi.rs");
static_assert(sizeof(Failure) == 128, "host mirror: src/abi.rs");
static_assert(sizeof(Observed) == 32, "host mirror: src/abi.rs");
static_assert(sizeof(Control) == 384 + 64 * 32, "host mirror: src/abi.rs");
static_assert(sizeof(Arguments) % 8 == 0, "no tail padding between targets");
static_assert(sizeof(Arguments) == 1040, "what the READMEs beside the kernels say; 4096 at most, as a GPU takes");

}  // namespace crossccl
