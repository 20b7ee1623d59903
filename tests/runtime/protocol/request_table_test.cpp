#include <string>

#include <gtest/gtest.h>

#include "runtime/protocol/negotiation.hpp"

namespace kolo::runtime::request_table_test {

Request make(const std::string& name, std::int64_t rows) {
  Request request;
  request.name = name;
  request.tensors = {{DType::Float32, {rows, 3}}};
  return request;
}

TEST(RequestTableTest, Find_ComparesAllFields) {
  RequestTable table;
  table.add(0, make("a", 2));
  table.add(5, make("a", 4));
  EXPECT_EQ(table.find(make("a", 2)), 0);
  EXPECT_EQ(table.find(make("a", 4)), 5);
  EXPECT_EQ(table.find(make("a", 6)), std::nullopt);
  EXPECT_EQ(table.find(make("b", 2)), std::nullopt);
  EXPECT_EQ(*table.at(5), make("a", 4));
  EXPECT_EQ(table.size(), 2u);
}

TEST(RequestTableTest, Ambiguous_HoldsNamesWithSeveralRequests) {
  RequestTable table;
  table.add(0, make("a", 2));
  table.add(1, make("b", 2));
  EXPECT_TRUE(table.ambiguous().none());
  table.add(70, make("a", 4));
  Bits both;
  both.set(0);
  both.set(70);
  EXPECT_EQ(table.ambiguous(), both);
  EXPECT_EQ(table.bits_of("a"), both);
  table.remove(0);
  EXPECT_TRUE(table.ambiguous().none());
  EXPECT_EQ(table.find(make("a", 4)), 70);
  EXPECT_EQ(table.find(make("a", 2)), std::nullopt);
}

TEST(RequestTableTest, FreeBit_IsTheLowest) {
  RequestTable table;
  table.add(0, make("a", 1));
  table.add(1, make("b", 1));
  table.add(3, make("c", 1));
  EXPECT_EQ(table.free_bit(0), 2);
  EXPECT_EQ(table.free_bit(3), 4);
  table.remove(1);
  EXPECT_EQ(table.free_bit(0), 1);
}

TEST(RequestTableTest, LastRun_OrdersRequestsByAge) {
  RequestTable table;
  table.add(0, make("a", 1));
  table.add(1, make("b", 1));
  EXPECT_EQ(table.by_last_run(), (std::list<int>{0, 1}));  // a new request counts as used
  table.touch(0);
  EXPECT_EQ(table.by_last_run(), (std::list<int>{1, 0}));
  table.remove(1);
  EXPECT_EQ(table.by_last_run(), (std::list<int>{0}));
}

}  // namespace kolo::runtime::request_table_test
