// Broadcasts of tensors.
#include "support/mpi/variants.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::broadcast_test {

const AlsoIn also_in({"alone", "groups"});

using BroadcastTest = TrainingTest;

TEST_F(BroadcastTest, EveryType_ComesFromEveryRoot) {
  for (int root = 0; root < size(); ++root) {
    for (const at::ScalarType type : kNumbers) {
      const at::Tensor mine = own({2, 3}, type);
      const at::Tensor expected = values(root, {2, 3}, type);
      const std::string what = std::string(c10::toString(type)) + " from " + std::to_string(root);
      expect_equal(broadcast(mine, root), expected, what);
      expect_equal(mine, own({2, 3}, type), what);
      at::Tensor changed = own({2, 3}, type);
      EXPECT_EQ(&broadcast_(changed, root), &changed);
      expect_equal(changed, expected, what);
    }
    expect_equal(broadcast(at::arange(size()) == rank(), root), at::arange(size()) == root);
  }
}

TEST_F(BroadcastTest, AnyStridesScalarsAndEmptyTensors_AreCopied) {
  const int root = size() - 1;
  expect_equal(broadcast(own({4, 3}).t(), root), values(root, {4, 3}).t());
  at::Tensor whole = at::full({10}, -1.0f);
  at::Tensor every_other = whole.slice(0, 0, 10, 2);
  every_other.copy_(own({5}));
  TensorHandle handle = broadcast_async_(every_other, root);
  handle.wait();
  expect_equal(whole.slice(0, 0, 10, 2), values(root, {5}));
  expect_equal(whole.slice(0, 1, 10, 2), at::full({5}, -1.0f));
  expect_equal(broadcast(own({}), root), values(root, {}));
  expect_equal(broadcast(at::empty({0, 3}), root), at::empty({0, 3}));
}

TEST_F(BroadcastTest, Groups_AreCopied) {
  const int root = size() - 1;
  const std::vector<at::Tensor> tensors{own({3, 2}).t(), own({}, at::kLong), own({4}, at::kByte)};
  const std::vector<at::Tensor> expected{values(root, {3, 2}).t(), values(root, {}, at::kLong),
                                         values(root, {4}, at::kByte)};
  const std::vector<at::Tensor> copies = grouped_broadcast(tensors, root);
  TensorsHandle handle = grouped_broadcast_async(tensors, root);
  const std::vector<at::Tensor> of_handle = handle.result();
  expect_equal(tensors[2], own({4}, at::kByte));
  grouped_broadcast_(tensors, root);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    expect_equal(copies[i], expected[i]);
    expect_equal(of_handle[i], expected[i]);
    expect_equal(tensors[i], expected[i]);
  }
  EXPECT_TRUE(grouped_broadcast(std::vector<at::Tensor>{}, root).empty());
}

TEST_F(BroadcastTest, RootsOfProcessSets_AreWorldRanks) {
  if (size() == 1) GTEST_SKIP() << "a world of one rank has one process set";
  const int root = size() - 1;
  ProcessSet& set = runtime_.add_process_set({size() - 2, root});
  if (!set.included()) {
    EXPECT_THROW(broadcast(own({3}), root, {.process_set = &set}), InvalidArgument);
    return;
  }
  expect_equal(broadcast(own({3}), root, {.process_set = &set}), values(root, {3}));
  if (size() > 2) {
    expect_contains(
        text_thrown_by<InvalidArgument>([&] { broadcast(own({3}), 0, {.process_set = &set}); }),
        "root rank 0");
  }
}

}  // namespace kolo::test::broadcast_test
