// Bugs planted on purpose, one at a time, to show that the checks find them. The target header defines
// CROSSCCL_PLANTED, 0 in every build but those of scripts/check-mutants, so all of this folds away.
// tests/cpp/mutants.txt says what catches which.
#pragma once

namespace crossccl {

enum Planted : uint32_t {
  kPlantedNone = 0,
  kRelaxedRelease = 1,    // flags are stored without release
  kNoRecordWait = 2,      // nobody waits for records: the start
  kNoStagedWait = 3,      // chunks are gathered before they are staged: the middle
  kNoCreditWait = 4,      // a rank goes on while others still read its memory: the end
  kOneHalf = 5,           // one payload half instead of two: overwritten while it is read
  kRotatedOrder = 6,      // each rank starts the sum with itself
  kRemainderLast = 7,     // the last chunk takes all of the remainder
  kIdleBlockReturns = 8,  // a block without work leaves early
  kEarlyEpoch = 9,        // the first block to finish advances the epoch
  kNoPoisonLook = 10,     // a late rank does not look at the poison words
  kNoCompare = 11,        // records are not compared
  kGoneAgrees = 12,       // a later record of a rank that I read from passes for this launch's
  kPoisonStays = 13,      // a failure in a group does not reach the world
  kHashAlone = 14,        // records are compared by their hash alone
  kRoundedEarly = 15,     // a sum is rounded before its residual is added
  kRelaxedPoll = 16,      // flags are loaded without acquire
  kNoPreviousWait = 17,   // a launch that overlaps with the one before does not wait for it (scripts/check-ptx finds it)
  kOneSlot = 18,          // one slot an inbox instead of two: overwritten while it is read
  kNoAckWait = 19,        // packets are sent before those of two launches ago are read
  kNoFlagCompare = 20,    // packets are taken as they are, their header's apart
  kNoRestamp = 21,        // flags of 2^31 launches ago pass for this launch's
  kRelaxedRecord = 22,    // records release nothing
};

CROSSCCL_DEVICE constexpr bool planted(Planted bug) { return CROSSCCL_PLANTED == bug; }

// No bug: all that finds failures left out, so that scripts/bench-checks can tell what it costs. Ranks still meet, by
// records and flags; nothing is compared, and nobody looks for poison, for an abort or at the clock. Defined like the other.
constexpr bool kUnchecked = CROSSCCL_UNCHECKED;

}  // namespace crossccl
