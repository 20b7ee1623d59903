#include <string>

#include "comm/shared_memory.hpp"
#include "kolo/agreement.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "train/sharding/parameter_memory.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

/// Joins the ranks' segments, which hold each rank's shards of all buckets, so that the shards of
/// a bucket are contiguous.
SharedBuffer make_memory(const BucketPlan& plan, const OperationOptions& options) {
  ProcessSet& set = *options.process_set;
  const auto ranks = static_cast<std::size_t>(set.size());
  if (ranks == 1) return SharedBuffer(plan.size_bytes, options);
  std::size_t own_bytes = 0;
  for (const Bucket& bucket : plan.buckets) own_bytes += bucket.shard_bytes(ranks);
  const auto segments = std::make_shared<const SharedBuffer>(own_bytes, options);
  if (!segments->is_shared()) {
    throw InvalidArgument(
        "DistributedOptimizer: shard = full keeps one copy of the parameters in memory that the "
        "ranks of process set " +
        set.name() +
        " share, for which /dev/shm is too small. Enlarge it, or use shard = "
        "gradients.");
  }
  const std::vector<std::byte*> peers = segments->peers(set);
  std::vector<comm::JoinedMapping::Part> parts;
  std::size_t used = 0;
  for (const Bucket& bucket : plan.buckets) {
    const std::size_t bytes = bucket.shard_bytes(ranks);
    for (std::size_t rank = 0; bytes > 0 && rank < ranks; ++rank) {
      parts.push_back({peers[rank] + used, bytes, bucket.offset + rank * bytes});
    }
    used += bytes;
  }
  std::shared_ptr<comm::JoinedMapping> joined;
  std::string problem;
  try {
    joined = std::make_shared<comm::JoinedMapping>(plan.size_bytes, parts);
  } catch (const BackendError& error) {
    problem = error.what();
  }
  check_agreement("DistributedOptimizer", {}, problem,
                  {.name = options.name + ".joined", .process_set = &set});
  const TensorView extent{
      joined->data(), DType::UInt8, {static_cast<std::int64_t>(plan.size_bytes)}, Device{}};
  return {options.name + ".joined", extent, joined};
}

class CopyPerNode final : public ParameterMemory {
 public:
  CopyPerNode(const BucketPlan& plan, const OperationOptions& options)
      : ParameterMemory(make_memory(plan, options)), options_(options) {}

  std::size_t offset_of_shard(const Bucket& bucket) const override {
    return offset_in_plan(bucket, *options_.process_set);
  }

  void move_in(const std::vector<at::Tensor>& parameters, const BucketPlan& plan) override {
    for_each(parameters, plan, [&](const at::Tensor& parameter, std::size_t offset) {
      if (options_.process_set->rank() > 0) return;
      tensor_over(buffer(), offset, parameter.sizes(), parameter.options())
          .copy_(parameter.detach());
      rebind_storage(parameter, buffer(), offset,
                     Copies::PerNode);  // now, so that only one parameter at a time is kept twice
    });
    synchronize_ranks("values");
    for_each(parameters, plan, [&](const at::Tensor& parameter, std::size_t offset) {
      rebind_storage(parameter, buffer(), offset, Copies::PerNode);
    });
  }

  void begin_update() override {}
  void end_bucket(std::size_t, const std::string&) override {}
  void end_update(const std::string& failure) override { synchronize_ranks("end", failure); }

 private:
  template <class Visit>
  static void for_each(const std::vector<at::Tensor>& parameters, const BucketPlan& plan,
                       Visit visit) {
    for (const Bucket& bucket : plan.buckets) {
      for (const Bucket::Member& member : bucket.members) {
        visit(parameters[member.parameter], member.offset);
      }
    }
  }

  void synchronize_ranks(const std::string& where, const std::string& purpose = {}) const {
    OperationOptions options = options_;
    options.name += "." + where;
    options.purpose = purpose;
    barrier(options);
  }

  const OperationOptions options_;
};

}  // namespace

bool can_keep_one_copy(const at::Device& device, const OperationOptions& options) {
  if (!device.is_cpu()) return false;
  return options.process_set->size() == 1 || SharedBuffer(1, options).is_shared();
}

std::unique_ptr<ParameterMemory> make_copy_per_node(const BucketPlan& plan,
                                                    const OperationOptions& options) {
  return std::make_unique<CopyPerNode>(plan, options);
}

}  // namespace kolo::train
