// Grouped reduce-scatter: every rank of the domain has the whole tensor; rank r gets part r, reduced
// over the ranks in rank order 0, 1, ..., n-1, always (I7: a rotated order made equal rows differ by
// the rank that owned them).
//
// One stage: pull.
//   records of all -> for each vector of my part: load it from every rank, combine, round once,
//   store -> credit to all, wait for all credits (they read my input)
//
// Flag flights: record, credit. A part is `outer` runs of `run` contiguous elements (one run along
// axis 0); the output is the runs back to back. In place (axis 0) my part of my input is read by me
// alone, each element before it is written.
#pragma once

namespace crossccl {

// Where rank p's elements come from. N ranks known at compile time keep their pointers in
// registers; N == 0 reads them from the records each time, so that no kernel needs a stack (I12).
template <class T, uint32_t N> struct Inputs {
  const T* at[N];
  CROSSCCL_METHOD explicit Inputs(const Rendezvous& meet) {
    CROSSCCL_UNROLL for (uint32_t p = 0; p < N; ++p)
      at[p] = (const T*)meet.input_of(planted(kRotatedOrder) ? (meet.a.rank + p) % N : p);
  }
  CROSSCCL_METHOD const T* operator[](uint32_t p) const { return at[p]; }
  CROSSCCL_METHOD uint32_t ranks() const { return N; }
};
template <class T> struct Inputs<T, 0> {
  const Rendezvous& meet;
  CROSSCCL_METHOD explicit Inputs(const Rendezvous& m) : meet(m) {}
  CROSSCCL_METHOD const T* operator[](uint32_t p) const { return (const T*)meet.input_of(p); }
  CROSSCCL_METHOD uint32_t ranks() const { return meet.a.ranks; }
};

// From accumulators to the output.
template <class T, class Op> struct Finisher {
  using Num = Numeric<T>;
  using Acc = typename Num::Acc;
  static constexpr bool kEpilogue = Op::kEpilogue && Num::kFloat;
  const Arguments& a;

  // Pieces of kLanes elements of a fused result, `to` elements into the output. The residual may be the
  // output itself: each element is read by the thread that writes it, before that.
  template <class O, uint32_t K, uint32_t V> CROSSCCL_METHOD void finish_as(Acc* acc, uint64_t to, uint64_t step) const {
    constexpr uint32_t n = K * V;
    const Acc factor = Acc(bits_as<double>(a.factor));
    alignas(kVector) O x[n];
    CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) acc[i] = Num::product(acc[i], factor);
    if (a.residual != 0) {
      load_pieces<K, V>(x, (const O*)a.residual + to, step);
      CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) {
        if (planted(kRoundedEarly)) acc[i] = Numeric<O>::widen(Numeric<O>::narrow(acc[i]));
        acc[i] = Num::sum(acc[i], Numeric<O>::widen(x[i]));
      }
    }
    CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) x[i] = Numeric<O>::narrow(acc[i]);
    store_pieces<K, V>((O*)a.output + to, x, step);
  }

  // K pieces of V elements, `step` apart, from the accumulators to the output.
  template <uint32_t K, uint32_t V> CROSSCCL_METHOD void finish(Acc* acc, uint64_t to, uint64_t step) const {
    constexpr uint32_t n = K * V;
    if (a.average != 0) CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) acc[i] = Num::divide(acc[i], a.ranks);
    if constexpr (kEpilogue) {
      if (a.form != kPlain) {
        if constexpr (sizeof(Acc) == sizeof(double)) {
          finish_as<double, K, V>(acc, to, step);
        } else {
          if (a.form == kToF16) finish_as<F16, K, V>(acc, to, step);
          if (a.form == kToBF16) finish_as<BF16, K, V>(acc, to, step);
          if (a.form == kToF32) finish_as<float, K, V>(acc, to, step);
        }
        return;
      }
    }
    alignas(kVector) T x[n];
    CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) x[i] = Num::narrow(acc[i]);
    store_pieces<K, V>((T*)a.output + to, x, step);
  }

  // Bytes of an element of the output.
  CROSSCCL_METHOD uint64_t width() const {
    if (!kEpilogue || a.form == kPlain) return sizeof(T);
    return a.form == kToF64 ? 8 : a.form == kToF32 ? 4 : 2;
  }
};

template <class T, class Op, uint32_t N> struct Reducer : Finisher<T, Op> {
  using Base = Finisher<T, Op>;
  using Num = typename Base::Num;
  using Acc = typename Base::Acc;
  using Base::a;
  static constexpr uint32_t kLanes = kVector / sizeof(T);
  const Inputs<T, N>& in;

  CROSSCCL_METHOD void one(uint64_t to, uint64_t from) const {
    T x;
    load_pieces<1, 1>(&x, in[0] + from, 1);
    Acc acc = Num::widen(x);
    for (uint32_t p = 1; p < in.ranks(); ++p) {
      load_pieces<1, 1>(&x, in[p] + from, 1);
      acc = Op::template apply<Num>(acc, Num::widen(x));
    }
    Base::template finish<1, 1>(&acc, to, 1);
  }

  // K vectors, `step` elements apart, of this thread. Loops over elements rather than over vectors: that
  // is what compilers of CPUs turn into vector instructions, and those of GPUs unroll either.
  template <uint32_t K> CROSSCCL_METHOD void vectors(uint64_t to, uint64_t from, uint64_t step) const {
    constexpr uint32_t n = K * kLanes;
    Acc acc[n];
    alignas(kVector) T x[n];
    load_pieces<K, kLanes>(x, in[0] + from, step);
    CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) acc[i] = Num::widen(x[i]);
    CROSSCCL_UNROLL for (uint32_t p = 1; p < in.ranks(); ++p) {
      load_pieces<K, kLanes>(x, in[p] + from, step);
      CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) acc[i] = Op::template apply<Num>(acc[i], Num::widen(x[i]));
    }
    Base::template finish<K, kLanes>(acc, to, step);
  }

  // Elements before the first at which every access of vectors() is aligned; all `n` where there is none
  // or where the target does not care to look.
  CROSSCCL_METHOD uint64_t head(uint64_t to, uint64_t from, uint64_t n) const {
    if (kUnalignedVectors) return 0;
    const uint64_t at = (uint64_t)(in[0] + from) % kVector;
    const uint64_t head = (kVector - at) % kVector / sizeof(T);
    bool aligned = true;
    for (uint32_t p = 1; p < in.ranks(); ++p) aligned = aligned && (uint64_t)(in[p] + from) % kVector == at;
    const uint64_t piece = kLanes * Base::width() < kVector ? kLanes * Base::width() : kVector;
    aligned = aligned && (a.output + (to + head) * Base::width()) % piece == 0;
    if (Base::kEpilogue && a.residual != 0) aligned = aligned && (a.residual + (to + head) * Base::width()) % piece == 0;
    return aligned && head < n ? head : n;
  }

  // `n` contiguous elements; all threads of the block together.
  CROSSCCL_METHOD void contiguous(const Block& b, uint64_t to, uint64_t from, uint64_t n) const {
    const uint64_t begin = head(to, from, n), end = begin + (n - begin) / kLanes * kLanes;
    CROSSCCL_ROLLED for (uint64_t k = b.thread; k < begin; k += b.threads) one(to + k, from + k);
    const uint64_t step = b.threads * kLanes, mine = b.thread * kLanes;
    uint64_t i = begin;
    constexpr uint32_t batch = kBatch<T, N>;
    if (batch > 1)
      for (; i + batch * step <= end; i += batch * step) vectors<batch>(to + i + mine, from + i + mine, step);
    for (i += mine; i < end; i += step) vectors<1>(to + i, from + i, step);
    CROSSCCL_ROLLED for (uint64_t k = end + b.thread; k < n; k += b.threads) one(to + k, from + k);
  }
};

template <class T, class Op, uint32_t N> CROSSCCL_DEVICE void reduce_scatter(const Block& b, const Arguments& a) {
  Rendezvous meet(a, b);
  if (planted(kIdleBlockReturns) && b.block * kTile >= a.outer * a.run * sizeof(T)) return;
  meet.start();
  if (meet.expect_all(true)) {
    const Inputs<T, N> in(meet);
    const Reducer<T, Op, N> reduce{{a}, in};
    const uint64_t part = a.outer * a.run * sizeof(T);
    for_each_tile(b, part, own_tile(b, part), [&](uint64_t at, uint64_t bytes) {
      uint64_t i = at / sizeof(T), end = i + bytes / sizeof(T);
      if (a.run >= 4 * kVector / sizeof(T)) {
        // Long runs: each is a contiguous piece.
        while (i < end) {
          const uint64_t row = i / a.run, column = i - row * a.run, left = a.run - column;
          const uint64_t n = left < end - i ? left : end - i;
          reduce.contiguous(b, i, a.offset + row * a.stride + column, n);
          i += n;
        }
      } else {
        // Short runs (a narrow part along the last axis): element by element.
        for (i += b.thread; i < end; i += b.threads)
          reduce.one(i, a.offset + i / a.run * a.stride + i % a.run);
      }
    });
  }
  const auto all = [](uint32_t) { return true; };
  meet.signal(kDone, 0, all);
  meet.await(kDone, 0, all);
  meet.finish();
}

// Elements [at, at + lanes of a unit) of a part as a unit of data, 0 beyond its end. The part is `a.outer` runs of `run`
// elements; small, so that 32 bits count them.
template <class T> CROSSCCL_DEVICE uint64_t gather(const Arguments& a, uint32_t begin, uint32_t run, uint32_t at) {
  constexpr uint32_t lanes = kUnit / sizeof(T);
  const uint32_t count = uint32_t(a.outer) * run;
  const bool one_run = a.outer == 1;
  const T* in = (const T*)a.input + begin;
  alignas(kUnit) T x[lanes];
  if (one_run && at + lanes <= count && (kUnalignedVectors || (uint64_t)(in + at) % kUnit == 0)) {
    load_pieces<1, lanes>(x, in + at, lanes);
  } else {
    CROSSCCL_UNROLL for (uint32_t k = 0; k < lanes; ++k) {
      const uint32_t i = at + k, row = one_run || run == 0 ? 0 : i / run;
      x[k] = T{};
      if (i < count) load_pieces<1, 1>(x + k, in + row * a.stride + (i - row * run), 1);
    }
  }
  uint64_t data;
  __builtin_memcpy(&data, x, sizeof data);
  return data;
}

// Low latency: packets (packets.h), where the largest part fits into a slot of an inbox. `a.segment` is its bytes.
//
//   to each peer header and its part of my input -> record to all -> from each peer header and its share of my part,
//   combined in rank order
//
// Flag flights: one, the data's. Nobody reads my input, so it is free with the launch.
template <class T, class Op> CROSSCCL_DEVICE void reduce_scatter_low_latency(const Block& b, const Arguments& a) {
  using Num = Numeric<T>;
  constexpr uint32_t lanes = kUnit / sizeof(T);
  const auto everybody = [](uint32_t) { return true; };
  Packets meet(a, b);
  const uint32_t n = a.ranks, all = meet.all();
  const auto run_of = [&](uint32_t p) { return a.cuts[p + 1] - a.cuts[p]; };
  const auto units_of = [&](uint32_t p) { return Packets::units(a.outer * run_of(p) * sizeof(T)); };
  meet.start(everybody);
  meet.restamp(units_of);
  if (meet.ok) {
    // By peer, then by unit: neighbours write to neighbours.
    const uint32_t most = Packets::units(a.segment);
    for (uint32_t i = meet.first(); i < (n - 1) * most; i += all) {
      const uint32_t p = meet.behind(i / most + 1), unit = i % most;
      if (unit >= units_of(p)) continue;
      const bool head = unit < kHeaderUnits;
      meet.put(meet.slot_at(p), unit, head ? meet.header(unit) : gather<T>(a, a.cuts[p], run_of(p), (unit - kHeaderUnits) * lanes));
    }
  }
  meet.announce();

  // Peers whose packets a thread loads at a time: all, in the tuned range, but for bytes, whose accumulators take the
  // registers.
  constexpr uint32_t batch = sizeof(T) == 1 ? kTunedRanks / 2 : kTunedRanks;
  const Finisher<T, Op> to{a};
  const uint32_t run = run_of(a.rank), count = uint32_t(a.outer) * run, units = units_of(a.rank);
  const uint64_t piece = lanes * to.width();
  const bool aligned = kUnalignedVectors || (a.output % piece == 0 && a.residual % piece == 0);
  for (uint32_t from = kHeaderUnits; from == kHeaderUnits || from < units; from += all) {
    const uint32_t unit = from + meet.first(), at = (unit - kHeaderUnits) * lanes;
    const bool some = unit < units;
    const uint64_t mine = some && meet.ok ? gather<T>(a, a.cuts[a.rank], run, at) : 0;
    typename Num::Acc acc[lanes];
    CROSSCCL_UNROLL for (uint32_t k = 0; k < lanes; ++k) acc[k] = typename Num::Acc(0);
    CROSSCCL_ROLLED for (uint32_t p = 0; p < n; p += batch) {
      // Without the flags, which would take registers while others are waited for.
      uint64_t theirs[batch] = {};
      const auto poll = [&]() -> uint32_t {
        uint64_t w[batch][2];
        uint32_t missing = 0;
        uint64_t at = anew((uint64_t)(meet.slot_of(p) + 2 * unit)), step = kInboxSlots * a.at.slot;
        CROSSCCL_UNROLL for (uint32_t k = 0; k < batch; ++k, at += step)
          if (some && p + k < n && p + k != a.rank) load_packets(w[k], (const uint64_t*)at);
        CROSSCCL_UNROLL for (uint32_t k = 0; k < batch; ++k)
          if (some && p + k < n && p + k != a.rank) {
            if (!meet.is_there(w[k])) missing |= 1u << k;
            theirs[k] = data_of(w[k]);
          }
        return missing;
      };
      if (!meet.collect(from == kHeaderUnits && p == 0, everybody, p, poll)) break;
      CROSSCCL_UNROLL for (uint32_t k = 0; k < batch; ++k) {
        if (p + k >= n) continue;
        const uint64_t data = p + k == a.rank ? mine : theirs[k];
        alignas(kUnit) T x[lanes];
        __builtin_memcpy(x, &data, sizeof data);
        CROSSCCL_UNROLL for (uint32_t i = 0; i < lanes; ++i)
          acc[i] = p + k == 0 ? Num::widen(x[i]) : Op::template apply<Num>(acc[i], Num::widen(x[i]));
      }
    }
    if (!meet.ok) break;
    if (some && aligned && at + lanes <= count) {
      to.template finish<1, lanes>(acc, at, lanes);
    } else {
      CROSSCCL_UNROLL for (uint32_t i = 0; i < lanes; ++i)
        if (some && at + i < count) to.template finish<1, 1>(acc + i, at + i, 1);
    }
  }
  meet.finish();
}

}  // namespace crossccl
