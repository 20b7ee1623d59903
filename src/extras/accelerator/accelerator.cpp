#include "kolo/extras/accelerator.hpp"

#include <iostream>
#include <string_view>
#include <utility>
#include <vector>

#include "extras/accelerator/accelerated_training.hpp"
#include "extras/accelerator/batch_plan.hpp"
#include "extras/accelerator/progress.hpp"
#include "extras/accelerator/training_feed.hpp"
#include "kolo/error.hpp"
#include "kolo/extras/distributed_sampler.hpp"
#include "kolo/runtime.hpp"

namespace kolo {
namespace {

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::None: return "None";
    case Precision::BFloat16: return "BFloat16";
    case Precision::Float16: return "Float16";
  }
  return {};
}

/// The problem with the options; empty if there is none.
std::string problem_with(const AcceleratorOptions& options) {
  if (options.gradient_accumulation_steps < 1) {
    return "gradient_accumulation_steps is " + std::to_string(options.gradient_accumulation_steps) +
           ". Give 1 or more";
  }
  if (options.optimizer.shard) return "optimizer.shard is given. Give `shard` instead";
  if (options.optimizer.backward_passes_per_step != 1) {
    return "optimizer.backward_passes_per_step is " +
           std::to_string(options.optimizer.backward_passes_per_step) +
           ". Give gradient_accumulation_steps instead";
  }
  if (options.optimizer.local_sgd.period > 0 && options.mixed_precision == Precision::Float16) {
    return "local_sgd is given with Precision::Float16, in which ranks that step alone would skip "
           "different steps. Use BFloat16";
  }
  return {};
}

}  // namespace

Accelerator::Accelerator(Options options) : options_(std::move(options)) {
  if (!Runtime::has_current()) init();
  set_ = member_set(options_.optimizer.process_set).shared_from_this();
  if (options_.quiet_ranks && set_->rank() != 0) quiet_ = std::make_unique<extras::QuietOutput>();
  device_ = extras::choose_device();
}

Accelerator::~Accelerator() = default;

extras::AcceleratedTraining& Accelerator::training(const char* call) const {
  if (training_ == nullptr) {
    throw InvalidArgument(std::string("Accelerator: ") + call +
                          " before prepare(). Call prepare(model, optimizer, data, …) first.");
  }
  return *training_;
}

void Accelerator::prepare(torch::nn::Module& model, PreparedOptimizer optimizer,
                          Schedule schedule) {
  agree_on_prepare(optimizer, schedule, {}, {});
  training_ = std::make_unique<extras::AcceleratedTraining>(
      model, *optimizer.optimizer_, schedule, options_, nullptr,
      std::make_shared<extras::CurrentBatch>());
  owned_ = std::move(optimizer.owned_);
}

void Accelerator::prepare(torch::nn::Module& model, PreparedOptimizer optimizer,
                          std::reference_wrapper<const Accelerator> other, Schedule schedule) {
  const extras::AcceleratedTraining& shared =
      other.get().training("prepare() of another Accelerator");
  std::string problem;
  if (options_.gradient_accumulation_steps != 1 ||
      other.get().options_.gradient_accumulation_steps != 1) {
    problem =
        "gradient_accumulation_steps is not 1, and several Accelerators share batches, in each of "
        "which they take a step. Leave it 1 in all of them";
  }
  agree_on_prepare(optimizer, schedule, {}, problem);
  training_ = std::make_unique<extras::AcceleratedTraining>(
      model, *optimizer.optimizer_, schedule, options_, nullptr, shared.current_batch());
  owned_ = std::move(optimizer.owned_);
}

std::shared_ptr<extras::BatchFeed> Accelerator::prepare_with(torch::nn::Module& model,
                                                             PreparedOptimizer optimizer,
                                                             std::optional<std::size_t> samples,
                                                             const BatchOptions& batches,
                                                             Schedule schedule) {
  extras::BatchPlan plan = plan_batches(samples, batches, extras::Purpose::Training, *set_);
  agree_on_prepare(optimizer, schedule, std::move(plan.values), std::move(plan.problem));
  auto current = std::make_shared<extras::CurrentBatch>();
  auto feed = std::make_shared<extras::TrainingFeed>(
      std::move(plan.order), batches.seed, std::move(plan.shares),
      options_.gradient_accumulation_steps, current, extras::device_of(model));
  training_ = std::make_unique<extras::AcceleratedTraining>(model, *optimizer.optimizer_, schedule,
                                                            options_, feed, current);
  owned_ = std::move(optimizer.owned_);
  return feed;
}

void Accelerator::agree_on_prepare(const PreparedOptimizer& optimizer, const Schedule& schedule,
                                   std::vector<NamedValue> values, std::string problem) const {
  if (training_ != nullptr) {
    problem = "it has prepared a model already. Make another Accelerator";
  } else if (optimizer.optimizer_ == nullptr) {
    problem = "the optimizer is a null pointer. Give one";
  } else if (problem.empty()) {
    problem = problem_with(options_);
  }
  values.push_back(
      {"gradient_accumulation_steps", std::to_string(options_.gradient_accumulation_steps)});
  values.push_back({"mixed_precision", std::string(name_of(options_.mixed_precision))});
  values.push_back({"the schedule", schedule.source()->kind()});
  check_agreement("Accelerator: prepare()", values, problem,
                  {.name = set_->next_name("accelerator"), .process_set = set_.get()});
}

std::shared_ptr<extras::BatchFeed> Accelerator::evaluation_feed(std::optional<std::size_t> samples,
                                                                const BatchOptions& options) {
  const extras::AcceleratedTraining& training = this->training("batches()");
  extras::BatchPlan plan = plan_batches(samples, options, extras::Purpose::Evaluation, *set_);
  check_agreement("Accelerator: batches()", plan.values, plan.problem,
                  {.name = set_->next_name("accelerator"), .process_set = set_.get()});
  return std::make_shared<extras::EvaluationFeed>(std::move(plan.order), options.seed,
                                                  std::move(plan.shares), training.current_batch(),
                                                  training.device());
}

Accelerator::Epochs Accelerator::epochs(std::int64_t count) {
  return {training("epochs()"), count};
}

Accelerator::Epochs::Iterator Accelerator::Epochs::begin() const {
  training_->begin_epochs(count_);
  return {*training_, training_->feed("epochs()").epoch(), count_};
}

Accelerator::Epochs::Iterator& Accelerator::Epochs::Iterator::operator++() {
  training_->feed("epochs()").end_epoch(epoch_);
  ++epoch_;
  return *this;
}

std::int64_t Accelerator::epoch() const { return training("epoch()").feed("epoch()").epoch(); }

at::Generator Accelerator::sample_generator(std::size_t index) const {
  constexpr const char* kCall = "sample_generator()";
  const extras::TrainingFeed& feed = training(kCall).feed(kCall);
  return kolo::sample_generator(feed.seed(), feed.loop_epoch(), index);
}

Autocast Accelerator::autocast() const { return training("autocast()").autocast(); }

void Accelerator::backward(const at::Tensor& loss) { training("backward()").backward(loss); }

at::Tensor Accelerator::backward(const std::function<at::Tensor()>& loss) {
  extras::AcceleratedTraining& training = this->training("backward()");
  at::Tensor value;
  {
    const Autocast autocast = training.autocast();
    value = loss();
  }
  training.backward(value);
  return value.detach();
}

void Accelerator::backward(const at::Tensor& loss_sum, std::int64_t count) {
  training("backward()").backward(loss_sum, count);
}

std::optional<double> Accelerator::clip_grad_norm_(double max_norm, double norm_type) {
  return training("clip_grad_norm_()").clip_grad_norm(max_norm, norm_type);
}

bool Accelerator::step() { return training("step()").step(); }

bool Accelerator::is_accumulating() const { return !training("is_accumulating()").is_last_pass(); }

std::int64_t Accelerator::steps() const { return training("steps()").steps(); }

void Accelerator::step_schedule(double metric) {
  training("step_schedule()").step_schedule(metric);
}

at::Tensor Accelerator::gather_for_metrics(const at::Tensor& tensor) {
  return training("gather_for_metrics()").gather_for_metrics(tensor);
}

bool Accelerator::should_stop(bool local) { return training("should_stop()").should_stop(local); }

void Accelerator::save_state(const std::filesystem::path& folder, SaveOptions options) {
  training("save_state()").save_state(folder, std::move(options));
}

std::optional<Loaded> Accelerator::load_state(const std::filesystem::path& path) {
  return training("load_state()").load_state(path);
}

void Accelerator::print_line(const std::string& line) const {
  if (set_->rank() != 0) return;
  if (training_ != nullptr) training_->clear_progress();
  std::cout << line << std::endl;
}

DistributedOptimizer& Accelerator::optimizer() { return training("optimizer()").optimizer(); }

}  // namespace kolo
