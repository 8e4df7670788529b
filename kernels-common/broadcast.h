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
//     2. it gathers the other chunks: the root's from the root's input, p's from p's payload
//        after p's flag
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
    if (meet.ok) {
      Span c = chunk(bytes, n, me);
      copy_to_both(b, meet.own.payload() + half, out + at + c.begin, in + at + c.begin, c.end - c.begin);
    }
    meet.signal(kStaged, round, other_readers);
    for (uint32_t k = 1; k < n; ++k) {
      const uint32_t p = (me + k) % n;
      const auto only = [=](uint32_t q) { return q == p; };
      if (p != root) meet.await(kStaged, round, only);
      if (!meet.ok) continue;
      Span c = chunk(bytes, n, p);
      const uint8_t* from = p == root ? in + at + c.begin : meet.peer(p).payload() + half;
      copy(b, out + at + c.begin, from, c.end - c.begin);
    }
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
//     2. it gathers the other chunks from the other non-roots' outputs, after their flags; one slice
//        behind, so that gathering a slice overlaps pulling the next
//   end: as staged
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
  // Rank p has chunk chunk_of(p) of each slice.
  const auto chunk_of = [=](uint32_t p) { return (p + n - root - 1) % n; };
  const auto slice = [&](uint32_t round, uint32_t p) {
    const uint64_t at = round * a.segment, left = a.bytes - at, bytes = left < a.segment ? left : a.segment;
    const Span c = chunk(bytes, n - 1, chunk_of(p));
    return Span{at + c.begin, at + c.end};
  };
  meet.start();
  meet.expect_all(!is_root);
  const uint8_t* in = meet.ok ? meet.input_of(root) : nullptr;
  if (is_root) {
    if (meet.ok && out != nullptr && out != in) copy(b, out, in, a.bytes);
  } else {
    for (uint32_t round = 0; round <= a.rounds; ++round) {
      if (round < a.rounds) {
        if (meet.ok) {
          const Span c = slice(round, me);
          copy(b, out + c.begin, in + c.begin, c.end - c.begin);
        }
        meet.signal(kStaged, round, other_readers);
      }
      if (round == 0) continue;
      for (uint32_t k = 1; k < n; ++k) {
        const uint32_t p = (me + k) % n;
        if (p == root) continue;
        meet.await(kStaged, round - 1, [=](uint32_t q) { return q == p; });
        if (!meet.ok) continue;
        const Span c = slice(round - 1, p);
        copy(b, out + c.begin, meet.output_of(p) + c.begin, c.end - c.begin);
      }
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
          if (unit + k * all < units) there = meet.is_there(w[k]) && there, data[k] = Packets::data_of(w[k]);
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
