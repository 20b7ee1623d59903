// Time and memory of sharded training, compared with training without sharding.
//
//   mpirun -np 2 shard_benchmark --help
#include <nlohmann/json.hpp>

#include "common/agreement.hpp"
#include "common/memory.hpp"
#include "common/output_file.hpp"
#include "common/threads.hpp"
#include "kolo/kolo.hpp"
#include "shard/allocations.hpp"
#include "shard/memory.hpp"
#include "shard/options.hpp"
#include "shard/saving.hpp"
#include "shard/speed.hpp"

namespace {

constexpr int kWrongInput = 2;

}  // namespace

int main(int argc, char** argv) {
  shard::Allocations& allocations = shard::Allocations::install();
  kolo::Runtime runtime;
  examples::share_cores(runtime.local_size());
  shard::Options options;
  if (const auto exit = shard::parse_options(argc, argv, options)) {
    return examples::leave(*exit, runtime.rank() == 0);
  }
  const bool is_alone = runtime.size() == 1;
  if (!examples::all_ranks_succeeded(
          is_alone ? "one rank has nothing to shard; run it with mpirun -np 2" : "")) {
    return kWrongInput;
  }
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
