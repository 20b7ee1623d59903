#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "train/buckets/bucket_plan.hpp"

namespace kolo::train {

/// Counts the gradients that have arrived since the last step and those that buckets wait for.
class Arrivals {
 public:
  /// A bucket is complete once each of its parameters has received `passes` gradients; with
  /// `by_pass`, one each, and `take` makes it wait for the next pass.
  Arrivals(const std::vector<Bucket>& buckets, std::size_t parameters, int passes, bool by_pass);

  /// Counts a gradient. Returns whether its bucket is complete.
  bool add(std::size_t parameter);
  /// The bucket has been submitted with the gradients that had arrived. The `present` ones include
  /// those that do not count, which have arrived under no_sync().
  void take(std::size_t bucket, const std::function<bool(std::size_t)>& present);
  /// The parameter's gradient was dropped before its bucket was submitted.
  void drop(std::size_t parameter);
  /// Begins a new step.
  void restart();

  std::size_t bucket_of(std::size_t parameter) const { return bucket_of_[parameter]; }
  int count(std::size_t parameter) const { return counts_[parameter]; }
  /// Whether a gradient has arrived that counts, or that its bucket was submitted with.
  bool has(std::size_t parameter) const { return count(parameter) > 0 || is_taken_[parameter]; }
  bool any() const;
  bool is_complete(std::size_t bucket) const { return missing_[bucket] <= 0; }
  /// Whether the parameter has a gradient that has not been submitted.
  bool is_pending(std::size_t parameter) const { return is_pending_[parameter]; }

 private:
  int expected(std::size_t bucket) const;

  std::vector<std::vector<std::size_t>> members_;  // of each bucket
  std::vector<std::size_t> bucket_of_;             // of each parameter
  int passes_;
  bool by_pass_;
  std::vector<int> missing_;      // of each bucket: gradients that it waits for
  std::vector<int> counts_;       // of each parameter
  std::vector<bool> is_taken_;    // of each parameter: with its bucket
  std::vector<bool> is_pending_;  // of each parameter
};

}  // namespace kolo::train
