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
  const Inputs<T, N>& in;
  const uint32_t average;  // 0, or the divisor

  CROSSCCL_METHOD T finish(Acc x) const { return Num::narrow(average != 0 ? Num::divide(x, average) : x); }

  CROSSCCL_METHOD void one(T* out, uint64_t from) const {
    Acc acc = Num::widen(in[0][from]);
    for (uint32_t p = 1; p < in.ranks(); ++p) acc = Op::template apply<Num>(acc, Num::widen(in[p][from]));
    *out = finish(acc);
  }

  // K vectors, `step` elements apart, of this thread. Loops over elements rather than over vectors: that
  // is what compilers of CPUs turn into vector instructions, and those of GPUs unroll either.
  template <uint32_t K> CROSSCCL_METHOD void vectors(T* out, uint64_t from, uint64_t step) const {
    constexpr uint32_t n = K * kVector / sizeof(T);
    Acc acc[n];
    alignas(kVector) T x[n];
    load_vectors<K>(x, in[0] + from, step);
    CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) acc[i] = Num::widen(x[i]);
    CROSSCCL_UNROLL for (uint32_t p = 1; p < in.ranks(); ++p) {
      load_vectors<K>(x, in[p] + from, step);
      CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) acc[i] = Op::template apply<Num>(acc[i], Num::widen(x[i]));
    }
    if (average != 0) CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) acc[i] = Num::divide(acc[i], average);
    CROSSCCL_UNROLL for (uint32_t i = 0; i < n; ++i) x[i] = Num::narrow(acc[i]);
    store_vectors<K>(out, x, step);
  }

  // Vectors need out and every input at one distance from a 16-byte boundary, unless the target
  // does not care.
  CROSSCCL_METHOD bool can_use_vectors(const T* out, uint64_t from) const {
    if (kUnalignedVectors) return true;
    bool same = true;
    for (uint32_t p = 0; p < in.ranks(); ++p)
      same = same && (((uint64_t)(in[p] + from) ^ (uint64_t)out) % kVector) == 0;
    return same;
  }

  // `n` contiguous elements; all threads of the block together.
  CROSSCCL_METHOD void contiguous(const Block& b, T* out, uint64_t from, uint64_t n) const {
    constexpr uint64_t v = kVector / sizeof(T);
    uint64_t head = n, body = 0;
    if (can_use_vectors(out, from)) {
      head = kUnalignedVectors ? 0 : (kVector - (uint64_t)out % kVector) % kVector / sizeof(T);
      head = head < n ? head : n;
      body = (n - head) / v * v;
    }
    for (uint64_t k = b.thread; k < head; k += b.threads) one(out + k, from + k);
    const uint64_t step = b.threads * v;
    uint64_t i = head;
    constexpr uint32_t batch = kBatch<T, N>;
    if (batch > 1)
      for (; i + batch * step <= head + body; i += batch * step)
        vectors<batch>(out + i + b.thread * v, from + i + b.thread * v, step);
    for (i += b.thread * v; i < head + body; i += step) vectors<1>(out + i, from + i, step);
    CROSSCCL_ROLLED for (uint64_t k = head + body + b.thread; k < n; k += b.threads) one(out + k, from + k);
  }
};

template <class T, class Op, uint32_t N> CROSSCCL_DEVICE void reduce_scatter(const Block& b, const Arguments& a) {
  Rendezvous meet(a, b);
  if (planted(kIdleBlockReturns) && b.block * kTile >= a.outer * a.run * sizeof(T)) return;
  meet.start();
  if (meet.expect_all(true)) {
    const Inputs<T, N> in(meet);
    const Reducer<T, Op, N> reduce{in, a.average != 0 ? a.ranks : 0};
    T* out = (T*)a.output;
    for_each_tile(b, a.outer * a.run * sizeof(T), [&](uint64_t at, uint64_t bytes) {
      uint64_t i = at / sizeof(T), end = i + bytes / sizeof(T);
      if (a.run >= 4 * kVector / sizeof(T)) {
        // Long runs: each is a contiguous piece.
        while (i < end) {
          const uint64_t row = i / a.run, column = i - row * a.run, left = a.run - column;
          const uint64_t n = left < end - i ? left : end - i;
          reduce.contiguous(b, out + i, a.offset + row * a.stride + column, n);
          i += n;
        }
      } else {
        // Short runs (a narrow part along the last axis): element by element.
        for (i += b.thread; i < end; i += b.threads)
          reduce.one(out + i, a.offset + i / a.run * a.stride + i % a.run);
      }
    });
  }
  const auto all = [](uint32_t) { return true; };
  meet.signal(kDone, 0, all);
  meet.await(kDone, 0, all);
  meet.finish();
}

}  // namespace crossccl
