#include "torch/modules/batch_normalization.hpp"

#include <cstdint>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "kolo/error.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "torch/modules/batch_moments.hpp"
#include "torch/tensors/differentiable.hpp"
#include "torch/tensors/graph_node.hpp"
#include "torch/tensors/plain_arithmetic.hpp"
#include "torch/tensors/tensor_operation.hpp"

namespace kolo::tensors {
namespace {

namespace autograd = torch::autograd;

/// The moments in the dtype of the arithmetic.
struct Statistics {
  at::Tensor mean;
  at::Tensor variance;
};

/// `weight` * (input - mean) / sqrt(variance + eps) + `bias`, all in one dtype.
at::Tensor apply_affine(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                        const Statistics& by, double eps) {
  if (input.numel() == 0) return input.clone();
  return std::get<0>(at::native_batch_norm(input, weight, bias, by.mean, by.variance,
                                           /*training=*/false, /*momentum=*/0.0, eps));
}

/// Runs an operator whatever the dtype: a parameter that is gathered on use must be gathered on all
/// ranks, even on those without rows.
at::Tensor to_type(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() ? tensor.to(type) : tensor;
}

/// Gradients as if the statistics were constants, which is exact for weight and bias.
struct LocalGradients {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
};

LocalGradients local_gradients(const at::Tensor& gradient, const at::Tensor& input,
                               const at::Tensor& scale, const Statistics& by, double eps,
                               bool of_input_too) {
  if (input.numel() == 0) {
    return {at::zeros_like(input), at::zeros_like(scale), at::zeros_like(scale)};
  }
  auto [of_input, of_weight, of_bias] = at::native_batch_norm_backward(
      gradient, input, scale, by.mean, by.variance, /*save_mean=*/{}, /*save_invstd=*/{},
      /*train=*/false, eps, /*output_mask=*/{of_input_too, true, true});
  return {std::move(of_input), std::move(of_weight), std::move(of_bias)};
}

class SyncBatchNormBackward final : public autograd::Node {
 public:
  SyncBatchNormBackward(const at::Tensor& input, Statistics by, at::Tensor count,
                        const Normalization& how)
      : input_(input, /*is_output=*/false),
        weight_(how.weight, /*is_output=*/false),
        by_(std::move(by)),
        count_(std::move(count)),
        eps_(how.eps),
        set_(how.set),
        name_(how.name + ".gradient") {
    for (const at::Tensor& tensor : {input, how.weight, how.bias}) {
      const bool has_gradient = tensor.defined() && tensor.requires_grad();
      add_next_edge(has_gradient ? autograd::impl::gradient_edge(tensor) : autograd::Edge());
    }
  }

  std::string name() const override { return "KoloSyncBatchNormBackward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    input_.reset_data();
    weight_.reset_data();
  }

 private:
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (at::GradMode::is_enabled()) refuse_gradients_of_gradients();
    const PlainArithmetic plain;
    const auto [input, weight] = saved();
    const at::ScalarType type = wide_type(input.scalar_type());
    const at::Tensor values = input.to(type);
    const at::Tensor gradient =
        gradients[0].defined() ? gradients[0].to(type) : at::zeros_like(values);
    const at::Tensor scale = weight.defined() ? to_type(weight, type) : at::ones_like(by_.mean);
    const bool of_input_too = task_should_compute_output(0);
    LocalGradients local = local_gradients(gradient, values, scale, by_, eps_, of_input_too);
    if (of_input_too) {
      const at::Tensor steepness = scale * (by_.variance + eps_).rsqrt();
      local.input.sub_(through_statistics(values, steepness, local));
    }
    // LibTorch converts them to the dtypes of the tensors.
    return {std::move(local.input), std::move(local.weight), std::move(local.bias)};
  }

  std::pair<at::Tensor, at::Tensor> saved() {
    const std::lock_guard lock(mutex_);  // another backward() may release them
    return {input_.unpack(), weight_.unpack()};
  }

  /// The negated gradient through mean and variance, which carries the losses of all ranks.
  at::Tensor through_statistics(const at::Tensor& values, const at::Tensor& steepness,
                                const LocalGradients& local) const {
    const at::Tensor sums =
        allreduce(at::cat({local.weight, local.bias}),
                  {.op = ReduceOp::Sum, .name = name_, .process_set = set_.get()});
    const at::Tensor means = sums / count_.clamp_min(1);
    const std::int64_t channels = steepness.size(0);
    return apply_affine(values, steepness * means.narrow(0, 0, channels),
                        steepness * means.narrow(0, channels, channels), by_, eps_);
  }

  /// Throws on this rank, or on all ranks if they wait for the gradient of the input.
  void refuse_gradients_of_gradients() const {
    const std::string problem =
        "SyncBatchNorm: gradients of gradients (create_graph = true) cannot pass through it. Use "
        "LibTorch's BatchNorm there.";
    if (!task_should_compute_output(0)) throw InvalidArgument(problem);
    refused<Tensors>(Collective::AllReduce, problem, {.name = name_, .process_set = set_.get()})
        .wait();
  }

  autograd::SavedVariable input_;
  autograd::SavedVariable weight_;
  Statistics by_;
  at::Tensor count_;
  double eps_;
  const std::shared_ptr<ProcessSet> set_;
  std::string name_;
};

}  // namespace

at::Tensor normalize(const at::Tensor& input, const Moments& moments, const Normalization& how) {
  const bool is_recorded = needs_gradient({input, how.weight, how.bias});
  const at::ScalarType type = wide_type(input.scalar_type());
  const Statistics by{moments.mean.to(type), moments.variance.to(type)};
  at::Tensor output;
  {
    const PlainArithmetic plain;
    output = apply_affine(input.to(type), to_type(how.weight, type), to_type(how.bias, type), by,
                          how.eps)
                 .to(input.scalar_type());
  }
  if (is_recorded) {
    autograd::set_history(output, make_node<SyncBatchNormBackward>(input, by, moments.count, how));
  }
  return output;
}

}  // namespace kolo::tensors
