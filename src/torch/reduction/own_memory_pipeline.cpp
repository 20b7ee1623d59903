#include "torch/reduction/bucket_pipeline.hpp"

namespace kolo::tensors {
namespace {

class OwnMemoryPipeline final : public BucketPipeline {
 public:
  explicit OwnMemoryPipeline(StepReductions& reductions) : reductions_(reductions) {}

  bool is_writable(std::size_t) override { return true; }
  void bucket_arrived(std::size_t bucket) override { reductions_.submit(bucket); }
  void pass_ended() override {}
  void submit_rest() override {
    for (std::size_t i = 0; i < reductions_.size(); ++i) {
      if (!reductions_.is_submitted(i)) reductions_.submit(i);
    }
  }
  std::exception_ptr restart() override { return nullptr; }

 private:
  StepReductions& reductions_;
};

}  // namespace

std::unique_ptr<BucketPipeline> make_own_memory_pipeline(StepReductions& reductions) {
  return std::make_unique<OwnMemoryPipeline>(reductions);
}

}  // namespace kolo::tensors
