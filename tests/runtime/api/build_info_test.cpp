#include <algorithm>
#include <array>
#include <string>

#include <gtest/gtest.h>
#include <mpi.h>

#include "kolo/runtime.hpp"
#include "ops/registry.hpp"

namespace kolo::build_info_test {

TEST(BuildInfoTest, Mpi_IsNamedBeforeItStarts) {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data());
  EXPECT_NE(build_info().find("\nMPI: " + version.substr(0, version.find('\n')) + '\n'),
            std::string::npos)
      << build_info();
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  EXPECT_EQ(is_initialized, 0);
}

TEST(BuildInfoTest, EveryAlgorithm_IsListedOnce) {
  const std::string info = build_info();
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    const std::string name =
        ' ' + std::string(name_of(algorithm.collective)) + ' ' + std::string(algorithm.name);
    const std::size_t place = info.find(name);
    ASSERT_NE(place, std::string::npos) << name << " in\n" << info;
    const char next = info[place + name.size()];
    EXPECT_TRUE(next == ',' || next == '\n' || next == '_') << name << " in\n" << info;
  }
}

TEST(BuildInfoTest, EveryItem_IsOneLine) {
  const std::string info = build_info();
  EXPECT_EQ(info.substr(0, 5), "Kolo ");
  EXPECT_EQ(std::count(info.begin(), info.end(), '\n'), 6) << info;
  EXPECT_EQ(info.find("\n\n"), std::string::npos) << info;
}

}  // namespace kolo::build_info_test
