#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "kolo/error.hpp"
#include "kolo/torch/program_stream.hpp"
#include "train/sharding/parameter_memory.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

class CopyPerRank final : public ParameterMemory {
 public:
  CopyPerRank(const BucketPlan& plan, const at::Device& device, const OperationOptions& options)
      : ParameterMemory(make_flat_memory(plan.size_bytes, device, options)),
        plan_(plan),
        device_(device),
        options_(options) {}

  std::size_t offset_of_shard(const Bucket& bucket) const override {
    return offset_in_plan(bucket, *options_.process_set);
  }

  void move_in(const std::vector<at::Tensor>& parameters, const BucketPlan& plan) override {
    for (const Bucket& bucket : plan.buckets) {
      for (const Bucket::Member& member : bucket.members) {
        const at::Tensor& parameter = parameters[member.parameter];
        tensor_over(buffer(), member.offset, parameter.sizes(), parameter.options())
            .copy_(parameter.detach());
        rebind_storage(parameter, buffer(), member.offset, Copies::PerRank);
      }
    }
  }

  void begin_update() override {}

  void end_bucket(std::size_t bucket, const std::string& failure) override {
    const Bucket& plan = plan_.buckets[bucket];
    const auto ranks = static_cast<std::size_t>(options_.process_set->size());
    OperationOptions options = options_;
    options.name += ".gather." + std::to_string(bucket);
    options.purpose = failure;
    options.stream = ProgramStream::current(device_).handle();
    gathers_.emplace_back(
        bucket,
        allgather_async(buffer(), plan.offset,
                        std::vector<std::int64_t>(
                            ranks, static_cast<std::int64_t>(plan.gradient_count() / ranks)),
                        plan.dtype, options));
  }

  void end_update(const std::string&) override {
    std::vector<std::size_t> refused;
    const std::exception_ptr error = wait_for_gathers(refused);
    // The update has failed on a rank, as all ranks know: gathered so that their copies are equal.
    for (const std::size_t bucket : refused) end_bucket(bucket, {});
    std::vector<std::size_t> none;
    static_cast<void>(wait_for_gathers(none));
    if (error) std::rethrow_exception(error);
  }

 private:
  /// Returns the first error. `refused` are the buckets whose gathers differ between ranks.
  std::exception_ptr wait_for_gathers(std::vector<std::size_t>& refused) {
    std::exception_ptr error;
    for (auto& [bucket, gather] : std::exchange(gathers_, {})) {
      try {
        gather.wait();
      } catch (const MismatchError&) {
        refused.push_back(bucket);
        if (!error) error = std::current_exception();
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    return error;
  }

  const BucketPlan plan_;
  const at::Device device_;
  const OperationOptions options_;
  std::vector<std::pair<std::size_t, Handle>> gathers_;  // of buckets, in flight
};

}  // namespace

std::unique_ptr<ParameterMemory> make_copy_per_rank(const BucketPlan& plan,
                                                    const at::Device& device,
                                                    const OperationOptions& options) {
  return std::make_unique<CopyPerRank>(plan, device, options);
}

}  // namespace kolo::train
