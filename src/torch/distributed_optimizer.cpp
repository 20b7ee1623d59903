#include "kolo/distributed_optimizer.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/handle.hpp"
#include "kolo/runtime.hpp"
#include "kolo/tensor_collectives.hpp"
#include "torch/grad_hooks.hpp"
#include "torch/gradient_buckets.hpp"
#include "torch/option_sync.hpp"
#include "torch/tensor_memory.hpp"

namespace kolo {
namespace {

using tensors::Bucket;
using tensors::BucketPlan;
using tensors::GradHooks;
using tensors::GradientBuckets;
using tensors::OptionSync;
using tensors::PlannedParameter;
using Clock = std::chrono::steady_clock;

DistributedOptimizer::NamedParameters names_in(const torch::nn::Module& model) {
  DistributedOptimizer::NamedParameters names;
  for (const auto& item : model.named_parameters()) names.emplace_back(item.key(), item.value());
  return names;
}

void check_options(const DistributedOptimizerOptions& options) {
  if (options.op != ReduceOp::Average && options.op != ReduceOp::Sum) {
    throw InvalidArgument("DistributedOptimizer: gradients are reduced by Average or Sum, not " +
                          std::string(name_of(options.op)));
  }
  if (options.backward_passes_per_step < 1) {
    throw InvalidArgument("DistributedOptimizer: backward_passes_per_step is " +
                          std::to_string(options.backward_passes_per_step) +
                          ", it must be 1 or more");
  }
  const bool is_predivided = options.gradient_predivide_factor != 1.0;
  if (!(options.gradient_predivide_factor > 0.0) ||
      (is_predivided && options.op != ReduceOp::Average)) {
    throw InvalidArgument(
        "DistributedOptimizer: gradient_predivide_factor must be positive, and 1 unless op is "
        "Average");
  }
}

void check_optimizer(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw InvalidArgument(
        "DistributedOptimizer: LBFGS evaluates its closure several times a step and chooses by "
        "this rank's loss, so that ranks would part. Use an optimizer that does not.");
  }
}

/// The parameters that get gradients, in the order of their groups, each once.
std::vector<at::Tensor> trainable(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const void*> seen;
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      parameters.push_back(parameter);
    }
  }
  return parameters;
}

}  // namespace

/// What lies behind the wrapper: from hooks to buckets to reductions, and back.
class DistributedOptimizer::Engine {
 public:
  Engine(torch::optim::Optimizer& optimizer, const NamedParameters& names, Options options)
      : wrapped_(optimizer),
        options_(std::move(options)),
        set_(options_.process_set != nullptr ? *options_.process_set : Runtime::current().world()),
        prefix_(next_prefix()),
        parameters_(trainable(optimizer)),
        option_sync_(optimizer.param_groups()) {
    name_parameters(names);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::string where = "DistributedOptimizer: parameter '" + names_[i] + "'";
      const TensorView view = tensors::view_of(parameters_[i], where);
      if (!is_floating(view.dtype)) {
        throw InvalidArgument(where + ": gradients of " + std::string(name_of(view.dtype)) +
                              " parameters cannot be reduced. Exclude it, or make it floating.");
      }
      planned_.push_back({view.count(), view.dtype});
    }
    if (options_.bucket_bytes == 0) options_.bucket_bytes = default_bucket_bytes(planned_);
    // Until the order of arrival is known: backward reaches the last layers first.
    std::vector<std::size_t> order(parameters_.size());
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    lay_out(order);
    hooks_.emplace(parameters_, [this](std::size_t index) { on_gradient(index); });
  }

  torch::optim::Optimizer& wrapped() { return wrapped_; }
  const torch::optim::Optimizer& wrapped() const { return wrapped_; }
  const StepTimes& times() const { return times_; }
  void merge_options(OptionSync::Groups& ours) {
    option_sync_.merge(ours, wrapped_.param_groups());
  }

  /// Idempotent until the next gradient arrives.
  void synchronize() {
    if (is_synchronized_) return;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (!states_[i].handle) submit(i);
    }
    times_.buckets.clear();
    for (std::size_t i = 0; i < states_.size(); ++i) collect(i);
    arrivals_.assign(parameters_.size(), 0);
    is_synchronized_ = true;
    if (!follows_arrival_) follow_arrival();
  }

 private:
  struct BucketState {
    int missing = 0;  // gradients, over all passes
    std::optional<Handle> handle;
    Clock::time_point submitted{};
  };

  std::string next_prefix() const { return set_.next_name("optimizer"); }

  void name_parameters(const NamedParameters& names) {
    std::unordered_map<const void*, std::string> by_tensor;
    for (const auto& [name, tensor] : names) by_tensor[tensor.unsafeGetTensorImpl()] = name;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto found = by_tensor.find(parameters_[i].unsafeGetTensorImpl());
      names_.push_back(found != by_tensor.end() ? found->second : "parameter " + std::to_string(i));
    }
  }

  void lay_out(const std::vector<std::size_t>& order) {
    OperationOptions options;
    options.name = prefix_ + ".memory." + std::to_string(layouts_++);
    options.process_set = &set_;
    buckets_.emplace(parameters_, plan_buckets(planned_, order, options_.bucket_bytes), options);
    bucket_of_.assign(parameters_.size(), 0);
    const std::vector<Bucket>& all = buckets_->buckets();
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const Bucket::Member& member : all[i].members) bucket_of_[member.parameter] = i;
    }
    states_.clear();
    states_.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) reset(i);
    arrivals_.assign(parameters_.size(), 0);
  }

  void reset(std::size_t index) {
    const std::size_t members = buckets_->buckets()[index].members.size();
    states_[index] = BucketState{
        static_cast<int>(members) * options_.backward_passes_per_step, std::nullopt, {}};
  }

  /// On the thread of backward(), for every gradient.
  void on_gradient(std::size_t index) {
    const std::size_t bucket = bucket_of_[index];
    BucketState& state = states_[bucket];
    if (state.handle || arrivals_[index] == options_.backward_passes_per_step) {
      throw InvalidArgument(
          "DistributedOptimizer: parameter '" + names_[index] +
          "' got a gradient more often than backward_passes_per_step = " +
          std::to_string(options_.backward_passes_per_step) +
          " times since the last step(). Call step() after so many backward passes, or raise it.");
    }
    const at::Tensor& gradient = parameters_[index].grad();
    if (gradient.is_sparse()) {
      throw InvalidArgument("DistributedOptimizer: parameter '" + names_[index] +
                            "' got a sparse gradient, which is not supported. Make its module "
                            "produce dense ones (sparse = false).");
    }
    if (is_synchronized_) {
      is_synchronized_ = false;
      first_gradient_ = Clock::now();
    }
    if (!follows_arrival_ && arrivals_[index] == 0) arrival_order_.push_back(index);
    buckets_->adopt(index);
    ++arrivals_[index];
    if (--state.missing > 0) return;
    times_.last_gradient = seconds(Clock::now());
    submit(bucket);
  }

  void submit(std::size_t index) {
    const Bucket& bucket = buckets_->buckets()[index];
    buckets_->complete(bucket);
    AllreduceOptions options;
    options.op = options_.op;
    options.prescale = 1.0 / options_.gradient_predivide_factor;
    options.postscale = options_.gradient_predivide_factor;
    options.compression = options_.compression;
    options.name = prefix_ + ".bucket." + std::to_string(layouts_) + "." + std::to_string(index);
    options.process_set = &set_;
    states_[index].submitted = Clock::now();
    states_[index].handle =
        allreduce_async(buckets_->memory(), bucket.offset, bucket.count(), bucket.dtype, options);
  }

  /// Waits for a bucket and hands its gradients out.
  void collect(std::size_t index) {
    BucketState& state = states_[index];
    state.handle->wait();
    const Bucket& bucket = buckets_->buckets()[index];
    buckets_->hand_out(bucket);
    times_.buckets.push_back({bucket.size_bytes, seconds(state.submitted),
                              seconds(state.handle->started()), seconds(state.handle->ended())});
    reset(index);
  }

  double seconds(Clock::time_point point) const {
    return std::chrono::duration<double>(point - first_gradient_).count();
  }

  /// After the first step: lays the buckets out in the order in which gradients arrived on the first
  /// rank of the set, so that from now on each is complete as early as can be.
  void follow_arrival() {
    follows_arrival_ = true;
    std::vector<bool> has_arrived(parameters_.size());
    for (const std::size_t index : arrival_order_) has_arrived[index] = true;
    for (std::size_t i = parameters_.size(); i-- > 0;) {
      if (!has_arrived[i]) arrival_order_.push_back(i);
    }
    OperationOptions options;
    options.name = prefix_ + ".order";
    options.process_set = &set_;
    const TensorView view{arrival_order_.data(),
                          DType::Int64,
                          {static_cast<std::int64_t>(arrival_order_.size())},
                          Device{}};
    broadcast(view, set_.ranks().front(), options);
    const GradientBuckets old = std::move(*buckets_);  // gradients lie in it until they are moved
    lay_out(std::exchange(arrival_order_, {}));
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].grad().defined()) buckets_->adopt(i);
    }
  }

  torch::optim::Optimizer& wrapped_;
  Options options_;
  ProcessSet& set_;
  const std::string prefix_;  // of the names of its operations
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<PlannedParameter> planned_;
  OptionSync option_sync_;

  std::optional<GradientBuckets> buckets_;
  int layouts_ = 0;
  std::vector<std::size_t> bucket_of_;  // of each parameter
  std::vector<int> arrivals_;           // of each parameter's gradient since the last step
  std::vector<BucketState> states_;
  bool is_synchronized_ = true;
  bool follows_arrival_ = false;
  std::vector<std::size_t> arrival_order_;
  Clock::time_point first_gradient_{};
  StepTimes times_;
  std::optional<GradHooks> hooks_;  // last: gone first
};

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const torch::nn::Module& model, Options options)
    : DistributedOptimizer(optimizer, names_in(model), std::move(options)) {}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const NamedParameters& names, Options options)
    : torch::optim::Optimizer(std::vector<torch::optim::OptimizerParamGroup>{},
                              optimizer.defaults().clone()) {
  check_options(options);
  check_optimizer(optimizer);
  for (const auto& group : optimizer.param_groups()) param_groups_.push_back(group);
  engine_ = std::make_unique<Engine>(optimizer, names, std::move(options));
}

DistributedOptimizer::~DistributedOptimizer() = default;

at::Tensor DistributedOptimizer::step(LossClosure closure) {
  engine_->merge_options(param_groups_);
  if (!closure) {
    engine_->synchronize();
    return engine_->wrapped().step();
  }
  return engine_->wrapped().step([&] {
    at::Tensor loss = closure();
    engine_->synchronize();
    return loss;
  });
}

void DistributedOptimizer::synchronize() { engine_->synchronize(); }

void DistributedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  engine_->wrapped().save(archive);
}

void DistributedOptimizer::load(torch::serialize::InputArchive& archive) {
  engine_->wrapped().load(archive);
  // Loading replaces the options of the wrapped optimizer's groups: they count.
  engine_->merge_options(param_groups_);
}

const DistributedOptimizer::StepTimes& DistributedOptimizer::last_step_times() const {
  return engine_->times();
}

}  // namespace kolo
