#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "extras/accelerator/progress.hpp"
#include "extras/accelerator/schedule.hpp"
#include "extras/accelerator/training_feed.hpp"
#include "kolo/extras/accelerator.hpp"

namespace kolo::extras {

/// The device of this rank: the thread's current CUDA device, or the CPU if there is none. If the
/// node has several ranks, makes the local rank's device current first.
c10::Device choose_device();

/// The device of a model's parameters.
c10::Device device_of(const torch::nn::Module& model);

/// The gradients that the passes of a step have accumulated so far. Detects that the program has
/// dropped them.
class AccumulatedGradients {
 public:
  void remember(const std::vector<torch::optim::OptimizerParamGroup>& groups);
  /// Whether any has become undefined, or all zero as after zero_grad(set_to_none = false); a
  /// program may zero some. Waits for a GPU only if something has written to them.
  bool are_lost() const;

 private:
  struct Remembered {
    at::Tensor parameter;
    std::int64_t version;  // of its gradient
  };

  std::vector<Remembered> remembered_;
};

/// The implementation of an Accelerator from prepare() on. Its functions are those of Accelerator.
class AcceleratedTraining {
 public:
  /// Without `feed` the program makes its own batches. Collective.
  AcceleratedTraining(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                      const Schedule& schedule, const AcceleratorOptions& options,
                      std::shared_ptr<TrainingFeed> feed, std::shared_ptr<CurrentBatch> current);
  ~AcceleratedTraining();

  void begin_epochs(std::int64_t count);
  TrainingFeed& feed(const char* call) const;
  const std::shared_ptr<CurrentBatch>& current_batch() const { return current_; }

  Autocast autocast() const;
  void backward(const at::Tensor& loss);
  void backward(const at::Tensor& loss_sum, std::int64_t count);
  std::optional<double> clip_grad_norm(double max_norm, double norm_type);
  bool step();
  bool is_last_pass() const;
  std::int64_t steps() const { return steps_; }
  void step_schedule(double metric);

  at::Tensor gather_for_metrics(const at::Tensor& tensor);
  bool should_stop(bool local);
  void save_state(const std::filesystem::path& folder, SaveOptions options);
  std::optional<Loaded> load_state(const std::filesystem::path& path);
  void clear_progress() { progress_.clear(); }

  DistributedOptimizer& optimizer() { return optimizer_; }
  c10::Device device() const { return device_; }

 private:
  void require_pass(const char* call) const;
  const CurrentBatch& batch() const;
  bool has_skipped_step() const;
  void require_usable_gradients() const;
  void require_own_backward(const char* call) const;
  template <class Backward>
  void run_pass(const Backward& backward);
  double weight() const;
  /// The step number of the feed; 0 if the program makes its own batches.
  std::uint64_t step_number() const { return feed_ != nullptr ? feed_->step_number() : 0; }
  void drop_gradients();
  void end_pass();
  at::Tensor in_order(const at::Tensor& rows) const;
  std::string restore(const std::string& state);

  /// The step under way: the passes since the last step.
  struct Accumulation {
    std::optional<std::uint64_t> step_number{};  // none before the first backward()
    int passes_done = 0;                         // ended by step()
    bool is_unscaled = false;
    bool has_run_backward = false;     // in this pass
    std::uint64_t zero_grads = 0;      // the optimizer's count, after this backward()
    AccumulatedGradients gradients{};  // accumulated by earlier passes
  };

  ProcessSet& set_;
  AcceleratorOptions options_;
  c10::Device device_;
  DistributedOptimizer optimizer_;
  GradScaler scaler_;
  std::shared_ptr<RateSource> rates_;
  std::shared_ptr<TrainingFeed> feed_;
  std::shared_ptr<CurrentBatch> current_;

  Accumulation accumulation_;
  std::int64_t steps_ = 0;

  at::Tensor last_loss_;
  TrainingProgress progress_;
};

}  // namespace kolo::extras
