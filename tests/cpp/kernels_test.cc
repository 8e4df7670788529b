// The CPU-compiled kernels as a C++ program, for ThreadSanitizer and AddressSanitizer: ranks and blocks
// are threads, buffers end where their allocation ends. scripts/check-sanitizers builds and runs it, once
// with the CPU's blocks and once, with CROSSCCL_BLOCK_OF_THREADS, with blocks of several threads.
#include "../../kernels-cpu/target_cpu.h"

#include <sanitizer/asan_interface.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

using namespace crossccl;

namespace {

using Kernel = void (*)(const Block&, const Arguments&);

int checks = 0, failures = 0;
uint64_t time_limit = 20ull * 1000 * 1000 * 1000;

void check(bool good, const char* what) {
  ++checks;
  if (!good) ++failures, std::printf("FAILED: %s\n", what);
}

// Runs one block of a launch to its end.
#ifdef CROSSCCL_BLOCK_OF_THREADS
template <class K> void run_block(const K& kernel, uint32_t block, uint32_t blocks, const Arguments& a) {
  Meeting meeting;
  std::vector<std::thread> others;
  for (uint32_t t = 1; t < Block::threads; ++t)
    others.emplace_back([&, t] { kernel(Block{block, blocks, t, &meeting}, a); });
  kernel(Block{block, blocks, 0, &meeting}, a);
  for (auto& t : others) t.join();
}
#else
template <class K> void run_block(const K& kernel, uint32_t block, uint32_t blocks, const Arguments& a) {
  kernel(Block{block, blocks}, a);
}
#endif

struct Free {
  void operator()(void* p) const { std::free(p); }
};
template <class T> std::unique_ptr<T, Free> zeroed(size_t bytes) {
  void* p = std::aligned_alloc(kLine, (bytes + kLine - 1) / kLine * kLine);
  memset(p, 0, bytes);
  return std::unique_ptr<T, Free>((T*)p);
}

// A communicator of one process, without its host side.
struct World {
  uint32_t ranks, max_blocks = 8;
  uint64_t half = 256;
  SignalLayout layout;
  std::vector<std::unique_ptr<uint8_t, Free>> signal;
  std::vector<std::unique_ptr<Control, Free>> control;
  uint64_t limit = time_limit;

  uint32_t domains;

  // The last domain has no inboxes.
  explicit World(uint32_t n, uint32_t d = 2) : ranks(n), layout(signal_layout(n, d, max_blocks)), domains(d) {
    for (uint32_t r = 0; r < n; ++r) {
      signal.push_back(zeroed<uint8_t>(layout.payload + 2 * half));
      control.push_back(zeroed<Control>(sizeof(Control)));
    }
  }

  Arguments arguments(uint32_t rank, uint64_t call) const {
    Arguments a{};
    for (uint32_t p = 0; p < ranks; ++p) a.signal[p] = (uint64_t)signal[p].get();
    a.control = (uint64_t)control[rank].get();
    a.rank = a.world_rank = rank;
    a.ranks = a.world = ranks;
    a.at = places(layout, 0);
    a.max_blocks = max_blocks;
    a.call = call;
    a.limit = limit;
    a.payload_half = half;
    a.rounds = 1;
    return a;
  }
};

// Any alignment of both ends, any length (no tile is empty): every byte arrives, none beside it is touched or,
// by AddressSanitizer, to which what lies beside the range is out of bounds, read.
void copies() {
  std::atomic<int> wrong{0};
  const auto all = [&](const Block& b, const Arguments&) {
    static std::vector<uint8_t> from, to, expected;
    for (uint32_t f = 0; f <= kVector; ++f)
      for (uint32_t t = 0; t <= kVector; ++t)
        for (uint32_t n : {1u, 7u, 15u, 16u, 17u, 31u, 33u, 47u, 48u, 49u, 64u, 100u, 239u, 512u, 1021u}) {
          if (b.thread == 0) {
            // The end of the range is the end of the allocation, its begin the end of a forbidden region.
            from.assign(f + n, 0), to.assign(t + n + kVector, 0xab);
            from.shrink_to_fit();
            for (uint32_t k = 0; k < n; ++k) from[f + k] = uint8_t(k * 7 + n);
            expected = to;
            std::copy(from.begin() + f, from.end(), expected.begin() + t);
            ASAN_POISON_MEMORY_REGION(from.data(), f);
          }
          b.sync();
          if (f + n > 0) copy_tile(b, to.data() + t, from.data() + f, n);
          b.sync();
          if (b.thread != 0) continue;
          ASAN_UNPOISON_MEMORY_REGION(from.data(), f);
          wrong += to != expected;
        }
  };
  run_block(all, 0, 1, Arguments{});
  check(wrong == 0, "copies of any alignment and length");
}

// One collective after the other on every rank, each rank's blocks together, without a barrier between
// ranks: a fast rank may be a launch ahead.
struct Launch {
  Kernel kernel;
  std::vector<Arguments> of;  // by rank
};
void run(const World& w, uint32_t blocks, const std::vector<Launch>& launches, unsigned seed,
         const std::function<bool(uint32_t)>& takes_part = [](uint32_t) { return true; }) {
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < w.ranks; ++r) {
    if (!takes_part(r)) continue;
    threads.emplace_back([&, r] {
      std::mt19937 random(seed * 64 + r);
      for (const Launch& l : launches) {
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
        std::vector<std::thread> crew;
        for (uint32_t b = 1; b < blocks; ++b)
          crew.emplace_back([&, b] { run_block(l.kernel, b, blocks, l.of[r]); });
        run_block(l.kernel, 0, blocks, l.of[r]);
        for (auto& t : crew) t.join();
      }
    });
  }
  for (auto& t : threads) t.join();
}

void broadcasts(uint32_t ranks, uint32_t blocks, Kernel kernel, unsigned seed) {
  const bool staged = kernel == broadcast_two_stage_staged, direct = kernel == broadcast_two_stage_direct;
  const uint64_t most = kernel == broadcast_low_latency ? packet_bytes(ranks) : 60000;
  World w(ranks);
  std::mt19937 random(seed);
  const int rounds = 6;
  std::vector<Launch> launches;
  std::vector<std::vector<std::vector<uint8_t>>> data;  // launch, rank
  for (int i = 0; i < rounds; ++i) {
    const uint32_t root = random() % ranks;
    const uint64_t bytes = random() % 3 == 0 ? random() % 40 : random() % (most + 1);
    std::vector<std::vector<uint8_t>> buffers(ranks, std::vector<uint8_t>(bytes, 0xab));
    for (auto& x : buffers[root]) x = uint8_t(random());
    data.push_back(std::move(buffers));
    Launch l{kernel, {}};
    for (uint32_t r = 0; r < ranks; ++r) {
      Arguments a = w.arguments(r, i + 1);
      a.root = root;
      a.bytes = a.count = bytes;
      a.output = (uint64_t)data.back()[r].data();
      a.input = r == root ? a.output : 0;
      a.fingerprint = bytes * 64 + root;
      // Four slices of the direct form, so that it is a slice ahead and behind at once.
      a.segment = staged ? w.half * ranks : direct ? (bytes / 4 + 15) / 16 * 16 : bytes;
      a.rounds = (staged || direct) && a.segment > 0 ? uint32_t((bytes + a.segment - 1) / a.segment) : 1;
      if (a.rounds == 0) a.rounds = 1;
      l.of.push_back(a);
    }
    launches.push_back(l);
  }
  run(w, blocks, launches, seed);
  for (int i = 0; i < rounds; ++i)
    for (uint32_t r = 0; r < ranks; ++r) check(data[i][r] == data[i][launches[i].of[0].root], "broadcast: a rank's copy");
  for (auto& c : w.control) check(c->state == kNone, "broadcast: no failure");
}

// Even parts along axis 0, for the kernels by packets.
void cut(Arguments& a, uint64_t each) {
  for (uint32_t p = 0; p <= a.ranks; ++p) a.cuts[p] = uint32_t(p * each);
}

template <uint32_t N> void reduce_scatters(uint32_t ranks, uint32_t blocks, unsigned seed, bool packets = false) {
  World w(ranks);
  std::mt19937 random(seed);
  const int rounds = 4;
  std::vector<Launch> launches;
  std::vector<std::vector<std::vector<float>>> in, out;
  for (int i = 0; i < rounds; ++i) {
    const uint64_t each = random() % 9000;
    in.emplace_back(ranks, std::vector<float>(each * ranks));
    out.emplace_back(ranks, std::vector<float>(each, -1));
    for (auto& v : in.back())
      for (auto& x : v) x = float(int32_t(random())) / 65536;
    Launch l{packets ? reduce_scatter_low_latency<float, Sum> : reduce_scatter<float, Sum, N>, {}};
    for (uint32_t r = 0; r < ranks; ++r) {
      Arguments a = w.arguments(r, i + 1);
      cut(a, each), a.segment = each * sizeof(float);
      a.input = (uint64_t)in.back()[r].data();
      a.output = (uint64_t)out.back()[r].data();
      a.count = each * ranks;
      a.fingerprint = each;
      a.outer = 1;
      a.run = each;
      a.stride = a.count;
      a.offset = r * each;
      l.of.push_back(a);
    }
    launches.push_back(l);
  }
  run(w, blocks, launches, seed);
  for (int i = 0; i < rounds; ++i)
    for (uint32_t r = 0; r < ranks; ++r) {
      const uint64_t each = out[i][r].size();
      bool good = true;
      for (uint64_t k = 0; k < each; ++k) {
        float sum = in[i][0][r * each + k];
        for (uint32_t p = 1; p < ranks; ++p) sum += in[i][p][r * each + k];
        good = good && out[i][r][k] == sum;
      }
      check(good, "reduce_scatter: a rank's part");
    }
  for (auto& c : w.control) check(c->state == kNone, "reduce_scatter: no failure");
}

// The epilogue: half the sum, plus what the output holds, rounded once to bf16.
template <uint32_t N> void fused_reduce_scatters(uint32_t ranks, uint32_t blocks, unsigned seed, bool packets = false) {
  World w(ranks);
  std::mt19937 random(seed);
  // Parts of any alignment in input and output: what is a whole vector of one is half a vector of the other.
  const uint64_t each = 3000 + seed, shift = random() % 8;
  std::vector<std::vector<float>> in(ranks, std::vector<float>(each * ranks));
  std::vector<std::vector<BF16>> out(ranks, std::vector<BF16>(each + shift));
  for (auto& v : in)
    for (auto& x : v) x = float(int32_t(random())) / 65536;
  for (auto& v : out)
    for (auto& x : v) x = BF16{float_to_bf16(float(int32_t(random())) / 65536)};
  const auto before = out;
  Launch l{packets ? reduce_scatter_low_latency<float, Sum> : reduce_scatter<float, Sum, N>, {}};
  for (uint32_t r = 0; r < ranks; ++r) {
    Arguments a = w.arguments(r, 1);
    cut(a, each), a.segment = each * sizeof(float);
    a.input = (uint64_t)in[r].data();
    a.output = a.residual = (uint64_t)(out[r].data() + shift);
    a.count = a.stride = each * ranks;
    a.outer = 1, a.run = each, a.offset = r * each;
    a.form = kToBF16;
    a.factor = bits_as<uint64_t>(0.5);
    l.of.push_back(a);
  }
  run(w, blocks, {l}, seed);
  for (uint32_t r = 0; r < ranks; ++r) {
    bool good = true;
    for (uint64_t k = 0; k < each; ++k) {
      float sum = in[0][r * each + k];
      for (uint32_t p = 1; p < ranks; ++p) sum += in[p][r * each + k];
      sum *= 0.5f;
      good = good && out[r][shift + k].bits == float_to_bf16(sum + bf16_to_float(before[r][shift + k].bits));
    }
    check(good, "reduce_scatter: a fused part");
  }
}

// Case E3: each rank overwrites its input as soon as its own launch is over, and gives it again.
template <uint32_t N> void inputs_are_free_after_the_launch(uint32_t blocks, bool reduce, unsigned seed) {
  World w(N);
  const uint64_t each = 20000;
  std::vector<std::vector<int32_t>> in(N, std::vector<int32_t>(each * N)), out(N, std::vector<int32_t>(each * N));
  std::vector<std::thread> ranks;
  std::atomic<int> wrong{0};
  for (uint32_t r = 0; r < N; ++r)
    ranks.emplace_back([&, r] {
      std::mt19937 random(seed * 64 + r);
      for (int32_t round = 1; round <= 30; ++round) {
        for (auto& x : in[r]) x = round * int32_t(r + 1);
        if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        Arguments a = w.arguments(r, round);
        a.input = (uint64_t)in[r].data();
        a.output = (uint64_t)out[r].data();
        a.count = each * N;
        a.bytes = a.segment = a.count * 4;
        a.outer = 1, a.run = each, a.stride = a.count, a.offset = r * each;
        a.root = 0;
        Kernel kernel = reduce ? reduce_scatter<int32_t, Sum, N> : broadcast_one_stage;
        std::vector<std::thread> crew;
        for (uint32_t b = 1; b < blocks; ++b) crew.emplace_back([&, b] { run_block(kernel, b, blocks, a); });
        run_block(kernel, 0, blocks, a);
        for (auto& t : crew) t.join();
        const int32_t expected = reduce ? round * int32_t(N * (N + 1) / 2) : round;
        for (uint64_t i = 0; i < (reduce ? each : each * N); ++i) wrong += out[r][i] != expected;
        for (auto& x : in[r]) x = -1;
      }
    });
  for (auto& t : ranks) t.join();
  check(wrong == 0, "an input is free after the launch");
}

// The paths of failure: a rank that never comes, one that comes late, one that wants something else.
void failures_end(uint32_t ranks, uint32_t blocks, int which, Kernel kernel) {
  World w(ranks);
  // Long enough for a rank that is there to be late under a sanitizer on a busy machine.
  w.limit = 200 * 1000 * 1000;
  std::vector<std::vector<uint8_t>> data(ranks, std::vector<uint8_t>(5000, 0xab));
  Launch l{kernel, {}};
  for (uint32_t r = 0; r < ranks; ++r) {
    Arguments a = w.arguments(r, 1);
    a.root = 0;
    a.bytes = a.count = 5000;
    a.output = (uint64_t)data[r].data();
    a.input = r == 0 ? a.output : 0;
    a.segment = w.half * ranks;
    a.rounds = uint32_t((5000 + a.segment - 1) / a.segment);
    a.fingerprint = which == 1 && r == ranks - 1 ? 2 : 1;
    l.of.push_back(a);
  }
  const uint32_t last = ranks - 1;
  if (which == 0) {
    run(w, blocks, {l, l}, 1, [=](uint32_t r) { return r != last; });
    for (uint32_t r = 0; r < last; ++r) {
      check(w.control[r]->state != kNone, "a missing rank is noticed by all");
      // Receivers by packets are in their second launch by then, which the root has not come to either.
      uint64_t missing = w.control[r]->failure.missing;
      if (kernel == broadcast_low_latency && r != 0) missing &= 1ull << last;
      check(w.control[r]->state != kTimeout || missing == 1ull << last, "and named");
    }
    // It comes after all: poisoned, and it touches nothing.
    run(w, blocks, {l}, 1, [=](uint32_t r) { return r == last; });
    check(w.control[last]->state == kPoisoned, "a late rank is refused");
    check(data[last] == std::vector<uint8_t>(5000, 0xab), "and writes nothing");
  } else {
    run(w, blocks, {l, l}, 1);
    for (uint32_t r = 0; r < ranks; ++r) check(w.control[r]->state != kNone, "a disagreement is noticed by all");
    check(data[1] == std::vector<uint8_t>(5000, 0xab), "outputs stay untouched");
  }
}

uint64_t milliseconds() { return clock_ticks() / 1000000; }

Arguments one_stage(const World& w, uint32_t rank, uint64_t call, uint32_t root, std::vector<uint8_t>& data) {
  Arguments a = w.arguments(rank, call);
  a.root = root;
  a.bytes = a.count = a.segment = data.size();
  a.output = (uint64_t)data.data();
  a.input = rank == root ? a.output : 0;
  a.fingerprint = 1 + root;
  return a;
}

// A rank that called something else comes late: the rank that it takes for the root does not depend on it
// and is two launches ahead, in the same record slot.
void a_later_record_is_no_agreement() {
  World w(4);
  w.limit = 500 * 1000 * 1000;
  const std::vector<uint32_t> roots = {2, 0, 3};
  std::vector<std::vector<std::vector<uint8_t>>> data(
      3, std::vector<std::vector<uint8_t>>(4, std::vector<uint8_t>(1000, 0xab)));
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < 4; ++r)
    ranks.emplace_back([&, r] {
      if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (int i = 0; i < 3; ++i)
        run_block(broadcast_one_stage, 0, 1, one_stage(w, r, i + 1, r == 1 && i == 0 ? 3 : roots[i], data[i][r]));
    });
  for (auto& t : ranks) t.join();
  check(w.control[1]->state == kMismatch, "a later record is no agreement");
  check(data[0][1] == std::vector<uint8_t>(1000, 0xab), "a later record is no agreement: output");
}

// Ranks 0 and 1 disagree in their group; the world's launch behind it must not wait for its limit.
void a_failure_in_a_group_reaches_the_world() {
  World w(4, 3);
  w.limit = 3000ull * 1000 * 1000;
  std::vector<std::vector<uint8_t>> data(4, std::vector<uint8_t>(1000, 0xab)), more = data;
  const uint64_t begin = milliseconds();
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < 4; ++r)
    ranks.emplace_back([&, r] {
      Arguments a = one_stage(w, r, 1, 0, data[r]);
      a.rank = r % 2, a.ranks = 2, a.domain = 1, a.at = places(w.layout, 1);
      a.signal[0] = (uint64_t)w.signal[r / 2 * 2].get(), a.signal[1] = (uint64_t)w.signal[r / 2 * 2 + 1].get();
      a.input = a.rank == 0 ? a.output : 0;
      if (r == 1) a.fingerprint = 77;
      run_block(broadcast_one_stage, 0, 1, a);
      run_block(broadcast_one_stage, 0, 1, one_stage(w, r, 2, 3, more[r]));
    });
  for (auto& t : ranks) t.join();
  // Rank 2 depends on the world's root alone and may be done before it hears of the failure.
  bool all = true;
  for (uint32_t r : {0u, 1u, 3u}) all = all && w.control[r]->state != kNone;
  check(all, "a failure in a group reaches the world");
  check(milliseconds() - begin < 1500, "a failure in a group reaches the world in time");
}

// Two plans with one hash: the records' fields decide.
void a_hash_is_no_proof() {
  World w(2);
  w.limit = 300 * 1000 * 1000;
  std::vector<std::vector<uint8_t>> data{std::vector<uint8_t>(10, 1), std::vector<uint8_t>(1000, 0xab)};
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] { run_block(broadcast_one_stage, 0, 1, one_stage(w, r, 1, 0, data[r])); });
  for (auto& t : ranks) t.join();
  check(w.control[1]->state == kMismatch, "a hash is no proof");
}

// Stragglers do not add up: one limit for all that a rank waits for.
void one_limit_for_all() {
  World w(4);
  w.limit = 300 * 1000 * 1000;
  std::vector<std::vector<uint8_t>> data(4, std::vector<uint8_t>(1000, 0xab));
  uint64_t took = 0;
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < 3; ++r)
    ranks.emplace_back([&, r] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200 * r));
      const uint64_t begin = milliseconds();
      run_block(broadcast_one_stage, 0, 1, one_stage(w, r, 1, 0, data[r]));
      if (r == 0) took = milliseconds() - begin;
    });
  for (auto& t : ranks) t.join();
  check(took >= 290 && took < 450, "one limit for all that a rank waits for");
  check(w.control[0]->state == kTimeout && w.control[0]->failure.missing == (1u << 2 | 1u << 3), "the missing are named");
}

// One launch after the other on each rank, whoever is ahead; `late(rank, launch)` milliseconds before one.
template <class Late> void follow(const World& w, const std::vector<Launch>& launches, uint32_t blocks, Late late) {
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < w.ranks; ++r)
    ranks.emplace_back([&, r] {
      for (size_t i = 0; i < launches.size(); ++i) {
        if (const int wait = late(r, i)) std::this_thread::sleep_for(std::chrono::milliseconds(wait));
        std::vector<std::thread> crew;
        for (uint32_t b = 1; b < blocks; ++b)
          crew.emplace_back([&, b] { run_block(launches[i].kernel, b, blocks, launches[i].of[r]); });
        run_block(launches[i].kernel, 0, blocks, launches[i].of[r]);
        for (auto& t : crew) t.join();
      }
    });
  for (auto& t : ranks) t.join();
}

// Broadcasts by packets from the roots given; the data of launch i is 16 bits of i and the root, again and again.
struct Series {
  std::vector<std::vector<std::vector<uint8_t>>> data;  // launch, rank
  std::vector<Launch> launches;
};
Series series(const World& w, const std::vector<uint32_t>& roots, const std::vector<uint64_t>& bytes) {
  Series s;
  for (size_t i = 0; i < roots.size(); ++i) {
    s.data.emplace_back(w.ranks, std::vector<uint8_t>(bytes[i], 0xab));
    for (uint64_t k = 0; k < bytes[i]; ++k) s.data[i][roots[i]][k] = uint8_t(k % 2 ? i * 16 + roots[i] : i / 16 + k / 2);
    Launch l{broadcast_low_latency, {}};
    for (uint32_t r = 0; r < w.ranks; ++r) {
      Arguments a = one_stage(w, r, i + 1, roots[i], s.data[i][r]);
      a.fingerprint = roots[i] * 100000 + bytes[i];
      l.of.push_back(a);
    }
    s.launches.push_back(l);
  }
  return s;
}
bool arrived(const World& w, const Series& s) {
  bool good = true;
  for (auto& c : w.control) good = good && c->state == kNone;
  for (size_t i = 0; i < s.data.size(); ++i)
    for (uint32_t r = 0; r < w.ranks; ++r) good = good && s.data[i][r] == s.data[i][s.launches[i].of[0].root];
  return good;
}

// A receiver that sleeps is overtaken by two launches and no more: what it has not read stays. Rank 2 is nobody's root
// while the others take turns, so they are held up by it alone.
void packets_wait_for_those_two_ago(unsigned seed) {
  World w(3);
  std::vector<uint32_t> roots;
  std::vector<uint64_t> bytes;
  std::mt19937 random(seed);
  for (int i = 0; i < 40; ++i) roots.push_back(i % 5 == 4 ? 2 : random() % 2), bytes.push_back(random() % 700);
  Series s = series(w, roots, bytes);
  follow(w, s.launches, 2, [](uint32_t r, size_t i) { return r == 2 && i % 7 == 0 ? 10 : 0; });
  check(arrived(w, s), "packets: a rank that comes late");
}

// Three ranks take turns with reduce-scatters, in which everybody writes to everybody: a rank that is ahead has two slots.
void slots_are_two(unsigned seed) {
  World w(2);
  const uint64_t each = 500;
  const int rounds = 60;
  std::vector<std::vector<std::vector<int32_t>>> in, out;
  std::vector<Launch> launches;
  for (int i = 0; i < rounds; ++i) {
    in.emplace_back(2, std::vector<int32_t>(2 * each)), out.emplace_back(2, std::vector<int32_t>(each, -1));
    Launch l{reduce_scatter_low_latency<int32_t, Sum>, {}};
    for (uint32_t r = 0; r < 2; ++r) {
      for (uint64_t k = 0; k < 2 * each; ++k) in[i][r][k] = int32_t(i * 10000 + k + r);
      Arguments a = w.arguments(r, i + 1);
      a.input = (uint64_t)in[i][r].data(), a.output = (uint64_t)out[i][r].data();
      a.count = a.stride = 2 * each, a.outer = 1, a.run = each, a.offset = r * each;
      a.segment = each * 4, a.fingerprint = 5;
      cut(a, each);
      l.of.push_back(a);
    }
    launches.push_back(l);
  }
  follow(w, launches, 3, [=](uint32_t r, size_t i) { return (i * 7 + seed + r) % 5 == 0 ? 2 : 0; });
  bool good = true;
  for (auto& c : w.control) good = good && c->state == kNone;
  for (int i = 0; i < rounds; ++i)
    for (uint32_t r = 0; r < 2; ++r)
      for (uint64_t k = 0; k < each; ++k) good = good && out[i][r][k] == int32_t(2 * (i * 10000 + r * each + k) + 1);
  check(good, "packets: two slots");
}

// I9: just before a border all words that no message has reached lately are 2^31 launches old, as far as their flags tell.
void flags_are_stamped_anew() {
  World w(3);
  // Short ones up to the border, then a long one from each root, whose receivers are there first.
  const std::vector<uint32_t> roots = {0, 1, 2, 0, 1, 2, 0, 1, 2};
  const std::vector<uint64_t> bytes = {8, 16, 8, 24, 9000, 9000, 9000, 9000, 9000};
  Series s = series(w, roots, bytes);
  const uint64_t before = 3 * kRestamp - 3;
  for (uint32_t r = 0; r < 3; ++r) {
    const Arguments a = w.arguments(r, 0);
    const Signal signal{w.signal[r].get(), a};
    *signal.packets() = before;
    for (uint32_t p = 0; p < 3; ++p) *signal.ack(p) = before;
    // What launches with the numbers of the first long ones but 2^31 would have left there.
    for (uint32_t p = 0; p < 3; ++p)
      for (uint64_t number : {before + 1 + 4, before + 1 + 5})
        for (uint64_t k = 2 * kHeaderUnits; k < w.layout.slot / 8; ++k)
          signal.slot(p, number)[k] = packet_flag(number) | 0xbad;
  }
  // More blocks than units of the short ones: some have nothing but old words before the root comes.
  follow(w, s.launches, 8, [&](uint32_t r, size_t i) { return i > 3 && r == roots[i] ? 20 : 0; });
  check(arrived(w, s), "packets: flags are stamped anew");
}

// Who pulls and who sends packets, in either order and as either side: all see a mismatch, or that one is missing.
void packets_meet_pulls(uint32_t first, bool root_pulls) {
  World w(2);
  w.limit = 500 * 1000 * 1000;
  std::vector<std::vector<uint8_t>> data(2, std::vector<uint8_t>(100, 0xab));
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      if (r != first) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      Arguments a = one_stage(w, r, 1, 0, data[r]);
      const bool pulls = (r == 0) == root_pulls;
      a.packed = pulls ? 1 : 5, a.fingerprint = a.packed;
      run_block(pulls ? broadcast_one_stage : broadcast_low_latency, 0, 1, a);
    });
  for (auto& t : ranks) t.join();
  check(w.control[0]->state == kMismatch || w.control[1]->state == kMismatch, "packets meet pulls: a mismatch");
  check(w.control[0]->state != kTimeout && w.control[1]->state != kTimeout, "packets meet pulls: in time");
  check(w.control[1]->state != kNone, "packets meet pulls: the receiver sees it");
  check(data[1] == std::vector<uint8_t>(100, 0xab), "packets meet pulls: the output is untouched");
}

// A header tells what its sender called, though that sender's record is another launch's by now.
void a_header_is_compared(int which) {
  World w(3);
  w.limit = 500 * 1000 * 1000;
  std::vector<std::vector<std::vector<uint8_t>>> data(2, std::vector<std::vector<uint8_t>>(3, std::vector<uint8_t>(64, 0xab)));
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < 3; ++r)
    ranks.emplace_back([&, r] {
      if (r == 2) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      Arguments a = one_stage(w, r, 1, 0, data[0][r]);
      // With the same hash, but for the last.
      if (r == 2 && which == 0) a.count = 63, a.bytes = 63;
      if (r == 2 && which == 1) a.shape_hash = 1;
      if (r == 2 && which == 2) a.packed = 1;
      if (r == 2 && which == 3) a.fingerprint = 99;
      run_block(broadcast_low_latency, 0, 1, a);
      if (r != 2) run_block(broadcast_low_latency, 0, 1, one_stage(w, r, 2, 1, data[1][r]));
    });
  for (auto& t : ranks) t.join();
  check(w.control[0]->state == kMismatch || w.control[2]->state == kMismatch, "packets: a header is compared");
  check(data[0][2] == std::vector<uint8_t>(64, 0xab), "packets: a header is compared before the output is written");
}

}  // namespace

int main(int argc, char** argv) {
  // What fails is to be read even where the rest hangs.
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 1) time_limit = strtoull(argv[1], nullptr, 10) * 1000 * 1000;
  copies();
  for (unsigned seed = 1; seed <= 3; ++seed) {
    for (uint32_t ranks : {2u, 3u, 4u, 8u})
      for (uint32_t blocks : {1u, 3u})
        for (Kernel k : {broadcast_one_stage, broadcast_two_stage_staged, broadcast_two_stage_direct, broadcast_low_latency})
          broadcasts(ranks, blocks, k, seed);
    for (uint32_t blocks : {1u, 3u}) {
      reduce_scatters<2>(2, blocks, seed);
      reduce_scatters<4>(4, blocks, seed);
      reduce_scatters<0>(3, blocks, seed);
      reduce_scatters<0>(8, blocks, seed);
      fused_reduce_scatters<4>(4, blocks, seed);
      fused_reduce_scatters<0>(1, blocks, seed);
      for (uint32_t ranks : {2u, 3u, 4u, 8u}) reduce_scatters<0>(ranks, blocks, seed, true);
      fused_reduce_scatters<0>(4, blocks, seed, true);
      fused_reduce_scatters<0>(1, blocks, seed, true);
    }
  }
  for (unsigned seed = 1; seed <= 2; ++seed)
    for (bool reduce : {false, true}) {
      inputs_are_free_after_the_launch<2>(1, reduce, seed);
      inputs_are_free_after_the_launch<4>(3, reduce, seed);
    }
  for (uint32_t ranks : {2u, 3u, 8u})
    for (uint32_t blocks : {1u, 3u})
      for (int which : {0, 1})
        for (Kernel k : {broadcast_two_stage_staged, broadcast_low_latency}) failures_end(ranks, blocks, which, k);
  for (unsigned seed = 1; seed <= 3; ++seed) packets_wait_for_those_two_ago(seed), slots_are_two(seed);
  flags_are_stamped_anew();
  for (uint32_t first : {0u, 1u})
    for (bool root_pulls : {false, true}) packets_meet_pulls(first, root_pulls);
  for (int which = 0; which < 4; ++which) a_header_is_compared(which);
  a_later_record_is_no_agreement();
  a_failure_in_a_group_reaches_the_world();
  a_hash_is_no_proof();
  one_limit_for_all();
  std::printf("%d passed, %d failed\n", checks - failures, failures);
  return failures != 0;
}
