// Checkpoints contain what was saved, for any numbers of writing and reading ranks.
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/model.hpp"
#include "checkpoint/new_checkpoint.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "runtime/runtimes.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test::round_trip_test {

using checkpoints::Checkpoint;
using checkpoints::NewCheckpoint;

nlohmann::json details_of(int rank) {
  return {{"common", {{"lr", 1.0 / 3.0}, {std::to_string(rank), rank * 7}}}, {"last", rank}};
}

void save(const std::filesystem::path& folder, const std::vector<TestTensor>& model, int ranks,
          unsigned salt, Division division = Division::Evenly, int keep_last = 0) {
  run_runtimes(ranks, [&](Runtime& runtime) {
    const Slices own = own_slices(model, runtime.size(), runtime.rank(), salt, division);
    NewCheckpoint(folder, own.slices, details_of(runtime.rank()), keep_last, checkpoints::Ranks())
        .write();
  });
}

void expect_slices(const Checkpoint& checkpoint, const std::vector<TestTensor>& model, int size,
                   int rank, unsigned salt) {
  EXPECT_EQ(checkpoint.tensors().size(), model.size());
  const Slices expected = own_slices(model, size, rank, salt);
  for (std::size_t t = 0; t < model.size(); ++t) {
    const checkpoints::TensorSlice& slice = expected.slices[t];
    const Checkpoint::Tensor& tensor = checkpoint.tensors().at(slice.name);
    EXPECT_EQ(tensor.dtype, slice.dtype) << slice.name;
    EXPECT_EQ(tensor.shape, slice.shape) << slice.name;
    checkpoint.verify(slice.name, slice.dtype, slice.begin, slice.count);
    EXPECT_EQ(read_slice(checkpoint, model[t], slice.begin, slice.count), expected.memory[t])
        << slice.name;
  }
}

using Ranks = std::tuple<int, int, Division>;  // writers, readers

class CheckpointTest : public testing::TestWithParam<Ranks> {};

const std::vector<int> kRanks =
    kIsSanitized ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 4};
INSTANTIATE_TEST_SUITE_P(, CheckpointTest,
                         testing::Combine(testing::ValuesIn(kRanks), testing::ValuesIn(kRanks),
                                          testing::Values(Division::Evenly, Division::ByTurns,
                                                          Division::LastHasAll)));

TEST_P(CheckpointTest, RoundTrip_ReturnsWhatWasSaved) {
  const auto [writers, readers, division] = GetParam();
  const TemporaryFolder folder;
  const std::vector<TestTensor> model = large_model();
  save(folder.path() / "new" / "folder", model, writers, 5, division);
  run_runtimes(readers, [&, count = writers](Runtime& runtime) {
    const Checkpoint checkpoint(folder.path() / "new" / "folder", checkpoints::Ranks());
    expect_slices(checkpoint, model, runtime.size(), runtime.rank(), 5);
    expect_slices(checkpoint, model, 1, 0, 5);
    EXPECT_EQ(checkpoint.path(), folder.path() / "new" / "folder" / "checkpoint-00000001");
    nlohmann::json details{{"last", count - 1}, {"common", {{"lr", 1.0 / 3.0}}}};
    for (int r = 0; r < count; ++r) details["common"][std::to_string(r)] = r * 7;
    EXPECT_EQ(checkpoint.details(), details);
  });
}

}  // namespace kolo::test::round_trip_test
