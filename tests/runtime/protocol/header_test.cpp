#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/protocol/header_exchange.hpp"

namespace kolo::runtime::header_test {

/// Headers of three ranks, different in every field.
std::vector<Header> three_headers() {
  std::vector<Header> headers(3);
  for (Header& header : headers) header.exchange = 7;
  headers[0].own.set(1);
  headers[0].ready.set(1);
  headers[0].has_unknown = true;
  headers[0].shutdown_rank = 0;
  headers[0].newest = {5, 0};
  headers[1].thrower_rank = 1;
  headers[1].own.set(1);
  headers[1].own.set(90);
  headers[1].ready = headers[1].own;
  headers[1].has_expired = true;
  headers[1].joined.set(1);
  headers[1].newest = {5, 1};
  headers[2].ready.set(1);  // joined: ready for requests it does not have
  headers[2].ready.set(2);
  headers[2].has_stalled = true;
  headers[2].joined.set(2);
  return headers;
}

TEST(HeaderTest, Merge_UnitesOwnAndIntersectsReady) {
  std::vector<Header> headers = three_headers();
  Header merged = headers[0];
  merged.merge(headers[1]);
  merged.merge(headers[2]);

  Bits own;
  own.set(1);
  own.set(90);
  Bits ready;
  ready.set(1);
  EXPECT_EQ(merged.exchange, 7u);
  EXPECT_EQ(merged.own, own);
  EXPECT_EQ(merged.ready, ready);
  EXPECT_TRUE(merged.has_unknown);
  EXPECT_TRUE(merged.has_expired);
  EXPECT_TRUE(merged.has_stalled);
  Bits joined;
  joined.set(1);
  joined.set(2);
  EXPECT_EQ(merged.joined, joined);
  EXPECT_EQ(merged.shutdown_rank, 0);
  EXPECT_EQ(merged.thrower_rank, 1);
  EXPECT_EQ(merged.newest, (Newest{5, 1})) << "of equals the highest rank; rank 2 shows none";
}

TEST(HeaderTest, Merge_IsAssociativeAndCommutative) {
  const std::vector<Header> headers = three_headers();
  Header expected = headers[0];
  expected.merge(headers[1]);
  expected.merge(headers[2]);
  std::vector<std::size_t> order{0, 1, 2};
  do {
    Header left = headers[order[0]];
    left.merge(headers[order[1]]);
    left.merge(headers[order[2]]);
    EXPECT_EQ(left, expected);
    Header right = headers[order[1]];
    right.merge(headers[order[2]]);
    Header whole = headers[order[0]];
    whole.merge(right);
    EXPECT_EQ(whole, expected);
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace kolo::runtime::header_test
