#include "support/mpi/variants.hpp"

#include <cstdlib>
#include <map>
#include <set>

#include <gtest/gtest.h>

namespace kolo::test {
namespace {

/// The files of each variant.
std::map<std::string, std::set<std::string>, std::less<>>& files() {
  static std::map<std::string, std::set<std::string>, std::less<>> files;  // used by static objects
  return files;
}

}  // namespace

std::string_view variant() {
  const char* const name = std::getenv("KOLO_TEST_VARIANT");
  return name == nullptr ? "" : name;
}

AlsoIn::AlsoIn(std::initializer_list<const char*> variants, const char* file) {
  for (const char* const variant : variants) files()[variant].insert(file);
}

std::string filter_of_variant() {
  const auto found = files().find(variant());
  if (found == files().end()) return "";
  std::string filter;
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *tests.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (!found->second.contains(test.file())) continue;
      filter += std::string(filter.empty() ? "" : ":") + suite.name() + "." + test.name();
    }
  }
  return filter;
}

}  // namespace kolo::test
