#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "kolo/agreement.hpp"
#include "kolo/check_macros.hpp"
#include "kolo/extras/batches.hpp"
#include "kolo/extras/schedule.hpp"
#include "kolo/shard.hpp"
#include "kolo/torch/autocast.hpp"
#include "kolo/torch/checkpoint.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/grad_scaler.hpp"

namespace kolo {

#pragma GCC visibility push(default)
class Accelerator;

/// The optimizer argument of Accelerator::prepare. Optimizers convert to it:
///
///   accelerator.prepare(*model, torch::optim::AdamW(model->parameters(), 1e-3));
///
///   torch::optim::AdamW adamw(model->parameters(), 1e-3);
///   accelerator.prepare(*model, adamw);
class PreparedOptimizer {
 public:
  /// @param optimizer must outlive the Accelerator
  PreparedOptimizer(torch::optim::Optimizer& optimizer)  // NOLINT(google-explicit-constructor)
      : optimizer_(&optimizer) {}
  /// The Accelerator owns it.
  template <std::derived_from<torch::optim::Optimizer> Own>
  PreparedOptimizer(std::unique_ptr<Own> optimizer)  // NOLINT(google-explicit-constructor)
      : owned_(std::move(optimizer)), optimizer_(owned_.get()) {}
  template <std::derived_from<torch::optim::Optimizer> Own>
  PreparedOptimizer(Own&& optimizer)  // NOLINT(google-explicit-constructor)
      : PreparedOptimizer(std::make_unique<Own>(std::move(optimizer))) {}

 private:
  friend class Accelerator;
  std::unique_ptr<torch::optim::Optimizer> owned_;
  torch::optim::Optimizer* optimizer_;
};
#pragma GCC visibility pop

}  // namespace kolo

namespace kolo::extras {
class AcceleratedTraining;
class QuietOutput;
}  // namespace kolo::extras

#pragma GCC visibility push(default)
namespace kolo {

/// The dtype in which an Accelerator runs matrix products and similar operators.
enum class Precision : std::uint8_t {
  None,      ///< the dtype of parameters and inputs
  BFloat16,  ///< under Autocast
  Float16,   ///< under Autocast, with a GradScaler
};

/// Options of an Accelerator; the same on all ranks.
struct AcceleratorOptions {
  std::optional<Shard> shard{};         ///< as DistributedOptimizerOptions::shard
  int gradient_accumulation_steps = 1;  ///< batches whose gradients add up to one step
  Precision mixed_precision = Precision::None;
  bool progress_bar = false;  ///< on the first rank, if its output is a terminal
  /// Discards standard output of all ranks except the first, whether from std::cout, printf or
  /// anything else, until the Accelerator is destroyed.
  bool quiet_ranks = false;
  /// All other options: compression, local_sgd, process_set and so on. Leave its `shard` and
  /// backward_passes_per_step unset: the fields above replace them.
  DistributedOptimizerOptions optimizer{};
  GradScalerOptions scaler{};  ///< with Precision::Float16
};

/// Trains in a plain loop on any number of ranks. It owns what the Accelerator of Hugging Face
/// Accelerate owns; docs/accelerator.md compares the two.
///
///   Net model;
///   kolo::Accelerator accelerator({.shard = kolo::Shard::Gradients,
///                                  .gradient_accumulation_steps = 4});
///   auto batches = accelerator.prepare(*model, torch::optim::AdamW(model->parameters(), 1e-3),
///                                      data, {.batch_size = 64});
///   accelerator.load_state(folder);  // does nothing on the first start
///   for (const std::int64_t epoch : accelerator.epochs(10)) {
///     for (auto& batch : batches) {
///       accelerator.backward([&] { return loss_of(model->forward(batch.data), batch.target); });
///       accelerator.clip_grad_norm_(1.0);
///       accelerator.step();
///     }
///     accelerator.save_state(folder);
///   }
///
/// Each batch is one pass and ends with step(); docs/accelerator.md says what a step averages.
///
/// All ranks of the set must make the same calls. Functions that are collective say so. Not
/// thread-safe.
class Accelerator {
 public:
  using Options = AcceleratorOptions;

  /// Calls init() if the program has not; init() is collective and blocking. If the node has
  /// several ranks and GPUs, also makes the CUDA device of the local rank the thread's current
  /// device.
  /// @throws the errors of Runtime's constructor
  explicit Accelerator(Options options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;  // hooks refer to it
  Accelerator& operator=(const Accelerator&) = delete;

  /// Broadcasts the parameters and buffers of the first rank, wraps the optimizer in a
  /// DistributedOptimizer, and divides the data into batches, which are moved to the model's
  /// device. Collective and blocking. Does not move the model: move it before the call.
  /// @param model the model to train; the Accelerator keeps references to its parameters
  /// @param optimizer over parameters of the model
  /// @param dataset a LibTorch data set with indexed samples; the same on all ranks
  /// @param batches options of the training batches
  /// @param schedule of the learning rates
  /// @return the training batches; one loop over them is one epoch
  /// @throws InvalidArgument on all ranks if prepare() was called before, an option is out of
  ///   range, or the data set has no size or fewer samples than there are ranks; MismatchError on
  ///   all ranks if options or sizes differ; the errors of DistributedOptimizer's constructor
  template <IndexedDataset Dataset>
  Batches<Dataset> prepare(torch::nn::Module& model, PreparedOptimizer optimizer, Dataset dataset,
                           const BatchOptions& batches, Schedule schedule = {}) {
    auto feed =
        prepare_with(model, std::move(optimizer), dataset.size(), batches, std::move(schedule));
    return Batches<Dataset>(std::move(dataset), std::move(feed), batches.workers);
  }
  /// Prepares for a program that makes its own batches, of equal size on all ranks and in all
  /// passes, and saves the position in the data itself.
  void prepare(torch::nn::Module& model, PreparedOptimizer optimizer, Schedule schedule = {});
  /// Prepares a model that trains inside another Accelerator's loops and on its batches, such as
  /// the generator of a GAN.
  /// @param other an Accelerator that is prepared; as a reference_wrapper, which `{}` does not make
  /// @throws InvalidArgument also if either one's gradient_accumulation_steps is not 1
  void prepare(torch::nn::Module& model, PreparedOptimizer optimizer,
               std::reference_wrapper<const Accelerator> other, Schedule schedule = {});

  /// Divides other data into batches for evaluation. Each loop over them is one pass over the data,
  /// in the same order every time. Such a loop may run inside a loop over training batches.
  /// The data may have fewer samples than there are ranks; all samples count once. Collective and
  /// blocking.
  /// @throws as prepare(), and InvalidArgument before prepare() and for data without samples
  template <IndexedDataset Dataset>
  Batches<Dataset> batches(Dataset dataset, const BatchOptions& options) {
    auto feed = evaluation_feed(dataset.size(), options);
    return Batches<Dataset>(std::move(dataset), std::move(feed), options.workers);
  }

  /// @return those of epochs 0 … count - 1 that are not finished, for a loop around the loop over
  ///   training batches. Starts the progress bar
  class Epochs;
  Epochs epochs(std::int64_t count);
  /// @return the epoch, from 0, of the current loop over training batches, or of the next one
  std::int64_t epoch() const;

  /// The generator of a sample in the current loop over training batches, by their `seed`, see
  /// kolo::sample_generator. For get() of a data set that has a pointer to the Accelerator; any
  /// thread may call it.
  /// @throws InvalidArgument before prepare(), or if prepare() got no data
  at::Generator sample_generator(std::size_t index) const;

  /// Runs operators in the dtype of mixed_precision for as long as the result lives. The overload
  /// of backward() that takes a function does this itself.
  Autocast autocast() const;

  /// Runs the backward of a pass: adds the gradients of this rank's mean loss to the step's. In the
  /// last pass of a step they are reduced while backward still runs. Call it once per pass; if a
  /// batch has several losses, add them up. Drops the gradients of earlier steps, so a loop needs
  /// no zero_grad(). If the program makes its own batches, it can skip a step, for example if the
  /// loss is not finite: after backward(), all ranks call optimizer().zero_grad() instead of
  /// step().
  /// @param loss the mean over the samples of the batch; a scalar that requires gradients
  /// @throws InvalidArgument before prepare(), outside a loop over the training batches, if called
  ///   twice before step(), or if the program has dropped the gradients of the step's earlier
  ///   passes
  void backward(const at::Tensor& loss);
  /// Runs the backward of a pass for the loss that `loss` returns. `loss` runs under autocast(),
  /// its backward does not.
  /// @return the loss, detached
  at::Tensor backward(const std::function<at::Tensor()>& loss);
  /// Runs the backward of a pass for a loss that is normalised by the number of samples or tokens
  /// that all ranks count in all passes of the step; see DistributedOptimizer::backward. Use it in
  /// all passes of a step or in none.
  /// @param loss_sum the sum of the loss over the samples or tokens of this rank's batch
  /// @param count their number
  void backward(const at::Tensor& loss_sum, std::int64_t count);

  /// Unscales the gradients, then scales them so that their total norm is at most `max_norm`. Call
  /// it before step(), at most once. Collective in the last pass of a step; does nothing in the
  /// others.
  /// @return the norm before clipping; nothing in passes that are not the last
  /// @throws InvalidArgument if `norm_type` is not positive, or as step()
  std::optional<double> clip_grad_norm_(double max_norm, double norm_type = 2.0);

  /// Ends a pass. In the last pass of a step, steps the optimizer and then the schedule, which is
  /// collective and blocking. If float16 gradients have overflowed, skips both.
  /// @return whether parameters were updated
  /// @throws InvalidArgument before prepare(), outside a loop over the training batches, or if the
  ///   gradients are those of a backward() of LibTorch
  bool step();
  /// Whether this pass is not the last one of its step.
  bool is_accumulating() const;
  /// @return steps taken, including those before a restart, without skipped ones
  std::int64_t steps() const;

  /// Passes a metric to a ReduceLROnPlateauScheduler. Collective and blocking.
  /// @param metric used on the first rank, ignored on the others
  /// @throws InvalidArgument if the schedule is not a ReduceLROnPlateauScheduler
  void step_schedule(double metric);

  /// Gathers a tensor of the current batch over ranks, in the order of the batch. Collective and
  /// blocking.
  /// @param tensor [this rank's samples of the batch, ...]
  /// @return [samples of the batch, ...] on every rank
  /// @throws InvalidArgument on all ranks outside of loops over batches, or if the tensor's rows
  ///   are not the rank's samples
  at::Tensor gather_for_metrics(const at::Tensor& tensor);

  /// Agrees on whether to stop. Collective and blocking.
  /// @param local whether this rank wants to stop
  /// @return whether any rank wants to
  bool should_stop(bool local);

  /// Saves everything that training depends on: what DistributedOptimizer::save writes, the
  /// GradScaler, the schedule, and the position in the training data; in the middle of a step, the
  /// position where the step began. Collective and blocking.
  /// @param options `scaler` must be null
  /// @throws the errors of DistributedOptimizer::save
  void save_state(const std::filesystem::path& folder, SaveOptions options = {});
  /// Resumes where save_state() was called, on any number of ranks and with any shard mode: the
  /// next loops over epochs and training batches start there. If it was called inside the loop over
  /// batches, that loop continues, even if no batch is left. Drops gradients. Collective and
  /// blocking.
  /// @param path a folder of checkpoints, for the newest one, or a checkpoint
  /// @return what it loaded, or nothing if there is no checkpoint yet
  /// @throws the errors of DistributedOptimizer::load; InvalidArgument on all ranks if save_state()
  ///   did not write the checkpoint, or if it belongs to other data or another schedule: the
  ///   parameters have been loaded by then
  std::optional<Loaded> load_state(const std::filesystem::path& path);

  /// The device on which this rank computes, also before prepare(): a CUDA device, or the CPU if
  /// the rank has no GPU.
  c10::Device device() const { return device_; }

  /// Prints a line of all `parts` on the first rank, above the progress bar.
  template <class... Parts>
  void print(const Parts&... parts) const {
    std::ostringstream text;
    (text << ... << parts);
    print_line(text.str());
  }

  /// The optimizer that prepare() made. Do not call its backward() or step(): the Accelerator does.
  /// zero_grad() is for programs that skip a step, see backward().
  DistributedOptimizer& optimizer();

 private:
  std::shared_ptr<extras::BatchFeed> prepare_with(torch::nn::Module& model,
                                                  PreparedOptimizer optimizer,
                                                  std::optional<std::size_t> samples,
                                                  const BatchOptions& batches, Schedule schedule);
  std::shared_ptr<extras::BatchFeed> evaluation_feed(std::optional<std::size_t> samples,
                                                     const BatchOptions& options);
  void agree_on_prepare(const PreparedOptimizer& optimizer, const Schedule& schedule,
                        std::vector<NamedValue> values, std::string problem) const;
  void print_line(const std::string& line) const;
  extras::AcceleratedTraining& training(const char* call) const;

  Options options_;
  std::shared_ptr<ProcessSet> set_;
  std::unique_ptr<extras::QuietOutput> quiet_;
  c10::Device device_ = c10::kCPU;
  std::unique_ptr<torch::optim::Optimizer> owned_;
  std::unique_ptr<extras::AcceleratedTraining> training_;
};

/// A range of numbers of epochs. A loop over it may be left at any time.
class Accelerator::Epochs {
 public:
  class Iterator {
   public:
    std::int64_t operator*() const { return epoch_; }
    Iterator& operator++();
    bool operator==(std::default_sentinel_t /*end*/) const { return epoch_ >= count_; }

   private:
    friend class Epochs;
    Iterator(extras::AcceleratedTraining& training, std::int64_t epoch, std::int64_t count)
        : training_(&training), epoch_(epoch), count_(count) {}

    extras::AcceleratedTraining* training_;
    std::int64_t epoch_;
    std::int64_t count_;
  };
  Iterator begin() const;
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class Accelerator;
  Epochs(extras::AcceleratedTraining& training, std::int64_t count)
      : training_(&training), count_(count) {}

  extras::AcceleratedTraining* training_;
  std::int64_t count_;
};

}  // namespace kolo
#pragma GCC visibility pop
