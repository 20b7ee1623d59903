#include "torch/training/leaf_states.hpp"

#include <cstdint>

#include "kolo/error.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/checkpoint/safetensors_header.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

using Json = nlohmann::json;

Json number_of(const StateField& field, const std::string& parameter) {
  if (field.value.isInt()) return field.value.toInt();
  if (field.value.isDouble()) return field.value.toDouble();
  if (field.value.isBool()) return field.value.toBool();
  throw InvalidArgument("the optimizer's state of '" + parameter + "' has under '" + field.name +
                        "' what is neither a tensor nor a number");
}

}  // namespace

LeafStates::LeafStates(const TrainingView& view, const OperationOptions& options,
                       const std::string& what, const std::function<void()>& work)
    : view_(view) {
  merge(on_all_ranks(options, what, [&] {
    work();
    for (const TrainingView::Leaf& leaf : view.leaves) {
      fields_.push_back(view.wrapped.state(leaf.values).value_or(std::vector<StateField>{}));
    }
    return own_tensors().dump();
  }));
}

/// As lists [parameter, field, dtype, shape, whether elementwise].
Json LeafStates::own_tensors() const {
  Json tensors = Json::array();
  for (std::size_t i = 0; i < view_.leaves.size(); ++i) {
    const TrainingView::Leaf& leaf = view_.leaves[i];
    for (const StateField& field : fields_[i]) {
      if (!field.value.isTensor()) {
        static_cast<void>(number_of(field, leaf.name));  // throws if it is neither
        continue;
      }
      const TensorView extent = extent_of(field.value.toTensor(), state_key(field.name, leaf.name));
      const bool has_elements = is_elementwise(field, leaf.values);
      tensors.push_back({leaf.name, field.name, safetensors_name(extent.dtype),
                         has_elements ? leaf.parameter.sizes().vec() : extent.shape, has_elements});
    }
  }
  return tensors;
}

void LeafStates::merge(const std::vector<std::string>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const Json& entry : Json::parse(all[rank])) {
      Tensor& tensor = tensors_[{entry[0].get<std::string>(), entry[1].get<std::string>()}];
      tensor.ranks.insert(static_cast<int>(rank));
      tensor.dtype = *dtype_from_safetensors(entry[2].get<std::string>());
      tensor.shape = entry[3].get<std::vector<std::int64_t>>();
      tensor.is_elementwise = entry[4].get<bool>();
    }
  }
}

Json LeafStates::describe() const {
  Json all = Json::object();
  for (std::size_t i = 0; i < view_.leaves.size(); ++i) {
    const std::string& parameter = view_.leaves[i].name;
    if (!view_.wrapped.has_state(view_.leaves[i].values)) continue;
    Json& described = all[parameter];
    described = {{"numbers", Json::object()}, {"tensors", Json::object()}};
    for (const StateField& field : fields_[i]) {
      if (field.value.isTensor()) {
        described["tensors"][field.name] = tensors_.at({parameter, field.name}).is_elementwise;
      } else {
        described["numbers"][field.name] = number_of(field, parameter);
      }
    }
  }
  return all;
}

}  // namespace kolo::train
