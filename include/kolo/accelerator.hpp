#pragma once

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

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "kolo/autocast.hpp"
#include "kolo/batches.hpp"
#include "kolo/checkpoint.hpp"
#include "kolo/distributed_optimizer.hpp"
#include "kolo/grad_scaler.hpp"
#include "kolo/prepared_optimizer.hpp"
#include "kolo/schedule.hpp"
#include "kolo/shard.hpp"

namespace kolo::tensors {
class AcceleratedTraining;
class QuietOutput;
struct Fact;
}  // namespace kolo::tensors

#pragma GCC visibility push(default)
namespace kolo {

/// In which dtype an Accelerator runs the model's matrix products and the like.
enum class Precision : std::uint8_t {
  None,      ///< that of parameters and inputs
  BFloat16,  ///< under Autocast
  Float16,   ///< under Autocast, with a GradScaler
};

/// Options of an Accelerator; the same on all ranks.
struct AcceleratorOptions {
  std::optional<Shard> shard{};         ///< as DistributedOptimizerOptions::shard
  int gradient_accumulation_steps = 1;  ///< passes, of a batch each, whose gradients make one step
  Precision mixed_precision = Precision::None;
  bool progress_bar = false;  ///< on the first rank, if its output is a terminal
  /// Whether what processes of all ranks but the first write to standard output, by std::cout,
  /// printf or anything else, is lost until the Accelerator is destroyed.
  bool quiet_ranks = false;
  /// All else: compression, local_sgd, process_set and so on; without `shard` and
  /// backward_passes_per_step, which stand above.
  DistributedOptimizerOptions optimizer{};
  GradScalerOptions scaler{};  ///< with Precision::Float16
};

/// Trains in a loop without plumbing, on any number of ranks: it owns what the Accelerator of
/// Hugging Face Accelerate owns. docs/accelerator.md compares them.
///
///   Net model;
///   kolo::Accelerator accelerator({.shard = kolo::Shard::Gradients,
///                                  .gradient_accumulation_steps = 4});
///   auto batches = accelerator.prepare(*model, torch::optim::AdamW(model->parameters(), 1e-3),
///                                      data, {.batch_size = 64});
///   accelerator.load_state(folder);  // does nothing at the first start
///   for (const std::int64_t epoch : accelerator.epochs(10)) {
///     for (auto& batch : batches) {
///       accelerator.backward([&] { return loss_of(model->forward(batch.data), batch.target); });
///       accelerator.clip_grad_norm_(1.0);
///       accelerator.step();
///     }
///     accelerator.save_state(folder);
///   }
///
/// A pass is what lies before each step(): one batch. In all passes but the last of
/// gradient_accumulation_steps, gradients stay on their rank and step() does nothing, so the loop
/// is the same with and without accumulation. At an epoch's end a step may have fewer passes.
///
/// A step uses the mean of the loss over all samples of its passes on all ranks, each counted once,
/// also where a batch is smaller or shares differ. So the number of ranks changes nothing but
/// rounding errors: a run may go on with another one.
///
/// All ranks of the set call its functions alike; those that are collective say so. Not
/// thread-safe.
class Accelerator {
 public:
  using Options = AcceleratorOptions;

  /// Starts Kolo by init() if the program has not, which is collective and blocking. If the node
  /// has several ranks, makes the CUDA device of the local rank the current one of the thread, if
  /// there is any.
  /// @throws the errors of Runtime's constructor
  explicit Accelerator(Options options = {});
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;  // hooks refer to it
  Accelerator& operator=(const Accelerator&) = delete;

  /// Gives all ranks the parameters and buffers of the first one, wraps the optimizer in a
  /// DistributedOptimizer, and cuts the data into batches, which go to the model's device.
  /// Collective and blocking. Does not move the model: do so before.
  /// @param model whose parameters this keeps
  /// @param optimizer of parameters of the model
  /// @param dataset of LibTorch, of samples that have an index; the same on all ranks
  /// @param batches of the training data
  /// @param schedule of the learning rates
  /// @return the training batches: a loop over them is an epoch
  /// @throws InvalidArgument on all ranks if this was prepared before, an option is out of range,
  ///   or the data set has no size or fewer samples than there are ranks; MismatchError on all
  ///   ranks if options or sizes differ; the errors of DistributedOptimizer's constructor
  template <IndexedDataset Dataset>
  Batches<Dataset> prepare(torch::nn::Module& model, PreparedOptimizer optimizer, Dataset dataset,
                           const BatchOptions& batches, Schedule schedule = {}) {
    auto feed =
        prepare_with(model, std::move(optimizer), dataset.size(), batches, std::move(schedule));
    return Batches<Dataset>(std::move(dataset), std::move(feed), batches.workers);
  }
  /// The same for programs with batches of their own, of equal size on all ranks and in all passes,
  /// whose position they save themselves.
  void prepare(torch::nn::Module& model, PreparedOptimizer optimizer, Schedule schedule = {});
  /// The same for a model that trains on batches of another Accelerator, inside its loops, such as
  /// the generator of a GAN.
  /// @param other an Accelerator that is prepared; as a reference_wrapper, which `{}` does not make
  /// @throws InvalidArgument also if gradient_accumulation_steps of one of them is not 1
  void prepare(torch::nn::Module& model, PreparedOptimizer optimizer,
               std::reference_wrapper<const Accelerator> other, Schedule schedule = {});

  /// Cuts other data into batches, to evaluate: a loop over them is one pass over the data, always
  /// the same. May run inside a loop over training batches. Collective, and blocking.
  /// @throws as prepare(), and InvalidArgument before prepare()
  template <IndexedDataset Dataset>
  Batches<Dataset> batches(Dataset dataset, const BatchOptions& options) {
    auto feed = evaluation_feed(dataset.size(), options);
    return Batches<Dataset>(std::move(dataset), std::move(feed), options.workers);
  }

  /// The epochs that are left of `count`, for a loop around that over the training batches. Begins
  /// the progress bar.
  class Epochs;
  Epochs epochs(std::int64_t count);
  /// @return the epoch of the loop over training batches, or of the next one; from 0
  std::int64_t epoch() const;

  /// While it lives, operators run as mixed_precision says; backward() of a function has its own.
  Autocast autocast() const;

  /// Runs a pass: adds the gradients of this rank's mean loss to those of the step. In its last
  /// pass they are reduced meanwhile. Once in a pass: add up several losses of a batch. Drops
  /// gradients of earlier steps, so a loop needs no zero_grad(). With batches of the program's own,
  /// optimizer().zero_grad() instead of step() leaves out the step with all of its passes, on all
  /// ranks alike, as for a loss that is not finite.
  /// @param loss the mean over the samples of the batch; a scalar that requires gradients
  /// @throws InvalidArgument before prepare(), outside a loop over the training batches, the second
  ///   time before step(), or if the program has dropped the gradients of the step's earlier passes
  void backward(const at::Tensor& loss);
  /// The same for what `loss` returns. It is called under autocast(), backward() is not.
  /// @return the loss, detached
  at::Tensor backward(const std::function<at::Tensor()>& loss);
  /// The same for a loss that is normalised by what all passes of the step count together on all
  /// ranks, as tokens: see DistributedOptimizer::backward. In all passes of a step or in none.
  /// @param loss_sum the sum over what this rank counts in the batch, as a tensor
  /// @param count of it
  void backward(const at::Tensor& loss_sum, std::int64_t count);

  /// Scales the gradients so that their total norm is at most `max_norm`; unscales them before.
  /// Collective in the last pass of a step, and does nothing in others. Before step(), once.
  /// @return the norm before; nothing in passes that are not the last
  /// @throws InvalidArgument if `norm_type` is not positive
  std::optional<double> clip_grad_norm_(double max_norm, double norm_type = 2.0);

  /// Ends a pass: the last one of a step by the step of the optimizer and then of the schedule,
  /// where it is collective and blocks. If gradients overflow in float16, both are left out.
  /// @return whether parameters were updated
  /// @throws InvalidArgument before prepare(), outside a loop over the training batches, or if the
  ///   gradients are those of a backward() of LibTorch
  bool step();
  /// Whether this pass is not the last one of its step.
  bool is_accumulating() const;
  /// @return steps taken, those before a restart too, without skipped ones
  std::int64_t steps() const;

  /// Tells a ReduceLROnPlateauScheduler how well the model does. Collective and blocking.
  /// @param metric that of the first rank counts
  /// @throws InvalidArgument if the schedule is another one
  void step_schedule(double metric);

  /// Gathers a tensor of the current batch over ranks, in the order of the batch. Collective and
  /// blocking.
  /// @param tensor [this rank's samples of the batch, ...]
  /// @return [samples of the batch, ...] on every rank
  /// @throws InvalidArgument on all ranks outside of loops over batches, or if a tensor has other
  ///   rows
  at::Tensor gather_for_metrics(const at::Tensor& tensor);

  /// Agrees to stop. Collective and blocking.
  /// @param local whether this rank wants to
  /// @return whether any rank does
  bool should_stop(bool local);

  /// Saves all that training depends on: what DistributedOptimizer::save does, the GradScaler, the
  /// schedule, and the position in the training data. In the middle of a step, the position of its
  /// begin. Collective and blocking, as it is.
  /// @param options `scaler` must be null
  /// @throws the errors of DistributedOptimizer::save
  void save_state(const std::filesystem::path& folder, SaveOptions options = {});
  /// Goes on where save_state was called, on any number of ranks and with any sharding: the next
  /// loops over epochs and over training batches begin there. If it was called inside the loop over
  /// batches, that loop goes on, even if no batch is left. Gradients are dropped. Collective and
  /// blocking.
  /// @param path a folder of checkpoints, for the newest one, or a checkpoint
  /// @return what it found, or nothing if there is no checkpoint yet
  /// @throws the errors of DistributedOptimizer::load; InvalidArgument on all ranks if the
  ///   checkpoint has no such state, or is of other data or another schedule: parameters are loaded
  ///   then
  std::optional<Loaded> load_state(const std::filesystem::path& path);

  /// Where this rank computes, before prepare() too: a CUDA device, or the CPU if there is none.
  c10::Device device() const { return device_; }

  /// Prints a line of all `parts` on the first rank, above the progress bar.
  template <class... Parts>
  void print(const Parts&... parts) const {
    std::ostringstream text;
    (text << ... << parts);
    print_line(text.str());
  }

  /// The optimizer that prepare() has made. Its step() and the like are for this object to call;
  /// zero_grad() is for programs that leave out a step (see backward()).
  DistributedOptimizer& optimizer();

 private:
  std::shared_ptr<tensors::BatchFeed> prepare_with(torch::nn::Module& model,
                                                   PreparedOptimizer optimizer,
                                                   std::optional<std::size_t> samples,
                                                   const BatchOptions& batches, Schedule schedule);
  std::shared_ptr<tensors::BatchFeed> evaluation_feed(std::optional<std::size_t> samples,
                                                      const BatchOptions& options);
  void agree_on_prepare(const PreparedOptimizer& optimizer, const Schedule& schedule,
                        std::vector<tensors::Fact> facts, std::string problem) const;
  void print_line(const std::string& line) const;
  tensors::AcceleratedTraining& training(const char* call) const;
  ProcessSet& set() const;

  Options options_;
  std::unique_ptr<tensors::QuietOutput> quiet_;
  c10::Device device_ = c10::kCPU;
  std::unique_ptr<torch::optim::Optimizer> owned_;
  std::unique_ptr<tensors::AcceleratedTraining> training_;
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
    Iterator(tensors::AcceleratedTraining& training, std::int64_t epoch, std::int64_t count)
        : training_(&training), epoch_(epoch), count_(count) {}

    tensors::AcceleratedTraining* training_;
    std::int64_t epoch_;
    std::int64_t count_;
  };
  Iterator begin() const;
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class Accelerator;
  Epochs(tensors::AcceleratedTraining& training, std::int64_t count)
      : training_(&training), count_(count) {}

  tensors::AcceleratedTraining* training_;
  std::int64_t count_;
};

}  // namespace kolo
#pragma GCC visibility pop
