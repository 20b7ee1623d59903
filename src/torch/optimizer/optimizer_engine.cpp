#include "torch/optimizer/optimizer_engine.hpp"

#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/engine.h>

#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "torch/optimizer/fused_step.hpp"
#include "torch/optimizer/optimizer_checks.hpp"
#include "torch/optimizer/step_pieces.hpp"
#include "torch/tensors/agreement.hpp"

namespace kolo::tensors {
namespace {

const char* const kWhat = "DistributedOptimizer";

/// Every parameter to its group: an explicit one, or one of `num_groups` equal parts.
void assign_groups(std::vector<ReducedParameter>& parameters,
                   const DistributedOptimizerOptions& options) {
  std::unordered_map<const void*, int> explicit_groups;
  for (std::size_t i = 0; i < options.groups.size(); ++i) {
    for (const at::Tensor& tensor : options.groups[i]) {
      explicit_groups[tensor.unsafeGetTensorImpl()] = static_cast<int>(i);
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = explicit_groups.find(parameters[i].tensor.unsafeGetTensorImpl());
    if (found != explicit_groups.end()) {
      parameters[i].group = found->second;
    } else if (options.num_groups > 0) {
      parameters[i].group =
          static_cast<int>(i * static_cast<std::size_t>(options.num_groups) / parameters.size());
    }
  }
}

at::Tensor evaluate(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  const at::AutoGradMode enable(true);
  return closure();
}

}  // namespace

OptimizerEngine::OptimizerEngine(torch::optim::Optimizer& wrapped, Groups& groups,
                                 const DistributedOptimizer::NamedParameters& names,
                                 const DistributedOptimizer::NamedParameters& buffers,
                                 DistributedOptimizerOptions options)
    : wrapped_(wrapped),
      groups_(groups),
      options_(std::move(options)),
      set_(options_.process_set != nullptr ? *options_.process_set : Runtime::current().world()),
      prefix_(set_.next_name("optimizer")),
      named_(names),
      buffers_(buffers),
      option_sync_(groups),
      check_(set_, sets_, prefix_ + ".check"),
      step_(std::make_shared<StepState>()) {
  options_.process_set = &set_;
  if (!options_.shard) options_.shard = shard_named(set_.runtime().config().shard);
  for (const auto& [name, tensor] : names) {
    if (tensor.defined()) names_.emplace(tensor.unsafeGetTensorImpl(), name);
  }
  wire_all(defect_of(wrapped_, names, options_));
  peak_at_construction_ = peak_resident();
  sent_before_ = bytes_sent();
}

OptimizerEngine::~OptimizerEngine() {
  for (const auto& reducer : reducers_) {
    if (reducer->shards() != nullptr) reducer->shards()->erase_state(wrapped_);
  }
}

// --- parameters ---

std::string OptimizerEngine::name_of(const at::Tensor& parameter, std::size_t index) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  return found != names_.end() ? found->second : "parameter " + std::to_string(index);
}

/// Those that get gradients and have no reducer yet, in the order of their groups, each once.
std::vector<ReducedParameter> OptimizerEngine::unknown_parameters() const {
  std::unordered_set<const void*> known;
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      known.insert(parameter.tensor.unsafeGetTensorImpl());
    }
  }
  std::vector<ReducedParameter> unknown;
  std::size_t index = 0;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (const at::Tensor& parameter : groups_[group].params()) {
      const std::size_t number = index++;
      if (!parameter.requires_grad() || !known.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      unknown.push_back({.tensor = parameter,
                         .name = name_of(parameter, number),
                         .optimizer_group = options_.shard == Shard::None ? 0 : group});
    }
  }
  return unknown;
}

void OptimizerEngine::wire_all(const std::string& defect) {
  std::vector<ReducedParameter> parameters = unknown_parameters();
  if (defect.empty()) assign_groups(parameters, options_);
  wire(std::move(parameters), defect);
}

void OptimizerEngine::wire_new_parameters() {
  option_sync_.match_members(groups_, wrapped_.param_groups());
  std::vector<ReducedParameter> parameters = unknown_parameters();
  if (!parameters.empty()) wire(std::move(parameters), {});
}

void OptimizerEngine::wire(std::vector<ReducedParameter> parameters, const std::string& defect) {
  const std::string prefix = prefix_ + "." + std::to_string(wirings_++);
  std::string own_defect = defect;
  if (own_defect.empty() && !parameters.empty()) {
    const ReducedParameter& first =
        reducers_.empty() ? parameters.front() : reducers_.front()->parameters().front();
    own_defect = defect_of(parameters, first, options_);
  }
  agree(set_, prefix + ".agreement", kWhat, facts_of(options_, parameters), own_defect);
  if (sets_.divided == nullptr) {
    const bool is_whole = options_.shard == Shard::None;
    sets_ = make_shard_sets(set_, is_whole ? ShardScope::World : options_.shard_scope);
  }
  if (parameters.empty()) return;
  reducers_.push_back(std::make_unique<GradientReducer>(std::move(parameters), options_, sets_,
                                                        hook_, *step_, prefix, [this] {
                                                          if (!step_->is_in_backward)
                                                            begin_backward();
                                                        }));
}

// --- a step ---

/// Before the first gradient of a backward(): if the program has dropped gradients since, by the
/// model's zero_grad() for one, then this is another try at the step.
void OptimizerEngine::begin_backward() {
  require_untouched();
  step_->is_in_backward = true;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [step = step_] { step->is_in_backward = false; });
  const auto any = [this](bool (GradientReducer::*has)() const) {
    return std::any_of(reducers_.begin(), reducers_.end(),
                       [has](const auto& reducer) { return ((*reducer).*has)(); });
  };
  if (step_->is_synchronized) {
    if (!any(&GradientReducer::has_gradients)) step_->is_synchronized = false;
  } else if (any(&GradientReducer::has_dropped)) {
    if (is_in_flight()) {
      discard();
      step_->is_in_backward = true;
    } else {
      const std::string changed = changed_since_arrival();
      for (const auto& reducer : reducers_) reducer->forget_dropped();
      step_->is_in_backward = false;
      expect_reason(changed);
      step_->is_in_backward = true;
    }
  }
}

void OptimizerEngine::synchronize() {
  step_->is_in_backward = false;
  if (step_->is_synchronized) return;
  require_untouched();
  wire_new_parameters();
  reduce_all();
  step_->is_synchronized = true;
  for (const auto& reducer : reducers_) reducer->follow_arrival(wrapped_);
}

/// Ends all reductions of the step, begun or not.
void OptimizerEngine::reduce_all() {
  for (const auto& reducer : reducers_) reducer->submit_rest();
  step_->times.buckets.clear();
  std::exception_ptr first_error;
  for (const auto& reducer : reducers_) {
    if (const std::exception_ptr error = reducer->collect(); !first_error) first_error = error;
  }
  step_->first_gradient = {};
  step_->has_failed = false;
  if (first_error) std::rethrow_exception(first_error);
}

void OptimizerEngine::discard() {
  step_->is_in_backward = false;
  const bool is_reduced = std::exchange(step_->is_synchronized, false);
  const bool has_begun =
      is_in_flight() || std::any_of(reducers_.begin(), reducers_.end(),
                                    [](const auto& reducer) { return reducer->has_arrivals(); });
  wire_new_parameters();
  if (!has_begun && !is_reduced) return;
  const std::string changed = changed_since_arrival();
  if (has_begun) {  // other ranks may have begun some
    const bool is_known = step_->has_failed;
    try {
      reduce_all();
    } catch (const Error&) {
      if (!is_known) throw;
    }
  }
  announce({{"deed", "discard"}});
  drop_gradients();
  expect_reason(changed);
}

void OptimizerEngine::drop_gradients() {
  for (const auto& reducer : reducers_) reducer->drop_gradients();
}

bool OptimizerEngine::is_in_flight() const {
  return std::any_of(reducers_.begin(), reducers_.end(),
                     [](const auto& reducer) { return reducer->is_in_flight(); });
}

at::Tensor OptimizerEngine::step(const torch::optim::Optimizer::LossClosure& closure) {
  require_untouched();
  merge_options();
  at::Tensor loss = options_.shard == Shard::None ? step_whole(closure) : step_shards(closure);
  step_->is_synchronized = false;
  ++steps_;
  unused_changes_ = 0;
  const std::uint64_t sent = bytes_sent();
  sent_per_step_ = sent - std::exchange(sent_before_, sent);
  const double on_gpu = gpu_seconds();
  gpu_seconds_per_step_ = on_gpu - std::exchange(gpu_seconds_before_, on_gpu);
  return loss;
}

at::Tensor OptimizerEngine::step_whole(const torch::optim::Optimizer::LossClosure& closure) {
  if (options_.fused) {
    at::Tensor loss = evaluate(closure);
    make_gradients_ready();
    fused_step(wrapped_);
    return loss;
  }
  if (closure) {
    return wrapped_.step([&] {
      at::Tensor result = closure();
      make_gradients_ready();
      return result;
    });
  }
  make_gradients_ready();
  return wrapped_.step();
}

at::Tensor OptimizerEngine::step_shards(const torch::optim::Optimizer::LossClosure& closure) {
  at::Tensor loss = evaluate(closure);
  make_gradients_ready();
  if (have_some_joined()) {
    announce({{"deed", "step"}, {"options", OptionSync::describe(groups_)}});
  }
  update_parts();
  return loss;
}

/// Bucket by bucket: what has been updated goes to the other ranks while the next is being updated.
void OptimizerEngine::update_parts() {
  std::vector<Handle> gathers;
  std::exception_ptr error;
  for (const auto& reducer : reducers_) {
    for (std::size_t i = 0; i < reducer->buckets().buckets().size(); ++i) {
      try {
        if (!error) {
          step_pieces(wrapped_, reducer->optimizer_group_of(i), *reducer->shards(), i,
                      options_.fused);
        }
      } catch (...) {
        error = std::current_exception();  // the other ranks gather all the same
      }
      gathers.push_back(reducer->gather_parameters(i));
    }
  }
  for (Handle& gather : gathers) gather.wait();
  drop_gradients();
  if (error) std::rethrow_exception(error);
}

void OptimizerEngine::make_gradients_ready() {
  if (skip_synchronize_ > 0) require_whole("step() under skip_synchronize()");
  if (skip_synchronize_ == 0) {
    synchronize();
  } else if (is_in_flight()) {
    throw InvalidArgument(
        "DistributedOptimizer: step() under skip_synchronize() while gradients are being reduced. "
        "Call synchronize() before, or run backward() under no_sync().");
  }
}

void OptimizerEngine::set_hook(BucketHook hook) {
  require_whole("register_bucket_hook()");
  if (is_in_flight()) {
    throw InvalidArgument(
        "DistributedOptimizer: register_bucket_hook while gradients are being reduced. Call it "
        "before backward().");
  }
  hook_ = std::move(hook);
}

}  // namespace kolo::tensors
