// Handles that destroy themselves, element types from pointers, failures as exceptions.
//
//   c++ -std=c++17 raii.cpp $(pkg-config --cflags --libs crossccl) -pthread
#include <crossccl.hpp>
#include <iostream>
#include <numeric>
#include <string>
#include <thread>

constexpr int kRanks = 4;
constexpr std::size_t kShare = 1000;

struct Buffers {
  std::vector<double> input = std::vector<double>(kRanks * kShare), share = std::vector<double>(kShare);
};

// Each rank's share of the sum of all ranks' inputs, in a thread of its own.
int sum_of(crossccl::Rank& rank, Buffers& buffers) {
  auto& [input, share] = buffers;
  std::iota(input.begin(), input.end(), rank.rank());
  rank.reduce_scatter(input.data(), share.data(), kShare, crosscclSum);
  rank.synchronize();
  int wrong = 0;
  for (std::size_t i = 0; i < kShare; i++) {
    // i + (i + 1) + (i + 2) + (i + 3)
    wrong += share[i] != 4.0 * static_cast<double>(rank.rank() * kShare + i) + 6.0;
  }
  return wrong;
}

int main() {
  crosscclConfig_t config = CROSSCCL_CONFIG_INITIALIZER;
  config.backend = crosscclBackendCpu;
  // Before the ranks, so that they outlive them: where synchronize throws, another rank may still read these.
  std::vector<Buffers> buffers(kRanks);
  auto ranks = crossccl::Rank::all(kRanks, config);

  std::vector<int> wrong(kRanks, 1);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&rank, &own = buffers[rank.rank()], &answer = wrong[rank.rank()]] {
      try {
        answer = sum_of(rank, own);
      } catch (const crossccl::Error& error) {
        std::cerr << error.what() << '\n';
      }
    });
  }
  for (auto& thread : threads) thread.join();

  // A mistake is told by name, before anything is launched.
  try {
    ranks[1].broadcast(wrong.data(), wrong.data(), wrong.size(), kRanks);
    return 1;
  } catch (const crossccl::Error& error) {
    const std::string text = error.what();
    if (error.result() != crosscclInvalidArgument || text.find("root of rank 1") == std::string::npos) return 1;
    std::cout << text << '\n';
  }
  // A group that an exception leaves launches nothing: the same ranks go on.
  std::vector<float> data(kRanks, 1);
  try {
    crossccl::Group group;
    ranks[0].broadcast(&data[0], 1, 0);
    ranks[1].broadcast(&data[1], 1, kRanks);
    return 1;
  } catch (const crossccl::Error& error) {
    if (error.result() != crosscclInvalidArgument) return 1;
  }
  data[2] = 5;
  crossccl::Group group;
  for (int rank = 0; rank < kRanks; rank++) ranks[rank].broadcast(&data[rank], 1, 2);
  group.end();
  for (auto& rank : ranks) rank.synchronize();
  wrong.push_back(data != std::vector<float>(kRanks, 5));

  const int sum = std::accumulate(wrong.begin(), wrong.end(), 0);
  std::cout << "RAII, " << ranks[0].count() << " ranks: " << sum << " wrong\n";
  return sum != 0;
}
