#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kolo/torch/batches.hpp"
#include "torch/accelerator/batch_shares.hpp"

namespace kolo::tensors {

/// Batches for evaluation. Stateless: every loop gets the same batches.
class EvaluationFeed final : public BatchFeed {
 public:
  EvaluationFeed(EpochOrder order, std::uint64_t seed, BatchShares shares,
                 std::shared_ptr<CurrentBatch> current, c10::Device device)
      : BatchFeed(device),
        order_(std::move(order)),
        seed_(seed),
        shares_(std::move(shares)),
        current_(std::move(current)) {}

  void begin_loop() override {
    sequence_.emplace(order_, seed_, /*drop_last=*/false, /*rank=*/0, /*ranks=*/1);
    shares_.clear();
    outer_ = *current_;
  }
  std::optional<std::vector<std::size_t>> next() override { return shares_.next(*sequence_); }
  void take() override { *current_ = shares_.take(); }
  void end_loop() override { *current_ = outer_; }
  std::size_t batches() const override { return shares_.batches(order_.samples); }

 private:
  EpochOrder order_;
  std::uint64_t seed_;
  BatchShares shares_;
  std::shared_ptr<CurrentBatch> current_;
  CurrentBatch outer_;  // the batch of an enclosing loop
  std::optional<SampleSequence> sequence_;
};

}  // namespace kolo::tensors
