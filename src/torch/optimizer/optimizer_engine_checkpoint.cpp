#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <system_error>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/Type.h>
#include <nlohmann/json.hpp>

#include "kolo/error.hpp"
#include "kolo/grad_scaler.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/optimizer/optimizer_engine.hpp"
#include "torch/tensors/agreement.hpp"
#include "torch/training/load_training.hpp"
#include "torch/training/save_full_state.hpp"
#include "torch/training/save_training.hpp"

namespace kolo::tensors {
namespace {

nlohmann::json describe(const GradScaler& scaler) {
  const GradScaler::State state = scaler.state();
  return {{"scale", state.scale},
          {"growth_factor", state.growth_factor},
          {"backoff_factor", state.backoff_factor},
          {"growth_interval", state.growth_interval},
          {"growth_tracker", state.growth_tracker}};
}

/// Groups of equally many options of the same names.
bool have_same_options(const nlohmann::json& saved, const nlohmann::json& own) {
  if (saved.size() != own.size()) return false;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (saved[i].size() != own[i].size()) return false;
    for (const auto& [name, values] : own[i].items()) {
      if (!saved[i].contains(name) || saved[i][name].size() != values.size()) return false;
    }
  }
  return true;
}

}  // namespace

TrainingView OptimizerEngine::view() const {
  const bool is_divided = std::any_of(reducers_.begin(), reducers_.end(), [](const auto& reducer) {
    return reducer->shards() != nullptr;
  });
  TrainingView view{
      .set = set_,
      .divided = *sets_.divided,
      .is_divided = is_divided,
      .is_first_of_replicas = sets_.replicas == nullptr || sets_.replicas->rank() == 0,
      .parameters = {},
      .buffers = buffers_,
      .aliases = {},
      .parts = {},
      .wrapped = wrapped_};
  std::unordered_map<const void*, std::string> known;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const auto [first, is_new] = known.emplace(tensor.unsafeGetTensorImpl(), name);
    if (is_new) {
      view.parameters.emplace_back(name, tensor);
    } else if (first->second != name) {
      view.aliases[name] = first->second;
    }
  };
  for (const auto& [name, tensor] : named_) add(name, tensor);
  std::size_t index = 0;
  for (const auto& group : groups_) {
    for (const at::Tensor& tensor : group.params()) add(name_of(tensor, index++), tensor);
  }
  for (const auto& reducer : reducers_) {
    const auto& parameters = reducer->parameters();
    if (reducer->shards() == nullptr) {
      for (const ReducedParameter& parameter : parameters) {
        view.parts.push_back({parameter.name, parameter.tensor, parameter.tensor, 0});
      }
      continue;
    }
    for (std::size_t i = 0; i < reducer->buckets().buckets().size(); ++i) {
      for (const ParameterShards::Piece& piece : reducer->shards()->pieces(i)) {
        const ReducedParameter& parameter = parameters[piece.parameter];
        view.parts.push_back({parameter.name, parameter.tensor, piece.values, piece.begin});
      }
    }
  }
  return view;
}

/// The order in which gradients lie in buckets, by names, and which are reduced as sparse ones.
nlohmann::json OptimizerEngine::layout() const {
  nlohmann::json order = nlohmann::json::array();
  nlohmann::json sparse = nlohmann::json::array();
  for (const auto& reducer : reducers_) {
    for (const std::size_t i : reducer->order()) {
      const std::string& name = reducer->parameters()[i].name;
      order.push_back(name);
      if (reducer->is_sparse(i)) sparse.push_back(name);
    }
  }
  return {{"order", order}, {"sparse", sparse}};
}

void OptimizerEngine::follow_layout(const TrainingDetails& details) {
  if (details.order.empty()) return;
  for (const auto& reducer : reducers_) {
    const auto& parameters = reducer->parameters();
    std::unordered_map<std::string, std::size_t> places;
    for (std::size_t i = 0; i < parameters.size(); ++i) places[parameters[i].name] = i;
    std::vector<std::size_t> order;
    for (const std::string& name : details.order) {
      if (const auto place = places.find(name); place != places.end()) {
        order.push_back(place->second);
      }
    }
    std::vector<bool> sparse(parameters.size());
    for (const std::string& name : details.sparse) {
      const auto place = places.find(name);
      if (place != places.end() && options_.shard == Shard::None) sparse[place->second] = true;
    }
    reducer->follow_order(order, sparse, wrapped_);
  }
}

void OptimizerEngine::save(const std::filesystem::path& folder, const SaveOptions& options) {
  merge_options();
  nlohmann::json details{{"steps", steps_},
                         {"optimizer", c10::demangle(typeid(wrapped_).name())},
                         {"groups", OptionSync::describe(groups_)},
                         {"layout", layout()},
                         {"extras", options.extras}};
  if (options.scaler != nullptr) details["scaler"] = describe(*options.scaler);
  save_training(view(), folder, std::move(details), options.keep_last,
                prefix_ + ".save." + std::to_string(saves_++));
}

Loaded OptimizerEngine::load(const std::filesystem::path& path, const LoadOptions& options) {
  if (is_in_flight() || step_->is_synchronized) {
    throw InvalidArgument(
        "DistributedOptimizer: load() while gradients are being reduced. Call step() or "
        "zero_grad() first.");
  }
  wire_new_parameters();
  merge_options();
  std::error_code unreadable;  // which opening it as a checkpoint tells more of
  if (!std::filesystem::is_regular_file(path, unreadable)) return load_checkpoint(path, options);
  load_model_file(view(), path, options.strict, prefix_ + ".load." + std::to_string(saves_++));
  return {.path = path};
}

Loaded OptimizerEngine::load_checkpoint(const std::filesystem::path& path,
                                        const LoadOptions& options) {
  const std::string name = prefix_ + ".load." + std::to_string(saves_++);
  const Checkpoint checkpoint(path, {.name = name + ".open", .process_set = &set_});
  SavedTraining saved{checkpoint, {}};
  const TrainingDetails& details = saved.details;
  const std::string what = "loading the checkpoint " + checkpoint.path().string();
  on_all_ranks({.name = name + ".fits", .process_set = &set_}, what, [&]() -> std::string {
    saved.details = parse_training_details(checkpoint.details());
    require_fit(view(), saved, options);
    if (options.optimizer_state &&
        !have_same_options(details.groups, OptionSync::describe(groups_))) {
      throw InvalidArgument("it has optimizer options " + nlohmann::json(details.groups).dump() +
                            " of its parameter groups, which are not those of the program: " +
                            OptionSync::describe(groups_).dump() +
                            ". Load with optimizer_state = false to keep the program's.");
    }
    if (options.strict && details.scaler.has_value() != (options.scaler != nullptr)) {
      throw InvalidArgument(std::string("it has ") + (options.scaler == nullptr ? "a" : "no") +
                            " GradScaler's state, unlike the program. Give or leave out "
                            "LoadOptions::scaler, or load with strict = false.");
    }
    return {};
  });
  if (options.optimizer_state) follow_layout(details);
  load_training(view(), saved, options, name);
  if (options.optimizer_state) {
    OptionSync::apply(details.groups, groups_);
    merge_options();
    steps_ = details.steps;
  }
  if (options.scaler != nullptr && details.scaler) options.scaler->set_state(*details.scaler);
  return {.path = checkpoint.path(), .steps = details.steps, .extras = details.extras};
}

void OptimizerEngine::save_full_state(const std::filesystem::path& file, int root) {
  const auto place = std::find(set_.ranks().begin(), set_.ranks().end(), root);
  if (place == set_.ranks().end()) {
    throw InvalidArgument("DistributedOptimizer: save_full_state() on rank " +
                          std::to_string(root) + ", which is not in process set " + set_.name());
  }
  tensors::save_full_state(view(), file, static_cast<int>(place - set_.ranks().begin()),
                           prefix_ + ".export." + std::to_string(saves_++));
}

}  // namespace kolo::tensors
