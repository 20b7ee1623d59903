#include "train/optimizer/local_sgd.hpp"

#include <map>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include "kolo/torch/tensor_collectives.hpp"

namespace kolo::train {
namespace {

// At most this many bytes are averaged in one operation, unless one parameter is larger.
constexpr std::size_t kBytes = std::size_t{25} << 20U;

bool is_narrow(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

/// Averages parameters of one dtype; those of 16 bits in float32.
void average_group(const std::vector<at::Tensor>& parameters, const AllreduceOptions& options) {
  if (!is_narrow(parameters.front())) return grouped_allreduce_(parameters, options);
  std::vector<at::Tensor> wide;
  for (const at::Tensor& parameter : parameters) wide.push_back(parameter.to(at::kFloat));
  grouped_allreduce_(wide, options);
  for (std::size_t i = 0; i < wide.size(); ++i) at::Tensor(parameters[i]).copy_(wide[i]);
}

}  // namespace

std::string problem_with_local_sgd(const DistributedOptimizerOptions& options) {
  const LocalSgd& local = options.local_sgd;
  if (local.period < 0 || local.start_step < 0) {
    return "local_sgd has the period " + std::to_string(local.period) + " and the start_step " +
           std::to_string(local.start_step) + "; both must be 0 or more";
  }
  if (local.period == 0 || options.shard == Shard::None) return {};
  return "local_sgd needs whole parameters on each rank; shard is " +
         std::string(name_of(*options.shard)) + ". Use shard = none.";
}

LocalSgdSchedule::LocalSgdSchedule(TrainingContext& context, const GradientReducers& reducers)
    : context_(context), reducers_(reducers), schedule_(context.options.local_sgd) {
  follow_schedule();
}

/// Gradients are kept as under no_sync() while ranks step alone.
void LocalSgdSchedule::follow_schedule() {
  const bool was_on = is_on_;
  is_on_ = schedule_.period > 0 && steps_ >= schedule_.start_step;
  if (is_on_ != was_on) context_.step.no_sync += is_on_ ? 1 : -1;
}

bool LocalSgdSchedule::end_step() {
  ++steps_;
  const bool was_alone = is_on_;
  follow_schedule();
  return was_alone && (steps_ - schedule_.start_step) % schedule_.period == 0;
}

void LocalSgdSchedule::resume(std::int64_t steps) {
  steps_ = steps;
  follow_schedule();
}

void LocalSgdSchedule::average() {
  const at::NoGradGuard no_grad;
  int calls = 0;
  const auto average = [&](std::vector<at::Tensor>& group) {
    average_group(group, {.op = ReduceOp::Average,
                          .name = context_.prefix + ".average." + std::to_string(calls++),
                          .process_set = &context_.set});
    group.clear();
  };
  std::map<at::ScalarType, std::vector<at::Tensor>> groups;
  std::map<at::ScalarType, std::size_t> bytes;
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      const at::ScalarType dtype = parameter.tensor.scalar_type();
      std::vector<at::Tensor>& group = groups[dtype];
      if (!group.empty() && bytes[dtype] + parameter.tensor.nbytes() > kBytes) average(group);
      if (group.empty()) bytes[dtype] = 0;
      group.push_back(parameter.tensor.detach());
      bytes[dtype] += parameter.tensor.nbytes();
    }
  }
  for (auto& [dtype, group] : groups) average(group);
  at::autocast::clear_cache();  // it holds casts of old parameter values
}

}  // namespace kolo::train
