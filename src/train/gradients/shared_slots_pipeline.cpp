#include <algorithm>
#include <utility>

#include "train/gradients/bucket_pipeline.hpp"

namespace kolo::train {
namespace {

class SharedSlotsPipeline final : public BucketPipeline {
 public:
  SharedSlotsPipeline(StepReductions& reductions, Arrivals& arrivals, int passes, bool by_pass,
                      bool waits)
      : reductions_(reductions),
        arrivals_(arrivals),
        slots_(reductions.buckets().plan().slots),
        rounds_(by_pass ? static_cast<std::size_t>(passes) : 1),
        passes_per_round_(by_pass ? 1 : passes),
        waits_(waits) {}

  bool is_writable(std::size_t bucket) override;
  void bucket_arrived(std::size_t bucket) override;
  void pass_ended() override;
  void submit_rest() override { submit_rounds(rounds_); }
  std::exception_ptr restart() override;

 private:
  void submit_rounds(std::size_t rounds);
  bool can_submit_next() const;
  std::exception_ptr submit_next();
  std::exception_ptr complete(std::size_t bucket);

  StepReductions& reductions_;
  Arrivals& arrivals_;
  const std::size_t slots_;
  const std::size_t rounds_;  // in each, all buckets are submitted
  const int passes_per_round_;
  const bool waits_;
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
  while (can_submit_next()) {
    if (const std::exception_ptr error = submit_next()) {
      reductions_.step().phases.fail();
      std::rethrow_exception(error);
    }
  }
}

bool SharedSlotsPipeline::can_submit_next() const {
  if (next_ == reductions_.size() * rounds_ || !arrivals_.is_complete(next_ % reductions_.size()))
    return false;
  const std::size_t slot = next_ % reductions_.size() % slots_;
  for (std::size_t i = slot; !waits_ && i < reductions_.size(); i += slots_) {
    if (reductions_.is_submitted(i) && !reductions_.is_complete(i) && !reductions_.is_ready(i)) {
      return false;
    }
  }
  return true;
}

/// Errors of earlier buckets are those of the step, which restart() returns.
void SharedSlotsPipeline::pass_ended() {
  if (!waits_) return;
  const int complete = reductions_.step().backward.passes() / passes_per_round_;
  submit_rounds(std::min(static_cast<std::size_t>(complete), rounds_));
}

void SharedSlotsPipeline::submit_rounds(std::size_t rounds) {
  while (next_ < reductions_.size() * rounds) submit_next();
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
  arrivals_.take(bucket);
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
  return std::exchange(first_error_, nullptr);
}

}  // namespace

std::unique_ptr<BucketPipeline> make_shared_slots_pipeline(StepReductions& reductions,
                                                           Arrivals& arrivals, int passes,
                                                           bool by_pass, bool waits) {
  return std::make_unique<SharedSlotsPipeline>(reductions, arrivals, passes, by_pass, waits);
}

}  // namespace kolo::train
