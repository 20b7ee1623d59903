// Groups: several tensors under one name, which run, complete and fail as one.
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/every_world.hpp"
#include "runtime/reduce_values.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::group_test {

class GroupTest : public EveryWorldTest {};

INSTANTIATE_TEST_SUITE_P(, GroupTest, testing::ValuesIn(all_settings()), name_of_setting);

/// Members of several types and sizes, some of them empty.
std::vector<Tensor> make_members() {
  std::vector<Tensor> members;
  members.emplace_back(DType::Float32, std::vector<std::int64_t>{3, 5});
  members.emplace_back(DType::Float32, std::vector<std::int64_t>{});
  members.emplace_back(DType::Float64, std::vector<std::int64_t>{7});
  members.emplace_back(DType::Int32, std::vector<std::int64_t>{4, 0});
  members.emplace_back(DType::Int32, std::vector<std::int64_t>{2, 2});
  members.emplace_back(DType::Float16, std::vector<std::int64_t>{0});
  members.emplace_back(DType::Float32, std::vector<std::int64_t>{1301});
  return members;
}

std::vector<InputOutput> in_place(const std::vector<Tensor>& members) {
  std::vector<InputOutput> tensors;
  for (const Tensor& member : members) tensors.push_back({member.view(), member.view()});
  return tensors;
}

TEST_P(GroupTest, AllReduceOfMixedTypes) {
  run([&](Runtime& runtime) {
    for (const ReduceOp op : kPlainOps) {
      if (!is_tested(DType::Float32, op)) continue;  // some members are floats
      std::vector<Tensor> members = make_members();
      for (std::size_t t = 0; t < members.size(); ++t) {
        members[t].fill([&](std::size_t i) {
          return reduce_input(members[t].view().dtype, op, runtime.rank(), i + t);
        });
      }
      grouped_allreduce(in_place(members), {.op = op, .name = std::string(name_of(op))});
      for (std::size_t t = 0; t < members.size(); ++t) {
        const DType dtype = members[t].view().dtype;
        expect_reduced(
            members[t], op,
            [&](std::size_t i) { return reduce_expected(dtype, op, size(), i + t); },
            std::string(name_of(op)) + ", member " + std::to_string(t));
      }
    }
  });
}

TEST_P(GroupTest, ReduceScatterOfMixedTypes) {
  run([&](Runtime& runtime) {
    constexpr std::int64_t kRows[] = {0, 1, 5, 17};
    constexpr DType kTypes[] = {DType::Float32, DType::Int64, DType::Float32, DType::Float64};
    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs;
    std::vector<InputOutput> tensors;
    for (std::size_t t = 0; t < 4; ++t) {
      const std::int64_t own = scattered_rows(kRows[t], size(), runtime.rank());
      inputs.emplace_back(kTypes[t], std::vector<std::int64_t>{kRows[t], 2});
      outputs.emplace_back(kTypes[t], std::vector<std::int64_t>{own, 2});
      inputs[t].fill([&](std::size_t i) { return input_value(runtime.rank(), i, t); });
      tensors.push_back({inputs[t].view(), outputs[t].view()});
    }
    grouped_reduce_scatter(tensors,
                           {.op = ReduceOp::Sum, .prescale = 2, .postscale = 3, .name = "x"});
    for (std::size_t t = 0; t < 4; ++t) {
      std::int64_t begin = 0;
      for (int rank = 0; rank < runtime.rank(); ++rank) {
        begin += scattered_rows(kRows[t], size(), rank);
      }
      const auto skipped = static_cast<std::size_t>(2 * begin);
      outputs[t].expect([&](std::size_t i) { return 6 * input_sum(size(), skipped + i, t); },
                        "member " + std::to_string(t));
    }
  });
}

TEST_P(GroupTest, BroadcastAndAllGatherOfMixedTypes) {
  run([&](Runtime& runtime) {
    std::vector<Tensor> members = make_members();
    std::vector<TensorView> views;
    for (std::size_t t = 0; t < members.size(); ++t) {
      members[t].fill([&](std::size_t i) { return input_value(runtime.rank(), i, t); });
      views.push_back(members[t].view());
    }
    grouped_broadcast(views, size() - 1, {.name = "broadcast"});
    for (std::size_t t = 0; t < members.size(); ++t) {
      members[t].expect([&](std::size_t i) { return input_value(size() - 1, i, t); },
                        "broadcast, member " + std::to_string(t));
    }

    const auto rows_of = [](int rank, std::size_t t) {
      return static_cast<std::int64_t>((static_cast<std::size_t>(rank) + t) % 3);
    };
    constexpr DType kTypes[] = {DType::Float32, DType::Int8, DType::Float64};
    std::vector<Tensor> inputs;
    std::vector<Rows> outputs(3);
    std::vector<InputRows> tensors;
    for (std::size_t t = 0; t < 3; ++t) {
      inputs.emplace_back(kTypes[t], std::vector<std::int64_t>{rows_of(runtime.rank(), t), 2});
      inputs[t].fill([&](std::size_t i) { return input_value(runtime.rank(), i, t); });
      outputs[t] = {kTypes[t], 2};
      tensors.push_back({inputs[t].view(), outputs[t].allocator()});
    }
    grouped_allgather(tensors, {.name = "gather"});
    for (std::size_t t = 0; t < 3; ++t) {
      std::size_t at = 0;
      for (int rank = 0; rank < size(); ++rank) {
        ASSERT_EQ(outputs[t].counts.at(static_cast<std::size_t>(rank)), rows_of(rank, t));
        for (std::size_t i = 0; i < static_cast<std::size_t>(2 * rows_of(rank, t)); ++i, ++at) {
          ASSERT_EQ(outputs[t].at(at), input_value(rank, i, t)) << "member " << t;
        }
      }
    }
  });
}

TEST_P(GroupTest, AllGatherOfKnownRows) {
  run([&](Runtime& runtime) {
    std::vector<std::int64_t> rows;
    for (int rank = 0; rank < size(); ++rank) rows.push_back((rank + 1) % 3);
    const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    constexpr DType kTypes[] = {DType::Float32, DType::Int8};
    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs;
    std::vector<InputAndGathered> tensors;
    for (std::size_t t = 0; t < 2; ++t) {
      const auto columns = static_cast<std::int64_t>(t + 1);
      const std::int64_t own = rows[static_cast<std::size_t>(runtime.rank())];
      inputs.emplace_back(kTypes[t], std::vector<std::int64_t>{own, columns});
      inputs[t].fill([&](std::size_t i) { return input_value(runtime.rank(), i, t); });
      outputs.emplace_back(kTypes[t], std::vector<std::int64_t>{all, columns});
      tensors.push_back({inputs[t].view(), outputs[t].view().data});
    }
    grouped_allgather_async(tensors, rows, {.name = "gather"}).wait();
    for (std::size_t t = 0; t < 2; ++t) {
      std::size_t at = 0;
      for (int rank = 0; rank < size(); ++rank) {
        const auto count = (t + 1) * static_cast<std::size_t>(rows[static_cast<std::size_t>(rank)]);
        for (std::size_t i = 0; i < count; ++i, ++at) {
          ASSERT_EQ(outputs[t].at(at), input_value(rank, i, t)) << "member " << t;
        }
      }
    }
  });
}

TEST_P(GroupTest, AnEmptyGroupEndsOnceAllHaveSubmittedIt) {
  run([&](Runtime& runtime) {
    grouped_allreduce({}, {.name = "x"});
    grouped_reduce_scatter({}, {.name = "y"});
    grouped_broadcast({}, 0, {.name = "z"});
    grouped_allgather({}, {.name = "w"});
    expect_sum_works(runtime, "x");
  });
}

/// Values whose sum has different bits in every order.
double order_sensitive_value(int rank, std::size_t i) {
  return std::sin(static_cast<double>(i * 7 + 1) * (rank + 1)) * std::pow(10.0, rank * 3 % 7 - 3);
}

TEST(GroupBitsTest, AreTheSameWhateverTheTiming) {
  for (const std::string algorithm : {"", "allreduce:ring"}) {
    std::vector<float> first;
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      Setting setting{.size = 4,
                      .network = {.longest_delay = std::chrono::microseconds(300), .seed = seed}};
      setting.config.shared_memory = algorithm.empty();
      setting.config.algorithm = algorithm;
      std::vector<std::vector<float>> results(4);
      run_runtimes(setting, [&](Runtime& runtime) {
        std::vector<Tensor> members;
        for (const std::int64_t count : {5, 1000, 17, 300}) members.emplace_back(count);
        Tensor loose(100);
        loose.fill([&](std::size_t i) { return order_sensitive_value(runtime.rank(), i); });
        for (Tensor& member : members) {
          member.fill([&](std::size_t i) {
            return order_sensitive_value(runtime.rank(), i + member.count());
          });
        }
        // The group must not be fused with other operations in flight, which vary here.
        Handle other;
        const bool is_first = (seed + static_cast<std::uint64_t>(runtime.rank())) % 2 == 0;
        if (is_first) other = allreduce_async(loose.view(), loose.view(), {.name = "loose"});
        Handle group = grouped_allreduce_async(in_place(members), {.name = "group"});
        if (!is_first) other = allreduce_async(loose.view(), loose.view(), {.name = "loose"});
        group.wait();
        other.wait();
        auto& result = results[static_cast<std::size_t>(runtime.rank())];
        for (const Tensor& member : members) {
          for (std::size_t i = 0; i < member.count(); ++i) {
            result.push_back(static_cast<float>(member.at(i)));
          }
        }
      });
      if (first.empty()) first = results[0];
      for (const std::vector<float>& result : results) {
        ASSERT_EQ(std::memcmp(result.data(), first.data(), first.size() * sizeof(float)), 0)
            << algorithm << ", seed " << seed;
      }
    }
  }
}

TEST(GroupFailureTest, AMemberThatCannotRunFailsAllOnEveryRank) {
  run_runtimes(3, [](Runtime& runtime) {
    for (int odd = 0; odd < 3; ++odd) {
      std::vector<Tensor> members = make_members();
      for (Tensor& member : members) member.fill([](std::size_t) { return 1; });
      std::vector<InputOutput> tensors = in_place(members);
      if (runtime.rank() == odd) tensors[4].output.shape = {5};
      Handle handle = grouped_allreduce_async(tensors, {.op = ReduceOp::Sum, .name = "x"});
      const std::string text = text_thrown_by<InvalidArgument>([&] { handle.wait(); });
      expect_contains(text, "allreduce 'x' on process set world: rank " + std::to_string(odd));
      for (const Tensor& member : members)
        member.expect([](std::size_t) { return 1; }, "untouched");
      expect_sum_works(runtime, "x");
    }
  });
}

TEST(GroupFailureTest, ANameInFlightIsRefusedForAllMembers) {
  run_runtimes(2, [](Runtime& runtime) {
    const AllreduceOptions options{.op = ReduceOp::Sum, .name = "x"};
    std::vector<Tensor> members = make_members();
    std::vector<Tensor> others = make_members();
    for (Tensor& member : members) {
      member.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    }
    for (Tensor& other : others) other.fill([](std::size_t) { return 1; });
    Handle first;
    if (runtime.rank() == 0) {
      first = grouped_allreduce_async(in_place(members), options);
      const std::string text =
          text_thrown_by<InvalidArgument>([&] { grouped_allreduce(in_place(others), options); });
      expect_contains(text, "allreduce 'x' on process set world");
      expect_contains(text, "in flight");
      EXPECT_THROW(allreduce(others[0].view(), others[0].view(), options), InvalidArgument);
    }
    barrier({.name = "refused"});
    if (runtime.rank() == 1) first = grouped_allreduce_async(in_place(members), options);
    first.wait();
    for (const Tensor& member : members) {
      member.expect([](std::size_t i) { return input_sum(2, i); }, "the first group");
    }
    // No part of the second group was submitted.
    for (const Tensor& other : others) other.expect([](std::size_t) { return 1; }, "untouched");
    grouped_allreduce(in_place(others), options);
    for (const Tensor& other : others) other.expect([](std::size_t) { return 2; }, "free again");
  });
}

}  // namespace kolo::test::group_test
