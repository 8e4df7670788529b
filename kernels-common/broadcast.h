// Broadcast of `bytes` bytes from the root to every rank of the domain. Any alignment, any length.
#pragma once

namespace crossccl {

// One stage: the others pull the whole message from the root.
//
//   root:   records of all -> own copy (unless in place) -> credits of all
//   others: record of the root -> pull -> credit to the root
//
// Flag flights on the critical path: one (record), one more (credit) before the root may go on.
// The root looks at all records before it writes its own output, so that a disagreement leaves
// that untouched too; it waits for the credits of the same ranks anyway.
CROSSCCL_DEVICE void broadcast_one_stage(const Block& b, const Arguments& a) {
  Rendezvous meet(a, b);
  uint8_t* out = (uint8_t*)a.output;
  const uint8_t* in = (const uint8_t*)a.input;
  meet.start();
  if (a.rank == a.root) {
    if (meet.expect_all(false) && out != nullptr && out != in) copy(b, out, in, a.bytes);
    meet.await(kDone, 0, [](uint32_t) { return true; });
  } else {
    const uint32_t root = a.root;
    if (meet.expect(root)) copy(b, out, meet.input_of(root), a.bytes);
    meet.signal(kDone, 0, [=](uint32_t p) { return p == root; });
  }
  meet.finish();
}

// Two stages, staged in the signal buffers' payload, in rounds of one segment each.
//
//   every rank: records of all
//   each round, a segment cut into one chunk a rank:
//     1. non-root r pulls chunk r from the root into its payload half and its output, flags "staged"
//     2. after the flags of all it gathers the other chunks: the root's from the root's input, p's from
//        p's payload; tile by tile from each in turn, so that all links work at the same time
//   end: every rank credits those that it read from, and waits for the credits of those that read
//        from it (payload, root's input)
//
// Two halves are enough without a credit a round: before I overwrite half i % 2 in round i, I have
// gathered round i - 1 from every p, which p staged only after it had gathered round i - 2 from me.
//
// Flag flights: record, staged, credit. Link load of the root: 2(n-1)/n of the message.
CROSSCCL_DEVICE void broadcast_two_stage_staged(const Block& b, const Arguments& a) {
  Rendezvous meet(a, b);
  uint8_t* out = (uint8_t*)a.output;
  const uint32_t me = a.rank, n = a.ranks, root = a.root;
  const bool is_root = me == root;
  const auto other_readers = [=](uint32_t p) { return p != root; };
  meet.start();
  meet.expect_all(!is_root);
  const uint8_t* in = meet.ok ? meet.input_of(root) : nullptr;
  for (uint32_t round = 0; round < a.rounds; ++round) {
    const uint64_t at = round * a.segment, left = a.bytes - at, bytes = left < a.segment ? left : a.segment;
    const uint64_t half = planted(kOneHalf) ? 0 : (round & 1) * a.payload_half;
    if (is_root) {
      if (meet.ok && out != nullptr && out != in) copy(b, out + at, in + at, bytes);
      continue;
    }
    const Chunks chunks(bytes, n);
    if (meet.ok) {
      const Span c = chunks.of(me);
      copy_to_both(b, meet.own.payload() + half, out + at + c.begin, in + at + c.begin, c.end - c.begin);
    }
    meet.signal(kStaged, round, other_readers);
    meet.await(kStaged, round, other_readers);
    if (!meet.ok) continue;
    copy_in_turn(b, n - 1, chunks.longest(), [&](uint32_t k) {
      const uint32_t p = (me + 1 + k) % n;
      const Span c = chunks.of(p);
      return Move{out + at + c.begin, p == root ? in + at + c.begin : meet.peer(p).payload() + half, c.end - c.begin};
    });
  }
  if (!is_root) meet.signal(kDone, a.rounds - 1, [](uint32_t) { return true; });
  meet.await(kDone, a.rounds - 1, other_readers);
  meet.finish();
}

// Two stages, direct: no payload. The message is cut in slices (rounds), each slice into one chunk for
// every rank but the root.
//
//   every rank: records of all
//   each slice:
//     1. non-root r pulls its chunk from the root into its output, flags "staged"
//     2. after their flags it gathers the other chunks from the other non-roots' outputs; one slice
//        behind, so that gathering a slice overlaps pulling the next
//   end: as staged
//
// A step takes tiles from all its sources in turn: the root (slice i) and the other non-roots (slice i - 1). One source
// after the other, all blocks would pull and then gather: the root's link and the others' would work in turn instead of
// together, and the links of a mesh one at a time (tests/simulator).
//
// What a rank reads in stage 2, its owner wrote in the same launch, block by block (I3): targets whose
// ordinary memory is not coherent between devices while kernels run must use the staged form.
//
// Flag flights: record, staged, credit. Link load of the root: the message once.
CROSSCCL_DEVICE void broadcast_two_stage_direct(const Block& b, const Arguments& a) {
  Rendezvous meet(a, b);
  uint8_t* out = (uint8_t*)a.output;
  const uint32_t me = a.rank, n = a.ranks, root = a.root;
  const bool is_root = me == root;
  const auto other_readers = [=](uint32_t p) { return p != root; };
  // The k-th rank behind the root has chunk k of each slice.
  const uint32_t mine = (me + n - root - 1) % n;
  const auto slice = [&](uint32_t round) {
    const uint64_t left = a.bytes - round * a.segment;
    return Chunks(left < a.segment ? left : a.segment, n - 1);
  };
  meet.start();
  meet.expect_all(!is_root);
  const uint8_t* in = meet.ok ? meet.input_of(root) : nullptr;
  if (is_root) {
    if (meet.ok && out != nullptr && out != in) copy(b, out, in, a.bytes);
  } else {
    Chunks behind(0, 1);
    for (uint32_t round = 0; round <= a.rounds; ++round) {
      const bool pulls = round < a.rounds, gathers = round > 0;
      if (gathers) meet.await(kStaged, round - 1, other_readers);
      const Chunks ahead = pulls ? slice(round) : Chunks(0, 1);
      if (meet.ok) {
        // Only those that have something: a turn that is left out would double the next one's load.
        const uint32_t first = pulls ? 0 : 1, sources = gathers ? n - 1 - first : 1;
        copy_in_turn(b, sources, gathers ? behind.longest() : ahead.longest(), [&](uint32_t k) {
          const uint32_t index = (mine + first + k) % (n - 1);
          const bool own = first + k == 0;
          const Span c = own ? ahead.of(index) : behind.of(index);
          const uint64_t at = (own ? round : round - 1) * a.segment + c.begin;
          return Move{out + at, (own ? in : meet.output_of((root + 1 + index) % n)) + at, c.end - c.begin};
        });
      }
      if (pulls) meet.signal(kStaged, round, other_readers);
      behind = ahead;
    }
    meet.signal(kDone, a.rounds - 1, [](uint32_t) { return true; });
  }
  meet.await(kDone, a.rounds - 1, other_readers);
  meet.finish();
}

// Low latency: packets (packets.h), for messages that a slot of an inbox takes.
//
//   root:   header and data to all -> record to all -> headers of all -> own copy (unless in place)
//   others: header to the root -> record to all -> header and data of the root -> output
//
// Flag flights: one, the data's. The root waits for one as well, at the same time: with a header each receiver tells that
// it called this, and a root that depended on nobody would not see that another one takes itself for the root.
CROSSCCL_DEVICE void broadcast_low_latency(const Block& b, const Arguments& a) {
  Packets meet(a, b);
  uint8_t* out = (uint8_t*)a.output;
  const uint8_t* in = (const uint8_t*)a.input;
  const uint32_t root = a.root, all = meet.all(), units = Packets::units(a.bytes);
  const bool is_root = a.rank == root;
  const auto others = [=](uint32_t p) { return is_root || p == root; };
  meet.start(others);
  meet.restamp([=](uint32_t p) { return is_root ? units : p == root ? kHeaderUnits : 0; });
  if (meet.ok) {
    const uint32_t mine = is_root ? units : kHeaderUnits;
    for (uint32_t unit = meet.first(); unit < mine; unit += all) {
      const uint64_t at = uint64_t(unit - kHeaderUnits) * kUnit;
      const uint64_t data = unit < kHeaderUnits ? meet.header(unit) : load_unit(in + at, a.bytes - at);
      if (!is_root) meet.put(meet.slot_at(root), unit, data);
      if (is_root)
        CROSSCCL_ROLLED for (uint32_t k = 1; k < a.ranks; ++k) meet.put(meet.slot_at(meet.behind(k)), unit, data);
    }
  }
  meet.announce();
  if (is_root) {
    if (meet.expect_headers(others) && out != nullptr && out != in) copy(b, out, in, a.bytes);
  } else {
    // Units of a thread in flight.
    constexpr uint32_t batch = 4;
    const uint64_t* slot = meet.slot_of(root);
    for (uint32_t from = kHeaderUnits; from == kHeaderUnits || from < units; from += batch * all) {
      uint64_t data[batch] = {};
      const uint32_t unit = from + meet.first();
      const auto poll = [&]() -> uint32_t {
        uint64_t w[batch][2];
        bool there = true;
        CROSSCCL_UNROLL for (uint32_t k = 0; k < batch; ++k)
          if (unit + k * all < units) load_packets(w[k], slot + 2 * (unit + k * all));
        CROSSCCL_UNROLL for (uint32_t k = 0; k < batch; ++k)
          if (unit + k * all < units) there = meet.is_there(w[k]) && there, data[k] = data_of(w[k]);
        return there ? 0 : 1;
      };
      if (!meet.collect(from == kHeaderUnits, others, root, poll)) break;
      CROSSCCL_UNROLL for (uint32_t k = 0; k < batch; ++k) {
        const uint64_t at = uint64_t(unit + k * all - kHeaderUnits) * kUnit;
        if (unit + k * all < units) store_unit(out + at, data[k], a.bytes - at);
      }
    }
  }
  meet.finish();
}

}  // namespace crossccl
