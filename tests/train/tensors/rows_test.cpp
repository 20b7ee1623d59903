// All-gather and all-to-all on tensors.
#include <numeric>

#include "support/mpi/variants.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::rows_test {

const AlsoIn also_in({"alone", "uneven", "groups"});

class RowsTest : public TrainingTest {
 protected:
  using Rows = std::vector<std::int64_t>;

  static at::Tensor all_of(const std::vector<int>& ranks, const std::function<Shape(int)>& shape_of,
                           at::ScalarType type = at::kFloat) {
    std::vector<at::Tensor> parts;
    for (const int rank : ranks) parts.push_back(values(rank, shape_of(rank), type));
    return at::cat(parts);
  }

  /// The rows that rank `from` sends to rank `to`; zero for some pairs.
  static std::int64_t split(int from, int to) { return (3 * from + 2 * to) % 4; }
  Rows splits_of(int from) const {
    Rows splits;
    for (int to = 0; to < size(); ++to) splits.push_back(split(from, to));
    return splits;
  }
  /// The part of `values(from, [rows, 2])` that `from` sends to this rank.
  at::Tensor part_of(int from, const Rows& splits, at::ScalarType type) const {
    const std::int64_t rows = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
    const std::int64_t start =
        std::accumulate(splits.begin(), splits.begin() + rank(), std::int64_t{0});
    return values(from, {rows, 2}, type).narrow(0, start, splits[static_cast<std::size_t>(rank())]);
  }
  /// Checks an all-to-all with the splits `splits_of_rank(r)` on rank r.
  void expect_exchange(const std::function<Rows(int)>& splits_of_rank,
                       at::ScalarType type = at::kFloat) {
    const Rows mine = splits_of_rank(rank());
    const std::int64_t rows = std::accumulate(mine.begin(), mine.end(), std::int64_t{0});
    const auto [output, received] = alltoall(own({rows, 2}, type), mine);
    std::vector<at::Tensor> parts;
    for (int from = 0; from < size(); ++from) {
      parts.push_back(part_of(from, splits_of_rank(from), type));
      EXPECT_EQ(received.at(static_cast<std::size_t>(from)), parts.back().size(0));
    }
    expect_equal(output, at::cat(parts), c10::toString(type));
  }
};

TEST_F(RowsTest, Allgather_OrdersUnevenRows) {
  const auto shape_of = [](int rank) { return Shape{(2 * rank + 1) % 4, 3}; };
  for (const at::ScalarType type : kNumbers) {
    expect_equal(allgather(own(shape_of(rank()), type)),
                 all_of(runtime_.world().ranks(), shape_of, type), c10::toString(type));
  }
  std::vector<at::Tensor> bools;  // rank 0 has no rows
  for (int r = 0; r < size(); ++r) bools.push_back(at::full({r}, r % 2 == 1));
  expect_equal(allgather(bools[static_cast<std::size_t>(rank())]), at::cat(bools));
}

TEST_F(RowsTest, Allgather_TakesNoRows) {
  expect_equal(allgather(at::empty({0, 3})), at::empty({0, 3}));
  expect_equal(allgather(at::empty({rank() + 1, 0})), at::empty({size() * (size() + 1) / 2, 0}));
  const auto only_last = [&](int r) { return Shape{r == size() - 1 ? 2 : 0}; };
  expect_equal(allgather(own(only_last(rank()))), all_of(runtime_.world().ranks(), only_last));
}

TEST_F(RowsTest, Allgather_TakesAnyStrides) {
  const auto shape_of = [](int r) { return Shape{r + 1, 4}; };
  const at::Tensor columns = own(shape_of(rank())).t().contiguous();
  expect_equal(allgather(columns.t()), all_of(runtime_.world().ranks(), shape_of));
}

TEST_F(RowsTest, Allgather_TakesGroups) {
  const auto some = [](int r) { return Shape{r + 1, 2}; };
  const auto others = [](int r) { return Shape{r % 2}; };
  const std::vector<at::Tensor> inputs{own(some(rank())), own(others(rank()), at::kLong)};
  TensorsHandle handle = grouped_allgather_async(inputs);
  for (const auto& all : {grouped_allgather(inputs), handle.result()}) {
    ASSERT_EQ(all.size(), 2u);
    expect_equal(all[0], all_of(runtime_.world().ranks(), some));
    expect_equal(all[1], all_of(runtime_.world().ranks(), others, at::kLong));
  }
  EXPECT_TRUE(grouped_allgather(std::vector<at::Tensor>{}).empty());
}

TEST_F(RowsTest, Alltoall_SendsUnevenRowsOfEveryType) {
  for (const at::ScalarType type : kNumbers) {
    expect_exchange([&](int r) { return splits_of(r); }, type);
  }
  const at::Tensor bools = at::arange(size()) == rank();  // true for itself only
  expect_equal(alltoall(bools).output, bools);
}

TEST_F(RowsTest, Alltoall_SendsEqualSharesWithoutSplits) {
  const auto [output, received] = alltoall(own({3 * size(), 2}));
  EXPECT_EQ(received, Rows(static_cast<std::size_t>(size()), 3));
  for (int from = 0; from < size(); ++from) {
    expect_equal(output.narrow(0, 3 * from, 3),
                 values(from, {3 * size(), 2}).narrow(0, 3 * rank(), 3));
  }
}

TEST_F(RowsTest, Alltoall_TakesAnyStridesAndEmptyRows) {
  const at::Tensor columns = own({2 * size(), 3}).t().contiguous();
  AlltoallHandle handle = alltoall_async(columns.t());
  std::vector<at::Tensor> parts;
  for (int from = 0; from < size(); ++from) {
    parts.push_back(values(from, {2 * size(), 3}).narrow(0, 2 * rank(), 2));
  }
  expect_equal(handle.result().output, at::cat(parts));
  expect_equal(alltoall(at::empty({size(), 0})).output, at::empty({size(), 0}));
}

TEST_F(RowsTest, ProcessSets_ExchangeTheirOwnRows) {
  if (size() == 1) GTEST_SKIP() << "a world of one rank has one process set";
  std::vector<int> from_one;
  for (int r = 1; r < size(); ++r) from_one.push_back(r);
  ProcessSet& set = runtime_.add_process_set(from_one);
  if (!set.included()) {
    EXPECT_THROW(allgather(own({1}), {.process_set = &set}), InvalidArgument);
    EXPECT_THROW(alltoall(own({1}), {}, {.name = "x", .process_set = &set}), InvalidArgument);
    return;
  }
  const auto shape_of = [](int r) { return Shape{r, 2}; };
  expect_equal(allgather(own(shape_of(rank())), {.process_set = &set}), all_of(from_one, shape_of));
  const auto [output, received] = alltoall(own({set.size()}), {}, {.process_set = &set});
  for (int i = 0; i < set.size(); ++i) {
    expect_equal(
        output.narrow(0, i, 1),
        values(set.ranks()[static_cast<std::size_t>(i)], {set.size()}).narrow(0, set.rank(), 1));
  }
}

}  // namespace kolo::test::rows_test
