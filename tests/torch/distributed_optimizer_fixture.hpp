#pragma once

#include <gtest/gtest.h>

#include "kolo/runtime.hpp"
#include "support/mpi/test_world.hpp"

namespace kolo::test {

class DistributedOptimizerTest : public testing::Test {
 protected:
  Runtime runtime_{in_test_world()};
};

}  // namespace kolo::test
