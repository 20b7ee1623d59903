#include "restart/hosts.hpp"

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::test::restart_hosts_test {

using restart::Host;

std::vector<Host> file(const std::string& text) {
  std::istringstream lines(text);
  return restart::parse_host_file(lines);
}

std::string error_of_list(const std::string& list) {
  try {
    restart::parse_host_list(list);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

std::string error_of_file(const std::string& text) {
  try {
    file(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(RestartHosts, List_EachMentionAddsItsSlots) {
  EXPECT_EQ(restart::parse_host_list("a"), (std::vector<Host>{{"a", 1}}));
  EXPECT_EQ(restart::parse_host_list("a:2,b.c.d:13"), (std::vector<Host>{{"a", 2}, {"b.c.d", 13}}));
  EXPECT_EQ(restart::parse_host_list("a,b,a:3,b"), (std::vector<Host>{{"a", 4}, {"b", 2}}));
}

TEST(RestartHosts, List_WhatIsNoHostIsNamed) {
  EXPECT_EQ(error_of_list(""), "'' is not the name of a host");
  EXPECT_EQ(error_of_list("a,,b"), "'' is not the name of a host");
  EXPECT_EQ(error_of_list("a,"), "'' is not the name of a host");
  EXPECT_EQ(error_of_list(":2"), "':2' is not the name of a host");
  EXPECT_EQ(error_of_list("a, b"), "' b' is not the name of a host");
  EXPECT_EQ(error_of_list("--np"), "'--np' is not the name of a host");
  for (const char* const text : {"a:", "a:0", "a:-1", "a:2x", "a:1.5", "a:99999999999", "a:1:2"}) {
    EXPECT_EQ(error_of_list(text),
              "'" + std::string(text) + "' has no number of slots from 1 to 1000000");
  }
}

TEST(RestartHosts, SumOfSlotsDoesNotOverflow) {
  EXPECT_EQ(error_of_list("a:1000000,b:1"), "the hosts have too many slots");
}

TEST(RestartHosts, File_OfOpenMpiOfMpichAndOfPbs) {
  EXPECT_EQ(file("# two hosts\n\na slots=2 max_slots=4\n  b\tslots=3 # the third is down\n"),
            (std::vector<Host>{{"a", 2}, {"b", 3}}));
  EXPECT_EQ(file("a:2\nb:3"), (std::vector<Host>{{"a", 2}, {"b", 3}}));
  EXPECT_EQ(file("a\na\nb\nb\n"), (std::vector<Host>{{"a", 2}, {"b", 2}}));
}

TEST(RestartHosts, File_ErrorsNameTheLine) {
  EXPECT_EQ(error_of_file("a\n\nb slots\n"),
            "line 3: 'slots' has no number of slots from 1 to 1000000");
  EXPECT_EQ(error_of_file("a slots=two\n"),
            "line 1: 'slots=two' has no number of slots from 1 to 1000000");
  EXPECT_EQ(error_of_file("a cores=2\n"), "line 1: 'cores=2' is not known: slots=N is");
  EXPECT_EQ(error_of_file("slots=2\n"), "line 1: 'slots=2' is not the name of a host");
  EXPECT_EQ(error_of_file("# nothing\n"), "it names no host");
}

TEST(RestartHosts, ListIsPrintedAsItIsRead) {
  const std::vector<Host> hosts{{"a", 2}, {"b.c", 1}};
  EXPECT_EQ(restart::to_list(hosts), "a:2,b.c:1");
  EXPECT_EQ(restart::parse_host_list(restart::to_list(hosts)), hosts);
  EXPECT_EQ(restart::count_slots(hosts), 3);
}

TEST(RestartHosts, NodesAreKnownWithAndWithoutTheirDomain) {
  const auto is_same = [](const char* listed, const char* reported) {
    return restart::is_same_host(listed, reported, "here.cluster");
  };
  EXPECT_TRUE(is_same("a", "a"));
  EXPECT_TRUE(is_same("a.cluster", "a"));
  EXPECT_TRUE(is_same("a", "a.cluster"));
  EXPECT_TRUE(is_same("10.0.0.1", "10.0.0.1"));
  EXPECT_TRUE(is_same("localhost", "here"));
  EXPECT_TRUE(is_same("127.0.0.1", "here.cluster"));
  EXPECT_FALSE(is_same("a", "b"));
  EXPECT_FALSE(is_same("a", "aa"));
  EXPECT_FALSE(is_same("10.0.0.1", "10.0.0.2"));
  EXPECT_FALSE(is_same("localhost", "a"));
}

}  // namespace kolo::test::restart_hosts_test
