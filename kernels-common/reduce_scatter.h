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

template <class T, class Op, uint32_t N> struct Reducer {
  using Num = Numeric<T>;
  using Acc = typename Num::Acc;
  static constexpr bool kEpilogue = Op::kEpilogue && Num::kFloat;
  static constexpr uint32_t kLanes = kVector / sizeof(T);
  const Inputs<T, N>& in;
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

  CROSSCCL_METHOD void one(uint64_t to, uint64_t from) const {
    T x;
    load_pieces<1, 1>(&x, in[0] + from, 1);
    Acc acc = Num::widen(x);
    for (uint32_t p = 1; p < in.ranks(); ++p) {
      load_pieces<1, 1>(&x, in[p] + from, 1);
      acc = Op::template apply<Num>(acc, Num::widen(x));
    }
    finish<1, 1>(&acc, to, 1);
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
    finish<K, kLanes>(acc, to, step);
  }

  // Bytes of an element of the output.
  CROSSCCL_METHOD uint64_t width() const {
    if (!kEpilogue || a.form == kPlain) return sizeof(T);
    return a.form == kToF64 ? 8 : a.form == kToF32 ? 4 : 2;
  }

  // Elements before the first at which every access of vectors() is aligned; all `n` where there is none
  // or where the target does not care to look.
  CROSSCCL_METHOD uint64_t head(uint64_t to, uint64_t from, uint64_t n) const {
    if (kUnalignedVectors) return 0;
    const uint64_t at = (uint64_t)(in[0] + from) % kVector;
    const uint64_t head = (kVector - at) % kVector / sizeof(T);
    bool aligned = true;
    for (uint32_t p = 1; p < in.ranks(); ++p) aligned = aligned && (uint64_t)(in[p] + from) % kVector == at;
    const uint64_t piece = kLanes * width() < kVector ? kLanes * width() : kVector;
    aligned = aligned && (a.output + (to + head) * width()) % piece == 0;
    if (kEpilogue && a.residual != 0) aligned = aligned && (a.residual + (to + head) * width()) % piece == 0;
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
    const Reducer<T, Op, N> reduce{in, a};
    for_each_tile(b, a.outer * a.run * sizeof(T), [&](uint64_t at, uint64_t bytes) {
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

}  // namespace crossccl
