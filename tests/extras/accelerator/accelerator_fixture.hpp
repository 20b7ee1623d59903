#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include <torch/torch.h>

#include "kolo/extras/accelerator.hpp"
#include "train/prefix_sets.hpp"
#include "train/small_training.hpp"
#include "train/training_fixture.hpp"

/// Shared code of the Accelerator tests.
namespace kolo::test::accelerator_test {

inline constexpr std::int64_t kWidth = 9;

/// Sample i is row i of batch_rows(), and its target is i.
class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  explicit Numbers(std::size_t count) : count_(count) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto number = static_cast<std::int64_t>(index);
    return {batch_rows(0, number, 1, kWidth, torch::kFloat32)[0], torch::tensor(number)};
  }
  std::optional<std::size_t> size() const override { return count_; }

 private:
  std::size_t count_;
};

inline auto numbers(std::size_t count) {
  return Numbers(count).map(torch::data::transforms::Stack<>());
}
using NumberBatches = Batches<decltype(numbers(1))>;

/// One weight for each sample. With losses of mean_weight() and plain SGD, a step lowers the weight
/// of a sample by the learning rate times the sample's share in the mean.
struct Weights : torch::nn::Module {
  explicit Weights(std::size_t samples, double value = 0.0) {
    weights = register_parameter(
        "weights", torch::full({static_cast<std::int64_t>(samples)}, value, torch::kFloat32));
  }
  at::Tensor mean_weight(const at::Tensor& samples) {
    return weights.index_select(0, samples).mean();
  }
  at::Tensor value() const { return weights.detach().clone(); }
  at::Tensor weights;
};

class AcceleratorTest : public TrainingTest {
 protected:
  const std::filesystem::path& folder() const { return folder_.path(); }

  PrefixSets sets_{runtime_};

 private:
  CommonFolder folder_;
};

}  // namespace kolo::test::accelerator_test
