#include "extras/accelerator/training_feed.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::extras {

TrainingFeed::TrainingFeed(EpochOrder order, std::uint64_t seed, BatchShares shares, int passes,
                           std::shared_ptr<CurrentBatch> current, c10::Device device)
    : BatchFeed(device),
      sequence_(std::move(order), seed, /*drop_last=*/false, /*rank=*/0, /*ranks=*/1),
      shares_(std::move(shares)),
      passes_(static_cast<std::size_t>(passes)),
      current_(std::move(current)) {}

void TrainingFeed::begin_loop() {
  has_ended_ = std::exchange(resumes_at_end_, false);
  if (!has_ended_) {
    sequence_.begin();
    epoch_ = sequence_.epoch();
  }
  place_ = sequence_.consumed();
  end_ = place_ + shares_.usable(sequence_.samples() - place_);
  shares_.clear();
  taken_ = 0;
  passes_done_ = 0;
  leave_batch();
}

std::optional<std::vector<std::size_t>> TrainingFeed::next() {
  return has_ended_ ? std::nullopt : shares_.next(sequence_);
}

void TrainingFeed::take() {
  batch_ = shares_.take();
  *current_ = batch_;
  if (passes_done_ == 0) {
    ++step_number_;
    step_samples_ = std::min(passes_ * shares_.batch_size(), end_ - place_);
    step_passes_ = shares_.batches(step_samples_);
  }
  place_ += batch_->all;
  ++taken_;
}

void TrainingFeed::leave_batch() {
  batch_.reset();
  current_->reset();
}

void TrainingFeed::end_loop() {
  leave_batch();
  if (passes_done_ > 0) {
    throw InvalidArgument("Accelerator: epoch " + std::to_string(epoch_) + " ends after " +
                          std::to_string(passes_done_) + " of the " + std::to_string(step_passes_) +
                          " passes of a step. Call step() once for each batch.");
  }
  count_taken();
  if (sequence_.epoch() == epoch_) sequence_.end_epoch();
  epoch_ = sequence_.epoch();
}

bool TrainingFeed::is_last_pass() const {
  return passes_done_ + 1 >= step_passes_ || place_ == end_;
}

double TrainingFeed::weight() const {
  const std::size_t scaled = batch_->own * shares_.ranks();
  return static_cast<double>(scaled) / static_cast<double>(step_samples_);
}

void TrainingFeed::end_pass() {
  if (!is_last_pass()) {
    ++passes_done_;
    return;
  }
  count_taken();
  passes_done_ = 0;
}

/// Consumes the batches since the last step, including those that the program skipped.
void TrainingFeed::count_taken() {
  for (; taken_ > 0; --taken_) sequence_.consume();
}

void TrainingFeed::end_epoch(std::int64_t epoch) {
  if (epoch_ != epoch) return;
  if (sequence_.epoch() == epoch) sequence_.end_epoch();
  epoch_ = sequence_.epoch();
  resumes_at_end_ = false;
  taken_ = 0;
  passes_done_ = 0;
  leave_batch();
}

std::int64_t TrainingFeed::steps_left(std::int64_t epochs) const {
  const auto steps = [&](std::size_t samples) {
    const std::size_t batches = shares_.batches(samples);
    return static_cast<std::int64_t>((batches + passes_ - 1) / passes_);
  };
  const std::int64_t begun = sequence_.epoch();
  if (begun >= epochs) return 0;
  return steps(sequence_.samples() - sequence_.consumed()) +
         (epochs - begun - 1) * steps(sequence_.samples());
}

nlohmann::json TrainingFeed::state() const {
  return {{"epoch", epoch_}, {"sequence", sequence_.state()}};
}

void TrainingFeed::restore(const nlohmann::json& state) {
  const auto epoch = state.at("epoch").get<std::int64_t>();
  sequence_.set_state(state.at("sequence").get<std::string>());
  if (epoch != sequence_.epoch() && epoch + 1 != sequence_.epoch()) {
    throw InvalidArgument("it is in epoch " + std::to_string(epoch) + ", and its data in epoch " +
                          std::to_string(sequence_.epoch()));
  }
  epoch_ = epoch;
  resumes_at_end_ = epoch < sequence_.epoch();
  taken_ = 0;
  passes_done_ = 0;
  leave_batch();
}

}  // namespace kolo::extras
