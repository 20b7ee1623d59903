#include "extras/sync_batch_norm.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include "extras/plain_arithmetic.hpp"
#include "kolo/agreement.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/extras/sync_batch_norm.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "kolo/torch/tensor_collectives.hpp"

namespace kolo::extras {

at::ScalarType wide_type(at::ScalarType type) {
  return at::isReducedFloatingType(type) ? at::kFloat : type;
}

Moments moments_of(const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  const auto options = input.options().dtype(at::kDouble);
  if (input.numel() == 0) {
    return {at::zeros({}, options), at::zeros({channels}, options), at::zeros({channels}, options)};
  }
  const auto [mean, variance] =
      at::batch_norm_update_stats(input.to(wide_type(input.scalar_type())), {}, {}, 0.0);
  return {at::full({}, input.numel() / channels, options), mean.to(at::kDouble),
          variance.to(at::kDouble)};
}

Moments merge(const Moments& own, ProcessSet& set, const std::string& name) {
  const at::Tensor row = at::cat({own.count.view(1), own.mean, own.variance}).unsqueeze(0);
  const at::Tensor rows = allgather(row, {.name = name, .process_set = &set});
  const std::int64_t channels = own.mean.size(0);
  const at::Tensor counts = rows.narrow(1, 0, 1);
  const at::Tensor means = rows.narrow(1, 1, channels);
  const at::Tensor variances = rows.narrow(1, 1 + channels, channels);

  const at::Tensor count = counts.sum();
  const at::Tensor shares = counts / count.clamp_min(1);
  const at::Tensor mean = (shares * means).sum(0);
  return {count, mean, (shares * (variances + (means - mean).square())).sum(0)};
}

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

/// Creates a node, owned as the edges of the graph own it: by a std::shared_ptr, or in newer
/// versions of LibTorch by a c10::intrusive_ptr. Shared nodes have a deleter, unlike with
/// make_shared, since long graphs must not be deleted recursively.
template <class Node, class... Arguments>
auto make_node(Arguments&&... arguments) {
  using Owner = decltype(autograd::Edge::function);
  if constexpr (std::is_same_v<Owner, std::shared_ptr<autograd::Node>>) {
    return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...),
                                 [](Node* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
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
    refuse(Collective::AllReduce, problem, {.name = name_, .process_set = set_.get()});
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
  const bool is_recorded = autograd::compute_requires_grad(input, how.weight, how.bias);
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

}  // namespace kolo::extras

namespace kolo {
namespace {

const std::string kOperation = "sync_running_statistics";

/// The buffers of one module.
struct RunningStatistics {
  std::string name;  // of the module in the model
  at::Tensor mean;
  at::Tensor variance;
  at::Tensor batches;  // undefined if the module does not count them
};

at::Tensor buffer_of(const torch::nn::Module& module, const std::string& name) {
  const auto buffers = module.named_buffers(/*recurse=*/false);
  const at::Tensor* const found = buffers.find(name);
  return found != nullptr ? *found : at::Tensor();
}

void collect_statistics(const torch::nn::Module& module, const std::string& name,
                        std::vector<RunningStatistics>& all) {
  const at::Tensor mean = buffer_of(module, "running_mean");
  const at::Tensor variance = buffer_of(module, "running_var");
  if (mean.defined() && variance.defined()) {
    all.push_back({name, mean, variance, buffer_of(module, "num_batches_tracked")});
  }
  for (const auto& item : module.named_children()) {
    collect_statistics(*item.value(), name.empty() ? item.key() : name + "." + item.key(), all);
  }
}

std::string prefix_of(const RunningStatistics& statistics) {
  return statistics.name.empty() ? "" : statistics.name + ".";
}

void copy_from(int root, const std::vector<RunningStatistics>& all, ProcessSet& set) {
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  for (const RunningStatistics& one : all) {
    buffers.emplace_back(prefix_of(one) + "running_mean", one.mean);
    buffers.emplace_back(prefix_of(one) + "running_var", one.variance);
    buffers.emplace_back(prefix_of(one) + "num_batches_tracked", one.batches);
  }
  broadcast_parameters(buffers, root, &set);
}

void combine(const RunningStatistics& own, ProcessSet& set) {
  const auto options = own.mean.options().dtype(at::kDouble);
  const at::Tensor weight = own.batches.defined() ? own.batches.to(options) : at::ones({}, options);
  const std::string name = kOperation + "." + prefix_of(own);
  const extras::Moments all = extras::merge(
      {weight, own.mean.to(at::kDouble), own.variance.to(at::kDouble)}, set, name + "statistics");
  if (all.count.item<double>() == 0.0) return;  // no rank has seen a batch
  own.mean.copy_(all.mean);
  own.variance.copy_(all.variance);
  if (!own.batches.defined()) return;
  at::Tensor batches = own.batches;
  allreduce_(batches,
             {.op = ReduceOp::Max, .name = name + "num_batches_tracked", .process_set = &set});
}

}  // namespace

void sync_running_statistics(const torch::nn::Module& module,
                             const RunningStatisticsOptions& options) {
  const extras::PlainArithmetic plain;
  ProcessSet& set = member_set(options.process_set);
  std::vector<RunningStatistics> all;
  collect_statistics(module, "", all);
  std::string names;
  for (const RunningStatistics& one : all) names += (names.empty() ? "'" : ", '") + one.name + "'";
  const std::string root = options.root ? std::to_string(*options.root) : "none";
  check_agreement(kOperation,
                  {{"the list of modules with running statistics", names}, {"the root", root}}, {},
                  {.name = kOperation, .process_set = &set});
  if (options.root) return copy_from(*options.root, all, set);
  for (const RunningStatistics& one : all) combine(one, set);
}

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
      set_(member_set(process_set).shared_from_this()),
      name_(set_->next_prefix("sync_batch_norm")) {}

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
                                   own.scalar_type() == extras::wide_type(input.scalar_type());
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
    refuse(Collective::AllGather, problem, {.name = name_, .process_set = set_.get()});
  }
  extras::Moments moments;
  std::int64_t count = 0;
  {
    const extras::PlainArithmetic plain;
    moments = extras::merge(extras::moments_of(input), *set_, name_);
    count = smallest_count(input, moments.count);
  }
  if (count == 1) {
    throw InvalidArgument("SyncBatchNorm '" + name_ +
                          "': expected more than 1 value per channel when training, but the "
                          "batches of all ranks have one together; this rank's input has shape " +
                          shape_of(input) + ". Use larger batches.");
  }
  at::Tensor output = extras::normalize(input, moments, {weight, bias, options.eps(), set_, name_});
  if (options.track_running_stats()) update_running_statistics(moments, count > 0);
  return output;
}

void SyncBatchNormImpl::update_running_statistics(const extras::Moments& moments, bool has_values) {
  const extras::PlainArithmetic plain;
  num_batches_tracked.add_(1);
  if (!has_values) return;
  const std::optional<double> momentum = options.momentum();
  const at::Tensor share = momentum ? at::full({}, *momentum, moments.count.options())
                                    : num_batches_tracked.to(at::kDouble).reciprocal();
  const at::Tensor unbiased = moments.variance * (moments.count / (moments.count - 1));
  running_mean.copy_(running_mean.to(at::kDouble).lerp(moments.mean, share));
  running_var.copy_(running_var.to(at::kDouble).lerp(unbiased, share));
}

namespace {

using torch::nn::Module;
using torch::nn::SequentialImpl;

/// A BatchNorm module, and where it is registered.
struct FoundNorm {
  struct Place {
    SequentialImpl* parent;
    std::string key;   // in the parent
    std::string name;  // in the model
  };

  std::weak_ptr<Module> module;
  std::vector<Place> places{};
  long known_owners = 0;  // owners that a replacement updates
  std::string problem{};  // why it cannot be replaced, beginning with its name
};

bool is_batch_norm(const Module& module) {
  return module.as<torch::nn::BatchNorm1d>() != nullptr ||
         module.as<torch::nn::BatchNorm2d>() != nullptr ||
         module.as<torch::nn::BatchNorm3d>() != nullptr;
}

/// Calls `visit` with the module as its dynamic type. Returns false for a derived class.
template <class Visit>
bool visit_as_batch_norm(const Module& module, const Visit& visit) {
  const auto visit_if = [&]<class Norm>(const Norm* norm) {
    const bool is_norm = norm != nullptr && typeid(module) == typeid(Norm);
    if (is_norm) visit(*norm);
    return is_norm;
  };
  return visit_if(module.as<torch::nn::BatchNorm1d>()) ||
         visit_if(module.as<torch::nn::BatchNorm2d>()) ||
         visit_if(module.as<torch::nn::BatchNorm3d>());
}

/// How often the module's forward() is called through `sequential`.
long calls_in(const SequentialImpl& sequential, const Module& module) {
  return std::ranges::count_if(sequential, [&](const torch::nn::AnyModule& element) {
    return element.ptr().get() == &module;
  });
}

class NormSearch {
 public:
  void visit(Module& parent, const std::string& name) {
    if (!visited_.insert(&parent).second) return;
    for (const auto& item : parent.named_children()) {
      const std::string full_name = name.empty() ? item.key() : name + "." + item.key();
      if (is_batch_norm(*item.value())) {
        add(item.value(), parent, item.key(), full_name);
      } else {
        visit(*item.value(), full_name);
      }
    }
  }

  /// Call it when the search no longer holds modules, since it compares use counts.
  std::vector<FoundNorm> found() {
    for (FoundNorm& norm : found_) {
      if (!norm.problem.empty() || norm.module.use_count() == norm.known_owners) continue;
      norm.problem = "'" + norm.places.front().name +
                     "': something else holds it too, such as a variable or a member, and would go "
                     "on using the old one. Let go of it before";
    }
    return std::move(found_);
  }

 private:
  void add(const std::shared_ptr<Module>& module, Module& parent, const std::string& key,
           const std::string& name) {
    const auto [index, is_new] = indexes_.emplace(module.get(), found_.size());
    if (is_new) found_.push_back({.module = module});
    FoundNorm& norm = found_[index->second];
    auto* const sequential = parent.as<SequentialImpl>();
    const long calls = sequential != nullptr ? calls_in(*sequential, *module) : 0;
    if (calls == 0) {
      norm.problem = "'" + name + "': the code of " + parent.name() +
                     " calls it by its own type. Declare it there as kolo::SyncBatchNorm";
    } else if (!visit_as_batch_norm(*module, [](const auto&) {})) {
      norm.problem =
          "'" + name + "': it is a " + module->name() + ", whose forward() would be lost";
    }
    const bool is_first_here = std::ranges::none_of(
        norm.places, [&](const auto& place) { return place.parent == sequential; });
    norm.known_owners += 1 + (is_first_here ? calls : 0);
    norm.places.push_back({sequential, key, name});
  }

  std::unordered_set<const Module*> visited_;
  std::vector<FoundNorm> found_;
  std::unordered_map<const Module*, std::size_t> indexes_;
};

void refuse_problems(const std::vector<FoundNorm>& found) {
  std::string text;
  for (const FoundNorm& norm : found) {
    if (norm.problem.empty()) continue;
    text += "\n  " + norm.problem + ".";
  }
  if (text.empty()) return;
  throw InvalidArgument(
      "convert_sync_batch_norm: these modules cannot be replaced, so none has been:" + text +
      "\nOr keep BatchNorm, and call kolo::sync_running_statistics before evaluations.");
}

void replace(const FoundNorm& norm, ProcessSet* set) {
  const std::shared_ptr<Module> old = norm.module.lock();
  std::shared_ptr<SyncBatchNormImpl> made;
  visit_as_batch_norm(*old, [&](const auto& batch_norm) {
    made = std::make_shared<SyncBatchNormImpl>(batch_norm, set);
  });
  for (const FoundNorm::Place& place : norm.places) {
    place.parent->replace_module(place.key, made);
    for (torch::nn::AnyModule& element : *place.parent) {
      if (element.ptr() == old) element = made;
    }
  }
}

}  // namespace

std::vector<std::string> convert_sync_batch_norm(torch::nn::Module& module,
                                                 ProcessSet* process_set) {
  if (is_batch_norm(module)) {
    throw InvalidArgument(
        "convert_sync_batch_norm: the model itself is a BatchNorm, which its holder cannot be "
        "made to forget. Construct kolo::SyncBatchNorm(*batch_norm).");
  }
  NormSearch search;
  search.visit(module, "");
  const std::vector<FoundNorm> found = search.found();
  refuse_problems(found);
  std::vector<std::string> names;
  for (const FoundNorm& norm : found) {
    replace(norm, process_set);
    for (const FoundNorm::Place& place : norm.places) names.push_back(place.name);
  }
  return names;
}

}  // namespace kolo
