#include "extras/accelerator/schedule.hpp"

#include <bit>
#include <cstddef>

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "extras/data/saved_state.hpp"
#include "kolo/error.hpp"
#include "kolo/extras/schedule.hpp"

namespace kolo {

namespace extras {

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates) {
  auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates.at(i));
}

void RateSource::follow_metric(float /*metric*/) {
  throw InvalidArgument("Accelerator: step_schedule() with the schedule '" + kind() +
                        "', which step() advances. Only a ReduceLROnPlateauScheduler takes a "
                        "metric.");
}

void RateSource::restore(const nlohmann::json& state) {
  const std::string saved = state.at("kind").get<std::string>();
  if (saved != kind()) {
    throw InvalidArgument("it was saved with the schedule '" + escaped(saved) +
                          "', and the program has '" + kind() +
                          "'. Prepare the same kind of schedule.");
  }
  restore_own(state);
}

namespace {

class ConstantRates final : public RateSource {
 public:
  std::string kind() const override { return "constant"; }
  void start(torch::optim::Optimizer& /*optimizer*/) override {}
  void follow_step() override {}
  nlohmann::json state() const override { return {{"kind", kind()}}; }

 private:
  void restore_own(const nlohmann::json& /*state*/) override {}
};

class FactorRates final : public RateSource {
 public:
  explicit FactorRates(std::function<double(std::int64_t)> factor) : factor_(std::move(factor)) {}

  std::string kind() const override { return "factor"; }
  void start(torch::optim::Optimizer& optimizer) override {
    optimizer_ = &optimizer;
    initial_ = rates_of(optimizer);
    apply();
  }
  void follow_step() override {
    ++steps_;
    apply();
  }
  nlohmann::json state() const override {
    return {{"kind", kind()}, {"steps", steps_}, {"initial", initial_}};
  }

 private:
  void restore_own(const nlohmann::json& state) override {
    auto initial = state.at("initial").get<std::vector<double>>();
    if (initial.size() != initial_.size()) {
      throw InvalidArgument("it has learning rates of " + std::to_string(initial.size()) +
                            " parameter groups, and the optimizer has " +
                            std::to_string(initial_.size()));
    }
    steps_ = state.at("steps").get<std::int64_t>();
    initial_ = std::move(initial);
    apply();
  }
  void apply() {
    std::vector<double> rates = initial_;
    for (double& rate : rates) rate *= factor_(steps_);
    set_rates(*optimizer_, rates);
  }

  std::function<double(std::int64_t)> factor_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<double> initial_;
  std::int64_t steps_ = 0;
};

/// A LibTorch scheduler. Its state is inaccessible, so restoring replays the saved run's calls on a
/// new scheduler.
class ReplayedRates : public RateSource {
 public:
  void start(torch::optim::Optimizer& optimizer) override {
    optimizer_ = &optimizer;
    initial_ = rates_of(optimizer);
  }

 protected:
  /// `replay` repeats the calls of the saved run.
  template <class Replay>
  void restore_calls(bool is_new, const Replay& replay) {
    if (!is_new) {
      throw InvalidArgument("the program has called step() of its " + kind() +
                            " already, and LibTorch's schedulers cannot go back. Load before the "
                            "first step, or give a function of the step as schedule.");
    }
    const std::vector<double> saved = rates_of(*optimizer_);
    set_rates(*optimizer_, initial_);
    replay();
    set_rates(*optimizer_, saved);
  }

 private:
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<double> initial_;
};

class SteppedRates final : public ReplayedRates {
 public:
  explicit SteppedRates(torch::optim::LRScheduler& scheduler) : scheduler_(scheduler) {}

  std::string kind() const override { return "LRScheduler"; }
  void follow_step() override {
    scheduler_.step();
    ++steps_;
  }
  nlohmann::json state() const override { return {{"kind", kind()}, {"steps", steps_}}; }

 private:
  void restore_own(const nlohmann::json& state) override {
    const auto steps = state.at("steps").get<std::int64_t>();
    restore_calls(steps_ == 0, [&] {
      while (steps_ < steps) follow_step();
    });
  }

  torch::optim::LRScheduler& scheduler_;
  std::int64_t steps_ = 0;
};

class PlateauRates final : public ReplayedRates {
 public:
  explicit PlateauRates(torch::optim::ReduceLROnPlateauScheduler& scheduler)
      : scheduler_(scheduler) {}

  std::string kind() const override { return "ReduceLROnPlateauScheduler"; }
  void follow_step() override {}
  void follow_metric(float metric) override {
    scheduler_.step(metric);
    metrics_.push_back(std::bit_cast<std::uint32_t>(metric));  // JSON has no NaN
  }
  nlohmann::json state() const override { return {{"kind", kind()}, {"metrics", metrics_}}; }

 private:
  void restore_own(const nlohmann::json& state) override {
    const auto metrics = state.at("metrics").get<std::vector<std::uint32_t>>();
    restore_calls(metrics_.empty(), [&] {
      for (const std::uint32_t bits : metrics) follow_metric(std::bit_cast<float>(bits));
    });
  }

  torch::optim::ReduceLROnPlateauScheduler& scheduler_;
  std::vector<std::uint32_t> metrics_;  // their bits
};

}  // namespace
}  // namespace extras

Schedule::Schedule() : source_(std::make_shared<extras::ConstantRates>()) {}

Schedule::Schedule(std::function<double(std::int64_t step)> factor)
    : source_(std::make_shared<extras::FactorRates>(std::move(factor))) {}

Schedule::Schedule(torch::optim::LRScheduler& scheduler)
    : source_(std::make_shared<extras::SteppedRates>(scheduler)) {}

Schedule::Schedule(torch::optim::ReduceLROnPlateauScheduler& scheduler)
    : source_(std::make_shared<extras::PlateauRates>(scheduler)) {}

}  // namespace kolo
