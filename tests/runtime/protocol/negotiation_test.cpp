#include "runtime/protocol/negotiation.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::runtime::negotiation_test {

const SetNames kSet{"evens", {0, 2, 4, 6}};  // ranks 0 … 3 of the set

Request make(const std::string& name, std::int64_t rows) {
  Request request;
  request.name = name;
  request.tensors = {{DType::Float32, {rows, 3}}};
  return request;
}

Report::Item unknown(const Request& request, std::vector<int> ranks) {
  Report::Item item;
  item.request = request;
  item.ranks = std::move(ranks);
  return item;
}

Report::Item known(int bit, std::vector<int> ranks, std::vector<int> expired = {}) {
  Report::Item item;
  item.bit = bit;
  item.ranks = std::move(ranks);
  item.expired_ranks = std::move(expired);
  return item;
}

TEST(NegotiationTest, Reports_MergeByRequest) {
  Report report;
  report.items = {unknown(make("a", 2), {1}), known(4, {1}, {1})};
  report.joined_ranks = {3};
  Report other;
  other.items = {known(4, {0, 2}, {2}), unknown(make("a", 2), {2}), unknown(make("a", 5), {0})};
  other.items[1].stalled = true;
  other.joined_ranks = {1};
  report.merge(other);

  ASSERT_EQ(report.items.size(), 3u);
  EXPECT_EQ(report.items[0].ranks, (std::vector<int>{1, 2}));
  EXPECT_TRUE(report.items[0].stalled);
  EXPECT_EQ(report.items[1].ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(report.items[1].expired_ranks, (std::vector<int>{1, 2}));
  EXPECT_EQ(report.items[2].request, make("a", 5));
  EXPECT_EQ(report.joined_ranks, (std::vector<int>{1, 3}));
}

TEST(NegotiationTest, UnknownRequests_GetFreeBits) {
  RequestTable table;
  table.add(1, make("old", 1));
  Report report;
  report.exchange = 9;
  report.items = {unknown(make("a", 2), {0}), known(1, {3}), unknown(make("b", 2), {1, 2})};
  const Verdict verdict = judge(report, table, {}, kSet);
  EXPECT_EQ(verdict.exchange, 9u);
  EXPECT_TRUE(verdict.errors.empty());
  EXPECT_TRUE(verdict.evicted.empty());
  ASSERT_EQ(verdict.added.size(), 2u);
  EXPECT_EQ(verdict.added[0], (Verdict::Addition{0, make("a", 2)}));
  EXPECT_EQ(verdict.added[1], (Verdict::Addition{2, make("b", 2)}));
  EXPECT_EQ(verdict.blocked, (std::vector<std::string>{"a", "b", "old"}));
}

TEST(NegotiationTest, TwoRequestsOfOneName_AreAMismatch) {
  RequestTable table;
  table.add(0, make("a", 2));
  Report report;
  report.items = {unknown(make("a", 7), {1, 3}), known(0, {0, 2}, {2})};
  const Verdict verdict = judge(report, table, {}, kSet);
  ASSERT_EQ(verdict.errors.size(), 1u);
  EXPECT_EQ(verdict.errors[0].name, "a");
  EXPECT_EQ(verdict.errors[0].failure.kind, ErrorKind::Mismatch);
  for (const char* part : {"'a'", "evens", "[2, 3] on ranks 0 and 4", "[7, 3] on ranks 2 and 6"}) {
    EXPECT_NE(verdict.errors[0].failure.text.find(part), std::string::npos)
        << part << " in: " << verdict.errors[0].failure.text;
  }
  EXPECT_TRUE(verdict.added.empty());
  EXPECT_TRUE(verdict.blocked.empty());
}

TEST(NegotiationTest, InvalidRequest_PrecedesMismatchAndTimeout) {
  RequestTable table;
  table.add(0, make("a", 2));
  Request broken = make("a", 7);
  broken.invalid_reason = "it has no memory";
  Report report;
  report.items = {known(0, {0}, {0}), unknown(broken, {1, 3})};
  const Verdict verdict = judge(report, table, {}, kSet);
  ASSERT_EQ(verdict.errors.size(), 1u);
  EXPECT_EQ(verdict.errors[0].failure,
            (Failure{ErrorKind::InvalidArgument,
                     "allreduce 'a' on process set evens: ranks 2 and 6: it has no memory"}));
  EXPECT_TRUE(verdict.added.empty());
  EXPECT_TRUE(verdict.blocked.empty());
}

TEST(NegotiationTest, Timeout_NamesTheMissingRanks) {
  RequestTable table;
  table.add(0, make("a", 2));
  Report report;
  report.items = {known(0, {1}, {1})};
  report.joined_ranks = {3};
  const Verdict verdict = judge(report, table, {}, kSet);
  ASSERT_EQ(verdict.errors.size(), 1u);
  EXPECT_EQ(verdict.errors[0].failure.kind, ErrorKind::Timeout);
  for (const char* part : {"allreduce 'a'", "passed on rank 2", "ranks 0 and 4 had not"}) {
    EXPECT_NE(verdict.errors[0].failure.text.find(part), std::string::npos)
        << part << " in: " << verdict.errors[0].failure.text;
  }
}

TEST(NegotiationTest, Stall_NamesWaitingAndMissingRanks) {
  RequestTable table;
  table.add(0, make("a", 2));
  table.add(1, make("b", 2));
  Report report;
  report.items = {known(0, {1, 2}), known(1, {0})};
  report.items[0].stalled = true;
  const Verdict verdict = judge(report, table, {}, kSet);
  ASSERT_EQ(verdict.stalls.size(), 1u);
  EXPECT_EQ(verdict.stalls[0], (Verdict::Stall{"a", {1, 2}, {0, 3}}));
  EXPECT_EQ(verdict.blocked, (std::vector<std::string>{"a", "b"}));
}

TEST(NegotiationTest, FullTable_EvictsTheOldestIdleRequests) {
  RequestTable table;
  for (int bit = 0; bit < 4; ++bit) table.add(bit, make("old" + std::to_string(bit), 1));
  for (const int bit : {2, 0, 3, 1}) table.touch(bit);
  Report report;
  report.items = {known(2, {1}), unknown(make("a", 1), {0}), unknown(make("b", 1), {0})};
  const Verdict verdict = judge(report, table, {.capacity = 4}, kSet);
  EXPECT_EQ(verdict.evicted, (std::vector<int>{0, 3}));
  ASSERT_EQ(verdict.added.size(), 2u);
  EXPECT_EQ(verdict.added[0].bit, 0);
  EXPECT_EQ(verdict.added[1].bit, 3);
}

TEST(NegotiationTest, TableFullOfPendingRequests_Grows) {
  RequestTable table;
  table.add(0, make("x", 1));
  table.add(1, make("y", 1));
  Report report;
  report.items = {known(0, {1}), known(1, {2}), unknown(make("a", 1), {0})};
  const Verdict verdict = judge(report, table, {.capacity = 2}, kSet);
  EXPECT_TRUE(verdict.evicted.empty());
  ASSERT_EQ(verdict.added.size(), 1u);
  EXPECT_EQ(verdict.added[0].bit, 2);
}

TEST(NegotiationTest, RequestsBeyondTheHeadersBits_StayUnknown) {
  RequestTable table;
  table.add(0, make("pending", 1));
  table.add(1, make("idle", 1));
  Report report;
  report.items = {known(0, {1}), unknown(make("a", 1), {0}), unknown(make("b", 1), {0}),
                  unknown(make("c", 1), {2})};
  const Verdict verdict = judge(report, table, {.capacity = 2, .bits = 3}, kSet);
  EXPECT_EQ(verdict.evicted, (std::vector<int>{1}));
  ASSERT_EQ(verdict.added.size(), 2u);
  EXPECT_EQ(verdict.added[0], (Verdict::Addition{1, make("a", 1)}));
  EXPECT_EQ(verdict.added[1], (Verdict::Addition{2, make("b", 1)}));
  EXPECT_EQ(verdict.blocked, (std::vector<std::string>{"a", "b", "c", "pending"}));
}

TEST(NegotiationTest, RequestOfAllRanks_TakesTheBitOfOneThatWaits) {
  RequestTable table;
  for (int bit = 0; bit < 3; ++bit) table.add(bit, make("old" + std::to_string(bit), 1));
  Report report;
  report.joined_ranks = {3};
  report.items = {known(0, {0, 1, 2}), known(1, {0, 1}), known(2, {1}), unknown(make("a", 1), {0}),
                  unknown(make("z", 1), {0, 1, 2})};
  const Verdict verdict = judge(report, table, {.capacity = 2, .bits = 3}, kSet);
  EXPECT_EQ(verdict.evicted, (std::vector<int>{1})) << "bit 0 is about to run, one place is enough";
  ASSERT_EQ(verdict.added.size(), 1u);
  EXPECT_EQ(verdict.added[0], (Verdict::Addition{1, make("z", 1)}));
}

}  // namespace kolo::runtime::negotiation_test
