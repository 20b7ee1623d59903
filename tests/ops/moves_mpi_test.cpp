// All algorithms that move elements without reduction, among processes.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "ops/algorithms_over_mpi.hpp"

namespace kolo::test::moves_mpi_test {

using MovesMpiTest = AlgorithmsOverMpi;

TEST_F(MovesMpiTest, EveryAllToAll_UnevenCounts) {
  const auto count = [](int from, int to) {
    return static_cast<std::size_t>((from * 3 + to * 2) % 5) * 20'011;
  };
  const auto value = [](int from, int to, std::size_t i) {
    return from * 10'000'000 + to * 1'000'000 + static_cast<std::int32_t>(i);
  };
  std::vector<std::size_t> sent;
  std::vector<std::size_t> received;
  std::vector<std::int32_t> input;
  std::vector<std::int32_t> expected;
  for (int peer = 0; peer < size(); ++peer) {
    sent.push_back(count(rank(), peer));
    received.push_back(count(peer, rank()));
    for (std::size_t i = 0; i < sent.back(); ++i) input.push_back(value(rank(), peer, i));
    for (std::size_t i = 0; i < received.back(); ++i) expected.push_back(value(peer, rank(), i));
  }
  for (const Algorithm& algorithm : of(Collective::AllToAll)) {
    std::vector<std::int32_t> output(expected.size());
    run(algorithm, {.peer_buffers = peer_buffers_,
                    .input = share(bytes_in(input)),
                    .output = reinterpret_cast<std::byte*>(output.data()),
                    .dtype = DType::Int32,
                    .send_counts = sent,
                    .receive_counts = received,
                    .segment_bytes = 16384});
    EXPECT_EQ(output, expected) << algorithm.name;
  }
}

TEST_F(MovesMpiTest, EveryAllGather_UnevenCounts) {
  std::vector<std::size_t> counts;
  std::vector<std::int32_t> expected;
  for (int peer = 0; peer < size(); ++peer) {
    counts.push_back(static_cast<std::size_t>(peer) * 30011);  // rank 0 has none
    for (std::size_t i = 0; i < counts.back(); ++i) {
      expected.push_back(peer * 1'000'000 + static_cast<std::int32_t>(i));
    }
  }
  const std::size_t own = counts[static_cast<std::size_t>(rank())];
  std::vector<std::int32_t> input(own);
  std::iota(input.begin(), input.end(), rank() * 1'000'000);
  const std::size_t begin =
      std::accumulate(counts.begin(), counts.begin() + rank(), std::size_t{0});
  for (const Algorithm& algorithm : of(Collective::AllGather)) {
    std::byte* const output = share(bytes_in(std::vector<std::int32_t>(expected.size())));
    std::byte* const place = output + begin * sizeof(std::int32_t);
    const bool in_place = algorithm.needs == Needs::PeerBuffers;
    if (in_place) std::ranges::copy(bytes_in(input), place);
    run(algorithm, {.peer_buffers = peer_buffers_,
                    .input = in_place ? place : bytes_in(input).data(),
                    .output = output,
                    .dtype = DType::Int32,
                    .counts = counts,
                    .segment_bytes = 16384});
    EXPECT_TRUE(std::ranges::equal(std::span(output, expected.size() * sizeof(std::int32_t)),
                                   bytes_in(expected)))
        << algorithm.name;
  }
}

TEST_F(MovesMpiTest, EveryBroadcast_FromEveryRoot) {
  for (int root = 0; root < size(); ++root) {
    std::vector<double> expected(70'001);
    std::iota(expected.begin(), expected.end(), root * 0.5);
    for (const Algorithm& algorithm : of(Collective::Broadcast)) {
      std::vector<double> values(expected.size(), -1);
      if (rank() == root) values = expected;
      std::byte* const buffer = share(bytes_in(values));
      run(algorithm, {.peer_buffers = peer_buffers_,
                      .output = buffer,
                      .count = values.size(),
                      .dtype = DType::Float64,
                      .root = root,
                      .segment_bytes = 65536});
      EXPECT_TRUE(
          std::ranges::equal(std::span(buffer, bytes_in(expected).size()), bytes_in(expected)))
          << algorithm.name << ", root " << root;
    }
  }
}

}  // namespace kolo::test::moves_mpi_test
