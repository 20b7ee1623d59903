#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "gpt/evaluation_windows.hpp"
#include "kolo/process_set.hpp"

namespace gpt {

/// The results of a training run. Losses and entropies in nats per byte; means over all ranks.
struct Report {
  int ranks = 0;
  std::int64_t parameters = 0;
  int first_step = 0;          ///< steps already taken in the loaded checkpoint
  int steps = 0;               ///< including those
  std::vector<double> losses;  ///< of each step
  double train_loss = 0;       ///< mean of the last steps
  EvaluationWindows windows;   ///< of the held-out text
  double validation_loss = 0;  ///< on these windows
  double unigram_entropy = 0;  ///< on the same windows
  double bigram_entropy = 0;
  double trigram_entropy = 0;
  double tokens_per_second = 0;  ///< of all ranks
  double step_ms_median = 0;
  std::string parameters_digest;      ///< of rank 0
  std::vector<int> different_ranks;   ///< whose parameters differ from rank 0's
  double bytes_sent_per_step = 0;     ///< gradient bytes, average over ranks
  kolo::ProcessSet::Metrics metrics;  ///< of rank 0's engine, start to end
};

void print(std::ostream& stream, const Report& report);
std::string to_json(const Report& report);

/// Why the model of `report` is worse than required; empty if it is not.
std::string shortfall(const Report& report, double required_loss);

}  // namespace gpt
