#include "extras/accelerator/accelerated_training.hpp"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include "extras/data/saved_state.hpp"
#include "kolo/agreement.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/deferred.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "kolo/torch/tensor_collectives.hpp"

namespace kolo::extras {

c10::Device choose_device() {
  const auto devices = static_cast<int>(torch::cuda::device_count());
  if (devices == 0) return c10::kCPU;
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const Runtime& runtime = Runtime::current();
  if (runtime.local_size() > 1) {
    const int index = runtime.local_rank() % devices;
    cuda.setDevice({c10::kCUDA, static_cast<c10::DeviceIndex>(index)});
  }
  return cuda.getDevice();
}

c10::Device device_of(const torch::nn::Module& model) {
  const std::vector<at::Tensor> parameters = model.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

void AccumulatedGradients::remember(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  remembered_.clear();
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (gradient.defined()) remembered_.push_back({parameter, gradient._version()});
    }
  }
}

bool AccumulatedGradients::are_lost() const {
  bool are_changed = false;
  for (const auto& [parameter, version] : remembered_) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) return true;
    if (gradient._version() != version) are_changed = true;
  }
  if (!are_changed) return false;
  return std::ranges::none_of(remembered_, [](const Remembered& remembered) {
    const at::Tensor& gradient = remembered.parameter.grad();
    return (gradient.is_sparse() ? gradient._values() : gradient).any().item<bool>();
  });
}

namespace {

/// Broadcasts parameters, unless they are deferred: those get their values when they are wrapped.
torch::nn::Module& start_alike(torch::nn::Module& model, ProcessSet& set) {
  if (!is_deferred(model)) broadcast_parameters(model, set.ranks().front(), &set);
  return model;
}

DistributedOptimizerOptions optimizer_options(const AcceleratorOptions& options) {
  DistributedOptimizerOptions complete = options.optimizer;
  complete.shard = options.shard;
  return complete;
}

GradScalerOptions scaler_options(const AcceleratorOptions& options) {
  GradScalerOptions complete = options.scaler;
  complete.enabled = complete.enabled && options.mixed_precision == Precision::Float16;
  return complete;
}

}  // namespace

AcceleratedTraining::AcceleratedTraining(torch::nn::Module& model,
                                         torch::optim::Optimizer& optimizer,
                                         const Schedule& schedule,
                                         const AcceleratorOptions& options,
                                         std::shared_ptr<TrainingFeed> feed,
                                         std::shared_ptr<CurrentBatch> current)
    : set_(member_set(options.optimizer.process_set)),
      options_(options),
      device_(device_of(model)),
      optimizer_(optimizer, start_alike(model, set_), optimizer_options(options)),
      scaler_(scaler_options(options)),
      rates_(schedule.source()),
      feed_(std::move(feed)),
      current_(std::move(current)) {
  rates_->start(optimizer);
}

AcceleratedTraining::~AcceleratedTraining() = default;

TrainingFeed& AcceleratedTraining::feed(const char* call) const {
  if (feed_ == nullptr) {
    throw InvalidArgument(std::string("Accelerator: ") + call +
                          " without training data. Give them to prepare().");
  }
  return *feed_;
}

// --- a step ---

Autocast AcceleratedTraining::autocast() const {
  const bool is_half = options_.mixed_precision == Precision::Float16;
  return Autocast(is_half ? at::kHalf : at::kBFloat16, device_.type(),
                  options_.mixed_precision != Precision::None);
}

bool AcceleratedTraining::is_last_pass() const {
  if (feed_ != nullptr) return feed_->is_last_pass();
  const int done = has_skipped_step() ? 0 : accumulation_.passes_done;
  return done + 1 >= options_.gradient_accumulation_steps;
}

/// The batch of the pass, if an Accelerator made it.
const CurrentBatch& AcceleratedTraining::batch() const {
  return feed_ != nullptr ? feed_->batch() : *current_;
}

/// The weight of the gradients of this pass in the average over ranks.
double AcceleratedTraining::weight() const {
  if (feed_ != nullptr) return feed_->weight();
  const double weight = 1.0 / options_.gradient_accumulation_steps;
  return batch() ? weight * batch()->part_of_mean(set_.size()) : weight;
}

void AcceleratedTraining::require_pass(const char* call) const {
  if (feed_ == nullptr || feed_->batch()) return;
  throw InvalidArgument(std::string("Accelerator: ") + call +
                        " outside a loop over the training batches. Call it inside the loop over "
                        "what prepare() has returned.");
}

void AcceleratedTraining::require_usable_gradients() const {
  if (accumulation_.has_run_backward) {
    const bool can_be_skipped = feed_ == nullptr || accumulation_.passes_done == 0;
    throw InvalidArgument(
        std::string(
            "Accelerator: a second backward() before step(). Call step() after each: a pass has "
            "one loss. Add up the losses of a batch and call backward() of the sum. For several "
            "batches in a step give gradient_accumulation_steps, and call step() after each of "
            "them.") +
        (can_be_skipped ? " To skip the step, call optimizer().zero_grad() first." : ""));
  }
  if (accumulation_.gradients.are_lost()) {
    throw InvalidArgument(
        "Accelerator: backward(): the gradients of the step's earlier passes are gone. Do not "
        "call zero_grad() in the loop: backward() drops gradients when a step begins.");
  }
}

void AcceleratedTraining::require_own_backward(const char* call) const {
  if (accumulation_.has_run_backward || !optimizer_.has_gradients()) return;
  throw InvalidArgument(std::string("Accelerator: ") + call +
                        " after loss.backward(), whose gradients are neither weighted by samples "
                        "nor dropped after the step. Call accelerator.backward(loss) instead.");
}

/// Whether the program has called zero_grad() of the optimizer instead of step(). With a feed, each
/// pass has its weight in the mean of its step, so only a step's first pass can be repeated.
bool AcceleratedTraining::has_skipped_step() const {
  const bool has_dropped = accumulation_.zero_grads != optimizer_.zero_grads();
  return accumulation_.has_run_backward && has_dropped &&
         (feed_ == nullptr || accumulation_.passes_done == 0);
}

/// Only the last pass of a step reduces gradients over ranks.
template <class Backward>
void AcceleratedTraining::run_pass(const Backward& backward) {
  require_pass("backward()");
  if (accumulation_.step_number != step_number() || has_skipped_step()) drop_gradients();
  accumulation_.step_number = step_number();
  require_usable_gradients();
  if (is_last_pass()) {
    backward();
  } else {
    const auto guard = optimizer_.no_sync();
    backward();
    accumulation_.gradients.remember(optimizer_.param_groups());
  }
  accumulation_.has_run_backward = true;  // not reached if backward() throws
  accumulation_.zero_grads = optimizer_.zero_grads();
}

void AcceleratedTraining::backward(const at::Tensor& loss) {
  run_pass([&] {
    const double weight = this->weight();
    scaler_.scale(weight == 1.0 ? loss : at::mul(loss, weight)).backward();
  });
  last_loss_ = loss.detach();
}

void AcceleratedTraining::backward(const at::Tensor& loss_sum, std::int64_t count) {
  run_pass([&] {
    const bool is_padding = batch() && batch()->own == 0;
    const bool is_defined = loss_sum.defined();
    optimizer_.backward(is_defined ? scaler_.scale(loss_sum) : loss_sum, is_padding ? 0 : count);
  });
  if (loss_sum.defined() && count > 0) last_loss_ = loss_sum.detach() / count;
}

std::optional<double> AcceleratedTraining::clip_grad_norm(double max_norm, double norm_type) {
  require_pass("clip_grad_norm_()");
  if (has_skipped_step()) drop_gradients();
  require_own_backward("clip_grad_norm_()");
  if (!is_last_pass()) return std::nullopt;
  if (!accumulation_.is_unscaled) scaler_.unscale_(optimizer_);
  accumulation_.is_unscaled = true;
  return optimizer_.clip_grad_norm_(max_norm, norm_type);
}

bool AcceleratedTraining::step() {
  require_pass("step()");
  if (has_skipped_step()) drop_gradients();
  require_own_backward("step()");
  const bool is_last = is_last_pass();
  bool has_stepped = is_last;
  if (is_last && scaler_.is_enabled()) {
    has_stepped = scaler_.step(optimizer_);
    scaler_.update();
  } else if (is_last) {
    optimizer_.step();
  }
  end_pass();
  if (has_stepped) {
    ++steps_;
    rates_->follow_step();
  }
  if (is_last) progress_.end_step(last_loss_);
  return has_stepped;
}

void AcceleratedTraining::end_pass() {
  const bool is_last = is_last_pass();
  if (feed_ != nullptr) feed_->end_pass();
  if (is_last) {
    accumulation_ = {};
  } else {
    ++accumulation_.passes_done;
    accumulation_.has_run_backward = false;
  }
}

/// Drops the gradients of the last step, or of an unfinished one.
void AcceleratedTraining::drop_gradients() {
  optimizer_.zero_grad();
  if (accumulation_.is_unscaled && scaler_.is_enabled()) scaler_.update(scaler_.get_scale());
  accumulation_ = {};
}

void AcceleratedTraining::step_schedule(double metric) {
  at::Tensor value = at::scalar_tensor(metric, at::kDouble);
  kolo::broadcast_(value, set_.ranks().front(), {.process_set = &set_});
  rates_->follow_metric(value.item<float>());
}

// --- communication between ranks ---

at::Tensor AcceleratedTraining::gather_for_metrics(const at::Tensor& tensor) {
  const std::string name = set_.next_name("gather_for_metrics");
  std::string problem;
  if (!*current_) {
    problem = "it is outside of loops over batches";
  } else if (tensor.dim() == 0 || tensor.size(0) != static_cast<std::int64_t>((*current_)->given)) {
    problem = "the batch has " + std::to_string((*current_)->given) +
              " samples on this rank, and the tensor " +
              (tensor.dim() == 0 ? "no rows" : std::to_string(tensor.size(0)) + " rows");
  }
  check_agreement("Accelerator: gather_for_metrics()", {}, problem,
                  {.name = name + ".rows", .process_set = &set_});
  const at::Tensor rows =
      kolo::allgather(tensor.detach().narrow(0, 0, static_cast<std::int64_t>((*current_)->own)),
                      {.name = name, .process_set = &set_});
  return (*current_)->distribution == Distribution::Contiguous ? rows : in_order(rows);
}

/// Sorts rows that are grouped by rank into the order of the batch.
at::Tensor AcceleratedTraining::in_order(const at::Tensor& rows) const {
  const auto ranks = static_cast<std::size_t>(set_.size());
  at::Tensor places = at::empty({rows.size(0)}, at::kLong);
  std::ranges::copy(places_by_rank((*current_)->all, ranks, (*current_)->distribution),
                    places.mutable_data_ptr<std::int64_t>());
  return at::empty_like(rows).index_copy_(0, places.to(rows.device()), rows);
}

bool AcceleratedTraining::should_stop(bool local) {
  at::Tensor stop = at::scalar_tensor(local, at::kByte);
  kolo::allreduce_(stop, {.op = ReduceOp::Max, .process_set = &set_});
  return stop.item<bool>();
}

void AcceleratedTraining::begin_epochs(std::int64_t count) {
  const std::int64_t steps = feed("epochs()").steps_left(count);
  progress_.end();
  if (options_.progress_bar && set_.rank() == 0 && steps > 0 && output_is_terminal()) {
    progress_.begin(steps, feed_->samples_per_step());
  }
}

/// AcceleratedTraining::save_state and load_state.

namespace {

constexpr const char* kState = "kolo.accelerator";  // the key of the state among the extras

}  // namespace

void AcceleratedTraining::save_state(const std::filesystem::path& folder, SaveOptions options) {
  std::string problem;
  if (options.scaler != nullptr) {
    problem = "SaveOptions::scaler is given. Leave it out: the Accelerator saves its own";
  } else if (options.extras.contains(kState)) {
    problem = std::string("SaveOptions::extras has '") + kState + "'. Choose another name";
  }
  check_agreement("Accelerator: save_state()", {}, problem,
                  {.name = set_.next_name("save_state"), .process_set = &set_});
  if (scaler_.is_enabled()) options.scaler = &scaler_;
  nlohmann::json state{{"schedule", rates_->state()}};
  if (feed_ != nullptr) state["data"] = feed_->state();
  options.extras[kState] = state.dump();
  optimizer_.save(folder, options);
}

std::optional<Loaded> AcceleratedTraining::load_state(const std::filesystem::path& path) {
  optimizer_.wait_for_save();
  const std::string name = set_.next_name("load_state");
  if (!has_checkpoint(path, {.name = name + ".find", .process_set = &set_})) return std::nullopt;
  drop_gradients();
  Loaded loaded = optimizer_.load(path, {.scaler = scaler_.is_enabled() ? &scaler_ : nullptr});
  const auto state = loaded.extras.extract(kState);
  const std::string problem = state.empty()
                                  ? "save_state() has not made it. Load it with optimizer().load()"
                                  : restore(state.mapped());
  check_agreement("loading the state of an Accelerator from " + loaded.path.string(), {}, problem,
                  {.name = name + ".restore", .process_set = &set_});
  steps_ = loaded.steps;
  return loaded;
}

/// Returns the problem with a saved state; empty if there was none.
std::string AcceleratedTraining::restore(const std::string& text) {
  try {
    const nlohmann::json state = nlohmann::json::parse(text);
    if (state.contains("data") != (feed_ != nullptr)) {
      return std::string("it has ") + (feed_ == nullptr ? "a" : "no") +
             " position in training data, unlike the program. Call the same prepare() as the "
             "program that saved it";
    }
    if (feed_ != nullptr) feed_->restore(state.at("data"));
    rates_->restore(state.at("schedule"));
  } catch (const InvalidArgument& error) {
    return error.what();
  } catch (const std::exception& error) {
    return "its state is damaged: " + escaped(error.what());
  }
  return {};
}

}  // namespace kolo::extras
