#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "kolo/bucket_hook.hpp"
#include "kolo/checkpoint.hpp"
#include "kolo/distributed_optimizer_options.hpp"
#include "kolo/training_report.hpp"

namespace kolo::tensors {
class AcceleratedTraining;
class TrainingEngine;
}  // namespace kolo::tensors

#pragma GCC visibility push(default)
namespace kolo {

class GradScaler;

/// Trains data-parallel: wraps an optimizer, and reduces the gradients of its parameters over all
/// ranks while backward() still runs.
///
///   kolo::DistributedOptimizer optimizer(torch::optim::Adam(model->parameters(), 1e-3), *model);
///   kolo::broadcast_parameters(*model, 0);
///   for (const auto& batch : batches) {
///     optimizer.zero_grad();
///     loss_of(model->forward(batch.rows), batch.labels).backward();
///     optimizer.step();
///   }
///
/// It owns the optimizer that it wraps, or refers to one of the program's:
///
///   torch::optim::Adam adam(model->parameters(), 1e-3);
///   kolo::DistributedOptimizer optimizer(adam, *model);
///
/// It is a torch::optim::Optimizer over the same parameters, so schedulers and functions that take
/// one work with it. Options such as the learning rate may be changed on the wrapped optimizer or
/// on this one; the next step() applies a change to both.
///
/// Gradients are views of buckets, on the CPU in memory that the ranks of a node share where
/// possible, so they are reduced without packing. A bucket is submitted when its last gradient has
/// arrived; from then until step() or synchronize(), each access to its gradients throws
/// c10::Error. After the first step buckets are laid out in the order in which gradients arrived on
/// the set's first rank. A parameter without a gradient on this rank counts as zero; one
/// without a gradient on any rank keeps none.
///
/// Parameters may be added later: a group added to this or to the wrapped optimizer, or a parameter
/// that gets requires_grad, takes part from the next zero_grad(), synchronize() or step() on, which
/// is then collective.
///
/// All ranks of the set must use it alike: each calls step() equally often, whether or not its loss
/// depends on any parameter, and steps several optimizers in the same order. Where shard = Full
/// gathers parameters, all ranks must also use them in the same order. A parameter belongs to one
/// of them at a time. The model, and an optimizer that it refers to, must outlive it; parameters
/// must not be replaced, nor moved to another dtype or device. Not thread-safe. Errors of
/// reductions (kolo/collectives.hpp) are thrown by backward(), step(), synchronize(), zero_grad().
class DistributedOptimizer : public torch::optim::Optimizer {
 public:
  using Options = DistributedOptimizerOptions;
  using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

  /// Wraps an optimizer. Collective over the set, and blocking.
  /// @param optimizer steps the parameters; must outlive this
  /// @param model names the parameters, and gives save() and load() its buffers; parameters that it
  ///   does not have are numbered
  /// @param options the same on all ranks
  /// @throws InvalidArgument on all ranks if on any an option is out of range, two names are equal,
  ///   parameters are not dense floating tensors on one device, the CPU or a CUDA device, or the
  ///   optimizer evaluates its closure several times a step (LBFGS)
  /// @throws MismatchError on all ranks if options, or names, dtypes, shapes or device of
  ///   parameters differ between ranks
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& model,
                       Options options = {});
  /// The same with names instead of a model, and without buffers.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedParameters& names,
                       Options options = {});
  /// The same for an optimizer that this then owns.
  /// @throws InvalidArgument if `optimizer` is null
  DistributedOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                       const torch::nn::Module& model, Options options = {});
  template <std::derived_from<torch::optim::Optimizer> Wrapped>
  DistributedOptimizer(Wrapped&& optimizer, const torch::nn::Module& model, Options options = {})
      : DistributedOptimizer(std::make_unique<Wrapped>(std::move(optimizer)), model,
                             std::move(options)) {}
  ~DistributedOptimizer() override;
  DistributedOptimizer(const DistributedOptimizer&) = delete;  // hooks refer to it
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// Drops all gradients; hides torch::optim::Optimizer::zero_grad().
  /// If gradients have arrived since the last step(), blocks until they are reduced and discards
  /// them, on every rank alike: the generator's backward() of a GAN leaves such gradients in the
  /// discriminator. backward() does the same if the program has dropped the gradients in another
  /// way, as by the model's zero_grad().
  /// @param set_to_none undefine gradients instead of zeroing them
  void zero_grad(bool set_to_none = true);

  /// Reduces the gradients unless synchronize() has done so, then steps the wrapped optimizer.
  /// Blocks until the gradients are reduced, even if fewer than backward_passes_per_step have
  /// arrived. Drops LibTorch's cached autocast casts of parameters. With a GradScaler, call
  /// GradScaler::step() instead.
  /// @param closure evaluated once, if given; its gradients are reduced too
  /// @return the closure's loss, or an undefined tensor
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Runs one pass whose loss is normalised by what all ranks count together, as tokens or samples,
  /// instead of by each rank's own number and by ranks. The gradients of the step are then those of
  /// (sum of loss_sum) / (sum of count) over all ranks and all passes of the step, in every shard
  /// mode, whatever `op` is, for uneven batches and for any number of passes:
  ///
  ///   const at::Tensor loss = cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
  ///   optimizer.backward(loss, labels.numel());
  ///   optimizer.step();
  ///
  /// With a GradScaler pass scaler.scale(loss_sum), since scaling is linear. Until synchronize(),
  /// clip_grad_norm_() or step(), gradients are in a unit of Kolo's own: multiplied by a power of
  /// two that is equal on all ranks, so that 16 bits hold them. Under no_sync() they and the count
  /// add up on this rank; a rank that steps alone divides by its own count. A step in which all
  /// ranks count 0 has no gradients. A bucket hook must return what `op` would.
  ///
  /// Of several optimizers that one loss has parameters of, only this one's gradients are
  /// normalised. Drop gradients by zero_grad() of this, which also drops counts. With parameters or
  /// a compression of float16, the first call blocks until every rank has called it.
  /// @param loss_sum the sum over this rank's samples of this pass, not their mean; elements of a
  ///   tensor of several add up. With count 0 it may be undefined, and backward() is not run on it,
  ///   except where shard = Full gathers parameters: there all ranks must use the same, so one
  ///   without samples passes the loss of any others, which do not count.
  /// @param count how many samples loss_sum sums, 0 or more; may differ between ranks and passes
  /// @throws InvalidArgument if `op` is Adasum. step(), synchronize() and clip_grad_norm_() throw
  ///   it on all ranks if on any `count` is negative, or positive without a graph, and if on any
  ///   the step also had a backward() of LibTorch, whose gradients have no count
  void backward(const at::Tensor& loss_sum, std::int64_t count);

  /// Blocks until all gradients of this step are reduced, so that the program can read or change
  /// them in grad() before step(), which does not reduce them again. Submits incomplete buckets as
  /// they are. Idempotent. A gradient that arrives between it and step() is an error. If the
  /// optimizer is sharded, grad() of the parameters is undefined: the gradients belong to the
  /// leaves that each rank updates.
  void synchronize();

  /// Synchronizes, then scales all gradients so that their total norm is at most `max_norm`.
  /// @param norm_type p > 0 of the p-norm; may be infinity
  /// @return the norm before scaling, the same on all ranks
  /// @throws InvalidArgument if `norm_type` is not positive
  double clip_grad_norm_(double max_norm, double norm_type = 2.0);

  /// Keeps a mode on for as long as it lives.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(int& depth) : depth_(depth) { ++depth_; }
    ~Guard() { --depth_; }
    Guard(const Guard&) = delete;  // it counts once
    Guard& operator=(const Guard&) = delete;

   private:
    int& depth_;
  };

  /// Under the guard, gradients add up on this rank and nothing is reduced, as with DDP's
  /// no_sync(). The next backward() without it, or step(), reduces them all.
  Guard no_sync();

  /// Under the guard, step() uses the gradients as they are. Not needed after synchronize(), unlike
  /// with Horovod; together with no_sync(), this rank steps alone. step() under the guard throws
  /// InvalidArgument if the optimizer is sharded, as no rank can update its parameters alone, and
  /// while gradients are being reduced.
  Guard skip_synchronize();

  /// Declares that this rank takes no more steps, and blocks until all ranks have joined.
  /// Meanwhile it takes part in their reductions with zeros; Options::join_divisor says by what
  /// Average divides. Then all ranks get the parameters, optimizer state and options of a rank that
  /// has taken the most steps, and may train on. Buffers of the model stay as they are.
  /// @return the rank that joined last, as kolo::join
  /// @throws InvalidArgument while gradients are being reduced, and with local_sgd
  int join();

  /// Compares the parameters of all ranks bit by bit, whatever Options::check_replicas_every says.
  /// Collective over the set and blocking, between steps; a rank sends 16 bytes for each rank. With
  /// shard = Full it does nothing: ranks have no copies. Buffers and state are not compared.
  /// @throws MismatchError on all ranks if any parameter differs: names the first ones, and which
  ///   ranks have equal values
  void check_replicas();

  /// Runs `write`, which may change parameters: load, prune or clamp them. Collective and blocking.
  /// Needed with shard = Full alone, where ranks have no copies of their own. One rank may write a
  /// parameter, or several the same values: all ranks have them afterwards. Meanwhile each has
  /// copies of all parameters. Other modes just run `write`.
  /// @param write called once on every rank
  /// @throws MismatchError on all ranks if some have written different values to a parameter, and
  ///   InvalidArgument if `write` throws on another rank; all keep the old parameters
  void full_parameters(const std::function<void()>& write);

  /// From now on reduces buckets by a hook instead of op, compression and predivision. Called on
  /// all ranks alike, between steps, and before load() if the hook has state or residuals.
  /// @param hook a function is one; an empty one restores the ordinary reduction
  /// @throws InvalidArgument if the optimizer is sharded, or while gradients are being reduced
  void register_bucket_hook(BucketHook hook);

  /// Writes a checkpoint: parameters and buffers of the model, the optimizer's state and options,
  /// the states of random number generators, and what `options` adds. Collective and blocking.
  /// Every rank writes its share, straight from where it lies on the CPU; only state of classes
  /// that LibTorch does not know is copied. Buffers are those of the set's first rank. May be
  /// called while gradients add up; they are not saved. While ranks step alone by local_sgd, it
  /// averages parameters first, and of the optimizer's state, which differs, each rank writes its
  /// own share. When save() returns, the checkpoint is on
  /// the disk, a folder of safetensors files with index.json; a crash at any moment leaves the
  /// earlier ones intact. The umask decides who may read the files. If another program saves into
  /// `folder` or loads from it, waits for it, half of KOLO_TIMEOUT at most.
  /// @param folder holds one folder for each checkpoint; all ranks must see it under this name
  /// @throws BackendError on all ranks, naming rank, file and cause, if a file cannot be written or
  ///   the other program does not finish
  /// @throws InvalidArgument on all ranks for state of a class without serialize()
  void save(const std::filesystem::path& folder, const SaveOptions& options = {});

  /// Resumes from a checkpoint of any world size and shard mode, between steps. Collective and
  /// blocking. Compares names, shapes, dtypes, options and checksums before it changes anything.
  /// Before the first step, it also lays buckets out as they were, and shards at once.
  /// @param path a checkpoint; a folder of checkpoints, for the newest one; or a file of parameters
  ///   and buffers alone, written by torch::save of the model or, named *.safetensors, by any
  ///   program
  /// @return what the checkpoint holds besides
  /// @throws InvalidArgument on all ranks, naming file and tensor, for what is missing, damaged or
  ///   does not fit the program; while gradients are being reduced, or are reduced and not used yet
  /// @throws BackendError on all ranks if a file cannot be read, or another program saves too long
  Loaded load(const std::filesystem::path& path, const LoadOptions& options = {});

  /// Writes one safetensors file with all parameters and buffers under their names, and the
  /// optimizer's state as "optimizer.<field>.<name>". Collective and blocking. No rank needs more
  /// than 4 MiB for it besides what it has.
  /// @param root the world rank that writes the file, the same on all ranks
  /// @throws the errors of save(), and InvalidArgument if `root` is not in the process set
  void save_full_state(const std::filesystem::path& file, int root = 0);

  /// Those of the wrapped optimizer, for torch::save and torch::load.
  /// @throws InvalidArgument once parameters are sharded
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// When a bucket of the last step was submitted, began to be reduced and was reduced, in seconds
  /// from the step's first gradient.
  struct BucketTimes {
    std::size_t size_bytes;
    double submitted;
    double started;
    double ended;
  };
  struct StepTimes {
    double last_gradient = 0.0;        ///< when it arrived, in seconds from the first
    std::vector<BucketTimes> buckets;  ///< in the order of the layout
  };
  /// Shows whether communication overlapped with backward() in the last step. Not collective.
  const StepTimes& last_step_times() const;

  /// Bytes that this rank keeps and moves, beside what formulas expect. Not collective.
  TrainingReport report() const;

 private:
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedParameters& names,
                       const NamedParameters& buffers, Options options);

  friend class GradScaler;                    // it stands between backward() and step()
  friend class tensors::AcceleratedTraining;  // the program may drop the gradients of its passes
  std::unique_ptr<torch::optim::Optimizer> owned_;
  std::unique_ptr<tensors::TrainingEngine> engine_;
};

}  // namespace kolo
#pragma GCC visibility pop
