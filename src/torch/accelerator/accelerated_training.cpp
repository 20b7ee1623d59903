#include "torch/accelerator/accelerated_training.hpp"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include "kolo/error.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "runtime/api/collectives.hpp"
#include "torch/optimizer/training_engine.hpp"
#include "torch/tensors/agreement.hpp"
#include "torch/tensors/deferred.hpp"

namespace kolo::tensors {
namespace {

/// Broadcasts parameters, except deferred ones, which get their values when they are wrapped.
torch::nn::Module& start_alike(torch::nn::Module& model, ProcessSet& set) {
  for (const at::Tensor& parameter : model.parameters()) {
    if (is_constructed(parameter)) return model;
  }
  broadcast_parameters(model, set.ranks().front(), &set);
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
    : set_(runtime::chosen(options.optimizer.process_set)),
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
  return accumulation_.passes_done + 1 >= options_.gradient_accumulation_steps;
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
  if (accumulation_.has_run_backward || !optimizer_.engine_->has_arrivals()) return;
  throw InvalidArgument(std::string("Accelerator: ") + call +
                        " after loss.backward(), whose gradients are neither weighted by samples "
                        "nor dropped after the step. Call accelerator.backward(loss) instead.");
}

/// Whether the program has called zero_grad() of the optimizer instead of step(). With a feed, each
/// pass has its weight in the mean of its step, so only a step's first pass can be repeated.
bool AcceleratedTraining::has_skipped_step() const {
  const bool has_discarded = accumulation_.discards != optimizer_.engine_->discards();
  return accumulation_.has_run_backward && has_discarded &&
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
  accumulation_.discards = optimizer_.engine_->discards();
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
  require_own_backward("clip_grad_norm_()");
  if (!is_last_pass()) return std::nullopt;
  if (!accumulation_.is_unscaled) scaler_.unscale_(optimizer_);
  accumulation_.is_unscaled = true;
  return optimizer_.clip_grad_norm_(max_norm, norm_type);
}

bool AcceleratedTraining::step() {
  require_pass("step()");
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
  agree(set_, name + ".rows", "Accelerator: gather_for_metrics()", {}, problem);
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

}  // namespace kolo::tensors
