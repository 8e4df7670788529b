// Moving bytes. A range is cut into tiles of kTile bytes, dealt round robin to the blocks, so that
// all blocks of all ranks move through memory together. Which block gets which byte follows from
// the range's length and the number of blocks alone, never from the rank or from an address: that
// is what lets block b of a peer read what block b of the owner wrote (I3).
#pragma once

namespace crossccl {

// Units [begin, end) of `units` that part `index` of `parts` gets: balanced, the first ones get the
// remainder one unit each (case B9: all of it on the last part overran a scratch buffer sized for
// the average). Host mirror: src/plan/chunk.rs.
struct Span {
  uint64_t begin, end;
};
CROSSCCL_DEVICE Span balanced(uint64_t units, uint32_t parts, uint32_t index) {
  uint64_t each = units / parts, more = units % parts;
  if (planted(kRemainderLast)) return Span{index * each, index + 1 == parts ? units : (index + 1) * each};
  uint64_t begin = index * each + (index < more ? index : more);
  return Span{begin, begin + each + (index < more ? 1 : 0)};
}

// Bytes of chunk `index` of a segment: whole vectors, the ragged end in the last one that has any.
CROSSCCL_DEVICE Span chunk(uint64_t bytes, uint32_t chunks, uint32_t index) {
  Span s = balanced((bytes + kVector - 1) / kVector, chunks, index);
  s.begin = s.begin * kVector < bytes ? s.begin * kVector : bytes;
  s.end = s.end * kVector < bytes ? s.end * kVector : bytes;
  return s;
}

template <class F> CROSSCCL_DEVICE void for_each_tile(const Block& b, uint64_t bytes, F f) {
  for (uint64_t t = uint64_t(b.block) * kTile; t < bytes; t += uint64_t(b.blocks) * kTile)
    f(t, bytes - t < kTile ? bytes - t : kTile);
}

CROSSCCL_DEVICE void copy(const Block& b, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for_each_tile(b, bytes, [&](uint64_t at, uint64_t n) { copy_tile(b, to + at, from + at, n); });
}

// Read once, write twice.
CROSSCCL_DEVICE void copy_to_both(const Block& b, uint8_t* to, uint8_t* also, const uint8_t* from, uint64_t bytes) {
  for_each_tile(b, bytes, [&](uint64_t at, uint64_t n) {
    copy_tile(b, to + at, from + at, n);
    copy_tile(b, also + at, from + at, n);
  });
}

}  // namespace crossccl
