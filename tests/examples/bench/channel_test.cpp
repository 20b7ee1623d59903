#include "bench/channel.hpp"

#include <array>
#include <cerrno>
#include <string>
#include <sys/socket.h>
#include <system_error>
#include <utility>

#include <gtest/gtest.h>

namespace channel_test {

std::pair<bench::Channel, bench::Channel> connected() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  return {bench::Channel(bench::Descriptor(ends[0])), bench::Channel(bench::Descriptor(ends[1]))};
}

std::error_code error_of_connecting(const std::string& path) {
  try {
    bench::Channel::connect(path);
  } catch (const std::system_error& error) {
    return error.code();
  }
  return {};
}

TEST(BenchChannel, PathsThatAreTooLongAreNotCutOff) {
  const std::string longest(bench::kLongestSocketPath, 'x');
  EXPECT_EQ(error_of_connecting(longest).value(), ENOENT);
  EXPECT_EQ(error_of_connecting(longest + "x").value(), ENAMETOOLONG);
}

TEST(BenchChannel, MessagesKeepTheirBoundaries) {
  auto [here, there] = connected();
  const std::string text = "two\nlines";
  EXPECT_TRUE(here.send({{"text", text}}));
  EXPECT_TRUE(here.send({{"number", 7}}));
  EXPECT_EQ(there.receive()->at("text"), text);
  EXPECT_EQ(there.receive()->at("number"), 7);
}

TEST(BenchChannel, LongMessagesArriveWhole) {
  auto [here, there] = connected();
  const std::string text(50'000, 'x');
  EXPECT_TRUE(here.send({{"text", text}}));
  EXPECT_EQ(there.receive()->at("text"), text);
}

TEST(BenchChannel, ClosedPeerGivesNoMessageAndNoSignal) {
  auto [here, there] = connected();
  {
    const bench::Channel gone = std::move(there);
  }
  EXPECT_FALSE(here.receive().has_value());
  EXPECT_FALSE(here.send({{"number", 7}}));
}

}  // namespace channel_test
