#include "compare/memory.hpp"

#include <functional>
#include <optional>

#include "common/agreement.hpp"
#include "compare/training.hpp"
#include "kolo/collectives.hpp"
#include "shard/peak.hpp"

namespace compare {
namespace {

constexpr int kSteps = 3;  // the first lays buckets out, the second settles

/// The peak bytes while `work` runs, beyond `before`, on the rank with most.
double peak_of(shard::Allocations& allocations, double before, const std::function<void()>& work) {
  shard::PeakWatch watch(allocations);
  work();
  return examples::largest_over_ranks(static_cast<double>(watch.stop()) - before);
}

}  // namespace

MemoryUse measure_memory(shard::Allocations& allocations, const std::string& model,
                         const Size& size, kolo::Shard shard) {
  kolo::barrier();
  const auto before = static_cast<double>(allocations.live_bytes() + shard::PeakWatch::own_share());
  kolo::barrier();
  MemoryUse use;
  std::optional<Training> training;
  use.construction_bytes =
      peak_of(allocations, before, [&] { training.emplace(model, size, shard); });
  use.step_bytes = peak_of(allocations, before, [&] {
    for (int step = 0; step < kSteps; ++step) training->step();
  });
  use.parameters = training->parameters();
  return use;
}

}  // namespace compare
