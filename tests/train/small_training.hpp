#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <unistd.h>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "kolo/objects.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "train/models.hpp"
#include "train/sharding.hpp"

namespace kolo::test {

/// A training run small enough for hundreds of checkpoints: a model with buffers, AdamW with all
/// its state, and a GradScaler.
struct SmallTraining {
  explicit SmallTraining(Shard shard, bool fused = false) {
    torch::manual_seed(5);
    model = torch::nn::Sequential(torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4),
                                  torch::nn::Linear(4, 3));
    inner = std::make_unique<torch::optim::AdamW>(
        model->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4).amsgrad(true));
    DistributedOptimizer::Options options = with(shard);
    options.fused = fused;
    optimizer = std::make_unique<DistributedOptimizer>(*inner, *model, options);
  }

  void run(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer->zero_grad();
      const at::Tensor rows =
          batch_rows(step, 6 * Runtime::current().rank(), 6, 5, torch::kFloat32);
      scaler.scale(model->forward(rows).pow(2).mean()).backward();
      scaler.step(*optimizer);
      scaler.update();
    }
  }
  void save(const std::filesystem::path& folder) {
    optimizer->save(folder, {.scaler = &scaler, .extras = {{"epoch", "3"}}});
  }
  Loaded load(const std::filesystem::path& folder) {
    return optimizer->load(folder, {.scaler = &scaler});
  }

  torch::nn::Sequential model{nullptr};
  std::unique_ptr<torch::optim::Optimizer> inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
  GradScaler scaler;
};

/// A folder that is visible to all ranks of the world, and is removed at the end. Constructor and
/// destructor are collective.
class CommonFolder {
 public:
  CommonFolder()
      : path_(broadcast_object(
            (std::filesystem::temp_directory_path() / ("kolo-common-" + std::to_string(::getpid())))
                .string(),
            0)) {}
  CommonFolder(const CommonFolder&) = delete;  // the folder is removed only once
  CommonFolder& operator=(const CommonFolder&) = delete;
  ~CommonFolder() {
    barrier();
    if (Runtime::current().rank() == 0) std::filesystem::remove_all(path_);
    barrier();
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace kolo::test
