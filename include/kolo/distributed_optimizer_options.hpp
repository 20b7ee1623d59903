#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "kolo/compression.hpp"
#include "kolo/module_filter.hpp"
#include "kolo/parameter_filter.hpp"
#include "kolo/process_set.hpp"
#include "kolo/reduction.hpp"
#include "kolo/shard.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Where gradients add up over backward_passes_per_step.
enum class Accumulation : std::uint8_t {
  Local,    ///< on their rank; they are reduced with the last pass
  Reduced,  ///< in each rank's shard: every pass is reduced by itself
};

/// Local SGD: ranks step alone with their own gradients, and average parameters now and then. As
/// PyTorch's post_localSGD; Lin et al., "Don't use large mini-batches, use local SGD", 2018.
struct LocalSgd {
  int period = 0;               ///< parameters are averaged after every `period` steps; 0: off
  std::int64_t start_step = 0;  ///< the steps before it reduce gradients as usual
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
  /// With period > 0, from step `start_step` on no gradients are reduced: a step uses this rank's
  /// own, and after every `period` steps parameters are averaged over ranks, those of 16 bits in
  /// float32. The optimizer's state, buffers, clipping and the scale of a GradScaler are each
  /// rank's own meanwhile. Only with shard = None, and without join().
  LocalSgd local_sgd{};
  /// f > 0: gradients are multiplied by 1/f before the reduction and by f after it. With Average
  /// only.
  double gradient_predivide_factor = 1.0;
  /// Of gradients while they are sent, in every shard mode. Codecs are for Average and Sum, a
  /// program's own for CPU memory only; with shard_scope = Node they encode only what nodes send
  /// each other. Sparse gradients that a codec encodes are made dense. See docs/compression.md.
  Compression compression = Compression::none();
  /// BetweenNodes: with shard = None, nodes reduce their gradients in full precision, and compress
  /// what they send one another. With shards, for shard_scope = Node alone, of which codecs never
  /// encode anything within a node. Without effect on one node.
  CompressionScope compression_scope = CompressionScope::Everywhere;
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

  /// Compares the parameters of all ranks after every so many steps, as check_replicas() does, and
  /// throws its error from step(); 0: never. With local_sgd, after parameters are averaged; a step
  /// of one rank alone does not count. Costs reading all parameters once.
  int check_replicas_every = 0;

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

}  // namespace kolo
#pragma GCC visibility pop
