#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "extras/accelerator/batch_plan.hpp"
#include "kolo/extras/batches.hpp"

namespace kolo::extras {

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

/// Training batches, one per pass. A step has a fixed number of passes, or fewer at the end of an
/// epoch. The saved state is the position after the last step.
class TrainingFeed final : public BatchFeed {
 public:
  TrainingFeed(EpochOrder order, std::uint64_t seed, BatchShares shares, int passes,
               std::shared_ptr<CurrentBatch> current, c10::Device device);

  void begin_loop() override;
  std::optional<std::vector<std::size_t>> next() override;
  void take() override;
  void end_loop() override;
  std::size_t batches() const override { return shares_.batches(sequence_.samples()); }

  /// The batch of the current pass; empty outside loops.
  const CurrentBatch& batch() const { return batch_; }
  bool is_last_pass() const;
  /// Changes with every step that begins.
  std::uint64_t step_number() const { return step_number_; }
  /// The weight of this rank's mean loss in this pass. With it, the average over ranks, summed over
  /// passes, is the mean over the samples of the step.
  double weight() const;
  /// The program has called step(), which updates parameters only in the last pass.
  void end_pass();

  std::uint64_t seed() const { return sequence_.seed(); }
  /// The epoch of the last loop that began. Loaders' threads may ask.
  std::int64_t loop_epoch() const { return sequence_.iterated_epoch(); }
  /// The epoch of the current loop, or of the next one.
  std::int64_t epoch() const { return epoch_; }
  /// The program has left the loop of this epoch early.
  void end_epoch(std::int64_t epoch);
  /// Steps until the end of epoch `epochs` - 1.
  std::int64_t steps_left(std::int64_t epochs) const;
  std::size_t samples_per_step() const { return shares_.batch_size() * passes_; }

  nlohmann::json state() const;
  /// Throws InvalidArgument if the state belongs to other data.
  void restore(const nlohmann::json& state);

 private:
  void leave_batch();
  void count_taken();

  SampleSequence sequence_;  // of all ranks together
  BatchShares shares_;
  std::size_t passes_;
  std::shared_ptr<CurrentBatch> current_;  // the innermost loop's batch, of any feed
  CurrentBatch batch_{};                   // this feed's batch

  std::int64_t epoch_ = 0;
  // If the last step of an epoch was taken before a restart, the epoch's loop is empty after it.
  bool resumes_at_end_ = false;  // the next loop is empty
  bool has_ended_ = false;       // the current loop is empty
  std::size_t place_ = 0;        // samples of the epoch up to the end of the current batch
  std::size_t end_ = 0;          // the same up to the end of the loop
  std::size_t taken_ = 0;        // batches since the last step
  std::uint64_t step_number_ = 0;
  std::size_t passes_done_ = 0;   // of this step
  std::size_t step_passes_ = 0;   // all passes of this step
  std::size_t step_samples_ = 0;  // samples in these passes
};

}  // namespace kolo::extras
