#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
#include "kolo/shared_buffer.hpp"
#include "torch/buckets/bucket_plan.hpp"

namespace kolo::tensors {

/// Memory of sharded parameters, each at the offset that its gradient has in the plan, and how a
/// rank's updates reach the others. Its functions are collective over the set that shards.
class ParameterMemory {
 public:
  virtual ~ParameterMemory() = default;

  const SharedBuffer& buffer() const { return buffer_; }
  /// Moves the elements of all parameters of the plan; the tensors and views of them stay valid.
  virtual void move_in(const std::vector<at::Tensor>& parameters, const BucketPlan& plan) = 0;

  /// Before this rank's shards are updated.
  virtual void begin_update() = 0;
  /// This rank's shard of the bucket is updated.
  virtual void end_bucket(std::size_t bucket) = 0;
  /// Returns when this rank can read what all have updated.
  virtual void end_update() = 0;

 protected:
  explicit ParameterMemory(SharedBuffer buffer) : buffer_(std::move(buffer)) {}

 private:
  SharedBuffer buffer_;
};

/// A copy of all parameters on each rank: every bucket is all-gathered as soon as it is updated.
/// `options` has the set, and the memory's name.
std::unique_ptr<ParameterMemory> make_copy_per_rank(const BucketPlan& plan,
                                                    const at::Device& device,
                                                    const OperationOptions& options);

/// One copy for all ranks, which share a node; each rank keeps the pages of its shards. Shards are
/// updated in place, after all ranks have ceased to read. The values are those of the set's first
/// rank. Shards of the plan divide into pages. Throws InvalidArgument on all ranks if any cannot
/// share or map the memory.
std::unique_ptr<ParameterMemory> make_copy_per_node(const BucketPlan& plan,
                                                    const OperationOptions& options);

}  // namespace kolo::tensors
