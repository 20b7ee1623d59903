// main of the tests of one process.
#include <gtest/gtest.h>

#include "support/results.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return kolo::test::run_selected_tests();
}
