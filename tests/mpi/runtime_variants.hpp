// How ranks communicate in the tests under mpirun.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/runtimes.hpp"

namespace kolo::test {

struct RuntimeVariant {
  std::string name;
  Config config;
  bool in_groups = false;  ///< over communicators of the program's, of its even and its odd ranks
};

inline Config config_of_ranks() {
  Config config = test_config();
  config.share_gpu = true;
  return config;
}

inline RuntimeVariant make_variant(std::string name, const std::function<void(Config&)>& change) {
  RuntimeVariant variant{std::move(name), config_of_ranks(), false};
  change(variant.config);
  return variant;
}

inline std::vector<RuntimeVariant> all_variants() {
  return {
      make_variant("Default", [](Config&) {}),
      make_variant("Messages", [](Config& config) { config.shared_memory = false; }),
      make_variant("FakeNodes",
                   [](Config& config) {
                     config.fake_nodes = 2;
                     config.tuning.tree_width = 1;
                   }),
      make_variant("SmallPieces",
                   [](Config& config) {
                     config.tuning.segment_bytes = 64;
                     config.tuning.staging_bytes = 4096;
                     config.fusion = false;
                   }),
  };
}

}  // namespace kolo::test
