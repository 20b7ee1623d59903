#include "train/optimizer/full_parameters.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <c10/core/Storage.h>

#include "checkpoint/checksums.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "train/sharding/operator_watch.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/run_or_throw_on_all.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

using NamedTensors = TrainingContext::NamedTensors;

/// A private copy of a shared or sharded parameter. From use_it() on, while this lives, the
/// parameter uses the copy's memory.
class PrivateCopy {
 public:
  explicit PrivateCopy(const at::Tensor& parameter)
      : storage_(parameter.storage()),
        is_sharded_(is_gathered_on_use(parameter)),
        own_(parameter.variable_data().clone()),
        checksum_(checksum()) {}
  void use_it() {
    shared_ = std::move(storage_.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
    set_elements(storage_,
                 at::DataPtr(
                     own_.data_ptr(), new at::Tensor(own_),
                     [](void* owner) { delete static_cast<at::Tensor*>(owner); }, own_.device()));
    is_used_ = true;
  }
  PrivateCopy(PrivateCopy&& other) noexcept = default;
  PrivateCopy& operator=(PrivateCopy&&) = delete;
  PrivateCopy(const PrivateCopy&) = delete;
  PrivateCopy& operator=(const PrivateCopy&) = delete;
  ~PrivateCopy() {
    if (!storage_ || !is_used_) return;
    if (is_sharded_) {
      unbind_storage(storage_);
    } else {
      set_elements(storage_, std::move(shared_));
    }
  }

  const at::Tensor& own() const { return own_; }
  const c10::Storage& storage() const { return storage_; }
  /// Whether each rank has a shard; otherwise the ranks of a node share one copy.
  bool is_sharded() const { return is_sharded_; }
  /// A checksum of the written values; 0 if nothing was written.
  std::uint64_t checksum_of_writes() const {
    const std::uint64_t now = checksum();
    return now == checksum_ ? 0 : std::max<std::uint64_t>(now, 1);
  }
  void copy_to_shared() const { std::memcpy(shared_.get(), own_.const_data_ptr(), own_.nbytes()); }

 private:
  std::uint64_t checksum() const {
    const at::Tensor values = own_.cpu();
    return checkpoints::checksum_of(values.const_data_ptr(), values.nbytes());
  }

  c10::Storage storage_;  // kept even if the program replaces it; null once moved from
  bool is_sharded_;
  at::Tensor own_;
  std::uint64_t checksum_;  // before it is written
  at::DataPtr shared_;
  bool is_used_ = false;
};

/// While it lives, units are not gathered: operators use the memory that parameters are bound to.
class PausedGathering {
 public:
  explicit PausedGathering(const GradientReducers& reducers) : reducers_(reducers) { set(true); }
  PausedGathering(const PausedGathering&) = delete;  // ends once
  PausedGathering& operator=(const PausedGathering&) = delete;
  ~PausedGathering() { set(false); }

 private:
  void set(bool is_paused) {
    for (GatheredUnits* const units : reducers_.units()) units->pause(is_paused);
  }
  const GradientReducers& reducers_;
};

/// Copies the written values to this rank's shards of parameters that ranks do not share.
void write_shards(const NamedTensors& shared, const std::vector<PrivateCopy>& copies,
                  const std::vector<int>& writers, OperationOptions options) {
  const at::NoGradGuard no_grad;
  options.name += ".values";
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (writers[i] < 0 || !copies[i].is_sharded()) continue;
    const at::Tensor& written = copies[i].own();
    broadcast(view_of(written, shared[i].first), writers[i], options);
    const auto& [begin, elements] = own_elements(copies[i].storage());
    elements.copy_(written.view({-1}).narrow(0, begin, elements.numel()));
  }
}

NamedTensors shared_parameters(const TrainingContext& context, const GradientReducers& reducers) {
  NamedTensors shared = context.frozen.parameters();
  for (const auto& reducer : reducers) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      shared.emplace_back(parameter.name, parameter.tensor);
    }
  }
  return shared;
}

/// Gathers the checksums of all ranks, one row per rank.
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

/// The world rank that has written each parameter, the first one if several have written the same
/// values, or -1. Throws MismatchError if ranks have written different values.
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

/// Copies all parameters even if one copy throws: the other ranks gather them with this one.
std::vector<PrivateCopy> copy_all(const NamedTensors& shared) {
  std::vector<PrivateCopy> copies;
  std::exception_ptr error;  // the first
  for (const auto& [name, tensor] : shared) {
    try {
      copies.emplace_back(tensor);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return copies;
}

/// Runs `write` on private copies, and copies the written values to the node's shared copy, or to
/// shards. Returns the writer of each parameter, see find_writers().
std::vector<int> write_to_copies(const GradientReducers& reducers, const NamedTensors& shared,
                                 const std::function<void()>& write,
                                 const OperationOptions& options) {
  std::optional<PausedGathering> paused;
  std::vector<PrivateCopy> copies;
  ProcessSet& set = *options.process_set;
  const auto run = [&](const char* actor, const std::function<void()>& work) {
    run_or_throw_on_all(set, options.name + ".done", "DistributedOptimizer::full_parameters()",
                        actor, work);
  };
  // Ranks agree before `write`, which may call collectives.
  run("copying the parameters", [&] { copies = copy_all(shared); });
  paused.emplace(reducers);
  for (PrivateCopy& copy : copies) copy.use_it();
  run("the program's function", write);
  std::vector<int> writers = find_writers(shared, gather_checksums(copies, options), set);
  write_shards(shared, copies, writers, options);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (writers[i] == set.runtime().rank() && !copies[i].is_sharded()) copies[i].copy_to_shared();
  }
  return writers;
}

}  // namespace

void write_full_parameters(TrainingContext& context, GradientReducers& reducers,
                           const std::function<void()>& write) {
  if (context.options.shard != Shard::Full) return write();
  OperationOptions options;
  options.name = context.prefix + ".full_parameters";
  options.process_set = &context.set;
  const NamedTensors shared = shared_parameters(context, reducers);
  // `write` has written to copies: the parameters are as before if it or a later check has failed.
  const auto accept = [&] {
    for (const auto& reducer : reducers) reducer->accept_writes();
    context.frozen.accept_writes();
  };
  std::vector<int> writers;
  try {
    writers = write_to_copies(reducers, shared, write, options);
  } catch (...) {
    accept();
    throw;
  }
  barrier(options);  // the writers have copied
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (writers[i] < 0 || context.sets.replicas == nullptr) continue;
    broadcast_parameters({shared[i]}, writers[i], &context.set);
  }
  accept();
}

}  // namespace kolo::train
