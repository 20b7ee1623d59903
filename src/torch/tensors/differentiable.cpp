#include "torch/tensors/differentiable.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

namespace kolo::tensors {
namespace {

namespace autograd = torch::autograd;

class GradientNode : public autograd::Node {
 public:
  explicit GradientNode(const ProcessSet& set) : set_(set.shared_from_this()) {}

  std::string name() const override { return "KoloBackward"; }
  void set_gradient(Gradient gradient) { gradient_ = std::move(gradient); }

 protected:
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) {
        gradients[i] = input_metadata(static_cast<std::uint32_t>(i)).zeros_like();
      }
    }
    return gradient_(gradients);
  }

 private:
  const std::shared_ptr<const ProcessSet> set_;
  Gradient gradient_;
};

}  // namespace

bool needs_gradient(const Tensors& inputs) {
  return c10::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
           return input.defined() && input.requires_grad();
         });
}

Recording::Recording(const Tensors& inputs, const ProcessSet& set) {
  if (!needs_gradient(inputs)) return;
  node_ = make_node<GradientNode>(set);
  for (const at::Tensor& input : inputs) {
    if (!autograd::isDifferentiableType(input.scalar_type())) continue;
    node_->add_next_edge(autograd::impl::gradient_edge(input));
  }
}

void Recording::finish(const Tensors& outputs, Gradient gradient) const {
  if (node_ == nullptr) return;
  static_cast<GradientNode&>(*node_).set_gradient(std::move(gradient));
  for (const at::Tensor& output : outputs) {
    if (autograd::isDifferentiableType(output.scalar_type())) autograd::set_history(output, node_);
  }
}

}  // namespace kolo::tensors
