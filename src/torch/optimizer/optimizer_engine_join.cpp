#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/json_objects.hpp"
#include "kolo/parameter_sync.hpp"
#include "torch/optimizer/optimizer_engine.hpp"

namespace kolo::tensors {

int OptimizerEngine::join() {
  if (is_in_flight()) {
    throw InvalidArgument(
        "DistributedOptimizer: join() while gradients are being reduced. Call step() or "
        "zero_grad() first.");
  }
  return options_.shard == Shard::None ? join_whole() : join_divided();
}

int OptimizerEngine::join_whole() {
  const int last = kolo::join(&set_);
  // Each rank's steps, and what the names of its operations depend on.
  std::array<std::int64_t, 3> own{steps_, wirings_, 0};
  for (const auto& reducer : reducers_) own[2] += reducer->layouts();
  std::vector<std::array<std::int64_t, 3>> all(static_cast<std::size_t>(set_.size()));
  OperationOptions options;
  options.name = prefix_ + ".joined";
  options.process_set = &set_;
  allgather(
      {own.data(), DType::Int64, {1, 3}, Device{}},
      [&](const std::vector<std::int64_t>&) -> void* { return all.data(); }, options);
  const auto furthest = std::max_element(all.begin(), all.end());
  if (*furthest == *std::min_element(all.begin(), all.end())) return last;

  const bool is_wired_alike = std::all_of(all.begin(), all.end(), [&](const auto& other) {
    return other[1] == own[1] && other[2] == own[2];
  });
  align_with(set_.ranks()[static_cast<std::size_t>(furthest - all.begin())]);
  steps_ = (*furthest)[0];
  if (is_wired_alike) return last;
  for (const auto& other : all) wirings_ = std::max(wirings_, other[1]);
  reducers_.clear();
  wire_all({});
  return last;
}

/// Parameters, optimizer state and options of the rank that has taken the most steps, on all.
void OptimizerEngine::align_with(int root) {
  merge_options();
  std::vector<at::Tensor> parameters;
  for (const auto& group : groups_) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  broadcast_parameters(parameters, root, &set_);
  broadcast_optimizer_state(wrapped_, root, &set_);
  merge_options();
}

// --- where parameters are divided: a rank that has joined is needed for its part of them ---

/// Takes part in the steps of the others without gradients of its own, until nobody has any.
int OptimizerEngine::join_divided() {
  if (step_->is_synchronized) discard();
  const auto active_again = [](StepState* step) {
    step->is_active = true;
    step->is_synchronized = false;
  };
  const std::unique_ptr<StepState, decltype(active_again)> joined(step_.get(), active_again);
  step_->is_active = false;
  do {
    synchronize();
  } while (step_->active_ranks > 0 && follow());
  drop_gradients();
  // All at once, where nobody has been heard of.
  return std::exchange(last_heard_of_, std::nullopt).value_or(set_.ranks().back());
}

/// Of a sharded optimizer, in the reductions of this step.
bool OptimizerEngine::have_some_joined() const {
  return options_.shard != Shard::None && step_->active_ranks < set_.size();
}

/// While some ranks have joined: the others say what they do next, so that those do it too. Returns
/// what the first of them has said; nothing where all are active.
nlohmann::json OptimizerEngine::announce(const nlohmann::json& deed) {
  if (!have_some_joined()) return {};
  const std::vector<nlohmann::json> deeds =
      allgather_object(deed, {.name = prefix_ + ".deed", .process_set = &set_});
  const nlohmann::json* first = nullptr;
  for (std::size_t i = 0; i < deeds.size(); ++i) {
    if (deeds[i].is_null()) continue;
    last_heard_of_ = set_.ranks()[i];
    if (first == nullptr) first = &deeds[i];
    if (deeds[i] == *first) continue;
    throw MismatchError("DistributedOptimizer: while some ranks have joined, rank " +
                        std::to_string(*last_heard_of_) + " did " + deeds[i].dump() +
                        " where another did " + first->dump() + ". All must do the same.");
  }
  return *first;
}

/// Does what the active ranks do, to the end of their step.
bool OptimizerEngine::follow() {
  for (;;) {
    const nlohmann::json deed = announce(nullptr);
    const std::string kind = deed.at("deed");
    if (kind == "clip") {
      check_.clip(own_gradients(), deed.at("max_norm"), deed.at("norm_type"));
    } else if (kind == "unscale") {
      check_.unscale(own_gradients(), deed.at("scale"), /*is_alone=*/false);
    } else if (kind == "find") {
      check_.found();
    } else if (kind == "step") {
      OptionSync::apply(deed.at("options"), groups_);
      merge_options();
      update_parts();
      ++steps_;
      step_->is_synchronized = false;
      return true;
    } else {  // skip, discard
      drop_gradients();
      step_->is_synchronized = false;
      return true;
    }
  }
}

}  // namespace kolo::tensors
