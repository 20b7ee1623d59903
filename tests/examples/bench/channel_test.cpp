#include "bench/channel.hpp"

#include <cerrno>
#include <string>
#include <system_error>

#include <gtest/gtest.h>

namespace channel_test {

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

}  // namespace channel_test
