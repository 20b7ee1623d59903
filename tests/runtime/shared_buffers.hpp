#pragma once

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/runtimes.hpp"

namespace kolo::test {

/// Worlds with shared memory, in large or small pieces, and worlds without.
inline std::vector<Setting> shared_buffer_settings() {
  std::vector<Setting> settings;
  for (const int size : {1, 2, 3, 4}) {
    settings.push_back({.name = "Shared", .size = size});
    settings.push_back({.name = "SmallPieces", .size = size});
    settings.back().config.tuning.segment_bytes = 64;
    settings.back().config.tuning.staging_bytes = 4096;
    settings.push_back({.name = "Messages", .size = size, .network = {.has_shared_memory = false}});
  }
  settings.push_back({.name = "Nodes", .size = 3, .network = {.nodes = 2}});
  return settings;
}

class SharedBuffersTest : public testing::TestWithParam<Setting> {
 protected:
  int size() const { return GetParam().size; }
  void run(const std::function<void(Runtime&)>& body) { run_runtimes(GetParam(), body); }
};

}  // namespace kolo::test
