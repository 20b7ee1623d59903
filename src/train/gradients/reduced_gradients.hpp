#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/buckets/gradient_buckets.hpp"
#include "train/gradients/bucket_reduction.hpp"
#include "train/sharding/parameter_shards.hpp"

namespace kolo::train {

/// Where a step's reduced gradients are, from the submission of their buckets until the step has
/// used them. A shard mode chooses one of the two below; who reduces does not ask which.
///
/// Buckets are laid out anew while this stays, so each call is given those of the present layout.
class ReducedGradients {
 public:
  using Visit = std::function<void(std::size_t parameter, at::Tensor& gradient)>;

  virtual ~ReducedGradients() = default;

  // --- the reduction of a bucket ---

  /// Copies this rank's gradients into the bucket, multiplied by `factor`, with its flags. Returns
  /// those replaced.
  virtual std::vector<at::Tensor> fill(GradientBuckets& buckets, const Bucket& bucket,
                                       const RankFlags& own, double factor) const = 0;
  /// Submits the filled bucket. `is_first`: of this step; the sums of later passes are added.
  virtual std::unique_ptr<BucketReduction> submit(const GradientBuckets& buckets,
                                                  std::size_t bucket, const std::string& name,
                                                  const DistributedOptimizerOptions& options,
                                                  const Coding& coding, const BoundHook& hook,
                                                  bool is_first) = 0;
  /// From here on other buckets may use the memory of this one.
  virtual void lend_memory(const GradientBuckets& buckets, const Bucket& bucket) = 0;
  /// What the reduction has written, before assign().
  virtual at::Tensor result(const GradientBuckets& buckets, std::size_t bucket, bool is_first) = 0;
  virtual void assign(GradientBuckets& buckets, std::size_t bucket, bool is_first) = 0;

  // --- until the step has used them ---

  /// The gradients of parameters, or of this rank's leaves.
  virtual void append(std::vector<at::Tensor>& gradients) const = 0;
  /// Calls `visit` with this rank's pieces, which it may change or undefine.
  virtual void visit(const Visit& visit) const = 0;
  virtual void drop(std::size_t parameter) = 0;
  /// Undefines all that are in buckets and shards.
  virtual void clear(GradientBuckets& buckets) = 0;
  /// Whether grad() of the parameter is as a reduction has left it.
  virtual bool is_in_place(const GradientBuckets& buckets, std::size_t parameter) const = 0;
  /// Whether the reduced gradient is sharded, and the program has undefined or replaced grad().
  virtual bool is_gone(std::size_t parameter) const = 0;
  /// Whether grad() has another gradient than the reduced one, which a sharded optimizer ignores.
  virtual bool is_ignored(std::size_t parameter) const = 0;
  /// Undefines the stand-in for the parameter's sharded gradient, if there is one; or all of them.
  virtual void remove_stand_in(std::size_t parameter) = 0;
  virtual void remove_stand_ins() = 0;

  /// Null: each rank has whole gradients.
  virtual ParameterShards* shards() { return nullptr; }
};

/// Each rank has all reduced gradients, as grad() of the parameters, which outlive this.
std::unique_ptr<ReducedGradients> make_whole_gradients(const std::vector<at::Tensor>& parameters);

/// Each rank has those of its shards, as gradients of their leaves. grad() of the parameters is
/// withheld: a program would read nothing there. `parameters` and `sets` outlive this.
std::unique_ptr<ReducedGradients> make_sharded_gradients(const std::vector<at::Tensor>& parameters,
                                                         std::vector<std::string> names,
                                                         ParameterShards shards,
                                                         const ShardSets& sets);

}  // namespace kolo::train
