#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "torch/sharding/parameter_memory.hpp"
#include "torch/tensors/parameter_storage.hpp"
#include "torch/tensors/program_stream.hpp"
#include "torch/tensors/tensor_memory.hpp"

namespace kolo::tensors {
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
    gathers_.push_back(allgather_async(
        buffer(), plan.offset,
        std::vector<std::int64_t>(ranks, static_cast<std::int64_t>(plan.gradient_count() / ranks)),
        plan.dtype, options));
  }

  void end_update(const std::string&) override {
    std::exception_ptr first_error;
    for (Handle& gather : std::exchange(gathers_, {})) {
      try {
        gather.wait();
      } catch (...) {
        if (!first_error) first_error = std::current_exception();
      }
    }
    if (first_error) std::rethrow_exception(first_error);
  }

 private:
  const BucketPlan plan_;
  const at::Device device_;
  const OperationOptions options_;
  std::vector<Handle> gathers_;  // in flight
};

}  // namespace

std::unique_ptr<ParameterMemory> make_copy_per_rank(const BucketPlan& plan,
                                                    const at::Device& device,
                                                    const OperationOptions& options) {
  return std::make_unique<CopyPerRank>(plan, device, options);
}

}  // namespace kolo::tensors
