#include "train/optimizer/parameter_state.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include "kolo/json_objects.hpp"
#include "kolo/torch/tensor_collectives.hpp"

namespace kolo::train {
namespace {

using ParameterState = DistributedOptimizer::ParameterState;

c10::IValue copy_of(const c10::IValue& value) {
  return value.isTensor() ? c10::IValue(value.toTensor().detach().clone()) : value;
}

/// This rank's leaves of a parameter.
std::vector<ParameterShards::Leaf> leaves_of(const GradientReducer& reducer,
                                             std::size_t parameter) {
  std::vector<ParameterShards::Leaf> own;
  for (std::size_t i = 0; i < reducer.buckets().buckets().size(); ++i) {
    for (const ParameterShards::Leaf& leaf : reducer.shards()->leaves(i)) {
      if (leaf.parameter == parameter) own.push_back(leaf);
    }
  }
  return own;
}

/// What other ranks must know of a field: the type and, unless it has an element for each of the
/// parameter, the shape or the value.
nlohmann::json describe(const StateField& field, const at::Tensor& leaf) {
  if (field.value.isInt()) return {{"integer", field.value.toInt()}};
  if (field.value.isDouble()) return {{"real", field.value.toDouble()}};
  const at::Tensor tensor = field.value.toTensor();
  nlohmann::json described{{"type", static_cast<int>(tensor.scalar_type())}};
  if (!is_elementwise(field, leaf)) described["shape"] = tensor.sizes().vec();
  return described;
}

/// A field that all ranks know, from their pieces of it.
class FieldGathering {
 public:
  FieldGathering(const TrainingContext& context, const at::Tensor& parameter, std::string name)
      : set_(*context.sets.sharded), parameter_(parameter), name_(std::move(name)) {}

  c10::IValue gather(const nlohmann::json& field, int owner,
                     const std::vector<std::pair<std::int64_t, at::Tensor>>& pieces) const {
    if (field.contains("integer")) return field["integer"].get<std::int64_t>();
    if (field.contains("real")) return field["real"].get<double>();
    const auto type =
        at::TensorOptions(field["type"].get<at::ScalarType>()).device(parameter_.device());
    if (field.contains("shape")) return broadcast_whole(field, owner, pieces, type);
    at::Tensor whole = at::zeros({parameter_.numel()}, type);
    for (const auto& [begin, piece] : pieces) {
      whole.narrow(0, begin, piece.numel()).copy_(piece.reshape({-1}));
    }
    // A sum of pieces and zeros.
    allreduce_(whole, {.op = ReduceOp::Sum, .name = name_, .process_set = &set_});
    return whole.view(parameter_.sizes());
  }

 private:
  c10::IValue broadcast_whole(const nlohmann::json& field, int owner,
                              const std::vector<std::pair<std::int64_t, at::Tensor>>& pieces,
                              const at::TensorOptions& type) const {
    at::Tensor whole = at::empty(field["shape"].get<std::vector<std::int64_t>>(), type);
    if (set_.rank() == owner) whole.copy_(pieces.front().second);
    broadcast_(whole, set_.ranks()[static_cast<std::size_t>(owner)],
               {.name = name_, .process_set = &set_});
    return whole;
  }

  ProcessSet& set_;
  const at::Tensor& parameter_;
  const std::string name_;
};

ParameterState gathered_state(const TrainingContext& context, const GradientReducer& reducer,
                              std::size_t parameter) {
  using Pieces = std::vector<std::pair<std::int64_t, at::Tensor>>;
  std::map<std::string, Pieces> pieces;
  nlohmann::json own = nlohmann::json::object();
  for (const ParameterShards::Leaf& leaf : leaves_of(reducer, parameter)) {
    const auto fields = context.wrapped.state(leaf.values);
    if (!fields) continue;
    for (const StateField& field : *fields) {
      own[field.name] = describe(field, leaf.values);
      if (!field.value.isTensor()) continue;
      pieces[field.name].emplace_back(leaf.begin, field.value.toTensor().detach());
    }
  }
  const ReducedParameter& reduced = reducer.parameters()[parameter];
  const std::string name = context.prefix + ".state of " + reduced.name;
  const std::vector<nlohmann::json> all =
      allgather_object(own, {.name = name, .process_set = context.sets.sharded.get()});
  ParameterState state;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& [field, described] : all[rank].items()) {
      if (state.contains(field)) continue;
      const FieldGathering gathering(context, reduced.tensor, name + "." + field);
      state[field] = gathering.gather(described, static_cast<int>(rank), pieces[field]);
    }
  }
  return state;
}

}  // namespace

ParameterState state_of(const TrainingContext& context, const GradientReducer& reducer,
                        std::size_t parameter) {
  const at::NoGradGuard no_grad;
  if (reducer.shards() != nullptr) return gathered_state(context, reducer, parameter);
  ParameterState state;
  if (const auto fields = context.wrapped.state(reducer.parameters()[parameter].tensor)) {
    for (const StateField& field : *fields) state[field.name] = copy_of(field.value);
  }
  return state;
}

void reset_state_of(const TrainingContext& context, const GradientReducer& reducer,
                    std::size_t parameter) {
  if (reducer.shards() == nullptr) {
    return context.wrapped.erase_state(reducer.parameters()[parameter].tensor);
  }
  for (const ParameterShards::Leaf& leaf : leaves_of(reducer, parameter)) {
    context.wrapped.erase_state(leaf.values);
  }
}

}  // namespace kolo::train
