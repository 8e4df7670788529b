// The functional test of peer access at set-up, in two launches with a host synchronisation between
// them: every rank writes a word into every peer's probe slots, then every rank reads its word back
// from every peer. Some machines report peer access and drop or corrupt the traffic (case D2).
// No rank waits for another, so nothing can hang. Needs one block.
#pragma once

namespace crossccl {

CROSSCCL_DEVICE uint64_t probe_pattern(uint32_t from, uint32_t to) {
  return 0x9e3779b97f4a7c15ull * (uint64_t(from) * kMaxRanks + to + 1);
}

CROSSCCL_DEVICE void self_test_write(const Block& b, const Arguments& a) {
  for (uint32_t p = b.thread; p < a.world; p += b.threads)
    store_release(Signal{(uint8_t*)a.signal[p], a}.probe(0, a.rank), probe_pattern(a.rank, p));
}

// What was read from peer p goes into my own second half, at p.
CROSSCCL_DEVICE void self_test_read(const Block& b, const Arguments& a) {
  for (uint32_t p = b.thread; p < a.world; p += b.threads)
    store_release(Signal{(uint8_t*)a.signal[a.rank], a}.probe(1, p),
                  load_acquire(Signal{(uint8_t*)a.signal[p], a}.probe(0, a.rank)));
}

}  // namespace crossccl
