#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/optim/optimizer.h>

#include "kolo/bucket_hook.hpp"
#include "kolo/checkpoint.hpp"
#include "kolo/compression.hpp"
#include "kolo/module_filter.hpp"
#include "kolo/parameter_filter.hpp"
#include "kolo/process_set.hpp"
#include "kolo/reduction.hpp"
#include "kolo/shard.hpp"
#include "kolo/training_report.hpp"

namespace kolo::tensors {
class TrainingEngine;
}

#pragma GCC visibility push(default)
namespace kolo {

class GradScaler;

/// Where gradients add up over backward_passes_per_step.
enum class Accumulation : std::uint8_t {
  Local,    ///< on their rank; they are reduced with the last pass
  Reduced,  ///< in each rank's shard: every pass is reduced by itself
};

/// Options of a DistributedOptimizer; the same on all ranks, or the constructor throws.
struct DistributedOptimizerOptions {
  // Behaviour.
  /// Average, Sum or Adasum of gradients over ranks. Adasum combines the gradients of each
  /// parameter; Horovod's optimizer combines the updates of the wrapped optimizer instead, which is
  /// the same for plain SGD.
  ReduceOp op = ReduceOp::Average;
  /// Calls of backward() before gradients are reduced. Their gradients are summed, not averaged:
  /// divide the loss yourself, as with Horovod.
  int backward_passes_per_step = 1;
  /// Reduced requires shard = Gradients; from the second step on, full gradients are then not kept
  /// between passes. n passes move (n + 1) / 2 times as many bytes as with Local.
  Accumulation accumulation = Accumulation::Local;
  /// f > 0: gradients are multiplied by 1/f before the reduction and by f after it. With Average
  /// only.
  double gradient_predivide_factor = 1.0;
  /// Of gradients while they are sent, in every shard mode. Codecs are for CPU memory, Average and
  /// Sum; with shard_scope = Node they encode what nodes send each other alone. Sparse gradients
  /// that a codec encodes are made dense. See docs/compression.md.
  Compression compression = Compression::none();
  /// With a codec: what it loses of a gradient is added to the next one, for which each rank keeps
  /// two floats for each element that it encodes. A step that is not used leaves it as it was.
  bool error_feedback = true;
  /// Parameters whose gradients are compressed, the same on all ranks; without it, all. They lie in
  /// buckets of their own. `kolo::matrices()` leaves out biases and norms.
  ParameterFilter compression_policy{};
  /// Sparse gradients are made dense and lie in buckets like all others. Otherwise parameters whose
  /// gradient was sparse on any rank in the first step leave their bucket, and sparse_allreduce
  /// reduces their gradients without compression. Gradients are made dense in any case if another
  /// parameter's becomes sparse later, if `op` is Adasum, or if the optimizer is sharded.
  bool sparse_as_dense = false;
  JoinDivisor join_divisor = JoinDivisor::World;  ///< of Average while some ranks have joined
  ProcessSet* process_set = nullptr;              ///< null: the world of Runtime::current()
  /// What is sharded over the ranks; nothing given: what KOLO_SHARD says. See docs/sharding.md.
  ///
  /// Optimizer: each rank keeps the optimizer's state of one equal shard of every bucket. step()
  /// updates the shards and gathers the parameters, which are then equal on all ranks, and
  /// bit-equal to those of None where reductions are rank-ordered (except after clipping). The
  /// wrapped optimizer must treat every element by itself: its step() is called for each bucket
  /// in which this rank's shard has gradients, with those leaves in their parameter group.
  /// Parameters must be contiguous, each in a storage of its own. Once reduced, gradients are taken
  /// from grad(), which becomes undefined; sparse ones are made dense. State that the wrapped
  /// optimizer has already is sharded too. Destroying this object erases all sharded state.
  ///
  /// Gradients: in addition each rank keeps only its shard of the reduced gradients from the second
  /// step on, and frees a full gradient as soon as its bucket is submitted. Buckets share three
  /// slots of memory and are submitted in a fixed order: a backward() that is further ahead waits,
  /// and throws the errors of what it waits for.
  ///
  /// Full: in addition the ranks of a node keep one copy of the parameters, from construction on,
  /// for good, with the values of the first of them. Each updates its shards in place, after all
  /// have entered step(); nothing is gathered. Parameters stay ordinary tensors, to which programs
  /// write in full_parameters() only; other writes are errors, found by the tensors' versions.
  /// Where ranks share no memory, each keeps its shards alone, and operators of LibTorch gather the
  /// parameters they use, on all ranks in the same order. The model's frozen ones are sharded, too.
  std::optional<Shard> shard{};
  /// Node: parameters move inside nodes only; between nodes each shard's gradients are summed once.
  /// With the world only, and equally many ranks on every node.
  ShardScope shard_scope = ShardScope::World;
  /// With shard = Full and a model: modules whose parameters are gathered together where parameters
  /// are gathered, and reduced together. Of nested ones the innermost counts; parameters outside of
  /// all, and those that several share, are gathered by whole modules up to bucket_bytes, as all
  /// are without a policy. Instead of `groups`. As FSDP's auto_wrap_policy.
  ModuleFilter unit_policy{};
  /// false: units that forward() has gathered stay until step(), as with FSDP's SHARD_GRAD_OP.
  /// Moves a third less, and needs memory for all parameters meanwhile.
  bool reshard_after_forward = true;

  // Precision and place.
  /// The least precise dtype in which gradients add up and are reduced: kFloat or kDouble. Those
  /// of less precise parameters have it from their reduction on, in grad() too, and take
  /// that much more memory and bytes; `compression` sends fewer. Nothing given: the dtype of the
  /// parameters, or with master_weights float32. As FSDP's reduce_dtype. Not for complex ones.
  std::optional<c10::ScalarType> reduce_dtype{};
  /// The optimizer updates float32 copies of float16 and bfloat16 parameters (see set_dtype()), of
  /// which each rank keeps those of its shards, and parameters get their rounded values. State is
  /// float32, too. What a program writes to a parameter replaces its copy. Not with shard = None.
  bool master_weights = false;
  /// Shards of CUDA parameters are updated on the CPU, where their gradients, their state and, with
  /// Full, the shards themselves lie. The CPU then waits for the GPU where shards are copied. Not
  /// with shard = None; without effect for parameters on the CPU.
  bool offload = false;

  // Speed.
  /// Most bytes of gradients that are reduced together; 0: a 16th of all, 25 MiB at most. Larger
  /// buckets cost less per byte, smaller ones start earlier.
  std::size_t bucket_bytes = 0;
  /// Parameters whose gradients are reduced together: one bucket for each group and dtype, of any
  /// size. All other parameters go to ordinary buckets.
  std::vector<std::vector<at::Tensor>> groups{};
  int num_groups = 0;  ///< instead: that many groups of equally many parameters; 0: none
  /// Steps torch::optim::Adam, AdamW and SGD by LibTorch's fused kernels instead of their step():
  /// about a fifth of the time for Adam. Results differ from step() in the last bits, not between
  /// shard modes. State and options are the optimizer's own, so a checkpoint may be continued
  /// without it. Other classes, derived ones too, parameters that are not contiguous and sparse
  /// gradients are errors.
  bool fused = false;
};

/// Trains data-parallel: wraps an optimizer, and reduces the gradients of its parameters over all
/// ranks while backward() still runs.
///
///   torch::optim::Adam adam(model->parameters(), 1e-3);
///   kolo::DistributedOptimizer optimizer(adam, *model);
///   kolo::broadcast_parameters(*model, 0);
///   for (const auto& batch : batches) {
///     optimizer.zero_grad();
///     loss_of(model->forward(batch.rows), batch.labels).backward();
///     optimizer.step();
///   }
///
/// It is a torch::optim::Optimizer over the same parameters, so schedulers and functions that take
/// one work with it. Options such as the learning rate may be changed on the wrapped optimizer or
/// on this one; the next step() applies a change to both.
///
/// Gradients are views of buckets, on the CPU in memory that the ranks of a node share where
/// possible, so they are reduced without packing. A bucket is submitted when its last gradient has
/// arrived. After the first step buckets are laid out in the order in which gradients arrived on
/// the set's first rank. A parameter without a gradient on this rank counts as zero; one without a
/// gradient on any rank keeps none.
///
/// Parameters may be added later: a group added to this or to the wrapped optimizer, or a parameter
/// that gets requires_grad, takes part from the next zero_grad(), synchronize() or step() on, which
/// is then collective.
///
/// All ranks of the set must use it alike: each calls step() equally often, whether or not its loss
/// depends on any parameter, and steps several optimizers in the same order. Where shard = Full
/// gathers parameters, all ranks must also use them in the same order. A parameter belongs to
/// one of them at a time. The wrapped optimizer and the model must outlive it; parameters must not
/// be replaced, nor moved to another dtype or device. Not thread-safe. Errors of reductions
/// (kolo/collectives.hpp) are thrown by backward(), step(), synchronize() or zero_grad().
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
  /// @throws InvalidArgument while gradients are being reduced
  int join();

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
  /// called while gradients add up; they are not saved. When save() returns, the checkpoint is on
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

  friend class GradScaler;  // it stands between backward() and step()
  std::unique_ptr<tensors::TrainingEngine> engine_;
};

}  // namespace kolo
#pragma GCC visibility pop
