#include "train/gradients/bucket_pipeline.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kolo::train {
namespace {

class OwnMemoryPipeline final : public BucketPipeline {
 public:
  explicit OwnMemoryPipeline(StepReductions& reductions) : reductions_(reductions) {}

  bool is_writable(std::size_t) override { return true; }
  void bucket_arrived(std::size_t bucket) override { reductions_.submit(bucket); }
  void pass_ended() override {}
  void submit_rest() override {
    for (std::size_t i = 0; i < reductions_.size(); ++i) {
      if (!reductions_.is_submitted(i)) reductions_.submit(i);
    }
  }
  bool submit_without_wait() override {
    submit_rest();
    return false;
  }
  std::exception_ptr restart() override { return nullptr; }

 private:
  StepReductions& reductions_;
};

}  // namespace

std::unique_ptr<BucketPipeline> make_own_memory_pipeline(StepReductions& reductions) {
  return std::make_unique<OwnMemoryPipeline>(reductions);
}

namespace {

class SharedSlotsPipeline final : public BucketPipeline {
 public:
  SharedSlotsPipeline(StepReductions& reductions, Arrivals& arrivals, int passes, bool by_pass,
                      bool waits)
      : reductions_(reductions),
        arrivals_(arrivals),
        slots_(reductions.buckets().plan().slots),
        rounds_(by_pass ? static_cast<std::size_t>(passes) : 1),
        passes_(passes),
        by_pass_(by_pass),
        patience_(waits ? kPatience : Duration::zero()) {}

  bool is_writable(std::size_t bucket) override;
  void bucket_arrived(std::size_t bucket) override;
  void pass_ended() override;
  void submit_rest() override;
  bool submit_without_wait() override;
  std::exception_ptr restart() override;

 private:
  using Duration = std::chrono::steady_clock::duration;
  static constexpr Duration kPatience = std::chrono::milliseconds(100);

  bool has_next() const { return next_ < reductions_.size() * rounds_; }
  bool is_slot_free(Duration patience);
  std::exception_ptr submit_next();
  std::exception_ptr complete(std::size_t bucket);

  StepReductions& reductions_;
  Arrivals& arrivals_;
  const std::size_t slots_;
  const std::size_t rounds_;  // in each, all buckets are submitted
  const int passes_;
  const bool by_pass_;
  const Duration patience_;
  Duration waited_{};               // in this pass
  std::size_t next_ = 0;            // next submission, counted over all rounds of this step
  std::exception_ptr first_error_;  // of buckets that were completed here in this step
};

bool SharedSlotsPipeline::is_writable(std::size_t bucket) {
  if (rounds_ > 1 || bucket < next_ || bucket >= next_ + slots_) return false;
  if (bucket < slots_) return true;
  const std::size_t previous = bucket - slots_;
  if (!reductions_.is_complete(previous) && reductions_.is_ready(previous)) {
    if (const std::exception_ptr error = complete(previous)) {
      reductions_.step().phases.fail();
      std::rethrow_exception(error);
    }
  }
  return reductions_.is_complete(previous);
}

void SharedSlotsPipeline::bucket_arrived(std::size_t) {
  while (has_next() && arrivals_.is_complete(next_ % reductions_.size()) &&
         is_slot_free(patience_)) {
    if (const std::exception_ptr error = submit_next()) {
      reductions_.step().phases.fail();
      std::rethrow_exception(error);
    }
  }
}

/// Whether the slot's previous bucket has completed, perhaps after a wait.
bool SharedSlotsPipeline::is_slot_free(Duration patience) {
  for (std::size_t i = next_ % reductions_.size() % slots_; i < reductions_.size(); i += slots_) {
    if (!reductions_.is_submitted(i) || reductions_.is_complete(i)) continue;
    const auto start = std::chrono::steady_clock::now();
    const bool is_ready = reductions_.wait_for(i, std::max(patience - waited_, Duration::zero()));
    waited_ += std::chrono::steady_clock::now() - start;
    if (!is_ready) return false;
  }
  return true;
}

/// Errors of earlier buckets are those of the step, which restart() returns.
void SharedSlotsPipeline::pass_ended() {
  waited_ = {};
  const int passes = std::min(reductions_.step().backward.passes(), passes_);
  if (by_pass_) {
    while (next_ < reductions_.size() * static_cast<std::size_t>(passes)) submit_next();
  } else if (patience_ > Duration::zero() && passes == passes_) {
    while (has_next() && is_slot_free(patience_)) submit_next();
  }
}

void SharedSlotsPipeline::submit_rest() {
  while (has_next()) submit_next();
}

bool SharedSlotsPipeline::submit_without_wait() {
  while (has_next() && is_slot_free(Duration::zero())) submit_next();
  return has_next();
}

/// Completes the slot's previous bucket and returns its error, if any, instead of throwing it: all
/// ranks must submit all buckets, even if one fails. Then submits the next bucket.
std::exception_ptr SharedSlotsPipeline::submit_next() {
  const std::size_t bucket = next_ % reductions_.size();
  std::exception_ptr error;
  for (std::size_t i = bucket % slots_; i < reductions_.size(); i += slots_) {
    if (!reductions_.is_submitted(i)) continue;
    if (const std::exception_ptr own = complete(i)) error = own;
  }
  reductions_.submit(bucket);
  ++next_;
  arrivals_.take(bucket, [&](std::size_t parameter) {
    return reductions_.buckets().parameters()[parameter].grad().defined();
  });
  return error;
}

std::exception_ptr SharedSlotsPipeline::complete(std::size_t bucket) {
  try {
    reductions_.complete(bucket);
    return nullptr;
  } catch (...) {
    if (!first_error_) first_error_ = std::current_exception();
    return std::current_exception();
  }
}

std::exception_ptr SharedSlotsPipeline::restart() {
  next_ = 0;
  waited_ = {};
  return std::exchange(first_error_, nullptr);
}

}  // namespace

std::unique_ptr<BucketPipeline> make_shared_slots_pipeline(StepReductions& reductions,
                                                           Arrivals& arrivals, int passes,
                                                           bool by_pass, bool waits) {
  return std::make_unique<SharedSlotsPipeline>(reductions, arrivals, passes, by_pass, waits);
}

}  // namespace kolo::train
