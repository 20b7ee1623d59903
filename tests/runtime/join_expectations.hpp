#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/every_world.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::joins {

/// Returns once the ranks in `who`, which do not call this, have joined: the barrier cannot run
/// before.
inline void wait_until_joined(const std::string& who) { barrier({.name = who + " joined"}); }

/// The ranks of a set that have not joined, and results from their inputs.
class Active {
 public:
  Active(ProcessSet& set, std::vector<int> ranks) : set_(set), ranks_(std::move(ranks)) {}

  ProcessSet& set() const { return set_; }
  int count() const { return static_cast<int>(ranks_.size()); }
  bool has(int rank) const { return std::find(ranks_.begin(), ranks_.end(), rank) != ranks_.end(); }

  static double input(int rank, std::size_t i) {
    return static_cast<double>((i * 3 + static_cast<std::size_t>(rank) * 5) % 7) - 3;
  }
  double sum(std::size_t i, double scale = 1) const {
    double sum = 0;
    for (const int rank : ranks_) sum += std::trunc(input(rank, i) * scale);
    return sum;
  }
  double least(std::size_t i, double scale) const {
    double least = input(ranks_[0], i) * scale;
    for (const int rank : ranks_) least = std::min(least, input(rank, i) * scale);
    return least;
  }
  double greatest(std::size_t i, double scale) const { return -least(i, -scale); }
  double product(std::size_t i, double scale) const {
    double product = 1;
    for (const int rank : ranks_) product *= input(rank, i) * scale;
    return product;
  }
  double common_bits(std::size_t i, double scale) const {
    std::int64_t bits = -1;
    for (const int rank : ranks_) bits &= static_cast<std::int64_t>(input(rank, i) * scale);
    return static_cast<double>(bits);
  }

 private:
  ProcessSet& set_;
  std::vector<int> ranks_;
};

struct ReduceCase {
  std::string name;
  DType dtype;
  AllreduceOptions options;
  std::function<double(const Active&, std::size_t)> expected;
};

inline std::vector<ReduceCase> reduce_cases() {
  const auto sum = [](const Active& active, std::size_t i) { return active.sum(i); };
  const auto active_mean = [](const Active& active, std::size_t i) {
    return active.sum(i) / active.count();
  };
  const auto truncated = [](auto formula) {
    return
        [formula](const Active& active, std::size_t i) { return std::trunc(formula(active, i)); };
  };
  const auto mean = [](const Active& active, std::size_t i) {
    return active.sum(i) / active.set().size();
  };
  return {
      {"sum", DType::Float32, {.op = ReduceOp::Sum}, sum},
      {"mean", DType::Float32, {}, mean},
      {"mean of active", DType::Float32, {.join_divisor = JoinDivisor::Active}, active_mean},
      {"integer mean", DType::Int32, {}, truncated(mean)},
      {"integer mean of active",
       DType::Int8,
       {.join_divisor = JoinDivisor::Active},
       truncated(active_mean)},
      {"half mean of active", DType::Float16, {.join_divisor = JoinDivisor::Active}, active_mean},
      {"compressed",
       DType::Float32,
       {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = 4, .compression = Compression::bf16()},
       [](const Active& active, std::size_t i) { return 2 * active.sum(i); }},
      {"min",
       DType::Int16,
       {.op = ReduceOp::Min, .prescale = -2},
       [](const Active& active, std::size_t i) { return active.least(i, -2); }},
      {"max",
       DType::Float64,
       {.op = ReduceOp::Max, .prescale = -0.5},
       [](const Active& active, std::size_t i) { return active.greatest(i, -0.5); }},
      {"compressed min",
       DType::Float32,
       {.op = ReduceOp::Min, .prescale = 0.25, .compression = Compression::fp16()},
       [](const Active& active, std::size_t i) { return active.least(i, 0.25); }},
      {"product",
       DType::Float32,
       {.op = ReduceOp::Product, .prescale = 2, .postscale = 0.5},
       [](const Active& active, std::size_t i) { return active.product(i, 2) / 2; }},
      {"complex mean of active",
       DType::Complex128,
       {.prescale = 2, .join_divisor = JoinDivisor::Active},
       [](const Active& active, std::size_t i) { return 2 * active.sum(i) / active.count(); }},
      {"integer product",
       DType::Int64,
       {.op = ReduceOp::Product, .prescale = 3},
       [](const Active& active, std::size_t i) { return active.product(i, 3); }},
      {"common bits",
       DType::Int32,
       {.op = ReduceOp::BitAnd, .prescale = 3},
       [](const Active& active, std::size_t i) { return active.common_bits(i, 3); }},
  };
}

inline void expect_reductions(const Active& active) {
  ProcessSet& set = active.set();
  for (const ReduceCase& item : reduce_cases()) {
    if (is_bitwise(item.options.op) && tensor_place != nullptr) continue;  // not on GPUs
    constexpr std::int64_t kRows = 37;
    const std::int64_t own = scattered_rows(kRows, set.size(), set.rank());
    std::int64_t begin = 0;
    for (int rank = 0; rank < set.rank(); ++rank) begin += scattered_rows(kRows, set.size(), rank);
    Tensor tensor(kRows, item.dtype);
    Tensor part(own, item.dtype);
    tensor.fill([&](std::size_t i) { return Active::input(set.rank(), i); });
    AllreduceOptions options = item.options;
    options.process_set = &set;
    options.name = item.name + " scattered";
    reduce_scatter(tensor.view(), part.view(), options);
    options.name = item.name;
    allreduce(tensor.view(), tensor.view(), options);
    const double rounding = item.dtype == DType::Float16 ? 0x1p-9 : 1e-6;
    tensor.expect([&](std::size_t i) { return item.expected(active, i); }, item.name, rounding);
    part.expect(
        [&](std::size_t i) { return item.expected(active, static_cast<std::size_t>(begin) + i); },
        options.name, rounding);
  }
}

/// Joined ranks contribute zeros: equal vectors of the others stay the same, orthogonal ones add
/// up.
inline void expect_adasum(const Active& active) {
  ProcessSet& set = active.set();
  const auto owner = [&](std::size_t i) {
    return static_cast<int>(i % static_cast<std::size_t>(set.size()));
  };
  Tensor alike = on_cpu(DType::Float32, {23});
  Tensor apart = on_cpu(DType::Float32, {23});
  alike.fill([](std::size_t i) { return static_cast<double>(i) - 9; });
  apart.fill(
      [&](std::size_t i) { return owner(i) == set.rank() ? static_cast<double>(i) + 1 : 0.0; });
  allreduce(alike.view(), alike.view(),
            {.op = ReduceOp::Adasum, .name = "alike", .process_set = &set});
  allreduce(apart.view(), apart.view(),
            {.op = ReduceOp::Adasum, .name = "apart", .process_set = &set});
  alike.expect([](std::size_t i) { return static_cast<double>(i) - 9; }, "Adasum of equals");
  apart.expect(
      [&](std::size_t i) { return active.has(owner(i)) ? static_cast<double>(i) + 1 : 0.0; },
      "Adasum of orthogonals");
}

/// `root` has not joined.
inline void expect_moves(const Active& active, int root) {
  ProcessSet& set = active.set();
  const auto value = [](int rank, std::size_t i) {
    return 100.0 * rank + static_cast<double>(i % 50);
  };
  Tensor sent(30);
  sent.fill([&](std::size_t i) { return value(set.rank(), i); });
  broadcast(sent.view(), set.ranks()[static_cast<std::size_t>(root)],
            {.name = "broadcast", .process_set = &set});
  sent.expect([&](std::size_t i) { return value(root, i); }, "broadcast");

  Tensor input(DType::Float32, {set.rank() % 2 + 2, 2});
  input.fill([&](std::size_t i) { return value(set.rank(), i); });
  Rows gathered{DType::Float32, 2};
  allgather(input.view(), gathered.allocator(), {.name = "gather", .process_set = &set});
  std::size_t at = 0;
  for (int rank = 0; rank < set.size(); ++rank) {
    const std::int64_t rows = active.has(rank) ? rank % 2 + 2 : 0;
    ASSERT_EQ(gathered.counts.at(static_cast<std::size_t>(rank)), rows) << "rank " << rank;
    for (std::size_t i = 0; i < static_cast<std::size_t>(2 * rows); ++i) {
      ASSERT_EQ(gathered.at(at++), value(rank, i)) << "gathered from rank " << rank;
    }
  }

  std::vector<std::int64_t> splits;
  for (int to = 0; to < set.size(); ++to) splits.push_back(active.has(to) ? to + 1 : 0);
  std::int64_t rows = 0;
  for (const std::int64_t split : splits) rows += split;
  Tensor outgoing(rows);
  outgoing.fill([&](std::size_t i) { return value(set.rank(), i); });
  std::size_t before = 0;  // the elements that every active rank sends to lower ranks
  for (int to = 0; to < set.rank(); ++to) {
    before += static_cast<std::size_t>(splits[static_cast<std::size_t>(to)]);
  }
  Rows received{DType::Float32, 1};
  alltoall(outgoing.view(), splits, received.allocator(), {.name = "all", .process_set = &set});
  at = 0;
  for (int from = 0; from < set.size(); ++from) {
    const std::int64_t count = active.has(from) ? set.rank() + 1 : 0;
    ASSERT_EQ(received.counts.at(static_cast<std::size_t>(from)), count) << "from " << from;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      ASSERT_EQ(received.at(at++), value(from, before + i)) << "from " << from << ", row " << i;
    }
  }
  barrier({.name = "barrier", .process_set = &set});
}

inline void expect_groups(const Active& active) {
  ProcessSet& set = active.set();
  std::vector<Tensor> members;
  members.emplace_back(40);
  members.emplace_back(0);
  members.emplace_back(7, DType::Int64);
  std::vector<InputOutput> tensors;
  for (Tensor& member : members) {
    member.fill([&](std::size_t i) { return Active::input(set.rank(), i); });
    tensors.push_back({member.view(), member.view()});
  }
  grouped_allreduce(tensors, {.op = ReduceOp::Sum, .name = "group", .process_set = &set});
  for (const Tensor& member : members) {
    member.expect([&](std::size_t i) { return active.sum(i); }, "group");
  }
}

}  // namespace kolo::test::joins
