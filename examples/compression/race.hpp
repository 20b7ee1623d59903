#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <torch/optim/optimizer.h>

#include "compression/cases.hpp"
#include "compression/options.hpp"
#include "gpt/model.hpp"
#include "gpt/options.hpp"
#include "gpt/training.hpp"
#include "kolo/extras/power_sgd.hpp"
#include "kolo/torch/distributed_optimizer.hpp"

namespace compression {

/// A model that is trained with one kind of compression; all start with the same weights.
/// Collective.
class Training {
 public:
  /// `text` must outlive this object.
  Training(Case kind, const Options& options, std::string_view text);

  /// Takes one step of options.steps, which all ranks begin together.
  void step(int step);

  const Case& kind() const { return kind_; }
  gpt::Gpt& model() { return model_; }
  /// The sizes of all gradients.
  Shapes shapes() const;
  /// The times and bytes of each step so far, on this rank.
  const std::vector<double>& step_ms() const { return step_ms_; }
  const std::vector<double>& step_bytes() const { return step_bytes_; }

 private:
  const Case kind_;
  const gpt::Options options_;
  gpt::Gpt model_;
  std::unique_ptr<torch::optim::Optimizer> inner_;
  kolo::DistributedOptimizer optimizer_;
  std::optional<kolo::PowerSgd> power_sgd_;
  gpt::Batches batches_;
  std::vector<double> step_ms_;
  std::vector<double> step_bytes_;
};

/// Trains all cases in turns, one step each; a different case begins each round.
void race(std::vector<std::unique_ptr<Training>>& trainings, int steps);

/// The results of a case, compared with `none`: its loss, and the bytes and times of the steps from
/// `first_step` on. Collective.
nlohmann::ordered_json judge(Training& training, const Training& none, double loss,
                             double none_loss, std::size_t first_step);

}  // namespace compression
