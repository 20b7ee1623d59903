// More pending operations than a header has bits.
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::many_names_test {

constexpr int kNames = 20'000;

class ManyNamesTest : public testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(, ManyNamesTest,
                         testing::Values(Setting{.name = "Shared"},
                                         Setting{.name = "Messages", .network = {.nodes = 2}}),
                         [](const auto& setting) { return setting.param.name; });

/// All-reduces of one number each, under different names.
class Numbers {
 public:
  explicit Numbers(int rank) : rank_(rank), values_(kNames) {}

  Handle submit(int name) {
    std::int64_t& value = values_[static_cast<std::size_t>(name)];
    value = input(rank_, name);
    const TensorView view{&value, DType::Int64, {1}, {}};
    return allreduce_async(view, view, {.op = ReduceOp::Sum, .name = std::to_string(name)});
  }
  int count_wrong() const {
    int wrong = 0;
    for (int name = 0; name < kNames; ++name) {
      const std::int64_t expected = input(0, name) + input(1, name);
      wrong += values_[static_cast<std::size_t>(name)] != expected ? 1 : 0;
    }
    return wrong;
  }

 private:
  static std::int64_t input(int rank, int name) { return (rank + 1) * (name + 3); }

  int rank_;
  std::vector<std::int64_t> values_;
};

TEST_P(ManyNamesTest, ManyNames_EachHasItsOwnSum) {
  std::barrier both_arrived(2);
  run_runtimes(GetParam(), [&](Runtime& runtime) {
    Numbers numbers(runtime.rank());
    std::vector<Handle> handles;
    if (runtime.rank() == 0) {
      for (int name = 0; name < kNames; ++name) handles.push_back(numbers.submit(name));
      both_arrived.arrive_and_wait();
    } else {
      both_arrived.arrive_and_wait();
      numbers.submit(kNames - 1).wait();  // queued last on rank 0, which has no bit for it
      for (int name = kNames - 2; name >= 0; --name) handles.push_back(numbers.submit(name));
    }
    for (Handle& handle : handles) handle.wait();
    EXPECT_EQ(numbers.count_wrong(), 0);
  });
}

}  // namespace kolo::test::many_names_test
