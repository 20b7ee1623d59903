// Time and memory of sharded training, beside training without sharding.
//
//   mpirun -np 2 shard_benchmark --help
#include <string>

#include <nlohmann/json.hpp>

#include "common/agreement.hpp"
#include "common/memory.hpp"
#include "common/output_file.hpp"
#include "common/threads.hpp"
#include "kolo/kolo.hpp"
#include "kolo/shared_buffer.hpp"
#include "shard/allocations.hpp"
#include "shard/memory.hpp"
#include "shard/options.hpp"
#include "shard/saving.hpp"
#include "shard/speed.hpp"

namespace {

constexpr int kWrongInput = 2;

// Why nothing can be measured with these ranks, the same on all of them; or nothing.
std::string obstacle(const kolo::Runtime& runtime, const shard::Options& options) {
  if (runtime.size() == 1) return "one rank has nothing to shard; run it with mpirun -np 2";
  if (options.memory && !kolo::SharedBuffer(1).is_shared()) {
    return "--memory counts memory that the ranks of a node share, but they share none here";
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  shard::Allocations& allocations = shard::Allocations::install();
  kolo::Runtime runtime;
  examples::share_cores(runtime.local_size());
  shard::Options options;
  if (const auto exit = shard::parse_options(argc, argv, options)) {
    return examples::leave(*exit, runtime.rank() == 0);
  }
  if (!examples::all_ranks_succeeded(obstacle(runtime, options))) return kWrongInput;
  examples::OutputFile json(runtime.rank() == 0 ? options.json : "");
  if (!examples::all_ranks_succeeded(json.error())) return kWrongInput;

  bool is_met = false;
  nlohmann::ordered_json results;
  if (options.checkpoint) {
    results = shard::measure_saving(options, is_met);
  } else if (options.memory) {
    if (!options.shard) options.shard = kolo::shard_named(runtime.config().shard);
    results = shard::measure_memory(options, allocations, is_met);
  } else {
    examples::keep_freed_memory();
    results = shard::measure_speed(options, is_met);
  }
  if (json.is_wanted()) json.write(results.dump(2) + '\n');
  return is_met ? 0 : 1;
}
