#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/runtimes.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test {

/// Sanitizers run no world of seven.
inline const int kMany = kIsSanitized ? 3 : 7;

/// A world is here for the defect that only it finds.
inline std::vector<Setting> cpu_settings() {
  using namespace std::chrono_literals;
  std::vector<Setting> settings;
  if (!kIsThreadSanitized) {
    // What is left out where no rank must be waited for.
    settings.push_back({.name = "Shared", .size = 1});
    // Each is the other's only peer, so that its sends and its receives are those of one rank.
    settings.push_back({.name = "Messages", .size = 2, .network = {.has_shared_memory = false}});
    settings.back().network.rendezvous = true;
  }
  // Neighbours that differ, uneven shares.
  settings.push_back({.name = "Shared", .size = 3});
  // Windows that ranks enter late.
  settings.push_back({.name = "SharedLate",
                      .size = 3,
                      .network = {.longest_delay = 200us, .seed = 7, .rendezvous = true}});
  // Places in windows and staging memory that are used again; no fusion.
  settings.push_back({.name = "SmallPieces", .size = 3});
  settings.back().config.tuning.segment_bytes = 64;
  settings.back().config.tuning.staging_bytes = 4096;
  settings.back().config.fusion = false;
  // A rank that reads windows although it was told not to.
  settings.push_back({.name = "SwitchedOff", .size = 3});
  settings.back().config.shared_memory = false;
  // Nodes of different sizes, the smaller of one rank; and of several ranks each.
  for (const int size : std::set{3, kMany}) {
    settings.push_back(
        {.name = "Nodes",
         .size = size,
         .network = {.nodes = 2, .longest_delay = 200us, .seed = 11, .rendezvous = true}});
  }
  // A tree of three levels, and messages of many segments.
  settings.push_back(
      {.name = "NoSharedMemory", .size = kMany, .network = {.has_shared_memory = false}});
  settings.back().config.tuning.tree_width = 2;
  settings.back().config.tuning.segment_bytes = 64;
  return settings;
}

/// Worlds of this size with tensors on GPUs.
inline std::vector<Setting> gpu_settings(int size) {
  std::vector<Setting> settings;
  settings.push_back(
      {.name = "Gpu", .size = size, .network = {.gpus_per_rank = 1, .late_launches = true}});
  if (size == 1) return settings;
  // Kernels launched alone, on two nodes.
  settings.push_back({.name = "GpuLate",
                      .size = size,
                      .network = {.nodes = 2,
                                  .longest_delay = std::chrono::microseconds(200),
                                  .seed = 13,
                                  .gpus_per_rank = 1,
                                  .late_launches = true}});
  settings.back().config.fusion = false;
  // Kolo's own exchange instead of NCCL's reductions.
  settings.push_back(
      {.name = "GpuDirect", .size = size, .network = {.gpus_per_rank = 1, .late_launches = true}});
  settings.back().config.algorithm = "allreduce:direct,reduce_scatter:direct";
  return settings;
}

/// Also with tensors on GPUs; on others than the fake ones, those alone, in every size.
inline std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  std::vector<int> sizes{1, 2, 3, 4, 8};
  if (on_other_gpus == nullptr) {
    settings = cpu_settings();
    // One rank sends nothing and leaves factors to the kernel.
    sizes = kIsThreadSanitized ? std::vector<int>{3} : std::vector<int>{1, 3};
  }
  for (const int size : sizes) {
    const std::vector<Setting> more = gpu_settings(size);
    settings.insert(settings.end(), more.begin(), more.end());
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
