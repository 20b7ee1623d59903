#pragma once

#include <gtest/gtest.h>

#include "kolo/runtime.hpp"

namespace kolo::test {

class DistributedOptimizerTest : public testing::Test {
 protected:
  Runtime runtime_;
};

}  // namespace kolo::test
