#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/runtimes.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test {

/// Worlds of more than kEveryVariant ranks are for what depends on their size: trees, rings, nodes.
inline constexpr int kEveryVariant = kIsSanitized ? 1 : 4;
inline const std::vector<int> kSizes = kIsThreadSanitized ? std::vector<int>{3}
                                       : kIsSanitized     ? std::vector<int>{1, 3}
                                                          : std::vector<int>{1, 2, 3, 4, 7};

/// Worlds of all sizes, with and without shared memory, with late messages or rendezvous sends, and
/// with pieces so small that everything needs many of them.
inline std::vector<Setting> cpu_settings() {
  using namespace std::chrono_literals;
  std::vector<Setting> settings;
  for (const int size : kSizes) {
    settings.push_back({.name = "Shared", .size = size});
    settings.push_back(
        {.name = "Nodes",
         .size = size,
         .network = {
             .nodes = std::min(size, 2), .longest_delay = 200us, .seed = 11, .rendezvous = true}});
    settings.push_back(
        {.name = "NoSharedMemory", .size = size, .network = {.has_shared_memory = false}});
    settings.back().config.tree_width = 2;
    settings.back().config.segment_bytes = 64;
    if (size > kEveryVariant) continue;
    settings.push_back({.name = "SharedLate",
                        .size = size,
                        .network = {.longest_delay = 200us, .seed = 7, .rendezvous = true}});
    settings.push_back({.name = "SmallPieces", .size = size});
    settings.back().config.segment_bytes = 64;
    settings.back().config.staging_bytes = 4096;
    settings.back().config.fusion = false;
  }
  settings.push_back({.name = "SwitchedOff", .size = 3});
  settings.back().config.shared_memory = false;
  return settings;
}

/// Also with tensors on GPUs.
inline std::vector<Setting> all_settings() {
  std::vector<Setting> settings = cpu_settings();
  for (const int size : kSizes) {
    settings.push_back(
        {.name = "Gpu", .size = size, .network = {.gpus_per_rank = 1, .late_launches = true}});
    settings.push_back({.name = "GpuLate",
                        .size = size,
                        .network = {.nodes = std::min(size, 2),
                                    .longest_delay = std::chrono::microseconds(200),
                                    .seed = 13,
                                    .gpus_per_rank = 1,
                                    .late_launches = true}});
    settings.back().config.fusion = false;
    if (size > kEveryVariant) continue;
    settings.push_back({.name = "GpuDirect",
                        .size = size,
                        .network = {.gpus_per_rank = 1, .late_launches = true}});
    settings.back().config.allreduce = "direct";
    settings.back().config.reduce_scatter = "direct";
  }
  return settings;
}

/// A test that runs in each of these worlds.
class EveryWorldTest : public testing::TestWithParam<Setting> {
 protected:
  int size() const { return GetParam().size; }
  void run(const std::function<void(Runtime&)>& body) { run_runtimes(GetParam(), body); }
};

}  // namespace kolo::test
