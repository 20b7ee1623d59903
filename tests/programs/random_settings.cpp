#include "programs/random_settings.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "kolo/algorithm.hpp"
#include "ops/registry.hpp"

namespace kolo::programs {
namespace {

using simulator::Random;
using namespace std::chrono_literals;

/// For each collective a registered algorithm, which runs wherever it is supported, or none.
std::string random_algorithms(Random& random) {
  std::map<Collective, std::vector<std::string>> entries;
  const ops::Registry registry;
  for (const Algorithm& algorithm : registry.algorithms()) {
    entries[algorithm.collective].push_back(std::string(name_of(algorithm.collective)) + ":" +
                                            std::string(algorithm.name));
  }
  std::string text;
  for (const auto& [collective, choices] : entries) {
    if (random.one_in(2)) text += (text.empty() ? "" : ",") + random.pick(choices);
  }
  return text;
}

void choose_knobs(Config& config, Random& random) {
  config.log_level = "error";
  config.timeout = 60s;
  config.lost_after = 30s;
  config.stall_warn = random.one_in(6) ? Config::Duration(1ms) : Config::Duration(60s);
  config.fusion = !random.one_in(4);
  config.fusion_bytes = random.pick(std::vector<std::size_t>{0, 256, 4096, 512 << 10});
  config.shared_memory = !random.one_in(4);
  config.tuning.segment_bytes = random.pick(std::vector<std::size_t>{64, 256, 4096, 64 << 10});
  config.tuning.staging_bytes =
      random.pick(std::vector<std::size_t>{4096, 4096, 16 << 10, 64 << 10});
  config.tuning.patience = random.pick(std::vector<Config::Duration>{0s, 50us, 50us, 1ms, 5ms});
  config.tuning.spin = random.pick(std::vector<Config::Duration>{0s, 20us});
  config.tuning.table_capacity = random.pick(std::vector<std::size_t>{1, 4, 8, 16, 2048, 2048});
  config.tuning.tree_width = random.pick(std::vector<int>{1, 2, 8});
  config.algorithm = random_algorithms(random);
}

void choose_network(Program& program, Random& random) {
  test::FakeOptions& network = program.network;
  network.seed = program.seed;
  network.nodes = random.one_in(3) ? random.between(2, std::max(2, program.size)) : 1;
  network.nodes = std::min(network.nodes, program.size);
  network.longest_delay = random.pick(std::vector<std::chrono::microseconds>{0us, 0us, 0us, 100us});
  network.rendezvous = random.one_in(3);
  network.has_shared_memory = !random.one_in(8);
  program.config.fake_nodes = network.nodes > 1 ? network.nodes : 0;
}

}  // namespace

void choose_settings(Program& program, Random& random) {
  choose_knobs(program.config, random);
  choose_network(program, random);
  std::vector<int> everybody(static_cast<std::size_t>(program.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  program.sets = {everybody};
  program.static_sets = random.one_in(2) ? random.between(1, 2) : 0;
  for (int i = 0; i < program.static_sets; ++i) {
    program.sets.push_back(random_ranks(program, 1, random));
  }
}

std::vector<int> random_ranks(const Program& program, int least, Random& random) {
  std::vector<int> ranks = program.sets[0];
  random.shuffle(ranks);
  ranks.resize(
      static_cast<std::size_t>(random.between(std::min(least, program.size), program.size)));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace kolo::programs
