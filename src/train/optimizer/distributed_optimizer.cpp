#include "kolo/torch/distributed_optimizer.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include "checkpoint/checkpoint.hpp"
#include "kolo/error.hpp"
#include "kolo/insight.hpp"
#include "kolo/objects.hpp"
#include "train/optimizer/training_engine.hpp"
#include "train/sharding/module_units.hpp"
#include "train/wrapped/libtorch_optimizer.hpp"

namespace kolo {
namespace {

/// Makes the model's units groups, so that each is gathered and reduced as a whole.
DistributedOptimizerOptions with_units(DistributedOptimizerOptions options,
                                       const NamedModules& model,
                                       const torch::optim::Optimizer& optimizer) {
  if (!options.unit_policy || !options.groups.empty()) return options;
  options.groups = train::units_in(model, options.unit_policy, optimizer);
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

/// Begins the names of what is in the module `name`; empty for a model without one.
std::string prefix_of(const std::string& name) { return name.empty() ? name : name + "."; }

/// The problem with a model that several ranks train, and what to do; empty if there is none.
std::string problem_with(const torch::nn::Module& module, const std::string& prefix) {
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

std::string problem_with(const NamedModules& model) {
  for (const auto& [name, module] : model.modules()) {
    std::string problem = problem_with(module, prefix_of(name));
    if (!problem.empty()) return problem;
  }
  return {};
}

train::NamedModel tensors_of(const NamedModules& model) {
  train::NamedModel tensors;
  const auto append = [](const std::string& name, const auto& from,
                         DistributedOptimizer::NamedParameters& to) {
    for (const auto& item : from) to.emplace_back(prefix_of(name) + item.key(), item.value());
  };
  for (const auto& [name, module] : model.modules()) {
    append(name, module.get().named_parameters(), tensors.parameters);
    append(name, module.get().named_buffers(), tensors.buffers);
  }
  return tensors;
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const NamedModules& model, Options options)
    : DistributedOptimizer(
          optimizer, [model] { return tensors_of(model); },
          with_units(std::move(options), model, optimizer), problem_with(model)) {}

DistributedOptimizer::DistributedOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                                           const NamedModules& model, Options options)
    : DistributedOptimizer(require_optimizer(optimizer.get()), model, std::move(options)) {
  owned_ = std::move(optimizer);
}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const NamedParameters& names, Options options)
    : DistributedOptimizer(optimizer, [names] { return train::NamedModel{names, {}}; },
                           std::move(options), {}) {}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           std::function<train::NamedModel()> model,
                                           Options options, const std::string& problem)
    : torch::optim::Optimizer(std::vector<torch::optim::OptimizerParamGroup>{},
                              optimizer.defaults().clone()),
      wrapped_(optimizer) {
  for (const auto& group : optimizer.param_groups()) param_groups_.push_back(group);
  engine_ = std::make_unique<train::TrainingEngine>(
      std::make_unique<train::LibTorchOptimizer>(optimizer, options.fused), param_groups_, model,
      std::move(options), problem);
}

DistributedOptimizer::~DistributedOptimizer() = default;

void DistributedOptimizer::zero_grad(bool set_to_none) {
  engine_->discard();
  torch::optim::Optimizer::zero_grad(set_to_none);
}

void DistributedOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  torch::optim::Optimizer::add_param_group(group);
  engine_->match_groups();
}

bool DistributedOptimizer::has_gradients() const { return engine_->has_arrivals(); }

std::uint64_t DistributedOptimizer::zero_grads() const { return engine_->discards(); }

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

namespace {

/// Whether this rank sees something to load. A folder that it cannot list counts: load() says why.
bool sees_checkpoint(const std::filesystem::path& path) {
  std::error_code unreadable;
  if (!std::filesystem::exists(path, unreadable)) return false;
  if (!std::filesystem::is_directory(path, unreadable)) return true;
  try {
    return checkpoints::has_checkpoint(path);
  } catch (const BackendError&) {
    return true;
  }
}

}  // namespace

bool has_checkpoint(const std::filesystem::path& path, const OperationOptions& options) {
  const std::vector<std::string> all =
      allgather_object(sees_checkpoint(path) ? "yes" : "no", options);
  return std::ranges::find(all, "yes") != all.end();
}

Saved DistributedOptimizer::save(const std::filesystem::path& folder, const SaveOptions& options) {
  const MarkedSpan span("save " + folder.string());
  return engine_->save(folder, options);
}

std::optional<Saved> DistributedOptimizer::wait_for_save() { return engine_->wait_for_save(); }

Loaded DistributedOptimizer::load(const std::filesystem::path& path, const LoadOptions& options) {
  const MarkedSpan span("load " + path.string());
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
