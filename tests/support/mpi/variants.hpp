#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace kolo::test {

/// The world in which a program's tests run again, from KOLO_TEST_VARIANT: with another number of
/// ranks, on two nodes, … (kolo_add_variant); empty in the first run, which has all tests.
std::string_view variant();

/// At file scope: the tests of this file run in these variants, too. Name a variant only where you
/// can name a defect that the other runs would not find.
class AlsoIn {
 public:
  explicit AlsoIn(std::initializer_list<const char*> variants,
                  const char* file = __builtin_FILE());  // Clang 14 has no std::source_location
};

/// A filter for GoogleTest: the tests that run in the variant. Empty if it has none.
std::string filter_of_variant();

}  // namespace kolo::test
