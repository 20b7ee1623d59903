#include <algorithm>
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "bench/workload.hpp"

namespace values_test {

using bench::Operation;
using bench::Tensor;
using bench::Workload;
using kolo::DType;

constexpr int kRanks = 3;
constexpr Operation kOperations[]{Operation::AllReduce, Operation::ReduceScatter,
                                  Operation::AllGather, Operation::Broadcast, Operation::AllToAll};

/// The tensors of all ranks for one workload, in one process, and the results of a plain loop.
template <class T>
class Ranks {
 public:
  Ranks(Operation operation, DType dtype, bool in_place)
      : workload_{operation, dtype, {5, 1, 130}} {
    for (int rank = 0; rank < kRanks; ++rank) {
      const bench::Layout layout = plan_layout(workload_, in_place, rank, kRanks);
      memory_.emplace_back(layout.size_bytes);
      tensors_.push_back(layout.at(memory_.back().data()));
      bench::write_inputs(workload_, tensors_.back(), rank, kRanks);
    }
  }

  const Workload& workload() const { return workload_; }
  std::vector<Tensor>& tensors(int rank) { return tensors_[static_cast<std::size_t>(rank)]; }

  std::uint64_t wrong() {
    std::uint64_t wrong = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      wrong += bench::count_wrong(workload_, tensors(rank), rank, kRanks);
    }
    return wrong;
  }

  std::vector<T> input(int rank, std::size_t number) {
    const Tensor& tensor = tensors(rank)[number];
    const auto* const begin = reinterpret_cast<const T*>(tensor.input);
    return {begin, begin + bench::input_count(workload_.operation, tensor.count, kRanks)};
  }

  void run() {
    for (std::size_t number = 0; number < workload_.counts.size(); ++number) {
      std::vector<std::vector<T>> inputs;
      for (int rank = 0; rank < kRanks; ++rank) inputs.push_back(input(rank, number));
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        const std::vector<T> result = result_of(inputs, rank, workload_.counts[number]);
        std::memcpy(tensors_[rank][number].output, result.data(), result.size() * sizeof(T));
      }
    }
  }

 private:
  std::vector<T> result_of(const std::vector<std::vector<T>>& inputs, std::size_t rank,
                           std::size_t count) const {
    std::vector<T> sum(inputs[0].size(), T{0});
    for (const auto& one : inputs) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<T>(sum[i] + one[i]);
    }
    const auto part = [&](const std::vector<T>& all, std::size_t number) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(number * count);
      return std::vector<T>(begin, begin + static_cast<std::ptrdiff_t>(count));
    };
    std::vector<T> pieces;
    switch (workload_.operation) {
      case Operation::AllReduce: return sum;
      case Operation::ReduceScatter: return part(sum, rank);
      case Operation::Broadcast: return inputs[0];
      case Operation::AllGather:
        for (const auto& one : inputs) pieces.insert(pieces.end(), one.begin(), one.end());
        return pieces;
      case Operation::AllToAll:
        for (const auto& one : inputs) {
          const std::vector<T> piece = part(one, rank);
          pieces.insert(pieces.end(), piece.begin(), piece.end());
        }
        return pieces;
    }
    return pieces;
  }

  Workload workload_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::vector<Tensor>> tensors_;
};

template <class T>
void expect_right_results_to_pass(DType dtype) {
  for (const Operation operation : kOperations) {
    for (const bool in_place : {true, false}) {
      Ranks<T> ranks(operation, dtype, in_place);
      EXPECT_GT(ranks.wrong(), 136U) << bench::name_of(operation) << ": nothing has run yet";
      ranks.run();
      EXPECT_EQ(ranks.wrong(), 0U) << bench::name_of(operation) << " in place " << in_place;
    }
  }
}

TEST(BenchValues, RightResultsPassAndInputsDoNot) {
  expect_right_results_to_pass<float>(DType::Float32);
  expect_right_results_to_pass<double>(DType::Float64);
  expect_right_results_to_pass<std::uint8_t>(DType::UInt8);
  expect_right_results_to_pass<std::int16_t>(DType::Int16);
  expect_right_results_to_pass<std::int64_t>(DType::Int64);
}

TEST(BenchValues, OneWrongElementCounts) {
  for (const Operation operation : kOperations) {
    Ranks<float> ranks(operation, DType::Float32, false);
    ranks.run();
    auto* const last = reinterpret_cast<float*>(ranks.tensors(2)[2].output) + 129;
    *last += 1;
    EXPECT_EQ(ranks.wrong(), 1U) << bench::name_of(operation);
  }
}

// As if ranks, parts or chunks were mixed up.
TEST(BenchValues, ResultsInAnotherOrderAreWrong) {
  for (const Operation operation : kOperations) {
    for (const int shift : {1, 4, 16, 64}) {
      Ranks<float> ranks(operation, DType::Float32, false);
      ranks.run();
      auto* const begin = reinterpret_cast<float*>(ranks.tensors(1)[2].output);
      std::rotate(begin, begin + shift, begin + 130);
      EXPECT_GT(ranks.wrong(), 30U) << bench::name_of(operation) << ' ' << shift;
    }
  }
}

TEST(BenchValues, RanksHoldDifferentInputs) {
  Ranks<float> ranks(Operation::AllReduce, DType::Float32, false);
  EXPECT_NE(ranks.input(0, 2), ranks.input(1, 2));
  EXPECT_NE(ranks.input(1, 2), ranks.input(2, 2));
}

// The same numbers as in float32, by their bit patterns.
TEST(BenchValues, HalvesHoldTheSameNumbers) {
  Ranks<float> single(Operation::AllReduce, DType::Float32, true);
  Ranks<std::uint16_t> half(Operation::AllReduce, DType::Float16, true);
  Ranks<std::uint16_t> bfloats(Operation::AllReduce, DType::BFloat16, true);
  const std::uint16_t half_bits[]{0, 0x3c00, 0x4000, 0x4200};
  const std::uint16_t bfloat_bits[]{0, 0x3f80, 0x4000, 0x4040};
  const auto numbers = single.input(1, 2);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto number = static_cast<std::size_t>(numbers[i]);
    EXPECT_EQ(half.input(1, 2)[i], half_bits[number]);
    EXPECT_EQ(bfloats.input(1, 2)[i], bfloat_bits[number]);
  }
}

}  // namespace values_test
