// Errors of a Runtime whose ranks are processes: each reaches every rank, and later operations
// work.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "mpi/runtime_variants.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test::runtime_errors_mpi_test {

using namespace std::chrono_literals;

class RuntimeErrorsMpiTest : public testing::TestWithParam<RuntimeVariant> {
 protected:
  InitOptions options() const { return {.config = GetParam().config}; }
};

INSTANTIATE_TEST_SUITE_P(, RuntimeErrorsMpiTest, testing::ValuesIn(all_variants()),
                         [](const auto& item) { return item.param.name; });

TEST_P(RuntimeErrorsMpiTest, MismatchRaisesOnEveryRankAndTheLibraryStaysUsable) {
  Runtime runtime(options());
  if (runtime.size() == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  for (int step = 0; step < 3; ++step) {
    const bool is_odd = runtime.rank() == runtime.size() - 1;
    const Tensor tensor(DType::Float32, {3, is_odd ? 5 : 4});
    const std::string text = text_thrown_by<MismatchError>(
        [&] { allreduce(tensor.view(), tensor.view(), {.name = "x"}); });
    expect_contains(text, "'x'");
    expect_contains(text, "[3, 4] on rank");
    expect_contains(text, "[3, 5] on rank " + std::to_string(runtime.size() - 1));
    expect_sum_works(runtime, "y");
  }
}

TEST_P(RuntimeErrorsMpiTest, TimeoutRaisesOnAllRanksTheLateOneToo) {
  Runtime runtime(options());
  if (runtime.size() == 1) GTEST_SKIP() << "one rank has nobody to wait for";
  const bool is_late = runtime.rank() == 0;
  const auto wait_for_others = [] { barrier({.name = "all others have given up"}); };
  if (is_late) wait_for_others();
  const Tensor tensor(4);
  AllreduceOptions options{.name = "x"};
  if (!is_late) options.timeout = 500ms;  // all other ranks must submit it by then
  const std::string text =
      text_thrown_by<TimeoutError>([&] { allreduce(tensor.view(), tensor.view(), options); });
  expect_contains(text, "while rank 0 had not submitted it");
  if (!is_late) wait_for_others();
  expect_sum_works(runtime, "x");
}

TEST_P(RuntimeErrorsMpiTest, AShutdownElsewhereEndsWhatIsPending) {
  Runtime runtime(options());
  expect_sum_works(runtime, "before");
  const int leaving = runtime.size() - 1;
  if (runtime.rank() == leaving) runtime.shutdown();
  const Tensor tensor(4);
  const std::string text = text_thrown_by<ShutdownError>(
      [&] { allreduce(tensor.view(), tensor.view(), {.name = "x"}); });
  expect_contains(text, "'x'");
  if (runtime.rank() != leaving) expect_contains(text, "rank " + std::to_string(leaving));
}

TEST_P(RuntimeErrorsMpiTest, AWrongArgumentOfOneRankRaisesOnEveryRank) {
  Runtime runtime(options());
  for (int step = 0; step < 3; ++step) {
    const int odd = step % runtime.size();
    const Tensor tensor(12 * runtime.size());
    Rows output{DType::Float32, 1};
    std::vector<std::int64_t> splits;
    if (runtime.rank() == odd) splits.assign(static_cast<std::size_t>(runtime.size()), 13);
    const std::string text = text_thrown_by<InvalidArgument>(
        [&] { alltoall(tensor.view(), splits, output.allocator(), {.name = "x"}); });
    expect_contains(text, "alltoall 'x' on process set world: rank " + std::to_string(odd));
    expect_contains(text, "the splits add up to");
    expect_sum_works(runtime, "y");
  }
}

TEST_P(RuntimeErrorsMpiTest, HandlesMayOutliveIt) {
  Handle handle;
  Tensor tensor(7);
  {
    Runtime runtime(options());
    handle = allreduce_async(tensor.view(), tensor.view(),
                             {.name = "only on rank " + std::to_string(runtime.rank())});
    if (runtime.size() == 1) handle.wait();
  }
  EXPECT_TRUE(handle.is_ready());
  if (MpiRanks::instance().size() > 1) {
    EXPECT_THROW(handle.wait(), ShutdownError);
  }
}

TEST(RuntimeErrorsOverMpiTest, ConfigurationsThatDifferAreRefusedOnEveryRank) {
  const int last = MpiRanks::instance().size() - 1;
  if (last == 0) GTEST_SKIP() << "one rank has nobody to differ from";
  Config config = config_of_ranks();
  if (MpiRanks::instance().rank() == last) config.fusion_bytes = 99;
  const std::string text =
      text_thrown_by<InvalidArgument>([&] { Runtime runtime({.config = config}); });
  expect_contains(text, "rank 0 has KOLO_FUSION_BYTES=512KB");
  expect_contains(text, "rank " + std::to_string(last) + " has KOLO_FUSION_BYTES=99B");
}

}  // namespace kolo::test::runtime_errors_mpi_test
