#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/optim/optimizer.h>

namespace kolo::extras {

/// Changes the learning rates of an optimizer. See Schedule.
class RateSource {
 public:
  RateSource() = default;
  virtual ~RateSource() = default;
  RateSource(const RateSource&) = delete;  // one per optimizer
  RateSource& operator=(const RateSource&) = delete;

  /// Identifies it in checkpoints and error texts.
  virtual std::string kind() const = 0;
  /// The optimizer is about to take its first step.
  virtual void start(torch::optim::Optimizer& optimizer) = 0;
  virtual void follow_step() = 0;
  /// Throws InvalidArgument unless the rates depend on a metric.
  virtual void follow_metric(float metric);

  virtual nlohmann::json state() const = 0;
  /// Called after the optimizer has the saved learning rates. Throws InvalidArgument if the state
  /// is of another kind or can no longer be restored; nlohmann's exceptions if it is damaged.
  void restore(const nlohmann::json& state);

 private:
  virtual void restore_own(const nlohmann::json& state) = 0;
};

/// The learning rates of an optimizer's groups.
std::vector<double> rates_of(const torch::optim::Optimizer& optimizer);
void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);

}  // namespace kolo::extras
