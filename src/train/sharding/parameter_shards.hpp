#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "kolo/process_set.hpp"
#include "kolo/shard.hpp"
#include "train/buckets/gradient_buckets.hpp"
#include "train/sharding/parameter_memory.hpp"
#include "train/wrapped/wrapped_optimizer.hpp"

namespace kolo::train {

/// The ranks among which a sharded optimizer communicates. The optimizer may outlive the Runtime.
struct ShardSets {
  std::shared_ptr<ProcessSet> sharded;   ///< the ranks that hold different shards
  std::shared_ptr<ProcessSet> replicas;  ///< those that hold this rank's shard; null: no others
};

/// Whether each rank keeps only its shard of the reduced gradients.
inline bool shards_gradients(Shard shard) { return shard >= Shard::Gradients; }

/// Why state cannot be sharded over `set` with this scope; empty if it can.
std::string problem_with_scope(const ProcessSet& set, ShardScope scope);

/// Collective over `set`, which must be the world if process sets must be added.
ShardSets make_shard_sets(ProcessSet& set, ShardScope scope);

/// The dtype and device in which shards are updated; see DistributedOptimizerOptions.
struct UpdateType {
  bool master_weights = false;
  bool offload = false;

  /// The type of the leaves of parameters whose memory has type `memory`.
  at::TensorOptions of(at::TensorOptions memory) const;
  bool has_master(const at::Tensor& parameter) const {
    return of(parameter.options()).dtype() != parameter.dtype();
  }
};

/// The parameters of some buckets, sharded: each rank updates one equal shard of every bucket.
///
/// A shard is a range of a bucket. Each parameter that overlaps it has leaves there, several if it
/// is long: autograd leaves over the parameter's memory, which the wrapped optimizer steps like
/// parameters. One leaf per shard would not do: a parameter without a gradient must not be stepped,
/// nor its state. A parameter that the optimizer needs whole lies in one shard and is one leaf, of
/// its own shape. A leaf whose type differs from the memory's is a master copy: it has its own
/// memory, and is copied to the parameter's memory after each step.
class ParameterShards {
 public:
  struct Leaf {
    std::size_t parameter;  ///< its index
    std::size_t member;     ///< its index among the bucket's members
    std::int64_t begin;     ///< its first element in the parameter
    at::Tensor elements;    ///< over the parameter's memory: of its shape if it is whole, otherwise
                            ///< [n], or [1, 1] if it is one element
    at::Tensor values;      ///< stepped by the optimizer: the same memory, or a master copy
    at::Tensor gradient;    ///< reduced

    bool has_master() const { return values.const_data_ptr() != elements.const_data_ptr(); }
  };

  /// Moves the parameters into `memory`, which has the layout of `plan`. `gradients[i]` [n] is rank
  /// `rank`'s shard of the gradients of bucket i. Collective over the set that shards.
  ParameterShards(const std::vector<at::Tensor>& parameters, const BucketPlan& plan,
                  std::unique_ptr<ParameterMemory> memory, std::vector<at::Tensor> gradients,
                  const UpdateType& type, int rank);

  const std::vector<Leaf>& leaves(std::size_t bucket) const { return leaves_[bucket]; }
  /// This rank's shard [n] of a bucket's gradients.
  const at::Tensor& gradient_shard(std::size_t bucket) const { return gradients_[bucket]; }

  /// Replaces state and master copies of parameters with those of their leaves. Throws
  /// InvalidArgument for state that cannot be read.
  void shard_state(WrappedOptimizer& optimizer) const;
  /// Erases the state of all leaves, since other tensors may reuse their addresses.
  void erase_state(WrappedOptimizer& optimizer) const;

  /// Assigns the reduced gradients of a bucket to its leaves. A leaf without a gradient on any rank
  /// keeps the gradient of an earlier pass if `adds_up`, otherwise none.
  void assign_gradients(std::size_t bucket, const GradientBuckets& buckets, bool adds_up) const;
  void clear_gradients(std::size_t bucket) const;
  void clear_gradients_of(std::size_t parameter) const;
  void append_gradients(std::vector<at::Tensor>& gradients) const;
  /// Calls `visit` with the gradient of each leaf that has one, and the index of its parameter.
  template <class Visit>
  void for_each_gradient(const Visit& visit) const {
    for (const std::vector<Leaf>& leaves : leaves_) {
      for (const Leaf& leaf : leaves) {
        if (leaf.values.grad().defined()) visit(leaf.parameter, leaf.values.mutable_grad());
      }
    }
  }

  /// The bucket's leaves that have a gradient, for the optimizer to step. If the program has
  /// written to a parameter, its master copy gets the new value.
  std::vector<const Leaf*> begin_update(std::size_t bucket) const;
  /// Copies stepped master copies to the parameters' memory.
  void end_update(std::size_t bucket) const;

  ParameterMemory& memory() const { return *memory_; }
  /// Renumbers the buckets: bucket i becomes the former `order[i]`. Only for memory that does not
  /// use bucket numbers.
  void renumber(const std::vector<std::size_t>& order);
  /// The buckets, each at its offset in the memory.
  const std::vector<Bucket>& layout() const { return layout_; }

 private:
  std::vector<Leaf> make_leaves(const Bucket& bucket, std::size_t begin, std::size_t end,
                                const at::Tensor& gradients) const;

  std::vector<at::Tensor> parameters_;
  std::vector<Bucket> layout_;
  std::unique_ptr<ParameterMemory> memory_;
  UpdateType type_;
  std::vector<at::Tensor> gradients_;      // this rank's shard of each bucket
  std::vector<std::vector<Leaf>> leaves_;  // of each bucket
};

}  // namespace kolo::train
