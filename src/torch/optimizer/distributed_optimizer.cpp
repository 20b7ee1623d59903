#include "kolo/torch/distributed_optimizer.hpp"

#include <string>
#include <utility>

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include "kolo/error.hpp"
#include "torch/optimizer/module_units.hpp"
#include "torch/optimizer/training_engine.hpp"
#include "torch/wrapped/libtorch_optimizer.hpp"

namespace kolo {
namespace {

/// Makes the model's units groups, so that each is gathered and reduced as a whole.
DistributedOptimizerOptions with_units(DistributedOptimizerOptions options,
                                       const torch::nn::Module& model,
                                       const torch::optim::Optimizer& optimizer) {
  if (!options.unit_policy || !options.groups.empty()) return options;
  options.groups = tensors::units_in(model, options.unit_policy, optimizer);
  options.unit_policy = nullptr;
  return options;
}

torch::optim::Optimizer& require_optimizer(torch::optim::Optimizer* optimizer) {
  if (optimizer != nullptr) return *optimizer;
  throw InvalidArgument("DistributedOptimizer: the optimizer is a null pointer. Give one to wrap.");
}

/// Whether forward() of the module normalizes rows of a trained weight: those that the batch uses.
template <class Embedding>
bool has_max_norm(const torch::nn::Module& module) {
  const auto* const embedding = dynamic_cast<const Embedding*>(&module);
  return embedding != nullptr && embedding->options.max_norm().has_value() &&
         embedding->weight.requires_grad();
}

/// The problem with a model that several ranks train, and what to do; empty if there is none.
std::string problem_with(const torch::nn::Module& module, const std::string& prefix = {}) {
  if (has_max_norm<torch::nn::EmbeddingImpl>(module) ||
      has_max_norm<torch::nn::EmbeddingBagImpl>(module)) {
    return "'" + prefix +
           "weight' belongs to a module with max_norm, whose forward() normalizes only the rows "
           "that this rank's batch uses: ranks would train apart. Leave max_norm out, and call "
           "full_parameters() before the first step and after each, with weight.renorm_(norm_type, "
           "0, max_norm) under at::NoGradGuard.";
  }
  for (const auto& child : module.named_children()) {
    std::string problem = problem_with(*child.value(), prefix + child.key() + ".");
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const torch::nn::Module& model, Options options)
    : DistributedOptimizer(optimizer, model.named_parameters().pairs(),
                           model.named_buffers().pairs(),
                           with_units(std::move(options), model, optimizer), problem_with(model)) {}

DistributedOptimizer::DistributedOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                                           const torch::nn::Module& model, Options options)
    : DistributedOptimizer(require_optimizer(optimizer.get()), model, std::move(options)) {
  owned_ = std::move(optimizer);
}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const NamedParameters& names, Options options)
    : DistributedOptimizer(optimizer, names, {}, std::move(options), {}) {}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const NamedParameters& names,
                                           const NamedParameters& buffers, Options options,
                                           const std::string& problem)
    : torch::optim::Optimizer(std::vector<torch::optim::OptimizerParamGroup>{},
                              optimizer.defaults().clone()),
      wrapped_(optimizer) {
  for (const auto& group : optimizer.param_groups()) param_groups_.push_back(group);
  engine_ = std::make_unique<tensors::TrainingEngine>(
      std::make_unique<tensors::LibTorchOptimizer>(optimizer, options.fused), param_groups_, names,
      buffers, std::move(options), problem);
}

DistributedOptimizer::~DistributedOptimizer() = default;

void DistributedOptimizer::zero_grad(bool set_to_none) {
  engine_->discard();
  torch::optim::Optimizer::zero_grad(set_to_none);
}

at::Tensor DistributedOptimizer::step(LossClosure closure) {
  at::Tensor loss = engine_->step(closure);
  at::autocast::clear_cache();  // it holds casts of old parameter values
  return loss;
}

void DistributedOptimizer::backward(const at::Tensor& loss_sum, std::int64_t count) {
  engine_->backward(loss_sum, count);
}

void DistributedOptimizer::synchronize() { engine_->synchronize(); }

int DistributedOptimizer::for_each_gradient(const GradientVisitor& visit) {
  return engine_->for_each_gradient(visit);
}

void DistributedOptimizer::clip_grad_value_(double max_value) {
  engine_->clip_grad_value(max_value);
}

double DistributedOptimizer::clip_grad_norm_(double max_norm, double norm_type) {
  return engine_->clip_grad_norm(max_norm, norm_type);
}

DistributedOptimizer::ParameterState DistributedOptimizer::parameter_state(
    const at::Tensor& parameter) {
  return engine_->parameter_state(parameter);
}

void DistributedOptimizer::reset_parameter_state(const at::Tensor& parameter) {
  engine_->reset_parameter_state(parameter);
}

DistributedOptimizer::StateMap& DistributedOptimizer::state() {
  engine_->require_state_map();
  return wrapped_.state();
}

DistributedOptimizer::Guard DistributedOptimizer::no_sync() {
  return Guard(engine_->no_sync_depth());
}

DistributedOptimizer::Guard DistributedOptimizer::skip_synchronize() {
  return Guard(engine_->skip_synchronize_depth());
}

void DistributedOptimizer::check_replicas() { engine_->check_replicas(); }

int DistributedOptimizer::join() { return engine_->join(); }

void DistributedOptimizer::full_parameters(const std::function<void()>& write) {
  engine_->full_parameters(write);
}

void DistributedOptimizer::register_bucket_hook(BucketHook hook) {
  engine_->set_hook(std::move(hook));
}

void DistributedOptimizer::save(const std::filesystem::path& folder, const SaveOptions& options) {
  engine_->save(folder, options);
}

Loaded DistributedOptimizer::load(const std::filesystem::path& path, const LoadOptions& options) {
  return engine_->load(path, options);
}

void DistributedOptimizer::save_full_state(const std::filesystem::path& file, int root) {
  engine_->save_full_state(file, root);
}

void DistributedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  engine_->save(archive);
}

void DistributedOptimizer::load(torch::serialize::InputArchive& archive) { engine_->load(archive); }

TrainingReport DistributedOptimizer::report() const { return engine_->report(); }

const DistributedOptimizer::StepTimes& DistributedOptimizer::last_step_times() const {
  return engine_->times();
}

}  // namespace kolo
