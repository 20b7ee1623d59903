#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kolo/accelerator.hpp"
#include "kolo/progress_bar.hpp"
#include "torch/accelerator/device.hpp"
#include "torch/accelerator/rate_source.hpp"
#include "torch/accelerator/training_feed.hpp"

namespace kolo::tensors {

/// What an Accelerator has from prepare() on. Its functions are those of Accelerator.
class AcceleratedTraining {
 public:
  /// Without `feed` the program has batches of its own. Collective.
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
  void clear_progress();

  DistributedOptimizer& optimizer() { return optimizer_; }
  c10::Device device() const { return device_; }

 private:
  using Clock = std::chrono::steady_clock;

  void require_pass(const char* call) const;
  const CurrentBatch& batch() const;
  bool has_left_step_out() const;
  void require_usable_gradients() const;
  void require_own_backward() const;
  bool has_lost_gradients() const;
  void remember_gradients();
  template <class Backward>
  void run_pass(const Backward& backward);
  double weight() const;
  /// Changes with every step.
  std::uint64_t step_number() const;
  void drop_gradients();
  void end_pass();
  void show_progress();
  at::Tensor in_order(const at::Tensor& rows) const;
  bool has_checkpoint(const std::filesystem::path& path, const std::string& name);
  void restore(const std::string& state);

  ProcessSet& set_;
  AcceleratorOptions options_;
  c10::Device device_;
  DistributedOptimizer optimizer_;
  GradScaler scaler_;
  std::shared_ptr<RateSource> rates_;
  std::shared_ptr<TrainingFeed> feed_;
  std::shared_ptr<CurrentBatch> current_;

  // With batches of the program's own:
  int passes_done_ = 0;  // of the step
  std::uint64_t own_step_number_ = 0;

  std::optional<std::uint64_t> gradients_of_{};  // the step that they are of
  bool is_unscaled_ = false;
  bool has_run_backward_ = false;           // in this pass
  std::uint64_t discards_ = 0;              // of the optimizer, before and in it
  std::vector<at::Tensor> accumulating_{};  // parameters with gradients of the passes before
  std::int64_t accumulated_version_ = 0;    // of the first one's
  std::int64_t steps_ = 0;

  at::Tensor last_loss_;
  std::unique_ptr<ProgressBar> bar_;
  int shown_steps_ = 0;
  Clock::time_point shown_since_{};
};

}  // namespace kolo::tensors
