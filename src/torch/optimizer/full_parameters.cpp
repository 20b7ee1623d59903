#include "torch/optimizer/full_parameters.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/parameter_sync.hpp"
#include "kolo/runtime.hpp"
#include "torch/checkpoint/block_checksums.hpp"
#include "torch/tensors/agreement.hpp"
#include "torch/tensors/deferred.hpp"
#include "torch/tensors/write_protection.hpp"

namespace kolo::tensors {
namespace {

using NamedTensors = TrainingContext::NamedTensors;

/// A parameter of which ranks share one copy, in private memory while this lives.
class PrivateCopy {
 public:
  explicit PrivateCopy(const at::Tensor& parameter)
      : storage_(parameter.storage()), own_(parameter.variable_data().clone()) {
    shared_ = storage_.unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(
        own_.data_ptr(), new at::Tensor(own_),
        [](void* owner) { delete static_cast<at::Tensor*>(owner); }, at::kCPU));
  }
  PrivateCopy(PrivateCopy&& other) noexcept = default;
  PrivateCopy& operator=(PrivateCopy&&) = delete;
  PrivateCopy(const PrivateCopy&) = delete;
  PrivateCopy& operator=(const PrivateCopy&) = delete;
  ~PrivateCopy() {
    if (storage_) storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(shared_));
  }

  /// A checksum of what was written; 0 if nothing was.
  std::uint64_t checksum_of_writes() const {
    if (std::memcmp(own_.const_data_ptr(), shared_.get(), own_.nbytes()) == 0) return 0;
    return std::max<std::uint64_t>(checksum_of(own_.const_data_ptr(), own_.nbytes()), 1);
  }
  void copy_back() const { std::memcpy(shared_.get(), own_.const_data_ptr(), own_.nbytes()); }

 private:
  c10::Storage storage_;  // even if the program gives the parameter another; null once moved from
  at::Tensor own_;
  at::DataPtr shared_;
};

NamedTensors shared_parameters(const TrainingContext& context, const ParameterBatches& batches) {
  NamedTensors shared = context.frozen.parameters();
  for (const auto& reducer : batches) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      shared.emplace_back(parameter.name, parameter.tensor);
    }
  }
  return shared;
}

/// Gathers the checksums of all ranks, a row each.
std::vector<std::uint64_t> gather_checksums(const std::vector<PrivateCopy>& copies,
                                            const OperationOptions& options) {
  std::vector<std::uint64_t> own;
  for (const PrivateCopy& copy : copies) own.push_back(copy.checksum_of_writes());
  std::vector<std::uint64_t> all(own.size() *
                                 static_cast<std::size_t>(options.process_set->size()));
  const TensorView row{
      own.data(), DType::Int64, {1, static_cast<std::int64_t>(own.size())}, Device{}};
  allgather(row, [&](const std::vector<std::int64_t>&) -> void* { return all.data(); }, options);
  return all;
}

/// The world rank that has written each parameter, the lowest of several that have written the
/// same; -1: none has. Throws MismatchError if ranks have written different values.
std::vector<int> find_writers(const NamedTensors& shared,
                              const std::vector<std::uint64_t>& checksums, const ProcessSet& set) {
  std::vector<int> writers;
  for (std::size_t i = 0; i < shared.size(); ++i) {
    std::uint64_t written = 0;
    writers.push_back(-1);
    for (std::size_t rank = 0; rank < set.ranks().size(); ++rank) {
      const std::uint64_t checksum = checksums[rank * shared.size() + i];
      if (checksum == 0 || checksum == written) continue;
      if (written != 0) {
        throw MismatchError(
            "DistributedOptimizer: in full_parameters(), ranks " + std::to_string(writers.back()) +
            " and " + std::to_string(set.ranks()[rank]) + " wrote different values to parameter '" +
            shared[i].first + "'. Let one rank write it, or all the same values.");
      }
      written = checksum;
      writers.back() = set.ranks()[rank];
    }
  }
  return writers;
}

/// Runs `write` on private copies, and copies what it wrote to the node's shared copy. Returns
/// the writer of each parameter, see find_writers().
std::vector<int> write_to_copies(const NamedTensors& shared, const std::function<void()>& write,
                                 const OperationOptions& options) {
  std::vector<PrivateCopy> copies;
  ProcessSet& set = *options.process_set;
  const auto run = [&](const char* actor, const std::function<void()>& work) {
    run_on_all(set, options.name + ".done", "DistributedOptimizer::full_parameters()", actor, work);
  };
  // Agreed before `write`, which may call collectives.
  run("copying the parameters", [&] {
    for (const auto& [name, tensor] : shared) copies.emplace_back(tensor);
  });
  run("the program's function", write);
  std::vector<int> writers = find_writers(shared, gather_checksums(copies, options), set);
  const WritesAllowed writes;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (writers[i] == set.runtime().rank()) copies[i].copy_back();
  }
  return writers;
}

}  // namespace

void place_frozen_parameters(TrainingContext& context, const NamedTensors& all) {
  if (context.options.shard != Shard::Full) return fill_deferred(all, context.set);
  context.frozen.share(all, context.set,
                       {.name = context.prefix + ".frozen", .process_set = context.sets.sharded});
  NamedTensors frozen;
  for (const auto& [name, tensor] : all) {
    if (!tensor.requires_grad()) frozen.emplace_back(name, tensor);
  }
  fill_deferred(frozen, context.set);  // those that could not be moved
}

void write_full_parameters(TrainingContext& context, ParameterBatches& batches,
                           const std::function<void()>& write) {
  if (context.options.shard != Shard::Full) return write();
  OperationOptions options;
  options.name = context.prefix + ".full_parameters";
  options.process_set = &context.set;
  const NamedTensors shared = shared_parameters(context, batches);
  const std::vector<int> writers = write_to_copies(shared, write, options);
  barrier(options);  // the writers have copied
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (writers[i] < 0 || context.sets.replicas == nullptr) continue;
    broadcast_parameters({shared[i]}, writers[i], &context.set);
  }
  for (const auto& reducer : batches) reducer->accept_writes();
  context.frozen.accept_writes();
}

}  // namespace kolo::tensors
