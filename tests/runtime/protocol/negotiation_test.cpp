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
  const Verdict verdict = Judge({}, kSet).decide(report, table);
  EXPECT_EQ(verdict.exchange, 9u);
  EXPECT_TRUE(verdict.errors.empty());
  EXPECT_TRUE(verdict.evicted.empty());
  ASSERT_EQ(verdict.added.size(), 2u);
  EXPECT_EQ(verdict.added[0], (Verdict::Addition{0, make("a", 2)}));
  EXPECT_EQ(verdict.added[1], (Verdict::Addition{2, make("b", 2)}));
  EXPECT_EQ(verdict.blocked, (std::vector<std::string>{"old", "a", "b"}));
}

TEST(NegotiationTest, TwoRequestsOfOneName_AreAMismatch) {
  RequestTable table;
  table.add(0, make("a", 2));
  Report report;
  report.items = {unknown(make("a", 7), {1, 3}), known(0, {0, 2}, {2})};
  const Verdict verdict = Judge({}, kSet).decide(report, table);
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
  const Verdict verdict = Judge({}, kSet).decide(report, table);
  ASSERT_EQ(verdict.errors.size(), 1u);
  EXPECT_EQ(verdict.errors[0].failure,
            (Failure{ErrorKind::InvalidArgument,
                     "allreduce 'a' on process set evens: ranks 2 and 6: it has no memory"}));
  EXPECT_TRUE(verdict.added.empty());
  EXPECT_TRUE(verdict.blocked.empty());
}

TEST(NegotiationTest, FullTable_EvictsTheOldestIdleRequests) {
  RequestTable table;
  for (int bit = 0; bit < 4; ++bit) table.add(bit, make("old" + std::to_string(bit), 1));
  for (const int bit : {2, 0, 3, 1}) table.touch(bit);
  Report report;
  report.items = {known(2, {1}), unknown(make("a", 1), {0}), unknown(make("b", 1), {0})};
  const Verdict verdict = Judge({.capacity = 4}, kSet).decide(report, table);
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
  const Verdict verdict = Judge({.capacity = 2}, kSet).decide(report, table);
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
  const Verdict verdict = Judge({.capacity = 2, .bits = 3}, kSet).decide(report, table);
  EXPECT_EQ(verdict.evicted, (std::vector<int>{1}));
  ASSERT_EQ(verdict.added.size(), 2u);
  EXPECT_EQ(verdict.added[0], (Verdict::Addition{1, make("a", 1)}));
  EXPECT_EQ(verdict.added[1], (Verdict::Addition{2, make("b", 1)}));
  EXPECT_EQ(verdict.blocked, (std::vector<std::string>{"pending", "a", "b"}));
}

TEST(NegotiationTest, RequestOfAllRanks_TakesTheBitOfOneThatWaits) {
  RequestTable table;
  for (int bit = 0; bit < 3; ++bit) table.add(bit, make("old" + std::to_string(bit), 1));
  Report report;
  report.joined_ranks = {3};
  report.items = {known(0, {0, 1, 2}), known(1, {0, 1}), known(2, {1}), unknown(make("a", 1), {0}),
                  unknown(make("z", 1), {0, 1, 2})};
  const Verdict verdict = Judge({.capacity = 2, .bits = 3}, kSet).decide(report, table);
  EXPECT_EQ(verdict.evicted, (std::vector<int>{1})) << "bit 0 is about to run, one place is enough";
  ASSERT_EQ(verdict.added.size(), 1u);
  EXPECT_EQ(verdict.added[0], (Verdict::Addition{1, make("z", 1)}));
}

/// A Judge that could give no bit to "w", which ranks 0 and 2 have reported.
class RememberedTest : public testing::Test {
 protected:
  RememberedTest() {
    table_.add(0, make("pending", 1));
    Report report;
    report.items = {known(0, {0}), unknown(make("w", 1), {0, 2})};
    EXPECT_TRUE(judge_.decide(report, table_).added.empty());
  }

  /// The verdict on a report of the request with the only bit, and of `more`.
  Verdict decide(const std::vector<Report::Item>& more, std::vector<int> joined = {}) {
    Report report;
    report.items = {known(0, {0})};
    report.items.insert(report.items.end(), more.begin(), more.end());
    report.joined_ranks = std::move(joined);
    return judge_.decide(report, table_);
  }

  RequestTable table_;
  Judge judge_{{.capacity = 1, .bits = 1}, kSet};
};

TEST_F(RememberedTest, BitThatBecomesFree_GoesToIt) {
  const Verdict verdict = judge_.decide({}, table_);  // nothing is pending under the bit any more
  EXPECT_EQ(verdict.evicted, std::vector<int>{0});
  EXPECT_EQ(verdict.added, (std::vector<Verdict::Addition>{{0, make("w", 1)}}));
  EXPECT_EQ(verdict.blocked, std::vector<std::string>{"w"});
}

TEST_F(RememberedTest, OtherRanksReport_CompletesIt) {
  const Verdict verdict = decide({unknown(make("w", 1), {1, 3})});
  EXPECT_EQ(verdict.evicted, std::vector<int>{0});
  EXPECT_EQ(verdict.added, (std::vector<Verdict::Addition>{{0, make("w", 1)}}));
}

TEST_F(RememberedTest, OthersJoin_CompletesIt) {
  EXPECT_TRUE(decide({}, {1}).added.empty());
  EXPECT_EQ(decide({}, {1, 3}).added, (std::vector<Verdict::Addition>{{0, make("w", 1)}}));
}

TEST_F(RememberedTest, OtherRequestOfItsName_IsAMismatch) {
  const Verdict verdict = decide({unknown(make("w", 5), {1})});
  ASSERT_EQ(verdict.errors.size(), 1u);
  EXPECT_EQ(verdict.errors[0].failure,
            (Failure{ErrorKind::Mismatch,
                     "'w' on process set evens: shape differs: [1, 3] on ranks 0 and 4, [5, 3] on "
                     "rank 2. All ranks must submit the same operation under one name."}));
  EXPECT_TRUE(judge_.decide({}, table_).added.empty()) << "it is remembered no longer";
}

TEST_F(RememberedTest, Timeout_NamesOnlyRanksThatHaveNeverReportedIt) {
  Report::Item expired = unknown(make("w", 1), {2});
  expired.expired_ranks = {2};
  const Verdict verdict = decide({expired});
  ASSERT_EQ(verdict.errors.size(), 1u);
  EXPECT_EQ(verdict.errors[0].failure,
            (Failure{ErrorKind::Timeout,
                     "allreduce 'w' on process set evens: the deadline passed on rank 4 while "
                     "ranks 2 and 6 had not submitted it. Submit it on every rank, or raise the "
                     "timeout (KOLO_TIMEOUT)."}));
}

TEST_F(RememberedTest, Stall_NamesAllRanksThatHaveIt) {
  Report::Item stalled = unknown(make("w", 1), {2});
  stalled.stalled = true;
  EXPECT_EQ(decide({stalled}).stalls, (std::vector<Verdict::Stall>{{"w", {0, 2}, {1, 3}}}));
  EXPECT_TRUE(decide({}).stalls.empty()) << "it is reported once";
}

}  // namespace kolo::runtime::negotiation_test
