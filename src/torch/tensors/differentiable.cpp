#include "torch/tensors/differentiable.hpp"

#include <algorithm>
#include <cstddef>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "torch/tensors/graph_node.hpp"

namespace kolo::tensors {
namespace {

namespace autograd = torch::autograd;

class GradientNode : public autograd::Node {
 public:
  GradientNode(const ProcessSet& set, Gradient gradient)
      : set_(set.shared_from_this()), gradient_(std::move(gradient)) {}

  std::string name() const override { return "KoloBackward"; }

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
  const Gradient gradient_;
};

}  // namespace

bool needs_gradient(const Tensors& inputs) {
  return c10::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
           return input.defined() && input.requires_grad();
         });
}

void record(const Tensors& inputs, const Tensors& outputs, const ProcessSet& set,
            Gradient gradient) {
  const auto node = make_node<GradientNode>(set, std::move(gradient));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!autograd::isDifferentiableType(inputs[i].scalar_type())) continue;
    node->add_next_edge(autograd::impl::gradient_edge(inputs[i]));
    autograd::set_history(outputs[i], node);
  }
}

}  // namespace kolo::tensors
