#include "torch/optimizer/full_parameters.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
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

namespace kolo::tensors {
namespace {

/// A parameter of which ranks share one copy, in private memory while this lives.
class PrivateCopy {
 public:
  explicit PrivateCopy(const ReducedParameter& parameter)
      : parameter_(parameter),
        storage_(parameter.tensor.storage()),
        own_(parameter.tensor.variable_data().clone()) {
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

  const ReducedParameter& parameter() const { return parameter_; }
  /// A checksum of what was written; 0 if nothing was.
  std::uint64_t checksum_of_writes() const {
    if (std::memcmp(own_.const_data_ptr(), shared_.get(), own_.nbytes()) == 0) return 0;
    return std::max<std::uint64_t>(checksum_of(own_.const_data_ptr(), own_.nbytes()), 1);
  }
  void copy_back() const { std::memcpy(shared_.get(), own_.const_data_ptr(), own_.nbytes()); }

 private:
  const ReducedParameter& parameter_;
  c10::Storage storage_;  // even if the program gives the parameter another; null once moved from
  at::Tensor own_;
  at::DataPtr shared_;
};

std::vector<PrivateCopy> make_private(const ParameterBatches& batches) {
  std::vector<PrivateCopy> copies;
  for (const auto& reducer : batches) {
    for (const ReducedParameter& parameter : reducer->parameters()) copies.emplace_back(parameter);
  }
  return copies;
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
std::vector<int> find_writers(const std::vector<PrivateCopy>& copies,
                              const std::vector<std::uint64_t>& checksums, const ProcessSet& set) {
  std::vector<int> writers;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    std::uint64_t written = 0;
    writers.push_back(-1);
    for (std::size_t rank = 0; rank < set.ranks().size(); ++rank) {
      const std::uint64_t checksum = checksums[rank * copies.size() + i];
      if (checksum == 0 || checksum == written) continue;
      if (written != 0) {
        throw MismatchError(
            "DistributedOptimizer: in full_parameters(), ranks " + std::to_string(writers.back()) +
            " and " + std::to_string(set.ranks()[rank]) + " wrote different values to parameter '" +
            copies[i].parameter().name + "'. Let one rank write it, or all the same values.");
      }
      written = checksum;
      writers.back() = set.ranks()[rank];
    }
  }
  return writers;
}

/// Runs `write` on all ranks. If it throws on any, all throw; on that rank its own exception.
void run_on_all(const std::function<void()>& write, const OperationOptions& options) {
  std::exception_ptr error;
  std::string problem;
  try {
    write();
  } catch (const std::exception& exception) {
    error = std::current_exception();
    problem = std::string("the program's function threw: ") + exception.what();
  } catch (...) {
    error = std::current_exception();
    problem = "the program's function threw";
  }
  try {
    agree(*options.process_set, options.name + ".written",
          "DistributedOptimizer::full_parameters()", {}, problem);
  } catch (const InvalidArgument&) {
    if (error) std::rethrow_exception(error);
    throw;
  }
}

/// Runs `write` on private copies, and copies what it wrote to the node's shared copy. Returns
/// the writer of each parameter, see find_writers().
std::vector<int> write_to_copies(ParameterBatches& batches, const std::function<void()>& write,
                                 const OperationOptions& options) {
  const std::vector<PrivateCopy> copies = make_private(batches);
  run_on_all(write, options);
  const ProcessSet& set = *options.process_set;
  std::vector<int> writers = find_writers(copies, gather_checksums(copies, options), set);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (writers[i] == set.runtime().rank()) copies[i].copy_back();
  }
  return writers;
}

}  // namespace

void write_full_parameters(TrainingContext& context, ParameterBatches& batches,
                           const std::function<void()>& write) {
  if (context.options.shard != Shard::Full) return write();
  OperationOptions options;
  options.name = context.prefix + ".full_parameters";
  options.process_set = &context.set;
  const std::vector<int> writers = write_to_copies(batches, write, options);
  barrier(options);  // the writers have copied
  std::size_t next = 0;
  for (const auto& reducer : batches) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      const int writer = writers[next++];
      if (writer < 0 || context.sets.replicas == nullptr) continue;
      broadcast_parameters({{parameter.name, parameter.tensor}}, writer, &context.set);
    }
    reducer->accept_writes();
  }
}

}  // namespace kolo::tensors
