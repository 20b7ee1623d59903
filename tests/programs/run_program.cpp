#include "programs/run_program.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <unistd.h>
#include <utility>
#include <vector>

#include "programs/agreement.hpp"
#include "programs/rank_runner.hpp"
#include "programs/values.hpp"
#include "programs/watch.hpp"
#include "support/fake_world/fake_world.hpp"

namespace kolo::programs {

InitOptions init_options(const Program& program, std::shared_ptr<comm::World> world) {
  const auto first = program.sets.begin() + 1;
  return {.config = program.config,
          .world = std::move(world),
          .process_sets = {first, first + program.static_sets},
          .reductions = custom_reductions()};
}

std::string run_in_threads(const Program& program, const RunOptions& options) {
  Watch watch(program, options.trace);
  const Alarm alarm(options.limit, [&] {
    const std::string text = "HANG in seed " + std::to_string(program.seed) + " on " +
                             std::to_string(program.size) + " ranks\n" + watch.state() +
                             watch.failures() + "  replay: " + options.replay + "\n";
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    _exit(1);
  });
  Arrivals arrivals(program.operations.size());
  std::vector<Outcome> outcomes(static_cast<std::size_t>(program.size));
  test::run_ranks(
      program.size,
      [&](test::FakeWorld& world) {
        const int rank = world.topology().rank;
        try {
          // Not owned by the Runtime, which the world outlives.
          Runtime runtime(
              init_options(program, std::shared_ptr<comm::World>(std::shared_ptr<void>(), &world)));
          Runtime::set_thread_current(&runtime);
          RankRunner runner(program, runtime, watch, &arrivals);
          runner.run();
          outcomes[static_cast<std::size_t>(rank)] = {runner.digests(), runner.last_joined()};
        } catch (const std::exception& error) {
          watch.fail(rank, error.what());
        }
      },
      program.network);
  const std::string failures = watch.failures();
  return failures.empty() ? disagreement(program, outcomes) : failures;
}

}  // namespace kolo::programs
