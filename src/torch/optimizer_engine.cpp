#include "torch/optimizer_engine.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/utils/clip_grad.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/parameter_sync.hpp"
#include "kolo/runtime.hpp"
#include "torch/agreement.hpp"
#include "torch/optimizer_checks.hpp"
#include "torch/step_pieces.hpp"

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

}  // namespace

OptimizerEngine::OptimizerEngine(torch::optim::Optimizer& wrapped, Groups& groups,
                                 const DistributedOptimizer::NamedParameters& names,
                                 DistributedOptimizerOptions options)
    : wrapped_(wrapped),
      groups_(groups),
      options_(std::move(options)),
      set_(options_.process_set != nullptr ? *options_.process_set : Runtime::current().world()),
      prefix_(set_.next_name("optimizer")),
      option_sync_(groups),
      check_(set_, prefix_ + ".check"),
      step_(std::make_shared<StepState>()) {
  options_.process_set = &set_;
  if (!options_.shard) options_.shard = shard_named(set_.runtime().config().shard);
  for (const auto& [name, tensor] : names) {
    if (tensor.defined()) names_.emplace(tensor.unsafeGetTensorImpl(), name);
  }
  std::vector<ReducedParameter> parameters = unknown_parameters();
  const std::string defect = defect_of(wrapped_, names, options_);
  if (defect.empty()) assign_groups(parameters, options_);
  wire(std::move(parameters), defect);
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
      unknown.push_back(
          {.tensor = parameter,
           .name = name_of(parameter, number),
           .optimizer_group = options_.shard == Shard::None ? 0 : static_cast<int>(group)});
    }
  }
  return unknown;
}

void OptimizerEngine::wire_new_parameters() {
  option_sync_.match_members(groups_, wrapped_.param_groups());
  std::vector<ReducedParameter> parameters = unknown_parameters();
  if (!parameters.empty()) wire(std::move(parameters), {});
}

void OptimizerEngine::wire(std::vector<ReducedParameter> parameters, const std::string& defect) {
  const std::string prefix = prefix_ + "." + std::to_string(wirings_++);
  agree(set_, prefix + ".agreement", kWhat, facts_of(options_, parameters),
        defect.empty() ? defect_of(parameters, *options_.shard) : defect);
  if (parameters.empty()) return;
  reducers_.push_back(std::make_unique<GradientReducer>(std::move(parameters), options_, hook_,
                                                        *step_, prefix, [this] {
                                                          if (!step_->is_in_backward)
                                                            begin_backward();
                                                        }));
}

// --- a step ---

/// Before the first gradient of a backward(): if the program has dropped gradients since, by the
/// model's zero_grad() for one, then this is another try at the step.
void OptimizerEngine::begin_backward() {
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
      for (const auto& reducer : reducers_) reducer->forget_dropped();
    }
  }
}

void OptimizerEngine::synchronize() {
  step_->is_in_backward = false;
  if (step_->is_synchronized) return;
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
  if (first_error) std::rethrow_exception(first_error);
}

void OptimizerEngine::discard() {
  step_->is_in_backward = false;
  step_->is_synchronized = false;
  const bool has_begun =
      is_in_flight() || std::any_of(reducers_.begin(), reducers_.end(),
                                    [](const auto& reducer) { return reducer->has_arrivals(); });
  wire_new_parameters();
  if (!has_begun) return;
  reduce_all();  // other ranks may have begun some
  for (const auto& reducer : reducers_) reducer->drop_gradients();
}

bool OptimizerEngine::is_in_flight() const {
  return std::any_of(reducers_.begin(), reducers_.end(),
                     [](const auto& reducer) { return reducer->is_in_flight(); });
}

at::Tensor OptimizerEngine::step(const torch::optim::Optimizer::LossClosure& closure) {
  merge_options();
  at::Tensor loss = options_.shard == Shard::None ? step_whole(closure) : step_shards(closure);
  step_->is_synchronized = false;
  ++steps_;
  return loss;
}

at::Tensor OptimizerEngine::step_whole(const torch::optim::Optimizer::LossClosure& closure) {
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

/// Bucket by bucket: what has been updated goes to the other ranks while the next is being updated.
at::Tensor OptimizerEngine::step_shards(const torch::optim::Optimizer::LossClosure& closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable(true);
    loss = closure();
  }
  make_gradients_ready();
  std::vector<Handle> gathers;
  std::exception_ptr error;
  for (const auto& reducer : reducers_) {
    for (std::size_t i = 0; i < reducer->buckets().buckets().size(); ++i) {
      try {
        if (!error) step_pieces(wrapped_, reducer->optimizer_group_of(i), *reducer->shards(), i);
      } catch (...) {
        error = std::current_exception();  // the other ranks gather all the same
      }
      gathers.push_back(reducer->gather_parameters(i));
    }
  }
  for (Handle& gather : gathers) gather.wait();
  for (const auto& reducer : reducers_) reducer->drop_gradients();
  if (error) std::rethrow_exception(error);
  return loss;
}

void OptimizerEngine::require_whole(const std::string& what) const {
  if (options_.shard == Shard::None) return;
  throw InvalidArgument("DistributedOptimizer: " + what + " is not possible with shard = " +
                        std::string(kolo::name_of(*options_.shard)) + ". Use shard = none.");
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

/// What this rank updates its parameters by: all gradients, or its pieces of them.
std::vector<at::Tensor> OptimizerEngine::own_gradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& reducer : reducers_) reducer->list_gradients(gradients);
  return gradients;
}

double OptimizerEngine::clip_grad_norm(double max_norm, double norm_type) {
  synchronize();
  if (options_.shard != Shard::None) return check_.clip(own_gradients(), max_norm, norm_type);
  std::vector<at::Tensor> parameters;
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      parameters.push_back(parameter.tensor);
    }
  }
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm, norm_type);
}

void OptimizerEngine::unscale(double scale) {
  make_gradients_ready();
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      if (parameter.tensor.scalar_type() != at::kHalf) continue;
      throw InvalidArgument("GradScaler: gradients of parameter '" + parameter.name +
                            "' are float16, in which they cannot be unscaled without loss. Keep "
                            "parameters in float32 and run the model under kolo::Autocast.");
    }
  }
  // Also where no gradient is divided: what a program or a bucket hook has made of the reduced ones
  // need not be the same on all ranks. Gradients that have not been reduced concern this rank alone.
  check_.unscale(own_gradients(), scale, !step_->is_synchronized);
}

/// As after a step, but the wrapped optimizer has not been called, and nothing counts it.
void OptimizerEngine::skip_step() {
  if (options_.shard != Shard::None) {
    for (const auto& reducer : reducers_) reducer->drop_gradients();
  }
  step_->is_synchronized = false;
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

// --- join ---

int OptimizerEngine::join() {
  require_whole("join()");
  if (is_in_flight()) {
    throw InvalidArgument(
        "DistributedOptimizer: join() while gradients are being reduced. Call step() or "
        "zero_grad() first.");
  }
  const int last = kolo::join(&set_);
  // Each rank's steps, and what the names of its operations depend on.
  std::array<std::int64_t, 3> own{steps_, wirings_, 0};
  for (const auto& reducer : reducers_) own[2] += reducer->layouts();
  std::vector<std::array<std::int64_t, 3>> all(static_cast<std::size_t>(set_.size()));
  OperationOptions options;
  options.name = prefix_ + ".joined";
  options.process_set = &set_;
  allgather(
      {own.data(), DType::Int64, {1, 3}, Device{}},
      [&](const std::vector<std::int64_t>&) -> void* { return all.data(); }, options);
  const auto furthest = std::max_element(all.begin(), all.end());
  if (*furthest == *std::min_element(all.begin(), all.end())) return last;

  const bool is_wired_alike = std::all_of(all.begin(), all.end(), [&](const auto& other) {
    return other[1] == own[1] && other[2] == own[2];
  });
  align_with(set_.ranks()[static_cast<std::size_t>(furthest - all.begin())]);
  steps_ = (*furthest)[0];
  if (is_wired_alike) return last;
  for (const auto& other : all) wirings_ = std::max(wirings_, other[1]);
  reducers_.clear();
  std::vector<ReducedParameter> parameters = unknown_parameters();
  assign_groups(parameters, options_);
  wire(std::move(parameters), {});
  return last;
}

/// Parameters, optimizer state and options of the rank that has taken the most steps, on all.
void OptimizerEngine::align_with(int root) {
  merge_options();
  std::vector<at::Tensor> parameters;
  for (const auto& group : groups_) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  broadcast_parameters(parameters, root, &set_);
  broadcast_optimizer_state(wrapped_, root, &set_);
  merge_options();
}

}  // namespace kolo::tensors
