// How ranks communicate in the tests under mpirun.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/runtimes.hpp"

namespace kolo::test {

struct Way {
  std::string name;
  Config config;
  bool in_groups = false;  ///< over communicators of the program's, of its even and its odd ranks
};

inline Config config_of_ranks() {
  Config config = test_config();
  config.share_gpu = true;
  return config;
}

inline Way way(std::string name, const std::function<void(Config&)>& change) {
  Way way{std::move(name), config_of_ranks(), false};
  change(way.config);
  return way;
}

inline std::vector<Way> all_ways() {
  return {
      way("Default", [](Config&) {}),
      way("Messages", [](Config& config) { config.shared_memory = false; }),
      way("FakeNodes",
          [](Config& config) {
            config.fake_nodes = 2;
            config.tree_width = 1;
          }),
      way("SmallPieces",
          [](Config& config) {
            config.segment_bytes = 64;
            config.staging_bytes = 4096;
            config.fusion = false;
          }),
  };
}

}  // namespace kolo::test
