#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kolo/process_set.hpp"
#include "kolo/torch/batches.hpp"
#include "torch/accelerator/batch_shares.hpp"
#include "torch/data/epoch_order.hpp"
#include "torch/tensors/agreement.hpp"

namespace kolo::tensors {

/// Decides whether samples are shuffled by default.
enum class Purpose : bool { Training, Evaluation };

/// How the samples of a data set become batches.
struct BatchPlan {
  BatchShares shares;
  std::string problem;      ///< an error text about options or data; empty if there is none
  std::vector<Fact> facts;  ///< values that must be equal on all ranks
  EpochOrder order{};       ///< only if there is no problem
};

/// @param samples of the data set, if it has a size
BatchPlan plan_batches(const std::optional<std::size_t>& samples, const BatchOptions& options,
                       Purpose purpose, const ProcessSet& set);

}  // namespace kolo::tensors
