#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "kolo/bucket_hook.hpp"
#include "kolo/checkpoint.hpp"
#include "kolo/compression.hpp"
#include "kolo/process_set.hpp"
#include "kolo/reduction.hpp"
#include "kolo/shard.hpp"
#include "kolo/training_report.hpp"

namespace torch::nn {
class Module;
}

namespace kolo {

class GradScaler;
namespace tensors {
class TrainingEngine;
}

/// Where gradients add up over backward_passes_per_step.
enum class Accumulation : std::uint8_t {
  Local,    ///< on their rank, all of them, to be reduced with the last pass
  Reduced,  ///< in each rank's part of them: each pass is reduced, none is kept as a whole
};

/// The same on all ranks; where ranks differ, the constructor throws on all of them.
struct DistributedOptimizerOptions {
  // Behaviour.
  /// Of gradients over ranks: Average, Sum or Adasum. Adasum combines the gradients of each
  /// parameter by itself; Horovod's optimizer combines what its wrapped optimizer makes of them
  /// instead, which is the same for plain SGD.
  ReduceOp op = ReduceOp::Average;
  /// Calls of backward() whose gradients add up before they are reduced. They are summed, not
  /// averaged: divide the loss yourself, as with Horovod.
  int backward_passes_per_step = 1;
  /// Reduced needs shard = Gradients, which it keeps from holding all gradients between passes. It
  /// moves more: (n + 1) / 2 times as much for n passes. From the second step on.
  Accumulation accumulation = Accumulation::Local;
  /// f: gradients are multiplied by 1/f before and by f after the reduction; with Average only.
  double gradient_predivide_factor = 1.0;
  Compression compression = Compression::none();  ///< on the wire
  /// Sparse gradients are made dense and lie in buckets like all others. Otherwise parameters whose
  /// gradient was sparse on any rank in the first step leave their bucket, and theirs are reduced
  /// by sparse_allreduce, without compression; those of a dense parameter that come later are made
  /// dense, and so are all where `op` is neither Sum nor Average.
  bool sparse_as_dense = false;
  JoinDivisor join_divisor = JoinDivisor::World;  ///< of Average while some ranks have joined
  ProcessSet* process_set = nullptr;              ///< by default the world of Runtime::current()
  /// What the ranks divide among themselves. Optimizer: each rank keeps the optimizer's state of an
  /// equal part of every bucket, updates that, and gives it to the others, all of it in step(); so
  /// the wrapped optimizer must treat every element by itself, and its step() is called for each
  /// bucket, with those parts in its groups that have a gradient. Parameters become the same on all
  /// ranks, bit by bit what they are with None where reductions are rank-ordered (without
  /// clipping). They must be contiguous, each with a storage of its own; gradients are taken from
  /// them when they have been reduced, and sparse ones are made dense. State that the wrapped
  /// optimizer has is divided too, and gone when this object is. Gradients: the same; besides, from
  /// the second step on a gradient is gone as soon as its bucket is being reduced, and of the sum
  /// each rank keeps its part only. Three buckets are reduced at a time, in their order: a
  /// backward() that is further ahead waits, and throws the errors of what it waits for. Where it
  /// is not given, KOLO_SHARD says it. See docs/sharding.md.
  std::optional<Shard> shard{};
  /// Node: hybrid sharding. Parameters move inside nodes only, gradients between them once for each
  /// part. With the world only, and equally many ranks on every node.
  ShardScope shard_scope = ShardScope::World;

  // Speed.
  /// Gradients that are reduced together. 0: an equal share of 16, 25 MiB at most. Larger buckets
  /// cost less per byte, smaller ones start earlier.
  std::size_t bucket_bytes = 0;
  /// Parameters whose gradients are reduced as one, when the last of them has arrived: a bucket a
  /// group (one for each type in it), whatever its size. Those in no group go to ordinary buckets.
  std::vector<std::vector<at::Tensor>> groups{};
  int num_groups = 0;  ///< instead: that many groups of equally many parameters; 0: none
  /// Steps torch::optim::Adam, AdamW and SGD by LibTorch's kernels that read and write everything
  /// once, instead of the optimizer's own step(): about a fifth of the time for Adam. Results
  /// differ in the last bits from those without, not between shard modes. State and options are the
  /// optimizer's own, so it may be switched on or off with a checkpoint. Other classes, derived
  /// ones too, parameters that are not contiguous and sparse gradients are errors.
  bool fused = false;
};

/// Trains data-parallel: wraps an optimizer, and reduces the gradients of its parameters over all
/// ranks while backward() still runs.
///
/// It is a torch::optim::Optimizer itself, over the same parameters, so schedulers and functions
/// that take one go on working. Options such as the learning rate may be changed on the wrapped
/// optimizer or on this one; a change on either side takes effect in both at the next step().
///
/// Gradients are views of buckets, in memory that the ranks of a node share where possible: nothing
/// is packed. A bucket is submitted when the last of its gradients has arrived. Their layout
/// follows the order in which gradients arrived on the set's first rank in the first step.
/// Parameters that got no gradient on this rank count as zero; one that got none on any rank keeps
/// none.
///
/// Parameters may come later: a group added to this or to the wrapped optimizer, or a parameter
/// that gets requires_grad, takes part from the next zero_grad(), synchronize() or step() on, which
/// is collective that once.
///
/// Use on every rank of the set alike: each calls step() equally often, whether its loss has
/// reached any of the parameters or not, and steps several optimizers in the same order. A
/// parameter belongs to one of them at a time. The wrapped optimizer and the model outlive it, and
/// the parameters must not be replaced or moved to another type or device. Not thread-safe. Errors
/// of the reductions (see kolo/collectives.hpp) come out of backward(), step(), synchronize() or
/// zero_grad().
class DistributedOptimizer : public torch::optim::Optimizer {
 public:
  using Options = DistributedOptimizerOptions;
  using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

  /// Names of parameters, for error texts, are those in `model`; parameters without one are
  /// numbered. Collective over the set. Throws, on every rank, InvalidArgument where any rank gives
  /// options out of range, one name twice, parameters that are not strided floating CPU tensors, or
  /// an optimizer that evaluates its closure several times a step (LBFGS); MismatchError where
  /// options, or names, types and shapes of parameters differ between ranks.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& model,
                       Options options = {});
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedParameters& names,
                       Options options = {});
  ~DistributedOptimizer() override;
  DistributedOptimizer(const DistributedOptimizer&) = delete;  // hooks refer to it
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// As that of torch::optim::Optimizer, which it hides. If gradients have arrived since the last
  /// step(), it waits for their reductions and throws the result away, on every rank alike: for a
  /// GAN's discriminator, into which the generator's backward() leads, say. backward() does the
  /// same where the gradients were dropped in another way, by the model's zero_grad() for one.
  void zero_grad(bool set_to_none = true);

  /// Blocks until all gradients are reduced, unless `synchronize` has done that already, then steps
  /// the wrapped optimizer. A closure is evaluated once, its gradients are reduced too. Before
  /// backward_passes_per_step is reached it reduces what there is. Inside an autocast region, casts
  /// of parameters that LibTorch keeps are forgotten. With a GradScaler, call that one's step().
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Blocks until all gradients of this step are reduced and lie in the parameters' grad(), to be
  /// looked at or changed before step(), which does not reduce them again. Submits what is
  /// incomplete as it is. Idempotent. A gradient that arrives between it and step() is an error.
  /// Where the optimizer is sharded, the gradients lie in what each rank updates, and grad() is
  /// undefined.
  void synchronize();

  /// Synchronizes, then scales all gradients such that the norm of them all together is at most
  /// `max_norm`. Returns the norm that they had, the same on all ranks. `norm_type` is p of the
  /// p-norm, which may be infinity.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0);

  /// Something that is different as long as the object lives.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(int& depth) : depth_(depth) { ++depth_; }
    ~Guard() { --depth_; }
    Guard(const Guard&) = delete;  // it counts once
    Guard& operator=(const Guard&) = delete;

   private:
    int& depth_;
  };

  /// Under the guard, gradients add up on this rank and nothing is reduced; the next backward()
  /// without it reduces them all, or step() does. As DDP's.
  Guard no_sync();

  /// Under the guard, step() uses the gradients as they are. Not needed after synchronize(), unlike
  /// with Horovod; with no_sync() it makes steps of this rank alone. Where the optimizer is
  /// sharded, step() throws InvalidArgument under it: no rank can update its parameters alone.
  Guard skip_synchronize();

  /// Says that this rank has no more steps to take, and blocks until all ranks of the set have said
  /// so; meanwhile it takes part in their reductions with zeros, and Average divides as
  /// Options::join_divisor says. Then all ranks get parameters, optimizer state and options of one
  /// that has taken the most steps, and may go on training. Buffers of the model are left as they
  /// are. Returns the rank that joined last, as kolo::join. Throws InvalidArgument while gradients
  /// are being reduced.
  int join();

  /// From now on buckets are reduced by `hook` instead of op, compression and predivision; by an
  /// empty one as before. On every rank alike, between steps. Throws InvalidArgument where the
  /// optimizer is sharded.
  void register_bucket_hook(BucketHook hook);

  /// Writes a checkpoint into `folder`: parameters and buffers of the model (all that the
  /// constructor was given names for), the optimizer's state and options, random numbers, and what
  /// `options` adds. Every rank writes what it has, without a copy of it; buffers are those of the
  /// set's first rank. Collective and blocking; between steps, or while gradients add up, which are
  /// no part of it. All ranks see `folder`; it holds each checkpoint as a folder of safetensors
  /// files with index.json, on the disk when save returns. A crash at any moment leaves those that
  /// were there. Files have the permissions that the umask leaves, as a rule readable by everybody.
  /// Another program that saves into `folder`, or loads from it, is waited for, for half of
  /// KOLO_TIMEOUT at most. Throws on all ranks, naming rank, file and cause, BackendError where a
  /// file cannot be written or that program does not end, InvalidArgument for state without
  /// serialize(). State of a class that LibTorch does not know is copied.
  void save(const std::filesystem::path& folder, const SaveOptions& options = {});

  /// Goes on from what any number of ranks with any sharding has saved: `path` is a checkpoint, or
  /// a folder of which it is the newest. Or from a file, of which parameters and buffers are
  /// loaded: one that torch::save has written of the model, or a safetensors file. Before it
  /// changes anything, it has compared shapes, types, options and checksums. Collective and
  /// blocking, between steps. Where no step was taken before, buckets are laid out as they were,
  /// and parameters are divided at once. Throws on all ranks, naming file and tensor,
  /// InvalidArgument for what is missing, damaged or not the program's.
  Loaded load(const std::filesystem::path& path, const LoadOptions& options = {});

  /// Writes one safetensors file with all parameters and buffers under their names, and the
  /// optimizer's state as "optimizer.<field>.<name>", on the world rank `root` alone. No rank holds
  /// more than 4 MiB of it besides what it has. Collective and blocking; errors as those of save().
  void save_full_state(const std::filesystem::path& file, int root = 0);

  /// Those of the wrapped optimizer, for torch::save and torch::load; throw InvalidArgument once
  /// parameters are divided.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// When a bucket of the last step was ready, moved and complete, in seconds from the first
  /// gradient; what proves, or disproves, that communication and backward overlap.
  struct BucketTimes {
    std::size_t size_bytes;
    double submitted;
    double started;
    double ended;
  };
  struct StepTimes {
    double last_gradient = 0.0;
    std::vector<BucketTimes> buckets;  ///< in their order
  };
  const StepTimes& last_step_times() const;

  /// Bytes that this rank keeps and moves, by category, beside the formulas. Not collective.
  TrainingReport report() const;

 private:
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedParameters& names,
                       const NamedParameters& buffers, Options options);

  friend class GradScaler;  // it stands between backward() and step()
  std::unique_ptr<tensors::TrainingEngine> engine_;
};

}  // namespace kolo
