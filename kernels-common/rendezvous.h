// How ranks meet. Every kernel is written in these steps:
//
//   1. start     wait for the launch before, read my launch epoch, look for poison, send my record to all peers (not waiting);
//                the last block that has read epoch and sequence advances them
//   2. expect    wait for the records of the ranks that I depend on, compare them with mine
//   3. signal / await    block flags, one sequence number per round
//   4. finish    the next launch may start, where launches overlap
//
// Invariants (README.md of this folder): every block of every rank goes through every step of its
// plan (I1); a wait that failed makes all later ones fall through; a rank that failed never signals
// again in this launch, so no peer can take unwritten memory for data.
//
// Every wait has a deadline, looks at the poison words and the abort word about every 20 us, and
// compares the record of the peer it waits for, so a disagreement is reported as such and not as a
// time-out, whoever came first.
#pragma once

namespace crossccl {

struct Signal {
  uint8_t* base;
  const Arguments& a;

  CROSSCCL_METHOD uint64_t* poison(uint32_t rank) const { return (uint64_t*)base + rank; }
  CROSSCCL_METHOD Failure* cause(uint32_t rank) const { return (Failure*)(base + a.at.cause) + rank; }
  CROSSCCL_METHOD uint64_t* probe(uint32_t half, uint32_t rank) const {
    return (uint64_t*)(base + a.at.probe) + half * a.world + rank;
  }
  CROSSCCL_METHOD uint64_t* epoch() const { return (uint64_t*)(base + a.at.domain); }
  CROSSCCL_METHOD uint64_t* sequence() const { return (uint64_t*)(base + a.at.domain + kLine); }
  CROSSCCL_METHOD uint64_t* ticket() const { return (uint64_t*)(base + a.at.domain + 2 * kLine); }
  CROSSCCL_METHOD uint64_t* packets() const { return (uint64_t*)(base + a.at.domain + 3 * kLine); }
  CROSSCCL_METHOD uint64_t* ack(uint32_t peer) const { return (uint64_t*)(base + a.at.domain + 4 * kLine) + peer; }
  // The slot for `peer`'s packets of a launch.
  CROSSCCL_METHOD uint64_t* slot(uint32_t peer, uint64_t number) const {
    const uint64_t slot = peer * kInboxSlots + (planted(kOneSlot) ? 0 : number % kInboxSlots);
    return (uint64_t*)(base + a.at.inbox + slot * a.at.slot);
  }
  CROSSCCL_METHOD Record* record(uint32_t peer, uint64_t epoch) const {
    return (Record*)(base + a.at.records) + peer * kRecordSlots + epoch % kRecordSlots;
  }
  CROSSCCL_METHOD uint64_t* flag(uint32_t phase, uint32_t block, uint32_t peer) const {
    return (uint64_t*)(base + a.at.flags) + (uint64_t(phase) * a.max_blocks + block) * a.world + peer;
  }
  CROSSCCL_METHOD uint8_t* payload() const { return base + a.at.payload; }
};

// What a wait for one peer found.
enum class Arrival : uint32_t { kAbsent, kAgrees, kDiffers, kGone };

// A wait that failed, for the story of it.
struct Lost {
  uint64_t pending;  // bit p: rank p had not come; 0: nothing failed
  uint64_t waited;
  uint32_t differs;  // the rank that calls something else, or kMaxRanks
  uint32_t phase;
};

// The flag of launch `number`, by packets or of a domain, above 32 bits of data. Never 0, which is what untouched memory
// holds.
CROSSCCL_DEVICE uint64_t packet_flag(uint64_t number) { return (number | 1ull << 31) << 32; }
// The launch whose flag `word` holds, out of those within 2^30 of `number`; 0: untouched.
CROSSCCL_DEVICE uint64_t launch_of(uint64_t word, uint64_t number) {
  if (word >> 32 == 0) return 0;
  return number + int64_t(int32_t((uint32_t(word >> 32) - uint32_t(number)) << 1) >> 1);
}
// 64 bits of data in two words.
CROSSCCL_DEVICE uint64_t data_of(const uint64_t* w) { return (w[0] & 0xffffffff) | w[1] << 32; }

struct Rendezvous {
  const Arguments& a;
  const Block& b;
  Signal own;
  uint64_t epoch;     // of this launch
  uint64_t sequence;  // flags before this launch
  uint64_t number;    // of this launch among those by packets; 0: it is none
  bool ok;

  CROSSCCL_METHOD Rendezvous(const Arguments& arguments, const Block& block, bool by_packets = false)
      : a(arguments), b(block), own{(uint8_t*)arguments.signal[arguments.rank], arguments}, ok(true) {
    // The launch before this one raises the epoch, and wrote what the peers read as soon as my record is there.
    if (!planted(kNoPreviousWait)) await_previous();
    if (a.overlap == kReleaseAtBeginning) release_next();
    epoch = load_relaxed(own.epoch()) + 1;
    sequence = load_relaxed(own.sequence());
    number = by_packets ? load_relaxed(own.packets()) + 1 : 0;
  }

  // True. To be asked in front of a barrier: epoch and numbers have come then, of every thread of the block, so that one of
  // them may draw the ticket that lets others overwrite them.
  CROSSCCL_METHOD bool has_begun() const { return epoch != 0 && sequence != ~uint64_t(0) && number != ~uint64_t(0); }

  CROSSCCL_METHOD Signal peer(uint32_t p) const { return Signal{(uint8_t*)a.signal[p], a}; }
  CROSSCCL_METHOD Control* control() const { return (Control*)a.control; }

  // Step 1.
  CROSSCCL_METHOD void start() {
    // While epoch and numbers are on their way, and by others than those that look for poison.
    if (is_sender()) publish_launches();
    // A rank that comes after a time-out must not touch peers whose buffers may be gone.
    bool bad = !has_begun();
    CROSSCCL_ROLLED for (uint32_t r = b.thread; r < a.world; r += b.threads)
      // Nothing is read on the strength of it, so relaxed.
      if (!kUnchecked && load_relaxed(own.poison(r)) != kNone && !planted(kNoPoisonLook)) bad = true, fail(kPoisoned, r, 0, 0, 0, 0);
    ok = !b.any(bad);
    // A failure in one scope must reach those who wait for this rank in another: a group's failure the
    // world that was enqueued behind it.
    if (!ok && b.block == 0 && b.thread == 0) hand_on();
    if (ok) send_records();
    if (b.thread == 0) advance();
  }

  // Step 2. The record of `p` has arrived and agrees; its pointers may be read.
  CROSSCCL_METHOD bool expect(uint32_t p) {
    return await_records([=](uint32_t q) { return q == p; }, true);
  }
  // `sources`: I read the memory of all of them, and they wait for my credit. One that is ahead has then
  // not waited: it called something else (a rank that took a later record for this one's read what a later
  // launch had in mind). Others may be ahead: what they did in this launch did not depend on me.
  CROSSCCL_METHOD bool expect_all(bool sources) {
    return await_records([](uint32_t) { return true; }, sources);
  }
  // Only after p was expected as a source.
  CROSSCCL_METHOD const uint8_t* input_of(uint32_t p) const {
    return (const uint8_t*)(p == a.rank ? a.input : field_of(p, kInput));
  }

  CROSSCCL_METHOD const uint8_t* output_of(uint32_t p) const { return (const uint8_t*)field_of(p, kOutput); }

  // Step 3. `round` counts from 0 within the launch.
  //
  // One thread a peer; what the block wrote or read before is complete (sync).
  template <class Who> CROSSCCL_METHOD void signal(Phase phase, uint32_t round, Who who) {
    b.sync();
    if (!ok) return;
    CROSSCCL_ROLLED for (uint32_t p = b.thread; p < a.ranks; p += b.threads)
      if (p != a.rank && who(p)) set_flag(phase, peer(p).flag(phase, b.block, a.rank), sequence + round + 1);
  }
  template <class Who> CROSSCCL_METHOD bool await(Phase phase, uint32_t round, Who who) {
    if (planted(kNoStagedWait) && phase == kStaged) return join(true);
    if (planted(kNoCreditWait) && phase == kDone) return join(true);
    const uint64_t wanted = sequence + round + 1;
    return wait_for(who, 1 + phase, wanted, [&](uint32_t p, bool slow) {
      const uint64_t* flag = own.flag(phase, b.block, p);
      if ((planted(kRelaxedPoll) ? load_relaxed(flag) : load_acquire(flag)) >= wanted) return Look::kThere;
      return slow && glance_at_record(p) == Arrival::kDiffers ? Look::kFailed : Look::kNotYet;
    });
  }

  // Step 4. What was waited for is the block's own: credits of its readers.
  CROSSCCL_METHOD void finish() {
    if (a.overlap == kNoOverlap) return;
    b.sync();
    if (b.thread == 0) release_next();
  }

 protected:
  CROSSCCL_METHOD static void set_flag(Phase phase, uint64_t* flag, uint64_t value) {
    planted(kRelaxedRelease) || (kRelaxedCredits && phase == kDone) ? store_relaxed(flag, value) : store_release(flag, value);
  }

  CROSSCCL_METHOD bool join(bool good) {
    ok = !b.any(!good) && ok;
    return ok;
  }

  // One thread of each block, behind a barrier behind has_begun(). The last block knows that all others have (case E13: a
  // block that advanced them early let slow blocks read the next launch's). Nobody looks at them again in this launch, so it
  // need not be over: at its end the ticket would be one more thing that the next launch waits for.
  CROSSCCL_METHOD void advance() const {
    if (!is_last()) return;
    store_relaxed(own.sequence(), sequence + a.rounds);
    store_relaxed(own.epoch(), epoch);
  }
  CROSSCCL_METHOD bool is_last() const {
    // One block has nobody to wait for.
    const uint64_t others = b.blocks > 1 ? add_ticket(own.ticket()) : 0;
    if (planted(kEarlyEpoch) && others == 0) store_relaxed(own.epoch(), epoch);
    if (others + 1 != b.blocks) return false;
    store_relaxed(own.ticket(), 0);
    return true;
  }

  CROSSCCL_METHOD uint64_t stamped_fingerprint() const { return (epoch << 48) | (a.fingerprint & 0xffffffffffffull); }

  // What my record says; the first kHeaderUnits of it are a header of packets.
  CROSSCCL_METHOD uint64_t field(uint32_t which) const {
    switch (which) {
      case kFingerprint: return stamped_fingerprint();
      case kCount: return a.count;
      case kShapeHash: return a.shape_hash;
      case kPacked: return a.packed;
      case kInput: return a.input;
      default: return a.output;
    }
  }
  // What `p`'s record says.
  CROSSCCL_METHOD uint64_t field_of(uint32_t p, uint32_t which) const {
    uint64_t w[2];
    load_packets(w, own.record(p, epoch)->words + 2 * which);
    return data_of(w);
  }
  // The launch that it is of, with what a failure tells of it, by Field; 0 where not all of that has come. Read once: a rank may
  // be on its way to another launch, whose fields were told as this one's.
  CROSSCCL_METHOD uint64_t epoch_of(uint32_t p, uint64_t (&fields)[kHeaderUnits]) const {
    const uint64_t* words = own.record(p, epoch)->words;
    uint64_t w[kHeaderUnits][2], flags = 0;
    CROSSCCL_UNROLL for (uint32_t k = 0; k < kHeaderUnits; ++k) load_packets(w[k], words + 2 * k);
    CROSSCCL_UNROLL for (uint32_t k = 0; k < kHeaderUnits; ++k) {
      flags |= (w[k][0] ^ w[0][0]) | (w[k][1] ^ w[0][0]);
      fields[k] = data_of(w[k]);
    }
    const uint64_t found = launch_of(w[0][0], epoch);
    return flags >> 32 != 0 && found <= epoch ? 0 : found;
  }
  CROSSCCL_METHOD uint64_t epoch_of(uint32_t p) const {
    uint64_t fields[kHeaderUnits];
    return epoch_of(p, fields);
  }

  // In the middle of block 0: neither those that move a short message nor those that look and poll.
  CROSSCCL_METHOD uint32_t sender() const { return (b.thread + b.threads / 2) % b.threads; }
  CROSSCCL_METHOD bool is_sender() const { return b.block == 0 && sender() < a.ranks; }
  CROSSCCL_METHOD void send_records() const {
    if (!is_sender()) return;
    CROSSCCL_ROLLED for (uint32_t p = sender(); p < a.ranks; p += b.threads)
      if (p != a.rank) send_record(p);
  }
  CROSSCCL_METHOD void send_record(uint32_t p) const {
    uint64_t* words = peer(p).record(a.rank, epoch)->words;
    const uint64_t flag = packet_flag(epoch);
    CROSSCCL_UNROLL for (uint32_t k = 0; k < kFields; ++k)
      store_published(words + 2 * k, (field(k) & 0xffffffff) | flag, field(k) >> 32 | flag);
  }

  // A newer one is no verdict: a peer that does not wait for me may be ahead. One that is being overwritten is looked at
  // again until its first word says so.
  CROSSCCL_METHOD Arrival not_there(uint64_t first) const {
    return launch_of(first, epoch) > epoch ? Arrival::kGone : Arrival::kAbsent;
  }
  CROSSCCL_METHOD Arrival verdict(uint64_t differs) const {
    return differs == 0 || planted(kNoCompare) || kUnchecked ? Arrival::kAgrees : Arrival::kDiffers;
  }
  // By its hash, for who waits for something else of `p`: nothing is read on the strength of it.
  CROSSCCL_METHOD Arrival glance_at_record(uint32_t p) const {
    const uint64_t* words = own.record(p, epoch)->words;
    const uint64_t flag = packet_flag(epoch);
    uint64_t w[2], flags;
    load_published(w, words);
    flags = (w[0] ^ flag) | (w[1] ^ flag);
    if (flags >> 32 != 0) return not_there(w[0]);
    const Arrival found = verdict(data_of(w) ^ field(kFingerprint));
    // The rest may still be on its way, and is what the failure tells.
    if (found == Arrival::kDiffers)
      CROSSCCL_ROLLED for (uint32_t k = 2; k < 2 * kHeaderUnits; ++k) flags |= load_relaxed(words + k) ^ flag;
    return flags >> 32 != 0 ? Arrival::kAbsent : found;
  }
  CROSSCCL_METHOD Arrival look_at_record(uint32_t p) const {
    const uint64_t* words = own.record(p, epoch)->words;
    const uint64_t flag = packet_flag(epoch);
    // All loads at once: one after the other they would cost a latency each.
    uint64_t w[kFields][2], flags = 0, differs = 0;
    CROSSCCL_UNROLL for (uint32_t k = 0; k < kFields; ++k) load_published(w[k], words + 2 * k);
    CROSSCCL_UNROLL for (uint32_t k = 0; k < kFields; ++k) {
      flags |= (w[k][0] ^ flag) | (w[k][1] ^ flag);
      // A hash is no proof, and what is read depends on it.
      if (k < kHeaderUnits && (k == 0 || !planted(kHashAlone))) differs |= data_of(w[k]) ^ field(k);
    }
    if (flags >> 32 != 0) return not_there(w[0][0]);
    see_published(words);
    return verdict(differs);
  }

  template <class Who> CROSSCCL_METHOD bool await_records(Who who, bool sources) {
    if (planted(kNoRecordWait)) return join(true);
    // Strict: for everybody's first.
    CROSSCCL_ROLLED for (uint32_t pass = a.strict != 0 ? 0 : 1; pass < 2; ++pass) {
      const bool strict = pass == 0, source = sources && !strict;
      wait_for([&](uint32_t p) { return strict || who(p); }, 0, epoch, [&](uint32_t p, bool) {
        const Arrival found = look_at_record(p);
        if (found == Arrival::kAbsent) return Look::kNotYet;
        const bool there = found == Arrival::kAgrees || (found == Arrival::kGone && (!source || planted(kGoneAgrees)));
        return there ? Look::kThere : Look::kFailed;
      });
    }
    return ok;
  }

  enum class Look : uint32_t { kThere, kNotYet, kFailed };

  // Waits for all ranks of the domain for which `who` holds, in whatever order they come: one limit for
  // all of them (one after the other, stragglers added up to many limits). Each thread of the block has
  // its peers. `look(p, slow)` says whether p is there, or calls something else. A failure is told at the end and
  // nowhere else: its code is long, and GPUs get a copy of it for each wait.
  template <class Who, class LookAt>
  CROSSCCL_METHOD bool wait_for(Who who, uint32_t phase, uint64_t wanted, LookAt look) {
    const Lost lost = watch(who, phase, look);
    if (lost.pending != 0) give_up(lost, wanted);
    return join(lost.pending == 0);
  }

  // The same without telling anybody, the block's other threads included. The last threads of the block do it: the
  // first ones are those that move a short message.
  template <class Who, class LookAt>
  CROSSCCL_METHOD Lost watch(Who who, uint32_t phase, LookAt look) const {
    uint64_t pending = 0;
    if (ok)
      CROSSCCL_ROLLED for (uint32_t p = b.threads - 1 - b.thread; p < a.ranks; p += b.threads)
        if (p != a.rank && who(p)) pending |= 1ull << p;
    // The clock is read first after some tries: it is far, and a peer that is there needs none.
    uint64_t begin = 0, next = 0, now = 0;
    uint32_t tries = 0, looks = 0, differs = kMaxRanks;
    bool slow = false, last = false;
    CROSSCCL_ROLLED while (pending != 0) {
      CROSSCCL_ROLLED for (uint64_t left = pending; left != 0; left &= left - 1) {
        const uint32_t p = lowest_bit(left);
        const Look found = look(p, slow);
        if (found == Look::kThere) pending &= ~(1ull << p);
        if (found == Look::kFailed) differs = p;
        if (found == Look::kFailed) break;
      }
      if (pending == 0 || differs != kMaxRanks || last) break;
      relax(tries++);
      slow = false;
      if (kUnchecked || tries % kTriesPerLook != 0) continue;
      now = clock_ticks();
      if (begin == 0) begin = now, next = now + kSlowLook;
      slow = now >= next;
      if (!slow) continue;
      next = now + kSlowLook;
      // Then one more look: a process that was stopped and goes on finds its peers there.
      last = must_end(now - begin, ++looks % kLooksPerHostLook == 0);
    }
    return Lost{pending, now - begin, differs, phase};
  }

  // `host`: whether to look at the host's word as well, which is far away.
  CROSSCCL_METHOD bool must_end(uint64_t waited, bool host) const {
    if (kUnchecked) return false;
    if (a.limit != 0 && waited >= a.limit) return true;
    if (host && load_relaxed(&control()->abort) != 0) return true;
    CROSSCCL_ROLLED for (uint32_t k = 0; k < a.world; ++k)
      if (load_relaxed(own.poison(k)) != kNone) return true;
    return false;
  }

  CROSSCCL_METHOD void give_up(const Lost& lost, uint64_t wanted) {
    const bool differs = lost.differs != kMaxRanks;
    FailureKind kind = kMismatch;
    uint32_t p = lost.differs;
    if (!differs) {
      kind = load_relaxed(&control()->abort) != 0 ? kAborted : kTimeout;
      p = lowest_bit(lost.pending);
    }
    const uint64_t seen = lost.phase == 0         ? epoch_of(p)
                          : number == 0           ? load_relaxed(own.flag(lost.phase - 1, b.block, p))
                          : lost.phase == kForAck ? load_relaxed(own.ack(p))
                                                  : load_relaxed(own.slot(p, number));
    if (!differs)
      CROSSCCL_ROLLED for (uint32_t k = a.world; k-- > 0;)
        if (k != a.world_rank && load_acquire(own.poison(k)) != kNone) kind = kPoisoned, p = k;
    fail(kind, p, lost.phase, wanted, seen, lost.waited, differs ? 0 : lost.pending);
    if (kind == kPoisoned) hand_on();
  }

  // Elected once per rank and poisoning: the winner writes the status record, then tells the peers.
  CROSSCCL_METHOD void fail(FailureKind kind, uint32_t p, uint32_t phase, uint64_t wanted, uint64_t seen, uint64_t ticks,
                            uint64_t pending = 0) {
    if (!claim(own.poison(a.world_rank), kind)) return;
    uint64_t missing = 0;
    CROSSCCL_ROLLED for (uint32_t q = 0; q < a.ranks; ++q) {
      Observed* o = &control()->observed[q];
      const bool mine = q == a.rank;
      uint64_t fields[kHeaderUnits];
      const uint64_t found = epoch_of(q, fields), stamp = mine ? epoch : found;
      if (stamp < epoch) missing |= 1ull << q;
      store_relaxed(&o->stamp, stamp);
      store_relaxed(&o->count, mine ? a.count : fields[kCount]);
      store_relaxed(&o->shape_hash, mine ? a.shape_hash : fields[kShapeHash]);
      store_relaxed(&o->packed, mine ? a.packed : fields[kPacked]);
      // Its record may not have come, or be another launch's by now: the header is what was compared.
      if (number != 0 && phase == kForHeader && kind == kMismatch && q == p && header_is_there(p)) observe_header(p);
    }
    // All came, some are stuck in a later step.
    if (missing == 0) missing = pending;
    // The status record first, then the peers; kPoisoned is handed on instead (hand_on).
    const uint32_t told = kind == kPoisoned ? 1 : a.ranks;
    CROSSCCL_ROLLED for (uint32_t k = 0; k < told; ++k) {
      const Signal to = peer((a.rank + k) % a.ranks);
      write(k == 0 ? &control()->failure : to.cause(a.world_rank), kind, p, phase, wanted, seen, ticks, missing);
      store_release(k == 0 ? &control()->state : to.poison(a.world_rank), kind);
    }
  }

  // Word `which` of the header of `p`'s packets.
  CROSSCCL_METHOD uint64_t header_of(uint32_t p, uint32_t which) const {
    uint64_t w[2];
    load_packets(w, own.slot(p, number) + 2 * which);
    return data_of(w);
  }
  CROSSCCL_METHOD bool header_is_there(uint32_t p) const {
    uint64_t differs = 0;
    CROSSCCL_ROLLED for (uint32_t k = 0; k < 2 * kHeaderUnits; ++k)
      differs |= (load_relaxed(own.slot(p, number) + k) ^ packet_flag(number)) >> 32;
    return differs == 0;
  }
  // Where in the order of launches it belongs, its fingerprint says in 16 bits.
  CROSSCCL_METHOD void observe_header(uint32_t p) const {
    Observed* o = &control()->observed[p];
    const uint64_t ahead = ((header_of(p, 0) >> 48) - epoch) & 0xffff;
    store_relaxed(&o->stamp, ahead < 0x8000 ? epoch + ahead : epoch);
    store_relaxed(&o->count, header_of(p, kCount));
    store_relaxed(&o->shape_hash, header_of(p, kShapeHash));
    store_relaxed(&o->packed, header_of(p, kPacked));
  }

  // Tells the peers of this launch that this rank takes no part: it was poisoned, now or before.
  CROSSCCL_METHOD void hand_on() const {
    if (planted(kPoisonStays)) return;
    CROSSCCL_ROLLED for (uint32_t q = 0; q < a.ranks; ++q)
      if (q != a.rank && load_relaxed(peer(q).poison(a.world_rank)) == kNone)
        store_release(peer(q).poison(a.world_rank), kPoisoned);
  }

  CROSSCCL_METHOD void write(Failure* f, FailureKind kind, uint32_t p, uint32_t phase, uint64_t wanted, uint64_t seen,
                             uint64_t ticks, uint64_t missing) const {
    store_relaxed(&f->call, a.call);
    store_relaxed(&f->epoch, epoch);
    store_relaxed(&f->wanted, wanted);
    store_relaxed(&f->seen, seen);
    store_relaxed(&f->missing, missing);
    store_relaxed(&f->ticks, ticks);
    store_relaxed((uint64_t*)&f->kind, uint64_t(kind) | uint64_t(p) << 32);
    store_relaxed((uint64_t*)&f->phase, uint64_t(phase) | uint64_t(a.domain) << 32);
    store_relaxed((uint64_t*)&f->block, uint64_t(b.block) | uint64_t(a.rank) << 32);
  }
};

}  // namespace crossccl
