#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/world.hpp"
#include "kolo/config.hpp"
#include "kolo/reduction.hpp"
#include "kolo/runtime.hpp"
#include "support/errors.hpp"
#include "support/fake_world/fake_world.hpp"
#include "support/gpu/fake_tensor_place.hpp"

namespace kolo::test {

/// The tests' default settings: a hang becomes an error with a text before CTest's limit.
inline Config test_config() {
  Config config;
  config.timeout = std::chrono::seconds(60);
  config.log_level = "error";
  config.record = "off";
  return config;
}

/// Ranks as threads, each with its own Runtime.
struct Setting {
  std::string name = "Shared";
  int size = 2;
  FakeOptions network{};
  Config config = test_config();
  std::shared_ptr<TensorPlace> place{};  ///< of tensors, unless they are on fake GPUs or the CPU
};

/// Set by programs that run tests with GPUs on other ones: changes a setting with fake GPUs.
inline Setting (*on_other_gpus)(Setting) = nullptr;

/// In tests that ask the fake GPUs.
#define KOLO_SKIP_ON_OTHER_GPUS() \
  if (on_other_gpus != nullptr) GTEST_SKIP() << "asks the fake GPUs"

inline Setting with_gpus(const Setting& setting) {
  const bool has_fakes = setting.network.gpus_per_rank > 0;
  return has_fakes && on_other_gpus != nullptr ? on_other_gpus(setting) : setting;
}

/// Three ranks that share memory, and three on separate nodes, with late messages.
inline std::vector<Setting> three_ranks() {
  using namespace std::chrono_literals;
  return {{.name = "Shared", .size = 3},
          {.name = "Messages",
           .size = 3,
           .network = {.nodes = 3, .longest_delay = 100us, .rendezvous = true}}};
}

inline void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name << " with " << setting.size << " ranks";
}

/// For INSTANTIATE_TEST_SUITE_P.
inline std::string name_of_setting(const testing::TestParamInfo<Setting>& info) {
  return info.param.name + "Np" + std::to_string(info.param.size);
}

inline InitOptions options_in(comm::World& world, const Config& config) {
  // Not owned by the Runtime, which the world outlives.
  return {.config = config, .world = std::shared_ptr<comm::World>(std::shared_ptr<void>(), &world)};
}

/// Runs `body` on every rank with its own, current Runtime. If the ranks have GPUs, tensors are on
/// these, and no hazard may be reported.
inline void run_runtimes(const Setting& requested, const std::function<void(Runtime&)>& body) {
  const Setting setting = with_gpus(requested);
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        const comm::Topology& topology = world.topology();
        FakeTensorPlace place(world.hub(), topology.rank, topology.local_rank);
        if (place.has_gpu()) tensor_place = &place;
        if (setting.place != nullptr) tensor_place = setting.place.get();
        if (topology.rank == 0) hub = world.hub();
        {
          Runtime runtime(options_in(world, setting.config));
          Runtime::set_thread_current(&runtime);
          body(runtime);
        }
        tensor_place = nullptr;
      },
      setting.network);
  if (hub == nullptr) return;
  for (const std::string& hazard : hub->hazards()) ADD_FAILURE() << hazard;
}

inline void run_runtimes(int size, const std::function<void(Runtime&)>& body) {
  run_runtimes(Setting{.size = size}, body);
}

/// Runs `body` on every rank with its own, current Runtime, which has these custom reductions.
inline void run_with_reductions(const Setting& setting,
                                const std::vector<CustomReduction>& reductions,
                                const std::function<void(Runtime&)>& body) {
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        InitOptions options = options_in(world, setting.config);
        options.reductions = reductions;
        Runtime runtime(std::move(options));
        Runtime::set_thread_current(&runtime);
        body(runtime);
      },
      setting.network);
}

}  // namespace kolo::test
