#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "kolo/torch/training_report.hpp"
#include "train/checkpoint/training_view.hpp"
#include "train/gradients/gradient_reducers.hpp"
#include "train/gradients/training_context.hpp"

namespace kolo::train {

/// The gradients that the reductions of one pass must send.
struct GradientTraffic {
  std::size_t whole_bytes = 0;     ///< of gradients that are reduced without a codec
  std::size_t replica_bytes = 0;   ///< of gradients whose shards are summed without one
  std::uint64_t coded_bytes = 0;   ///< encoded bytes that this rank sends
  std::size_t coded_elements = 0;  ///< elements that this rank encodes
};

/// Counts the bytes that an optimizer keeps and moves.
class TrainingReporter {
 public:
  explicit TrainingReporter(const TrainingContext& context) : context_(context) {}

  /// The optimizer is constructed: traffic so far belongs to no step.
  void start();
  /// A step has ended.
  void step();
  TrainingReport report(const GradientReducers& reducers, const TrainingView& view) const;

 private:
  struct Traffic {
    std::uint64_t bytes = 0;
    double gpu_seconds = 0.0;
    std::chrono::duration<double> exposed{};
  };
  Traffic traffic() const;
  /// `slot_sharers`: how many ranks share the memory of gathered units.
  std::uint64_t expected_bytes_per_step(std::size_t parameter_bytes,
                                        const GradientTraffic& gradients, int slot_sharers) const;

  const TrainingContext& context_;
  Traffic before_;  // up to the last step
  Traffic last_step_;
  std::size_t peak_at_construction_ = 0;
};

}  // namespace kolo::train
