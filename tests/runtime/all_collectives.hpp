#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/shared_buffer.hpp"
#include "runtime/values.hpp"

namespace kolo::test {

/// Runs every collective once on a set of this rank. Inputs differ by world rank.
inline void expect_all_work(ProcessSet& set) {
  const auto value = [&](int member, std::size_t i) {
    return input_value(set.ranks()[static_cast<std::size_t>(member)], i);
  };
  const auto sum = [&](std::size_t i) {
    double total = 0;
    for (int member = 0; member < set.size(); ++member) total += value(member, i);
    return total;
  };
  const auto own = [&](std::size_t i) { return value(set.rank(), i); };
  Tensor tensor(50);
  tensor.fill(own);
  const std::int64_t rows = scattered_rows(50, set.size(), set.rank());
  std::int64_t begin = 0;
  for (int member = 0; member < set.rank(); ++member) {
    begin += scattered_rows(50, set.size(), member);
  }
  Tensor part(rows);
  reduce_scatter(tensor.view(), part.view(), {.op = ReduceOp::Sum, .process_set = &set});
  part.expect([&](std::size_t i) { return sum(static_cast<std::size_t>(begin) + i); }, "scattered");
  allreduce(tensor.view(), tensor.view(), {.name = "mean", .process_set = &set});
  tensor.expect([&](std::size_t i) { return sum(i) / set.size(); }, "mean", 1e-6);

  Tensor floats(9);
  Tensor integers(4, DType::Int64);
  floats.fill(own);
  integers.fill(own);
  grouped_allreduce({{floats.view(), floats.view()}, {integers.view(), integers.view()}},
                    {.op = ReduceOp::Sum, .process_set = &set});
  floats.expect(sum, "floats of a group");
  integers.expect(sum, "integers of a group");

  Tensor alike = on_cpu(DType::Float32, {9});
  Tensor apart = on_cpu(DType::Float32, {9});  // orthogonal to those of the other members
  alike.fill([](std::size_t i) { return static_cast<double>(i) - 3; });
  apart.fill([&](std::size_t i) {
    const bool is_own =
        i % static_cast<std::size_t>(set.size()) == static_cast<std::size_t>(set.rank());
    return is_own ? static_cast<double>(i) + 1 : 0.0;
  });
  for (const Tensor* const vector : {&alike, &apart}) {
    allreduce(vector->view(), vector->view(), {.op = ReduceOp::Adasum, .process_set = &set});
  }
  alike.expect([](std::size_t i) { return static_cast<double>(i) - 3; }, "Adasum of equals");
  apart.expect([](std::size_t i) { return static_cast<double>(i) + 1; }, "Adasum of orthogonals");

  for (int member = 0; member < set.size(); ++member) {
    Tensor sent(9);
    sent.fill(own);
    const int root = set.ranks()[static_cast<std::size_t>(member)];
    broadcast(sent.view(), root, {.process_set = &set});
    sent.expect([&](std::size_t i) { return value(member, i); }, "from " + std::to_string(root));
  }

  Tensor input(DType::Float32, {set.rank(), 2});
  input.fill(own);
  Rows gathered{DType::Float32, 2};
  allgather(input.view(), gathered.allocator(), {.process_set = &set});
  std::size_t at = 0;
  for (int member = 0; member < set.size(); ++member) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(2 * member); ++i) {
      ASSERT_EQ(gathered.at(at++), value(member, i)) << "gathered from member " << member;
    }
  }

  Tensor outgoing(set.size());
  outgoing.fill([&](std::size_t to) { return 10.0 * set.rank() + static_cast<double>(to); });
  Rows received{DType::Float32, 1};
  alltoall(outgoing.view(), {}, received.allocator(), {.process_set = &set});
  for (int from = 0; from < set.size(); ++from) {
    ASSERT_EQ(received.at(static_cast<std::size_t>(from)), 10.0 * from + set.rank());
  }
  barrier({.process_set = &set});

  const SharedBuffer buffer(400, {.process_set = &set});
  auto* const values = reinterpret_cast<float*>(buffer.data());
  for (std::size_t i = 0; i < 100; ++i) values[i] = static_cast<float>(own(i));
  allreduce_async(buffer, 0, 100, DType::Float32, {.op = ReduceOp::Sum, .process_set = &set})
      .wait();
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(values[i], sum(i)) << "shared, element " << i;
}

}  // namespace kolo::test
