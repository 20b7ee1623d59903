#include "train/buckets/gradient_stand_ins.hpp"

#include <utility>

#include "train/tensors/parameter_storage.hpp"

namespace kolo::train {
namespace {

std::string refusal_of_shards(const std::string& name) {
  return "DistributedOptimizer: the gradient of parameter '" + name +
         "' is being reduced to shards of all ranks, or has been: grad() can be neither read nor "
         "changed. Call for_each_gradient(), clip_grad_value_(), clip_grad_norm_() or step() of "
         "the DistributedOptimizer; those of LibTorch see no shards.";
}

}  // namespace

GradientStandIns::GradientStandIns(const std::vector<at::Tensor>& parameters,
                                   std::vector<std::string> names)
    : parameters_(parameters),
      names_(std::move(names)),
      stand_ins_(parameters.size()),
      is_placed_(parameters.size()) {}

void GradientStandIns::place(std::size_t parameter) {
  at::Tensor& stand_in = stand_ins_[parameter];
  if (!stand_in.defined()) {
    stand_in = make_stand_in(parameters_[parameter], refusal_of_shards(names_[parameter]));
  }
  parameters_[parameter].mutable_grad() = stand_in;
  is_placed_[parameter] = true;
}

void GradientStandIns::remove(std::size_t parameter) {
  if (is_in_place(parameter)) parameters_[parameter].mutable_grad().reset();
  is_placed_[parameter] = false;
}

void GradientStandIns::remove_all() {
  for (std::size_t i = 0; i < is_placed_.size(); ++i) remove(i);
}

}  // namespace kolo::train
