// All-to-alls on plain memory, in every kind of world, against closed forms.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/every_world.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::alltoall_test {

class AllToAllTest : public EveryWorldTest {};

INSTANTIATE_TEST_SUITE_P(, AllToAllTest, testing::ValuesIn(all_settings()), name_of_setting);

/// How many rows `from` sends to `to`.
using Splits = std::function<std::int64_t(int from, int to)>;

/// Element `i` of the rows that `from` sends to `to`.
double sent_value(int from, int to, std::size_t i) {
  return static_cast<double>((static_cast<std::size_t>(from * 31 + to * 7) + i) % 101);
}

/// Runs and checks an all-to-all over `set`, with rows of `row_elements`.
void expect_exchanged(ProcessSet& set, const Splits& splits, DType dtype, std::int64_t row_elements,
                      const std::string& name, bool gives_splits = true) {
  std::vector<std::int64_t> own;
  std::int64_t rows = 0;
  for (int to = 0; to < set.size(); ++to) rows += own.emplace_back(splits(set.rank(), to));
  Tensor input(dtype, {rows, row_elements});
  int to = 0;
  std::size_t begin = 0;
  input.fill([&](std::size_t i) {
    const auto elements = [&] {
      return static_cast<std::size_t>(splits(set.rank(), to) * row_elements);
    };
    while (i - begin >= elements()) begin += elements(), ++to;
    return sent_value(set.rank(), to, i - begin);
  });
  Rows output{dtype, row_elements};
  if (!gives_splits) own.clear();
  alltoall(input.view(), own, output.allocator(), {.name = name, .process_set = &set});
  ASSERT_EQ(output.counts.size(), static_cast<std::size_t>(set.size())) << name;
  std::size_t at = 0;
  for (int from = 0; from < set.size(); ++from) {
    ASSERT_EQ(output.counts[static_cast<std::size_t>(from)], splits(from, set.rank())) << name;
    const auto elements = static_cast<std::size_t>(splits(from, set.rank()) * row_elements);
    for (std::size_t i = 0; i < elements; ++i, ++at) {
      ASSERT_EQ(output.at(at), sent_value(from, set.rank(), i))
          << name << ": element " << i << " from rank " << from;
    }
  }
}

TEST_P(AllToAllTest, OfEveryKindOfSplits) {
  run([&](Runtime& runtime) {
    ProcessSet& world = runtime.world();
    const int last = size() - 1;
    const std::vector<std::pair<std::string, Splits>> cases{
        {"equal", [](int, int) { return 3; }},
        {"uneven", [](int from, int to) { return (from * 2 + to * 3) % 5; }},
        {"to one only", [&](int, int to) { return to == last ? 4 : 0; }},
        {"from one only", [&](int from, int) { return from == last ? 4 : 0; }},
        {"one sends nothing", [&](int from, int to) { return from == 0 ? 0 : 1 + to; }},
        {"one receives nothing", [&](int from, int to) { return to == 0 ? 0 : 1 + from; }},
        {"nothing at all", [](int, int) { return 0; }},
        {"to oneself", [](int from, int to) { return from == to ? 2 : 0; }},
        {"long", [](int from, int to) { return 500 + from * 7 + to; }},
    };
    for (const auto& [name, splits] : cases) {
      expect_exchanged(world, splits, DType::Float32, 3, name);
      expect_exchanged(world, splits, DType::Float32, 3, "splits change");
      expect_exchanged(world, splits, DType::Int8, 1, name + " of bytes");
    }
  });
}

TEST_P(AllToAllTest, OfEveryType) {
  run([&](Runtime& runtime) {
    for (const DType dtype : kAllDTypes) {
      if (dtype == DType::Bool) continue;  // the values need more than two
      expect_exchanged(
          runtime.world(), [](int from, int to) { return from + to; }, dtype, 2,
          std::string(name_of(dtype)));
    }
  });
}

TEST_P(AllToAllTest, WithoutSplitsSharesAreEqual) {
  run([&](Runtime& runtime) {
    // Equal for all receivers, but different for each sender.
    const Splits splits = [](int from, int) { return from % 3; };
    expect_exchanged(runtime.world(), splits, DType::Float64, 2, "x", false);
    expect_exchanged(runtime.world(), [](int, int) { return 2; }, DType::Float64, 0, "no columns");
  });
}

TEST(AllToAllArgumentsTest, WrongSplitsOfOneRankFailOnAll) {
  struct Case {
    std::vector<std::int64_t> splits;
    std::string text;
  };
  const std::vector<Case> cases{
      {{}, "7 rows do not divide evenly over 3 ranks"},
      {{3, 4}, "2 splits for 3 ranks"},
      {{3, 4, 0, 0}, "4 splits for 3 ranks"},
      {{1, 2, 3}, "add up to 6 rows, the tensor has 7"},
      {{4, 4, 4}, "add up to 12 rows, the tensor has 7"},
      {{std::int64_t{1} << 62, std::int64_t{1} << 62, std::int64_t{1} << 62},
       "add up to more than 9223372036854775807 rows, the tensor has 7"},
      {{9, -2, 0}, "a split is negative"},
  };
  run_runtimes(3, [&](Runtime& runtime) {
    const Tensor input(DType::Float32, {7, 2});
    for (const Case& item : cases) {
      for (int odd = 0; odd < 3; ++odd) {
        Rows output{DType::Float32, 2};
        const auto splits =
            runtime.rank() == odd ? item.splits : std::vector<std::int64_t>{2, 2, 3};
        const std::string text = text_thrown_by<InvalidArgument>(
            [&] { alltoall(input.view(), splits, output.allocator(), {.name = "x"}); });
        expect_contains(text, "alltoall 'x' on process set world: rank " + std::to_string(odd));
        expect_contains(text, item.text);
        EXPECT_TRUE(output.counts.empty()) << "memory was asked for";
      }
    }
    expect_exchanged(
        runtime.world(), [](int from, int to) { return from + to; }, DType::Float32, 2, "x");
  });
}

}  // namespace kolo::test::alltoall_test
