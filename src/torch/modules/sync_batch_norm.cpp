#include "kolo/torch/sync_batch_norm.hpp"

#include <cstdint>
#include <sstream>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <torch/nn/functional/batchnorm.h>

#include "kolo/error.hpp"
#include "runtime/api/collectives.hpp"
#include "torch/modules/batch_moments.hpp"
#include "torch/modules/batch_normalization.hpp"
#include "torch/tensors/plain_arithmetic.hpp"
#include "torch/tensors/tensor_operation.hpp"

namespace kolo {
namespace {

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

/// The values per channel on all ranks, or 2 if this rank alone has at least two: then it need not
/// read the count, which would wait for the GPU.
std::int64_t smallest_count(const at::Tensor& input, const at::Tensor& count) {
  return input.numel() >= 2 * input.size(1) ? 2 : count.item<std::int64_t>();
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& its_options,
                                     ProcessSet* process_set)
    : NormImplBase(its_options),
      set_(tensors::member_set(process_set).shared_from_this()),
      name_(runtime::next_prefix(*set_, "sync_batch_norm")) {}

void SyncBatchNormImpl::take_over(const torch::nn::Module& replaced,
                                  const std::vector<at::Tensor>& parameters,
                                  const std::vector<at::Tensor>& buffers) {
  train(replaced.is_training());
  if (options.affine()) {
    weight = parameters_["weight"] = parameters[0];
    bias = parameters_["bias"] = parameters[1];
  }
  if (options.track_running_stats()) {
    running_mean.set_data(buffers[0]);
    running_var.set_data(buffers[1]);
    num_batches_tracked.set_data(buffers[2]);
  }
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "kolo::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum().has_value()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ')';
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (const std::string problem = problem_with_input(input); !problem.empty()) {
    throw InvalidArgument(problem);
  }
}

std::string SyncBatchNormImpl::problem_with_input(const at::Tensor& input) const {
  std::ostringstream text;
  text << "SyncBatchNorm of " << options.num_features() << " channels: ";
  if (!input.defined()) return text.str() + "the input is undefined";
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    text << "the input has shape " << input.sizes() << ". It must be [N, " << options.num_features()
         << ", ...].";
    return text.str();
  }
  if (!input.is_floating_point() || input.layout() != at::kStrided) {
    text << "the input is " << input.toString() << ". It must be dense and floating.";
    return text.str();
  }
  for (const at::Tensor& own : {weight, bias, running_mean, running_var}) {
    if (!own.defined()) continue;
    const bool has_matching_type = own.scalar_type() == input.scalar_type() ||
                                   own.scalar_type() == tensors::wide_type(input.scalar_type());
    if (has_matching_type && own.device() == input.device()) continue;
    text << "the input is " << input.scalar_type() << " on " << input.device()
         << ", the module's tensors are " << own.scalar_type() << " on " << own.device()
         << ". They must be on one device, and of the input's dtype, or of float32 where that has "
            "16 bits.";
    return text.str();
  }
  return {};
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  if (!is_training()) {
    _check_input_dim(input);
    return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                     /*training=*/!options.track_running_stats(),
                                                     /*momentum=*/0.0, options.eps());
  }
  const std::string problem = problem_with_input(input);
  if (!problem.empty()) {
    tensors::refused<tensors::Tensors>(Collective::AllGather, problem,
                                       {.name = name_, .process_set = set_.get()})
        .wait();
  }
  tensors::Moments moments;
  std::int64_t count = 0;
  {
    const tensors::PlainArithmetic plain;
    moments = tensors::merge(tensors::moments_of(input), *set_, name_);
    count = smallest_count(input, moments.count);
  }
  if (count == 1) {
    throw InvalidArgument("SyncBatchNorm '" + name_ +
                          "': expected more than 1 value per channel when training, but the "
                          "batches of all ranks have one together; this rank's input has shape " +
                          shape_of(input) + ". Use larger batches.");
  }
  at::Tensor output =
      tensors::normalize(input, moments, {weight, bias, options.eps(), set_, name_});
  if (options.track_running_stats()) update_running_statistics(moments, count > 0);
  return output;
}

void SyncBatchNormImpl::update_running_statistics(const tensors::Moments& moments,
                                                  bool has_values) {
  const tensors::PlainArithmetic plain;
  num_batches_tracked.add_(1);
  if (!has_values) return;
  const std::optional<double> momentum = options.momentum();
  const at::Tensor share = momentum ? at::full({}, *momentum, moments.count.options())
                                    : num_batches_tracked.to(at::kDouble).reciprocal();
  const at::Tensor unbiased = moments.variance * (moments.count / (moments.count - 1));
  running_mean.copy_(running_mean.to(at::kDouble).lerp(moments.mean, share));
  running_var.copy_(running_var.to(at::kDouble).lerp(unbiased, share));
}

}  // namespace kolo
