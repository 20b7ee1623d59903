#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
#include "kolo/shared_buffer.hpp"
#include "train/buckets/bucket_plan.hpp"
#include "train/sharding/gathered_units.hpp"

namespace kolo::train {

/// Memory of sharded parameters, and how a rank's updates reach the others. Its functions are
/// collective over the set that shards, unless they say otherwise.
class ParameterMemory {
 public:
  virtual ~ParameterMemory() = default;

  const SharedBuffer& buffer() const { return buffer_; }
  /// Where this rank's shard of a bucket of the plan begins in the buffer. Not collective.
  virtual std::size_t offset_of_shard(const Bucket& bucket) const = 0;
  /// Moves the elements of all parameters of the plan; the tensors and views of them stay valid.
  virtual void move_in(const std::vector<at::Tensor>& parameters, const BucketPlan& plan) = 0;

  /// The units, if parameters are gathered on use; otherwise null. Not collective.
  virtual GatheredUnits* units() const { return nullptr; }

  /// Before this rank's shards are updated; all ranks have begun to step, and read no parameters.
  /// Not collective.
  virtual void begin_update() = 0;
  /// This rank's shard of the bucket is updated; or not, because of `failure`, if it is not empty.
  virtual void end_bucket(std::size_t bucket, const std::string& failure) = 0;
  /// Returns when this rank can read the updates of all ranks. If a rank has a failure, throws
  /// MismatchError with its text on all; but not where parameters are gathered on use.
  virtual void end_update(const std::string& failure) = 0;

 protected:
  explicit ParameterMemory(SharedBuffer buffer) : buffer_(std::move(buffer)) {}

  /// The offset in a buffer with the layout of the plan, whose buckets divide into equal shards.
  static std::size_t offset_in_plan(const Bucket& bucket, const ProcessSet& set) {
    return bucket.offset + bucket.shard_bytes(static_cast<std::size_t>(set.size())) *
                               static_cast<std::size_t>(set.rank());
  }

 private:
  SharedBuffer buffer_;
};

/// A copy of all parameters on each rank: every bucket is all-gathered as soon as it is updated.
/// `options` has the set and the memory's name.
std::unique_ptr<ParameterMemory> make_copy_per_rank(const BucketPlan& plan,
                                                    const at::Device& device,
                                                    const OperationOptions& options);

/// Whether the ranks of the set of `options` can keep one copy: on CPUs with shared memory.
/// Collective over the set.
bool can_keep_one_copy(const at::Device& device, const OperationOptions& options);

/// One copy for all ranks of a node; each rank keeps the pages of its shards. Shards are updated in
/// place, once all ranks have ceased to read. The values are those of the set's first rank. Shards
/// of the plan divide into pages. Throws InvalidArgument on all ranks if any cannot share or map
/// the memory.
std::unique_ptr<ParameterMemory> make_copy_per_node(const BucketPlan& plan,
                                                    const OperationOptions& options);

/// Arguments of make_gathered_on_use().
struct UnitSetup {
  UnitPlan units;                  ///< of the plan's parameters, then of the frozen ones
  std::vector<at::Tensor> frozen;  ///< gathered with the others, and never updated
  BucketPlan frozen_plan;          ///< their shards are those of its buckets
  at::Device device;
  bool offload;                      ///< shards lie in CPU memory
  std::string reducer;               ///< see GatheredUnits
  std::shared_ptr<UnitCalls> calls;  ///< see GatheredUnits
};

/// Only this rank's shards. The parameters of a unit are gathered when one of them is used, see
/// GatheredUnits. The values are those of the set's first rank. A bucket has the parameters of one
/// unit.
std::unique_ptr<ParameterMemory> make_gathered_on_use(const BucketPlan& plan, UnitSetup setup,
                                                      const OperationOptions& options);

}  // namespace kolo::train
