// Compares the modes of sharding: memory, time, and the largest model within a memory budget.
//
//   mpirun -np 2 compare_sharding --help
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/agreement.hpp"
#include "common/memory.hpp"
#include "common/output_file.hpp"
#include "common/threads.hpp"
#include "compare/memory.hpp"
#include "compare/options.hpp"
#include "compare/report.hpp"
#include "compare/training.hpp"
#include "kolo/kolo.hpp"
#include "shard/allocations.hpp"
#include "shard/race.hpp"

namespace {

using Json = nlohmann::ordered_json;

constexpr int kWrongInput = 2;

/// On rank 0, to standard error: tables go to standard output.
void show_progress(const std::string& model, kolo::Shard shard, const std::string& text) {
  if (kolo::rank() != 0) return;
  std::fprintf(stderr, "%s, %s: %s\n", model.c_str(), std::string(kolo::name_of(shard)).c_str(),
               text.c_str());
}

std::string megabytes(double bytes) {
  return std::to_string(static_cast<long>(bytes / 1e6)) + " MB";
}

Json time_of_modes(const std::string& model, const compare::Options& options,
                   const std::vector<kolo::Shard>& shards) {
  std::vector<shard::Case> cases;
  for (const kolo::Shard shard : shards) {
    const auto training = std::make_shared<compare::Training>(model, options.size, shard);
    cases.push_back({shard, training->parameters(), [training] { training->step(); }});
  }
  show_progress(model, shards.front(),
                "and the others take " + std::to_string(options.warm_up + options.rounds) +
                    " steps in turns");
  shard::race(cases, options.warm_up, options.rounds);
  Json modes = Json::array();
  for (const shard::Case& timed : cases) modes.push_back(shard::judge(timed, cases.front()));
  return modes;
}

compare::Largest largest_of(shard::Allocations& allocations, const std::string& model,
                            const compare::Options& options, kolo::Shard shard) {
  return compare::find_largest(
      [&](int blocks) {
        compare::Size size = options.size;
        size.blocks = blocks;
        const compare::MemoryUse use = compare::measure_memory(allocations, model, size, shard);
        show_progress(model, shard,
                      std::to_string(blocks) + " blocks need " + megabytes(use.peak_bytes()));
        return use;
      },
      options.budget);
}

Json measure(shard::Allocations& allocations, const std::string& model,
             const compare::Options& options) {
  const std::vector<kolo::Shard> shards = shard::all_modes();
  std::vector<compare::MemoryUse> uses;
  for (const kolo::Shard shard : shards) {
    uses.push_back(compare::measure_memory(allocations, model, options.size, shard));
    show_progress(model, shard, megabytes(uses.back().peak_bytes()));
  }
  Json modes = time_of_modes(model, options, shards);
  double none_parameters = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const compare::Largest largest = largest_of(allocations, model, options, shards[i]);
    const auto parameters = static_cast<double>(largest.use.parameters);
    if (i == 0) none_parameters = parameters;
    modes[i].update({{"construction_bytes", uses[i].construction_bytes},
                     {"step_bytes", uses[i].step_bytes},
                     {"peak_bytes", uses[i].peak_bytes()},
                     {"memory_to_none", uses[i].peak_bytes() / uses[0].peak_bytes()},
                     {"largest_blocks", largest.blocks},
                     {"largest_parameters", largest.use.parameters},
                     {"largest_bytes", largest.use.peak_bytes()},
                     {"largest_to_none", none_parameters > 0 ? parameters / none_parameters : 0}});
  }
  return {{"model", model},
          {"ranks", kolo::size()},
          {"parameters", uses.front().parameters},
          {"blocks", options.size.blocks},
          {"width", options.size.width},
          {"batch", options.size.batch},
          {"budget_bytes", options.budget},
          {"rounds", options.rounds},
          {"modes", std::move(modes)}};
}

}  // namespace

int main(int argc, char** argv) {
  shard::Allocations& allocations = shard::Allocations::install();
  kolo::Runtime runtime;
  examples::share_cores(runtime.local_size());
  examples::keep_freed_memory();
  compare::Options options;
  if (const auto exit = compare::parse_options(argc, argv, options)) {
    return examples::leave(*exit, runtime.rank() == 0);
  }
  const bool is_alone = runtime.size() == 1;
  if (!examples::all_ranks_succeeded(
          is_alone ? "one rank has nothing to shard; run it with mpirun -np 2" : "")) {
    return kWrongInput;
  }
  examples::OutputFile json(runtime.rank() == 0 ? options.json : "");
  examples::OutputFile svg(runtime.rank() == 0 ? options.svg : "");
  if (!examples::all_ranks_succeeded(json.error() + svg.error())) return kWrongInput;

  Json models = Json::array();
  for (const std::string& model : options.models) {
    models.push_back(measure(allocations, model, options));
    if (runtime.rank() == 0) std::fputs(compare::to_table(models.back()).c_str(), stdout);
    std::fflush(stdout);
  }
  if (json.is_wanted()) json.write(models.dump(2) + '\n');
  if (svg.is_wanted()) svg.write(compare::to_svg(models));
  return 0;
}
