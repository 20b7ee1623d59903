#include "shard/memory.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/randint.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adamw.h>

#include "common/parameters.hpp"
#include "gpt/model.hpp"
#include "kolo/json_objects.hpp"
#include "kolo/kolo.hpp"
#include "shard/inventory.hpp"
#include "shard/memory_report.hpp"
#include "shard/peak.hpp"
#include "shard/process_memory.hpp"
#include "shard/wire.hpp"

namespace shard {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kContext = 16;  // bytes; activations are negligible beside the model
constexpr int kHeadWidth = 64;

/// The addresses of what AdamW was given.
struct Given {
  std::vector<const void*> leaves;
  std::vector<const void*> gradients;
};

/// AdamW that remembers what it was given.
class WatchedAdamW final : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;

  at::Tensor step(LossClosure closure = nullptr) override {
    for (const auto& group : param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        given_.leaves.push_back(parameter.const_data_ptr());
        if (parameter.grad().defined()) {
          given_.gradients.push_back(parameter.grad().const_data_ptr());
        }
      }
    }
    return AdamW::step(std::move(closure));
  }

  Given take_given() { return std::exchange(given_, {}); }

 private:
  Given given_;
};

gpt::Gpt make_model(const Options& options) {
  at::manual_seed(1);  // the same on all ranks
  return gpt::Gpt(gpt::ModelOptions{.layers = options.layers,
                                    .width = options.width,
                                    .heads = options.width / kHeadWidth,
                                    .context = kContext});
}

/// Everything that trains, with one lifetime.
struct Training {
  explicit Training(const Options& options)
      : model(make_model(options)),
        adamw(model->parameters(), torch::optim::AdamWOptions(1e-3)),
        optimizer(adamw, *model, {.shard = options.shard}),
        windows(at::randint(256, {1, kContext + 1}, at::TensorOptions(at::kLong))) {}

  void step(const std::function<void()>& before_update = [] {}) {
    optimizer.zero_grad();
    gpt::next_byte_loss(model, windows).backward();
    before_update();
    optimizer.step();
  }

  gpt::Gpt model;
  WatchedAdamW adamw;
  kolo::DistributedOptimizer optimizer;
  at::Tensor windows;
};

/// The gradients of `given` were reduced in an earlier step, and may be needed until the next ones
/// are. `gathers`: the model's parameters are gathered on use, from those of `given`.
Places find_places(const Training& training, Given given, bool gathers) {
  Places places{.parameters = std::move(given.leaves),
                .gradients = std::move(given.gradients),
                .state = {},
                .gathered = {}};
  // Accessing a parameter that is not in memory throws, as it does for a gradient in a reduction.
  const auto place_of = [](const at::Tensor& tensor) -> const void* {
    return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  };
  for (const at::Tensor& parameter : training.model->parameters()) {
    const void* const place = place_of(parameter);
    if (place != nullptr) (gathers ? places.gathered : places.parameters).push_back(place);
    if (parameter.grad().defined()) places.gradients.push_back(place_of(parameter.grad()));
  }
  for (const auto& [key, state] : training.adamw.state()) {
    const auto& moments = dynamic_cast<const torch::optim::AdamWParamState&>(*state);
    places.state.push_back(moments.exp_avg().const_data_ptr());
    places.state.push_back(moments.exp_avg_sq().const_data_ptr());
  }
  return places;
}

/// A rank's memory at one moment.
struct Snapshot {
  std::map<const std::byte*, std::size_t> buffers;
  std::size_t live_bytes;  ///< of tensors, and in buffers
  Pss pss;

  std::size_t bytes_of_buffers() const {
    std::size_t bytes = 0;
    for (const auto& [begin, size] : buffers) bytes += size;
    return bytes;
  }
};

/// Collective. A shared page counts on the ranks that have touched it, so all ranks must pause.
Snapshot take_snapshot(const Allocations& allocations) {
  kolo::barrier();
  Snapshot snapshot{
      .buffers = own_buffers(allocations), .live_bytes = allocations.live_bytes(), .pss = {}};
  for (const auto& [begin, size] : own_segments()) snapshot.live_bytes += size;
  snapshot.pss = trimmed_pss();
  kolo::barrier();
  return snapshot;
}

std::size_t largest_bucket(const kolo::DistributedOptimizer& optimizer) {
  std::size_t largest = 0;
  for (const auto& bucket : optimizer.last_step_times().buckets) {
    largest = std::max(largest, bucket.size_bytes);
  }
  return largest;
}

/// Difference of sizes as a signed number.
double growth(std::size_t after, std::size_t before) {
  return static_cast<double>(after) - static_cast<double>(before);
}

Json to_json(const Inventory& inventory) {
  return {{"parameters", inventory.parameters}, {"gradients", inventory.gradients},
          {"state", inventory.state},           {"gathered", inventory.gathered},
          {"buckets", inventory.buckets},       {"other", inventory.other}};
}

Json measure_this_rank(const Options& options, Allocations& allocations) {
  const Snapshot before = take_snapshot(allocations);
  const auto peak_of = [&](const std::function<void()>& run) {
    PeakWatch watch(allocations);
    run();
    return growth(watch.stop(), before.live_bytes);
  };
  std::optional<Training> training;
  const double peak_of_construction = peak_of([&] { training.emplace(options); });
  const double peak_of_first_step = peak_of([&] { training->step(); });
  training->adamw.take_given();
  training->step();

  Inventory inventory;
  Snapshot after;
  const std::uint64_t sent_before = bytes_sent();
  const double peak_of_step = peak_of([&] {
    training->step([&] {
      inventory = take_inventory(
          allocations, before.buffers,
          find_places(*training, training->adamw.take_given(),
                      options.shard == kolo::Shard::Full && ranks_per_copy() < kolo::size()));
      after = take_snapshot(allocations);
    });
  });
  const std::uint64_t sent = bytes_sent() - sent_before;
  const double pss_growth = growth(after.pss.total, before.pss.total);
  Json found = to_json(inventory);
  found.update({{"elements", examples::count_parameters(*training->model)},
                {"largest_bucket", largest_bucket(training->optimizer)},
                {"windows_before", before.bytes_of_buffers()},
                {"peak_of_construction", peak_of_construction},
                {"peak_of_first_step", peak_of_first_step},
                {"peak_of_step", peak_of_step},
                {"live_growth", growth(after.live_bytes, before.live_bytes)},
                {"pss_growth", pss_growth - growth(after.pss.of_files, before.pss.of_files)},
                {"pss_growth_with_files", pss_growth},
                {"bytes_sent", sent}});
  return found;
}

}  // namespace

nlohmann::ordered_json measure_memory(const Options& options, Allocations& allocations,
                                      bool& is_met) {
  const std::vector<Json> ranks =
      kolo::allgather_object(measure_this_rank(options, allocations), {.name = "memory"});
  const MemoryReport report(*options.shard, ranks, ranks_per_copy());
  if (kolo::rank() == 0) report.print();
  is_met = report.defects().empty();
  return report.to_json();
}

}  // namespace shard
