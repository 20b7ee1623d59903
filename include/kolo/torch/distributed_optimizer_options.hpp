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
#include "kolo/torch/module_filter.hpp"
#include "kolo/torch/parameter_filter.hpp"

#pragma GCC visibility push(default)
namespace kolo {

/// Where gradients accumulate over backward_passes_per_step.
enum class Accumulation : std::uint8_t {
  Local,    ///< on their rank; the last pass reduces them
  Reduced,  ///< in each rank's shard; every pass reduces its gradients
};

/// Local SGD: ranks step alone with their own gradients and periodically average parameters. As
/// PyTorch's post_localSGD; Lin et al., "Don't use large mini-batches, use local SGD", 2018.
struct LocalSgd {
  int period = 0;               ///< steps between averages of parameters; 0: off
  std::int64_t start_step = 0;  ///< steps before it reduce gradients as usual
};

/// Options of a DistributedOptimizer; the same on all ranks, or the constructor throws.
struct DistributedOptimizerOptions {
  // Behaviour.
  /// How gradients are reduced over ranks: Average, Sum or Adasum. Adasum combines the gradients of
  /// each parameter; Horovod's optimizer combines the wrapped optimizer's updates instead. For
  /// plain SGD the two are the same.
  ReduceOp op = ReduceOp::Average;
  /// Calls of backward() before gradients are reduced. Their gradients are summed, not averaged:
  /// divide the loss yourself, as with Horovod.
  int backward_passes_per_step = 1;
  /// Reduced requires shard = Gradients. From the second step on, full gradients are then not kept
  /// between passes. n passes move (n + 1) / 2 times as many bytes as with Local.
  Accumulation accumulation = Accumulation::Local;
  /// With period > 0, no gradients are reduced from step `start_step` on: each step uses this
  /// rank's own gradients, and after every `period` steps parameters are averaged over ranks,
  /// 16-bit ones in float32. Meanwhile each rank has its own optimizer state, buffers, clipping and
  /// GradScaler scale. Only with shard = None, and without join().
  LocalSgd local_sgd{};
  /// f > 0: gradients are multiplied by 1/f before the reduction and by f after it. With Average
  /// only.
  double gradient_predivide_factor = 1.0;
  /// How gradients are compressed when they are sent, in every shard mode. Codecs support Average
  /// and Sum, your own codecs CPU memory only; with shard_scope = Node they encode only traffic
  /// between nodes. Sparse gradients that a codec encodes are made dense. See docs/compression.md.
  Compression compression = Compression::none();
  /// BetweenNodes: with shard = None, nodes reduce their gradients in full precision and compress
  /// only traffic between nodes. With shards, it requires shard_scope = Node, where codecs never
  /// encode anything within a node anyway. No effect on one node.
  CompressionScope compression_scope = CompressionScope::Everywhere;
  /// With a codec: adds the encoding error of a gradient, the residual, to the next gradient. Each
  /// rank keeps two floats per element that it encodes. A skipped step leaves residuals unchanged.
  bool error_feedback = true;
  /// Selects the parameters whose gradients are compressed, the same on all ranks; by default all.
  /// They get buckets of their own. `kolo::matrices()` leaves out biases and norms.
  ParameterFilter compression_policy{};
  /// Makes sparse gradients dense and puts them into buckets like all others. Otherwise parameters
  /// whose gradient was sparse on any rank in the first step leave their bucket, and
  /// sparse_allreduce reduces their gradients without compression. Gradients are always made dense
  /// if another parameter's gradient becomes sparse later, if `op` is Adasum, or if the optimizer
  /// is sharded.
  bool sparse_as_dense = false;
  JoinDivisor join_divisor = JoinDivisor::World;  ///< for Average while some ranks have joined
  ProcessSet* process_set = nullptr;              ///< null: the world of Runtime::current()
  /// What is sharded over the ranks; by default the value of KOLO_SHARD. See docs/sharding.md.
  ///
  /// Optimizer: each rank keeps the optimizer state of one equal shard of every bucket. step()
  /// updates the shards and gathers the parameters, which are then equal on all ranks, and
  /// bit-equal to those of None where reductions are rank-ordered (except after clipping). The
  /// wrapped optimizer must be element-wise: its step() is called for each bucket in which this
  /// rank's shard has gradients, with those leaves in their parameter group. Parameters must be
  /// contiguous, each in a storage of its own. After the reduction grad() refuses access. Sparse
  /// gradients are made dense. State that the wrapped optimizer already has is sharded too.
  /// Destroying this object erases all sharded state.
  ///
  /// Gradients: in addition, from the second step on, each rank keeps only its shard of the reduced
  /// gradients and frees a full gradient as soon as its bucket is submitted. Buckets share three
  /// slots of memory and are submitted in a fixed order. A backward() that needs a slot in use
  /// waits for that bucket's reduction, and throws its errors.
  ///
  /// Full: in addition, the ranks of a node share one copy of the parameters, permanently from
  /// construction on, with the values of the node's first rank. Each rank updates its shards in
  /// place once all have entered step(); nothing is gathered. Parameters stay ordinary tensors, but
  /// programs may write to them only in full_parameters(); other writes are errors, detected by the
  /// tensors' versions. Where ranks share no memory, each keeps only its shards, and LibTorch's
  /// operators gather the parameters that they use, on all ranks in the same order. Frozen
  /// parameters of the model are sharded too.
  std::optional<Shard> shard{};
  /// Node: parameters move only within nodes; between nodes, each shard's gradients are summed
  /// once. Requires the world as process set, and equally many ranks on every node.
  ShardScope shard_scope = ShardScope::World;
  /// With shard = Full and a model: selects modules whose parameters are gathered together, where
  /// parameters are gathered, and reduced together. Of nested ones the innermost counts. Parameters
  /// outside of all selected modules, and parameters shared by several, are gathered in groups of
  /// whole modules of up to bucket_bytes; without a policy, all parameters are. Excludes `groups`.
  /// As FSDP's auto_wrap_policy.
  ModuleFilter unit_policy{};
  /// false: units gathered by forward() stay gathered until step(), as with FSDP's SHARD_GRAD_OP.
  /// Moves a third fewer bytes, but needs memory for all parameters meanwhile.
  bool reshard_after_forward = true;

  // Precision and device.
  /// The least precise dtype in which gradients are accumulated and reduced: kFloat or kDouble.
  /// Gradients of less precise parameters have this dtype from their reduction on, also in grad(),
  /// and take correspondingly more memory and bytes; `compression` sends fewer. Default: the dtype
  /// of the parameters, or float32 with master_weights. As FSDP's reduce_dtype. Does not apply to
  /// complex parameters.
  std::optional<c10::ScalarType> reduce_dtype{};
  /// The optimizer updates float32 copies of float16 and bfloat16 parameters (see set_dtype());
  /// each rank keeps the copies of its shards, and the parameters get the rounded values. Optimizer
  /// state is float32 too. If the program writes to a parameter, its copy gets the new value. Not
  /// with shard = None.
  bool master_weights = false;
  /// Updates shards of CUDA parameters on the CPU, where their gradients, their state and, with
  /// Full, the shards themselves are kept. The CPU waits for the GPU when shards are copied. Not
  /// with shard = None; no effect on CPU parameters.
  bool offload = false;

  // Speed.
  /// The maximum bytes of gradients that are reduced together; 0: a 16th of all, at most 25 MiB.
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
