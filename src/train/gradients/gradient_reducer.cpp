#include "train/gradients/gradient_reducer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "comm/shared_memory.hpp"
#include "kolo/error.hpp"
#include "runtime/engine/engine.hpp"
#include "train/sharding/operator_watch.hpp"
#include "train/tensors/graph_node.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

using torch::autograd::variable_list;

/// Calls back before or after a node that accumulates gradients, depending on how it is installed.
class Hook final : public torch::autograd::FunctionPreHook,
                   public torch::autograd::FunctionPostHook {
 public:
  Hook(const GradHooks::Callback& callback, at::Tensor parameter, std::size_t index)
      : callback_(callback), parameter_(std::move(parameter)), index_(index) {}

  variable_list operator()(const variable_list& gradients) override {
    call_back(gradients);
    return gradients;
  }
  variable_list operator()(const variable_list& outputs, const variable_list& gradients) override {
    call_back(gradients);
    return outputs;
  }

 private:
  /// Autograd also runs the node without a gradient, and for a parameter that the program has
  /// frozen since its forward pass, whose gradient the node drops.
  void call_back(const variable_list& gradients) const {
    if (gradients.front().defined() && parameter_.requires_grad()) callback_(index_);
  }

  const GradHooks::Callback& callback_;
  const at::Tensor parameter_;
  std::size_t index_;
};

}  // namespace

struct GradHooks::Installed {
  // The parameter refers to it weakly: without this owner, it would be destroyed with its hooks.
  NodeOwner accumulator;
  const torch::autograd::FunctionPreHook* before;
  std::uintptr_t after;
};

GradHooks::GradHooks(const std::vector<at::Tensor>& parameters, Callback before, Callback after)
    : before_(std::move(before)), after_(std::move(after)) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool is_frozen = !parameters[i].requires_grad();
    if (is_frozen) parameters[i].requires_grad_(true);  // otherwise it has no accumulator
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i]);
    if (is_frozen) parameters[i].requires_grad_(false);
    auto hook = std::make_unique<Hook>(before_, parameters[i], i);
    const torch::autograd::FunctionPreHook* const before_key = hook.get();
    accumulator->add_pre_hook(std::move(hook));
    const std::uintptr_t after_key =
        accumulator->add_post_hook(std::make_unique<Hook>(after_, parameters[i], i));
    installed_.push_back({std::move(accumulator), before_key, after_key});
  }
}

GradHooks::~GradHooks() {
  for (const Installed& hook : installed_) {
    std::erase_if(hook.accumulator->pre_hooks(),
                  [&](const auto& other) { return other.get() == hook.before; });
    hook.accumulator->del_post_hook(hook.after);
  }
}

bool GradHooks::are_on(const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (accumulator == nullptr) return false;
  return std::ranges::any_of(accumulator->pre_hooks(), [](const auto& hook) {
    return dynamic_cast<const Hook*>(hook.get()) != nullptr;
  });
}

namespace {

// One bucket is filled while one is reduced and one may be late.
constexpr std::size_t kSlots = 3;

// At least this many by default, so that padding is a small part of a shard.
constexpr std::size_t kPagesPerShard = 16;

/// Operations' names, which error texts show: "….bucket 2 of 5 (0.mlp.up.weight and 13 more)".
std::vector<std::string> names_of(const std::vector<Bucket>& buckets,
                                  const std::vector<ReducedParameter>& parameters,
                                  const std::string& prefix) {
  std::vector<std::string> names;
  for (const Bucket& bucket : buckets) {
    std::string name = prefix + ".bucket " + std::to_string(names.size() + 1) + " of " +
                       std::to_string(buckets.size()) + " (" +
                       parameters[bucket.members.front().parameter].name;
    const std::size_t others = bucket.members.size() - 1;
    if (others > 0) name += " and " + std::to_string(others) + " more";
    names.push_back(name + ")");
  }
  return names;
}

std::vector<std::string> names_of(const std::vector<ReducedParameter>& parameters) {
  std::vector<std::string> names;
  for (const ReducedParameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

}  // namespace

GradientReducer::GradientReducer(std::vector<ReducedParameter> parameters,
                                 std::vector<ReducedParameter> frozen, const ReductionSetup& setup,
                                 std::string prefix, std::function<void()> before_gradient)
    : parameters_(std::move(parameters)),
      tensors_(tensors_of(parameters_)),
      frozen_(std::move(frozen)),
      setup_(setup),
      prefix_(std::move(prefix)),
      watch_(parameters_),
      is_sparse_(parameters_.size()),
      arrived_(parameters_.size()),
      reduced_(make_whole_gradients(tensors_)) {
  // An earlier optimizer may have had Shard::Full.
  for (const at::Tensor& parameter : tensors_) {
    if (is_gathered_on_use(parameter)) take_from_units(parameter);
    if (!is_full() && has_one_copy(parameter)) make_own_copy(parameter);
  }
  if (is_full()) {
    shard_at_once();
  } else {
    layout_ = std::make_unique<Layout>(
        *this,
        make_buckets(plan_of_gradients(plan(ArrivalOrder::complete({}, parameters_.size())))));
  }
  lay_out_residuals({});
  install_hooks(std::move(before_gradient));
}

// --- on the thread of backward() ---

/// An exception of a hook ends backward().
void GradientReducer::install_hooks(std::function<void()> before_gradient) {
  hooks_.emplace(
      tensors_,
      [=, this](std::size_t parameter) {
        before_gradient();
        require_expected(parameter);
        // A new gradient replaces that of the last pass, which is in this rank's shard.
        reduced_->make_way(parameter);
      },
      [this](std::size_t parameter) { take_gradient(parameter); });
}

/// Checked before the gradient is added, since that could change memory that is being reduced.
void GradientReducer::require_expected(std::size_t parameter) const {
  const Arrivals& arrivals = layout_->arrivals;
  std::string problem;
  if (setup_.step.phases.current() == StepPhase::Synchronized) {
    problem = "got a gradient after synchronize(). Call step() or zero_grad() first.";
  } else if ((!layout_->reduces_by_pass &&
              layout_->reductions.is_submitted(arrivals.bucket_of(parameter))) ||
             (setup_.step.no_sync == 0 && arrivals.count(parameter) == passes())) {
    problem = "got more than backward_passes_per_step = " + std::to_string(passes()) +
              " gradients since the last step(). " + cause_of_surplus(parameter);
  } else if (reduced_->is_gone(parameter)) {
    problem =
        "got another gradient after that of an earlier pass, which is reduced already, was dropped "
        "or replaced. Do that in for_each_gradient(), or set Accumulation::Local.";
  } else {
    return;
  }
  throw InvalidArgument("DistributedOptimizer: parameter '" + parameters_[parameter].name + "' " +
                        problem);
}

std::string GradientReducer::cause_of_surplus(std::size_t parameter) const {
  if (setup_.step.backward.has_failed()) {
    return "An earlier backward() has ended with an exception, and its gradients are still there: "
           "call zero_grad() after it. Or a reentrant activation checkpoint has run a module that "
           "the forward pass uses several times: make it non-reentrant.";
  }
  if (layout_->arrivals.count(parameter) == 0) {
    return "An earlier backward() has not used it, and its bucket was reduced without it. Run all "
           "but the last backward() of a step under no_sync(), or set backward_passes_per_step.";
  }
  if (watch_.has_changed(parameter)) {
    return "It has changed since its gradient arrived: call step() of the DistributedOptimizer, "
           "not of the wrapped optimizer.";
  }
  return "After that many backward passes call step() or zero_grad(). To add up more, raise it, or "
         "run all but the last pass under no_sync().";
}

void GradientReducer::take_gradient(std::size_t parameter) {
  StepState& step = setup_.step;
  if (step.no_sync > 0 || passes() > 1) layout_->buckets.widen(parameter);
  if (step.no_sync > 0) return;
  if (arrived_) arrived_->record(parameter, tensors_[parameter].grad().is_sparse());
  step.start_clock();
  const std::size_t bucket = layout_->arrivals.bucket_of(parameter);
  // On the CPU now, while it is in the cache; on a GPU with its whole bucket, in few launches.
  const bool is_cached = layout_->buckets.device().is_cpu();
  if (is_cached && layout_->pipeline->is_writable(bucket)) layout_->buckets.move_in({parameter});
  layout_->reductions.note_gradient(bucket);
  watch_.remember(parameter);
  if (!layout_->arrivals.add(parameter)) return;
  step.times.last_gradient = step.seconds_until(StepState::Clock::now());
  layout_->reductions.advance();
  layout_->pipeline->bucket_arrived(bucket);
}

// --- on the thread of step() ---

void GradientReducer::submit_rest() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i)) dropped_.push_back(i);
  }
  layout_->pipeline->submit_rest();
}

std::exception_ptr GradientReducer::finish() {
  std::exception_ptr replaced;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_replaced(i)) continue;
    replaced = std::make_exception_ptr(InvalidArgument(
        "DistributedOptimizer: the gradient of parameter '" + parameters_[i].name +
        "' was replaced while it was being reduced, so the new one is of this rank alone. Call "
        "synchronize() of the DistributedOptimizer before, or for_each_gradient() if it is "
        "sharded."));
    tensors_[i].mutable_grad().reset();
  }
  const std::exception_ptr in_backward = layout_->pipeline->restart();
  const std::exception_ptr at_end = layout_->reductions.finish();
  layout_->arrivals.restart();
  if (in_backward) return in_backward;
  return at_end ? at_end : replaced;
}

void GradientReducer::for_each_gradient(const GradientVisitor& visit) {
  reduced_->visit([&](std::size_t parameter, at::Tensor& gradient) {
    const std::string& name = parameters_[parameter].name;
    const at::Tensor before = gradient;
    visit(name, gradient);
    if (!gradient.defined() ||
        (gradient.sizes() == before.sizes() && gradient.options().type_equal(before.options()))) {
      return;
    }
    gradient = before;
    throw InvalidArgument(
        "DistributedOptimizer: for_each_gradient() has replaced the gradient of "
        "parameter '" +
        name + "' by one of another shape, dtype or device.");
  });
}

void GradientReducer::clear_gradients() {
  reduced_->clear(layout_->buckets);
  dropped_.clear();
}

// --- changes of gradients and parameters by the program ---

/// Whether the gradients of the parameter that have arrived are in a submitted bucket.
bool GradientReducer::is_submitted(std::size_t parameter) const {
  const Arrivals& arrivals = layout_->arrivals;
  if (layout_->shares_slots()) return arrivals.has(parameter) && !arrivals.is_pending(parameter);
  return layout_->reductions.is_submitted(arrivals.bucket_of(parameter));
}

bool GradientReducer::is_dropped(std::size_t parameter) const {
  return layout_->arrivals.has(parameter) && !tensors_[parameter].grad().defined();
}

/// Whether the program has put another gradient in place of one that is being reduced.
bool GradientReducer::is_replaced(std::size_t parameter) const {
  if (!tensors_[parameter].grad().defined() || !is_submitted(parameter)) return false;
  return !buckets().is_in_place(parameter) && !reduced_->is_in_place(buckets(), parameter);
}

bool GradientReducer::has_dropped() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i)) return true;
  }
  return false;
}

bool GradientReducer::has_kept() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (layout_->arrivals.has(i) && !is_dropped(i)) return true;
  }
  return false;
}

void GradientReducer::forget_dropped() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_dropped(i) && !is_submitted(i)) layout_->arrivals.drop(i);
  }
}

void GradientReducer::drop_undefined(std::vector<std::string>& names) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!tensors_[i].grad().defined() && reduced_->is_gone(i)) dropped_.push_back(i);
    if (!reduced_->is_ignored(i)) continue;
    throw InvalidArgument("DistributedOptimizer: parameter '" + parameters_[i].name +
                          "' has got another gradient after synchronize(), but the reduced one is "
                          "sharded, so the change would be lost. Change it in "
                          "for_each_gradient().");
  }
  // One that was dropped before its reduction may be in the list twice, which depends on timing.
  std::ranges::sort(dropped_);
  dropped_.erase(std::unique(dropped_.begin(), dropped_.end()), dropped_.end());
  for (const std::size_t parameter : std::exchange(dropped_, {})) {
    reduced_->drop(parameter);
    names.push_back(parameters_[parameter].name);
  }
}

void GradientReducer::drop(const std::string& name) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].name == name) reduced_->drop(i);
  }
}

bool GradientReducer::has_gradients() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (reduced_->is_in_place(buckets(), i)) return true;
  }
  return false;
}

std::string GradientReducer::changed_since_arrival() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (layout_->arrivals.count(i) > 0 && watch_.has_changed(i)) return parameters_[i].name;
  }
  return {};
}

// --- the layout of buckets ---

GradientReducer::Layout::Layout(GradientReducer& reducer, GradientBuckets new_buckets)
    : buckets(std::move(new_buckets)),
      reduces_by_pass(shares_slots() &&
                      reducer.setup_.options.accumulation == Accumulation::Reduced &&
                      reducer.passes() > 1),
      arrivals(buckets.buckets(), reducer.parameters_.size(), reducer.passes(), reduces_by_pass),
      reductions(reducer.setup_, buckets, reducer.residuals_, *reducer.reduced_,
                 names_of(buckets.buckets(), reducer.parameters_,
                          reducer.prefix_ + "." + std::to_string(reducer.layouts_)),
                 names_of(reducer.parameters_)),
      pipeline(shares_slots() ? make_shared_slots_pipeline(reductions, arrivals, reducer.passes(),
                                                           reduces_by_pass, !reducer.units_)
                              : make_own_memory_pipeline(reductions)) {}

/// `first_number` is the index in units_ of the first parameter.
std::vector<PlannedParameter> GradientReducer::planned_parameters(
    const std::vector<ReducedParameter>& parameters, std::size_t first_number) const {
  std::vector<PlannedParameter> planned;
  for (const ReducedParameter& parameter : parameters) {
    planned.push_back({static_cast<std::size_t>(parameter.tensor.numel()),
                       dtype_of(parameter.tensor), parameter.group});
    planned.back().is_compressed = parameter.is_compressed;
    planned.back().is_whole = parameter.is_whole;
    if (!units_) continue;
    planned.back().may_split_group = parameter.group == PlannedParameter::kNoGroup;
    planned.back().group = static_cast<int>(units_->unit_of[first_number + planned.size() - 1]);
  }
  return planned;
}

std::vector<PlannedParameter> GradientReducer::planned_parameters() const {
  std::vector<PlannedParameter> all = planned_parameters(parameters_, 0);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_sparse_[i]) all[i].count = 0;
  }
  return all;
}

std::size_t GradientReducer::bucket_bytes() const {
  const std::size_t wanted = setup_.options.bucket_bytes;
  return wanted > 0 ? wanted : default_bucket_bytes(planned_parameters(), is_on_gpu());
}

/// Treats frozen parameters as if they had gradients.
std::size_t GradientReducer::unit_bytes() const {
  const std::size_t wanted = setup_.options.bucket_bytes;
  std::vector<PlannedParameter> all = planned_parameters();
  for (const PlannedParameter& frozen : planned_parameters(frozen_, all.size()))
    all.push_back(frozen);
  return wanted > 0 ? wanted : default_bucket_bytes(all, is_on_gpu());
}

bool GradientReducer::is_on_gpu() const {
  const std::vector<ReducedParameter>& any = parameters_.empty() ? frozen_ : parameters_;
  return !any.empty() && any.front().tensor.is_cuda();
}

BucketPlan GradientReducer::plan(const std::vector<std::size_t>& order) const {
  const auto ranks = static_cast<std::size_t>(setup_.sets.sharded->size());
  const bool has_pages = is_full() && !units_;
  const std::size_t alignment = has_pages ? comm::page_bytes() : kBucketAlignment;
  std::size_t bytes = bucket_bytes();
  if (has_pages && setup_.options.bucket_bytes == 0) {
    bytes = std::max(bytes, kPagesPerShard * ranks * alignment);
  }
  return plan_buckets(planned_parameters(), order, bytes, is_for_shards() ? ranks : 1, alignment);
}

/// The gradients' plan for this plan of the parameters.
BucketPlan GradientReducer::plan_of_gradients(BucketPlan plan) const {
  const auto least = setup_.options.reduce_dtype;
  return least ? widen(std::move(plan), *dtype_of(*least)) : plan;
}

/// Options of an operation of this reducer.
OperationOptions GradientReducer::operation_options(const std::string& what) const {
  return {.name = prefix_ + "." + what,
          .process_set = is_for_shards() ? setup_.sets.sharded.get() : setup_.options.process_set};
}

GradientBuckets GradientReducer::make_buckets(BucketPlan plan) {
  return {tensors_, std::move(plan), is_sparse_,
          operation_options("memory." + std::to_string(layouts_++))};
}

void GradientReducer::lay_out_by_arrival() {
  if (!arrived_) return;
  const DistributedOptimizerOptions& options = setup_.options;
  const ArrivalOrder::Agreed agreed = arrived_->agree(*options.process_set, prefix_ + ".order");
  arrived_.reset();
  // sparse_allreduce takes no other reductions.
  const bool may_stay_sparse = !options.sparse_as_dense && !is_sharded() &&
                               (options.op == ReduceOp::Sum || options.op == ReduceOp::Average);
  if (may_stay_sparse) is_sparse_ = can_stay_sparse(agreed.sparse);
  lay_out(agreed.order);
}

void GradientReducer::lay_out_by(const std::vector<std::size_t>& order,
                                 const std::vector<bool>& sparse) {
  if (!arrived_) return;
  arrived_.reset();
  is_sparse_ = can_stay_sparse(sparse);
  lay_out(ArrivalOrder::complete(order, parameters_.size()));
}

std::vector<std::size_t> GradientReducer::order() const {
  std::vector<std::size_t> order;
  if (arrived_) return order;
  for (const Bucket& bucket : buckets().buckets()) {
    for (const Bucket::Member& member : bucket.members) order.push_back(member.parameter);
  }
  return order;
}

void GradientReducer::lay_out(const std::vector<std::size_t>& order) {
  const Residuals::ByParameter residuals = residuals_.take();
  if (is_full()) {
    order_buckets(order);
  } else {
    rebuild_layout(order);
  }
  lay_out_residuals(residuals);
}

void GradientReducer::rebuild_layout(const std::vector<std::size_t>& order) {
  const BucketPlan parameters = plan(order);
  auto layout = std::make_unique<Layout>(*this, make_buckets(plan_of_gradients(parameters)));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (tensors_[i].grad().defined()) layout->buckets.move_in({i});
  }
  layout_ = std::move(layout);  // frees the old buckets before sharding, which needs memory
  if (is_sharded()) shard_parameters(parameters);
}

/// Shards parameters by the current layout's plan, and moves its gradients to the shards.
void GradientReducer::shard_parameters(const BucketPlan& plan) {
  GradientBuckets& buckets = layout_->buckets;
  const ProcessSet& set = *setup_.sets.sharded;
  std::vector<at::Tensor> gradients;
  for (const Bucket& bucket : buckets.buckets()) {
    buckets.fill(bucket, setup_.step.flags(), nullptr);
    const std::int64_t count =
        static_cast<std::int64_t>(bucket.gradient_count()) / static_cast<std::int64_t>(set.size());
    at::Tensor shard = buckets.flat(bucket).narrow(0, set.rank() * count, count).detach();
    if (shards_gradients(*setup_.options.shard)) shard = shard.clone();
    gradients.push_back(std::move(shard));
  }
  shard(plan, make_copy_per_rank(plan, buckets.device(), operation_options("parameters")),
        std::move(gradients));
  for (std::size_t i = 0; i < buckets.buckets().size(); ++i) {
    reduced_->assign(buckets, i, /*is_first=*/true);
  }
  if (shards_gradients(*setup_.options.shard)) {
    lay_out_slots();
  } else {
    layout_ = std::make_unique<Layout>(*this, std::move(buckets));
  }
}

void GradientReducer::plan_units() {
  std::vector<UnitMember> members;
  for (const auto* const parameters : {&parameters_, &frozen_}) {
    for (const ReducedParameter& parameter : *parameters) {
      members.push_back(
          {parameter.name, parameter.tensor.nbytes(), parameter.place, parameter.group});
    }
  }
  units_ = train::plan_units(members, unit_bytes());
  units_->keeps_gathered = !setup_.options.reshard_after_forward;
}

/// The order of parameters by unit; `first_number` is the index in units_ of the first one.
std::vector<std::size_t> GradientReducer::by_unit(const std::vector<ReducedParameter>& parameters,
                                                  std::size_t first_number) const {
  std::vector<std::size_t> order = ArrivalOrder::complete({}, parameters.size());
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    return std::pair{units_->unit_of[first_number + i], parameters[i].place};
  });
  return order;
}

std::unique_ptr<ParameterMemory> GradientReducer::make_full_memory(const BucketPlan& plan) const {
  if (!units_) return make_copy_per_node(plan, operation_options("parameters"));
  const std::size_t first = parameters_.size();
  BucketPlan frozen =
      plan_buckets(planned_parameters(frozen_, first), by_unit(frozen_, first), unit_bytes(),
                   static_cast<std::size_t>(setup_.sets.sharded->size()));
  return make_gathered_on_use(plan,
                              {.units = *units_,
                               .frozen = tensors_of(frozen_),
                               .frozen_plan = std::move(frozen),
                               .device = tensors_.front().device(),
                               .offload = setup_.options.offload,
                               .reducer = prefix_,
                               .calls = setup_.unit_calls},
                              operation_options("parameters"));
}

/// Before the first step, in the order of the parameters.
void GradientReducer::shard_at_once() {
  if (setup_.gathers_on_use) plan_units();
  const BucketPlan layout =
      plan(units_ ? by_unit(parameters_, 0) : ArrivalOrder::complete({}, parameters_.size()));
  const auto ranks = static_cast<std::size_t>(setup_.sets.sharded->size());
  std::vector<at::Tensor> gradients;
  for (const Bucket& bucket : plan_of_gradients(layout).buckets) {
    gradients.push_back(at::zeros(
        {static_cast<std::int64_t>(bucket.gradient_count() / ranks)},
        at::TensorOptions(scalar_type_of(bucket.dtype)).device(tensors_.front().device())));
  }
  shard(layout, make_full_memory(layout), std::move(gradients));
  lay_out_slots();
}

void GradientReducer::shard(const BucketPlan& plan, std::unique_ptr<ParameterMemory> memory,
                            std::vector<at::Tensor> gradients) {
  const UpdateType type{setup_.options.master_weights, setup_.options.offload};
  ParameterShards shards(tensors_, plan, std::move(memory), std::move(gradients), type,
                         setup_.sets.sharded->rank());
  shards.shard_state(setup_.wrapped);
  reduced_ =
      make_sharded_gradients(tensors_, names_of(parameters_), std::move(shards), setup_.sets);
  watch_.pin();
  if (is_full()) watch_.refuse_writes();
  setup_.wrapped.refuse_own_save();
}

void GradientReducer::lay_out_slots() {
  layout_.reset();  // before its successor needs memory
  BucketPlan slots = share_slots(plan_of_gradients({.buckets = shards()->layout()}), kSlots);
  layout_ = std::make_unique<Layout>(*this, make_buckets(std::move(slots)));
}

/// Orders buckets by the arrival of their last gradient.
void GradientReducer::order_buckets(const std::vector<std::size_t>& order) {
  std::vector<std::size_t> arrival(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) arrival[order[i]] = i;
  const auto completion = [&](std::size_t bucket) {
    std::size_t last = 0;
    for (const Bucket::Member& member : shards()->layout()[bucket].members) {
      last = std::max(last, arrival[member.parameter]);
    }
    return last;
  };
  std::vector<std::size_t> numbers(shards()->layout().size());
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  std::ranges::sort(numbers, {}, completion);
  if (std::ranges::is_sorted(numbers)) return;
  reduced_->shards()->renumber(numbers);
  lay_out_slots();
}

// --- codecs ---

void GradientReducer::lay_out_residuals(const Residuals::ByParameter& residuals) {
  const GradientCompression& compression = setup_.compression;
  std::vector<Residuals::Part> parts;
  for (const Bucket& bucket : buckets().buckets()) {
    Residuals::Part part{0, bucket.gradient_count()};
    if (compression.is_piecewise() && !setup_.hook.error_feedback) {
      const ops::NodePlaces places = setup_.options.process_set->engine()->node_places();
      const ops::Range piece = places.own_piece(part.count);
      part = {piece.begin, piece.length};
    } else if (compression.is_of_replicas) {  // of this rank's shard
      const auto sharers = static_cast<std::size_t>(setup_.sets.sharded->size());
      const bool has_replicas = shards() != nullptr && setup_.sets.replicas != nullptr;
      part.count = has_replicas ? part.count / sharers : 0;
      part.begin = static_cast<std::size_t>(setup_.sets.sharded->rank()) * part.count;
    }
    const bool has_feedback = (compression.has_codec(bucket) && compression.has_error_feedback) ||
                              (setup_.hook.error_feedback && !is_complex(bucket.dtype));
    if (!has_feedback) part = {};
    parts.push_back(part);
  }
  residuals_.lay_out(buckets().buckets(), parts, tensors_, residuals);
}

/// A codec's residual belongs to the gradient in its bucket, so compressed ones become dense.
std::vector<bool> GradientReducer::can_stay_sparse(std::vector<bool> sparse) const {
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    if (setup_.compression.codec != nullptr && parameters_[i].is_compressed) sparse[i] = false;
  }
  return sparse;
}

}  // namespace kolo::train
