#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "kolo/compression.hpp"
#include "kolo/process_set.hpp"
#include "kolo/reduction.hpp"
#include "kolo/shard.hpp"
#include "kolo/torch/filters.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Where gradients accumulate over backward_passes_per_step.
enum class Accumulation : std::uint8_t {
  Local,  ///< on their rank, where full gradients stay between passes; the last pass reduces them
  /// In each rank's shard: every pass reduces its gradients, and n passes move (n + 1) / 2 times as
  /// many bytes. As FSDP without no_sync(), with which its users run out of memory: pytorch#72185,
  /// fairscale#752, accelerate#2531, open-instruct#746 on GitHub.
  /// The end of each backward() waits for the other ranks: if several optimizers train one loss,
  /// all ranks must use the same layers in it.
  Reduced,
};

/// Local SGD: ranks step alone with their own gradients and periodically average parameters. As
/// PyTorch's post_localSGD; Lin et al., "Don't use large mini-batches, use local SGD", 2018.
struct LocalSgd {
  int period = 0;               ///< steps between averages of parameters; 0: off
  std::int64_t start_step = 0;  ///< steps before it reduce gradients as usual
};

/// Options of a DistributedOptimizer; the same on all ranks, or the constructor throws.
struct DistributedOptimizerOptions {
  // --- Reduction ---

  /// How gradients are reduced over ranks: Average, Sum or, on CPUs, Adasum. Adasum combines the
  /// gradients of each parameter; Horovod's optimizer combines the wrapped optimizer's updates
  /// instead. For plain SGD the two are the same.
  ReduceOp op = ReduceOp::Average;
  /// f > 0: gradients are multiplied by 1/f before the reduction and by f after it. With Average
  /// only.
  double gradient_predivide_factor = 1.0;
  /// Makes sparse gradients dense. Otherwise sparse_allreduce reduces, without compression,
  /// parameters whose gradient was sparse on any rank in the first step. Gradients are always made
  /// dense if another parameter's gradient becomes sparse later, if `op` is Adasum, or if the
  /// optimizer is sharded.
  bool sparse_as_dense = false;
  JoinDivisor join_divisor = JoinDivisor::World;  ///< for Average while some ranks have joined
  /// While gradients are reduced, the program may read them, as with Horovod, but not write to
  /// them: what it reads is undefined. Otherwise reading throws, too. No effect where gradients are
  /// sharded.
  bool reads_in_flight = false;
  ProcessSet* process_set = nullptr;  ///< null: the world of Runtime::current()

  // --- Accumulation and local SGD: docs/training.md ---

  /// Calls of backward() before gradients are reduced. Their gradients are summed, not averaged:
  /// divide the loss yourself, as with Horovod.
  int backward_passes_per_step = 1;
  Accumulation accumulation = Accumulation::Local;  ///< Reduced requires shard Gradients or Full
  /// With period > 0, each step from `start_step` on uses this rank's own gradients, and after
  /// every `period` steps parameters are averaged over ranks, 16-bit ones in float32. Meanwhile
  /// each rank has its own optimizer state, buffers, clipping and GradScaler scale. Only with
  /// shard = None, and without join().
  LocalSgd local_sgd{};

  // --- Compression: docs/compression.md ---

  /// How gradients are compressed when they are sent. Codecs require Average or Sum and CPU memory;
  /// with shard_scope = Node they encode only traffic between nodes. Sparse gradients that a codec
  /// encodes are made dense.
  Compression compression = Compression::none();
  /// BetweenNodes requires shard = None, or shard_scope = Node, where it concerns fp16 and bf16.
  CompressionScope compression_scope = CompressionScope::Everywhere;
  /// With a codec: adds the encoding error of a gradient, the residual, to the next gradient. Each
  /// rank keeps two floats per element that it encodes.
  bool error_feedback = true;
  /// Selects the parameters whose gradients are compressed, the same on all ranks; by default all.
  /// They get buckets of their own. `kolo::matrices()` leaves out biases and norms.
  ParameterFilter compression_policy{};

  // --- Sharding: docs/sharding.md ---

  /// What is sharded over the ranks; by default the value of KOLO_SHARD.
  ///
  /// Optimizer: the optimizer state. step() updates this rank's equal shard of every bucket and
  /// gathers the parameters, which are then bit-equal to those of None where reductions are
  /// rank-ordered (except after clipping). The wrapped optimizer's step() is called for each bucket
  /// in which this rank's shard has gradients, or once, with those leaves in their parameter group:
  /// pieces of parameters, or whole ones if it needs them (kolo/torch/tensor_needs.hpp); it must
  /// not need its closure. Parameters must be contiguous, each in a storage of its own. After the
  /// reduction grad() refuses access. Existing state is sharded too, and destroying this object
  /// erases it.
  ///
  /// Gradients: also the reduced gradients, from the second step on. Buckets share three slots of
  /// memory: a backward() that needs one in use waits for its reduction, and throws its errors.
  ///
  /// Full: also the parameters, from construction on, with the values of the first rank. Programs
  /// may write to them only in full_parameters(). Ranks that share memory share one copy, and
  /// parameters stay ordinary tensors. Otherwise each rank keeps only its shards, and LibTorch's
  /// operators gather what they use, on all ranks in the same order.
  std::optional<Shard> shard{};
  /// Node: parameters move only within nodes; between nodes, each shard's gradients are summed
  /// once. Requires the world as process set, and equally many ranks on every node.
  ShardScope shard_scope = ShardScope::World;
  /// With shard = Full and a model, where parameters are gathered: selects modules whose parameters
  /// are gathered and reduced together. Of nested ones the innermost counts. Parameters outside of
  /// all selected modules or shared by several, and without a policy all, are gathered in groups of
  /// whole modules of up to bucket_bytes. Excludes `groups`. As FSDP's auto_wrap_policy.
  ModuleFilter unit_policy{};
  /// false: units gathered by forward() stay gathered until step(), as with FSDP's SHARD_GRAD_OP.
  /// Moves a third fewer bytes, but needs memory for all parameters meanwhile.
  bool reshard_after_forward = true;

  // --- Precision and device: docs/sharding.md ---

  /// The least precise dtype in which gradients are accumulated and reduced: kFloat or kDouble.
  /// Gradients of less precise parameters have this dtype from their reduction on, also in grad().
  /// Default: the dtype of the parameters, or float32 with master_weights. As FSDP's reduce_dtype.
  /// Does not apply to complex parameters.
  std::optional<c10::ScalarType> reduce_dtype{};
  /// The optimizer updates float32 copies of float16 and bfloat16 parameters (see set_dtype()),
  /// with float32 state; each rank keeps those of its shards, and the parameters get the rounded
  /// values. If the program writes to a parameter, its copy gets the new value. Not with
  /// shard = None.
  bool master_weights = false;
  /// Updates shards of CUDA parameters on the CPU, where their gradients, their state and, with
  /// Full, the shards themselves are kept. The CPU waits for the GPU when shards are copied. Not
  /// with shard = None; no effect on CPU parameters.
  bool offload = false;

  // --- Speed ---

  /// The maximum bytes of gradients that are reduced together; 0: a 16th of all, at most 25 MiB and
  /// on a GPU at least 4 MiB.
  /// Larger buckets cost less per byte, smaller ones start earlier.
  std::size_t bucket_bytes = 0;
  /// Groups of parameters whose gradients are reduced together: one bucket per group and dtype, of
  /// any size. All other parameters go to ordinary buckets.
  std::vector<std::vector<at::Tensor>> groups{};
  /// Steps torch::optim::Adam, AdamW and SGD with LibTorch's fused kernels instead of their step(),
  /// which is faster, for Adam several times. Results differ from step() in the last bits, but not
  /// between shard modes. State and options stay those of the optimizer, so a checkpoint also
  /// resumes without `fused`. Other classes, including derived ones, parameters that are not
  /// contiguous, and sparse gradients are errors.
  bool fused = false;
};

}  // namespace kolo
#pragma GCC visibility pop
