// Moving bytes. A range is cut into tiles of kTile bytes, dealt round robin to the blocks, so that
// all blocks of all ranks move through memory together. Which block gets which byte follows from
// the range's length and the number of blocks alone, never from the rank or from an address: that
// is what lets block b of a peer read what block b of the owner wrote (I3). Where no block depends on another rank's,
// the tiles of a short range are smaller, so that each block has something.
#pragma once

namespace crossccl {

struct Span {
  uint64_t begin, end;
};

// Units cut into parts: balanced, the first ones get the remainder one unit each (case B9: all of it on
// the last part overran a scratch buffer sized for the average). Divides once for all parts. Host mirror:
// src/plan/chunk.rs.
struct Cut {
  uint64_t each, more;
  uint32_t parts;
  CROSSCCL_METHOD Cut(uint64_t units, uint32_t into) : each(units / into), more(units % into), parts(into) {}
  CROSSCCL_METHOD uint64_t begin(uint32_t index) const {
    if (planted(kRemainderLast)) return index * each + (index == parts ? more : 0);
    return index * each + (index < more ? index : more);
  }
};
CROSSCCL_DEVICE Span balanced(uint64_t units, uint32_t parts, uint32_t index) {
  const Cut cut(units, parts);
  return Span{cut.begin(index), cut.begin(index + 1)};
}

// A segment cut into chunks: whole vectors, the ragged end in the last one that has any.
struct Chunks {
  uint64_t bytes;
  Cut cut;
  CROSSCCL_METHOD Chunks(uint64_t segment, uint32_t chunks) : bytes(segment), cut((segment + kVector - 1) / kVector, chunks) {}
  CROSSCCL_METHOD uint64_t begin(uint32_t index) const {
    const uint64_t at = cut.begin(index) * kVector;
    return at < bytes ? at : bytes;
  }
  CROSSCCL_METHOD Span of(uint32_t index) const { return Span{begin(index), begin(index + 1)}; }
  // Bytes of the first, of which no other has more.
  CROSSCCL_METHOD uint64_t longest() const { return planted(kRemainderLast) ? bytes : begin(1); }
};
CROSSCCL_DEVICE Span chunk(uint64_t bytes, uint32_t chunks, uint32_t index) { return Chunks(bytes, chunks).of(index); }

template <class F> CROSSCCL_DEVICE void for_each_tile(const Block& b, uint64_t bytes, uint64_t tile, F f) {
  for (uint64_t t = b.block * tile; t < bytes; t += b.blocks * tile) f(t, bytes - t < tile ? bytes - t : tile);
}
// What a block takes at a time of a range that it shares with the blocks of its own rank alone. Host mirror: the number of
// blocks, src/plan/select.rs.
CROSSCCL_DEVICE uint64_t own_tile(const Block& b, uint64_t bytes) {
  if (kLeastTile == kTile || bytes >= b.blocks * kTile) return kTile;
  // Few enough for 32 bits, and at most a tile.
  const uint32_t step = b.blocks * uint32_t(kLeastTile);
  return bytes == 0 ? kTile : (uint32_t(bytes) + step - 1) / step * kLeastTile;
}

CROSSCCL_DEVICE void copy(const Block& b, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for_each_tile(b, bytes, own_tile(b, bytes), [&](uint64_t at, uint64_t n) { copy_tile(b, to + at, from + at, n); });
}

// Read once, write twice.
CROSSCCL_DEVICE void copy_to_both(const Block& b, uint8_t* to, uint8_t* also, const uint8_t* from, uint64_t bytes) {
  for_each_tile(b, bytes, kTile, [&](uint64_t at, uint64_t n) {
    copy_tile(b, to + at, from + at, n);
    copy_tile(b, also + at, from + at, n);
  });
}

// What a block moves from one of several sources: tiles of `bytes` bytes.
struct Move {
  uint8_t* to;
  const uint8_t* from;
  uint64_t bytes;
};

// From several sources, `move(k)` from the k-th, none of more than `longest` bytes: tile by tile, from each in turn. Which
// block moves which tile is as in copy_to_both(). Each begins with another source, so that all ways work at the same time.
template <class F> CROSSCCL_DEVICE void copy_in_turn(const Block& b, uint32_t sources, uint64_t longest, F move) {
  for (uint64_t t = b.block; t * kTile < longest; t += b.blocks) {
    const uint64_t at = t * kTile;
    CROSSCCL_ROLLED for (uint32_t k = 0; k < sources; ++k) {
      const Move m = move((uint32_t(t) + k) % sources);
      if (at < m.bytes) copy_tile(b, m.to + at, m.from + at, m.bytes - at < kTile ? m.bytes - at : kTile);
    }
  }
}

}  // namespace crossccl
