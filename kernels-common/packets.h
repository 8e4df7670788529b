// Packets: small messages that carry their flags with them, so that one flight is all. A word of 64 bits is 32 of data
// under a flag of 32; it is stored and loaded whole, and a reader takes it when the flag is this launch's. Nothing is
// released and nothing acquired: what a word says is all that is learned from it.
//
//   1. start     as every launch, but the record is not sent; wait until the slots that I write were read (two launches ago)
//   2. push      header and data into the slot that each peer has for me
//   3. announce  my record to all: who called something else finds it, and who waits for all (strict) needs it
//   4. collect   header, then data of those that I depend on; the header is compared before anything is written
//   5. finish    the last block advances epoch and number and acknowledges: all that I was sent up to this launch is read
//
// Each directed pair of ranks of a domain has an inbox of two slots in the receiver's signal buffer, written by the sender
// alone. The number of a launch, on which slot and flag depend, counts the domain's packet launches and nothing else:
// launches that pull owe no acknowledgement, and one by packets owes one to every peer, whether that sent something or
// not. So the wait for launch number - 2 is one for something that is owed, whoever sends to whom.
//
// The acknowledgement is relaxed. It stands behind loads whose values it depends on: a load that was late after all
// would find another launch's flag and not be taken for this one's.
//
// Flags repeat after 2^31 launches. A word that no message has reached for so long would pass for a new one; so each
// kRestamp launches every rank stamps all words that it does not write in that launch, in both slots of each peer.
//
// The header holds what the record holds, but for the addresses: a source may be a launch ahead, and its record another
// one's by then. A failure is noted down and told once, at the end: its code is long.
#pragma once

namespace crossccl {

struct Packets : Rendezvous {
  Lost lost{};
  bool announced = false;
  uint64_t mine;    // in a peer's signal buffer: the slot for what I send in this launch
  uint64_t theirs;  // in mine: that for what rank 0 sends

  CROSSCCL_METHOD Packets(const Arguments& arguments, const Block& block)
      : Rendezvous(arguments, block, true), mine((uint64_t)own.slot(a.rank, number) - (uint64_t)own.base),
        theirs((uint64_t)own.slot(0, number) - (uint64_t)own.base) {}

  // This thread among all of the launch.
  CROSSCCL_METHOD uint32_t first() const { return b.block * b.threads + b.thread; }
  CROSSCCL_METHOD uint32_t all() const { return b.blocks * b.threads; }
  // The k-th rank behind mine.
  CROSSCCL_METHOD uint32_t behind(uint32_t k) const { return a.rank + k < a.ranks ? a.rank + k : a.rank + k - a.ranks; }

  // Step 1. `to`: whom I send something. One barrier, where nobody is late.
  template <class Who> CROSSCCL_METHOD void start(Who to) {
    const bool everybody = restamps();
    const uint64_t slots = everybody ? 1 : kInboxSlots;
    const auto is_read = [=](uint32_t p) { return load_relaxed(own.ack(p)) + slots >= number; };
    const auto whom = [=](uint32_t p) { return everybody || to(p); };
    bool bad = !has_begun(), late = a.strict != 0;
    CROSSCCL_ROLLED for (uint32_t r = b.thread; r < a.world; r += b.threads)
      if (!kUnchecked && load_relaxed(own.poison(r)) != kNone && !planted(kNoPoisonLook)) bad = true;
    // By others than those that look for poison: one behind the other, the loads would cost two latencies.
    CROSSCCL_ROLLED for (uint32_t p = (b.thread + b.threads / 4) % b.threads; p < a.ranks; p += b.threads)
      if (p != a.rank && whom(p) && !is_read(p) && !planted(kNoAckWait)) late = true;
    if (!b.any(bad || late)) return;
    if (b.any(bad)) {
      ok = false;
      // Who poisoned me is found when it is told.
      if (bad) lost = Lost{1, 0, kMaxRanks, 0};
      if (b.block == 0 && b.thread == 0) hand_on();
      return;
    }
    // Nobody is quick any more: the record goes first, or peers would miss it while I wait for another one.
    announce();
    if (a.strict != 0)
      hold(watch([](uint32_t) { return true; }, 0, [&](uint32_t p, bool) {
        const Arrival found = glance_at_record(p);
        return found == Arrival::kAbsent ? Look::kNotYet : found == Arrival::kDiffers ? Look::kFailed : Look::kThere;
      }));
    if (!planted(kNoAckWait))
      hold(watch(whom, kForAck, [&](uint32_t p, bool slow) {
        if (is_read(p)) return Look::kThere;
        return slow && glance_at_record(p) == Arrival::kDiffers ? Look::kFailed : Look::kNotYet;
      }));
  }

  // Step 2. Where my slot at `p` is, and a unit of data for it.
  CROSSCCL_METHOD uint64_t* slot_at(uint32_t p) const { return (uint64_t*)(a.signal[p] + mine); }
  CROSSCCL_METHOD void put(uint64_t* slot, uint64_t unit, uint64_t data) const {
    const uint64_t flag = packet_flag(number);
    store_packets(slot + 2 * unit, (data & 0xffffffff) | flag, data >> 32 | flag);
  }
  CROSSCCL_METHOD uint64_t header(uint32_t which) const { return field(which); }
  // Units of a message: header and data.
  CROSSCCL_METHOD static uint32_t units(uint64_t bytes) { return kHeaderUnits + uint32_t((bytes + kUnit - 1) / kUnit); }

  // `pushed(p)`: units that this launch sends to p. Words of this slot that it writes are left out, so that no two
  // threads write one.
  template <class Pushed> CROSSCCL_METHOD void restamp(Pushed pushed) const {
    if (!restamps() || !ok) return;
    const uint64_t old = packet_flag(number - 1);
    const uint32_t most = uint32_t(a.at.slot / (2 * sizeof(uint64_t)));
    CROSSCCL_ROLLED for (uint32_t k = 1; k < a.ranks; ++k) {
      const uint32_t p = behind(k);
      CROSSCCL_ROLLED for (uint32_t unit = first(); unit < 2 * most; unit += all()) {
        const uint32_t at = unit < most ? unit : unit - most;
        if (unit >= most || at >= pushed(p))
          store_packets(peer(p).slot(a.rank, number - unit / most) + 2 * at, old, old);
      }
    }
  }

  // Step 3.
  CROSSCCL_METHOD void announce() {
    if (announced || !ok) return;
    announced = true;
    send_records();
  }

  // Step 4, the headers alone.
  template <class Who> CROSSCCL_METHOD bool expect_headers(Who from) {
    hold(watch_headers(from));
    return ok;
  }

  // Step 4. `poll()` loads this thread's packets and answers whose of them are not there, bit 0 for `rank`. All threads of
  // the block together; the first time with the headers of `from`. One barrier, where nobody is late.
  template <class Who, class Poll>
  CROSSCCL_METHOD bool collect(bool with_headers, Who from, uint32_t rank, Poll poll) {
    if (!ok) return false;
    uint64_t begin = 0;
    uint32_t missing = 1, tries = 0, looks = 0;
    bool bad = false, last = false;
    CROSSCCL_ROLLED for (;;) {
      CROSSCCL_ROLLED for (uint32_t k = 0; k < kTriesPerLook && missing != 0; ++k) {
        missing = poll();
        if (missing != 0 && !with_headers) relax(tries++);
      }
      if (with_headers) {
        const Lost found = watch_headers(from);
        bad = found.pending != 0;
        if (bad) lost = found;
        with_headers = false;
      }
      if (!b.any(bad || missing != 0)) return true;
      if (b.any(bad)) break;
      const uint64_t now = clock_ticks();
      if (begin == 0) begin = now;
      if (last) {
        if (missing != 0) lost = Lost{uint64_t(missing) << rank, now - begin, kMaxRanks, kForPackets};
        break;
      }
      // One thread looks for the block, after as many tries as take some time. Then all look for their packets once more.
      last = b.any(b.thread == 0 && must_end(now - begin, ++looks % kLooksPerHostLook == 0));
    }
    ok = false;
    return false;
  }

  // Two packets of unit `unit` of what `p` sent: whether they are this launch's.
  CROSSCCL_METHOD const uint64_t* slot_of(uint32_t p) const {
    return (const uint64_t*)(own.base + theirs + p * (kInboxSlots * a.at.slot));
  }
  CROSSCCL_METHOD bool is_there(const uint64_t* w) const {
    const uint64_t flag = packet_flag(number);
    return planted(kNoFlagCompare) || ((w[0] ^ flag) | (w[1] ^ flag)) >> 32 == 0;
  }
  // Step 5. The last block knows that all others have read their packets.
  CROSSCCL_METHOD void finish() {
    const uint64_t owed = number - (restamps() ? 1 : kInboxSlots);
    if (lost.pending != 0) give_up(lost, lost.phase == 0 ? epoch : lost.phase == kForAck ? owed : number);
    b.sync();
    if (b.thread != 0) return;
    if (a.overlap != kNoOverlap) release_next();
    if (!is_last()) return;
    store_relaxed(own.packets(), number);
    // To those as well who sent nothing in this launch: whoever sends next has not to know.
    if (ok)
      CROSSCCL_ROLLED for (uint32_t p = 0; p < a.ranks; ++p)
        if (p != a.rank) store_relaxed(peer(p).ack(a.rank), number);
    store_relaxed(own.epoch(), epoch);
  }

 private:
  CROSSCCL_METHOD bool restamps() const { return number % kRestamp == 0 && !planted(kNoRestamp); }

  CROSSCCL_METHOD void hold(const Lost& found) {
    if (found.pending != 0) lost = found;
    join(found.pending == 0);
  }

  template <class Who> CROSSCCL_METHOD Lost watch_headers(Who from) const {
    return watch(from, kForHeader, [&](uint32_t p, bool slow) {
      // Before the header, and in that order: one that has gone on without a header for me, which would be there, called
      // something else. Its header left two of its launches before such a record, with nothing but their ends between.
      const Arrival found = !kUnchecked && slow ? glance_at_record(p) : Arrival::kAbsent;
      if (found == Arrival::kGone) see_published(own.record(p, epoch)->words);
      const bool elsewhere = found == Arrival::kGone || found == Arrival::kDiffers;
      uint64_t w[kHeaderUnits][2], flags = 0, differs = 0;
      CROSSCCL_UNROLL for (uint32_t k = 0; k < kHeaderUnits; ++k) load_packets(w[k], slot_of(p) + 2 * k);
      CROSSCCL_UNROLL for (uint32_t k = 0; k < kHeaderUnits; ++k) {
        flags |= (w[k][0] ^ packet_flag(number)) | (w[k][1] ^ packet_flag(number));
        if (!kUnchecked && !planted(kNoCompare) && !(planted(kHashAlone) && k > 0)) differs |= data_of(w[k]) ^ header(k);
      }
      if (flags >> 32 != 0) return elsewhere ? Look::kFailed : Look::kNotYet;
      return differs == 0 ? Look::kThere : Look::kFailed;
    });
  }
};

// A unit of bytes, from and to any address; those beyond `left` are 0 and not touched.
CROSSCCL_DEVICE uint64_t load_unit(const uint8_t* from, uint64_t left) {
  uint64_t data = 0;
  if (left >= kUnit && (kUnalignedVectors || (uint64_t)from % kUnit == 0)) {
    alignas(kUnit) uint8_t x[kUnit];
    load_pieces<1, kUnit>(x, from, kUnit);
    __builtin_memcpy(&data, x, sizeof data);
    return data;
  }
  CROSSCCL_UNROLL for (uint32_t k = 0; k < kUnit; ++k) {
    uint8_t x = 0;
    if (k < left) load_pieces<1, 1>(&x, from + k, 1);
    data |= uint64_t(x) << (8 * k);
  }
  return data;
}
CROSSCCL_DEVICE void store_unit(uint8_t* to, uint64_t data, uint64_t left) {
  if (left >= kUnit && (kUnalignedVectors || (uint64_t)to % kUnit == 0)) {
    alignas(kUnit) uint8_t x[kUnit];
    __builtin_memcpy(x, &data, sizeof data);
    store_pieces<1, kUnit>(to, x, kUnit);
    return;
  }
  CROSSCCL_UNROLL for (uint32_t k = 0; k < kUnit; ++k) {
    const uint8_t x = uint8_t(data >> (8 * k));
    if (k < left) store_pieces<1, 1>(to + k, &x, 1);
  }
}

}  // namespace crossccl
