#include "extras/accelerator/batch_plan.hpp"

#include <algorithm>

namespace kolo::extras {
namespace {

/// The indices of one rank's samples in a batch.
std::vector<std::size_t> places_of(std::size_t rank, std::size_t samples, std::size_t ranks,
                                   Distribution distribution) {
  std::vector<std::size_t> places;
  if (distribution == Distribution::RoundRobin) {
    for (std::size_t place = rank; place < samples; place += ranks) places.push_back(place);
    return places;
  }
  const std::size_t end = samples * (rank + 1) / ranks;
  for (std::size_t place = samples * rank / ranks; place < end; ++place) places.push_back(place);
  return places;
}

}  // namespace

std::vector<std::size_t> places_by_rank(std::size_t samples, std::size_t ranks,
                                        Distribution distribution) {
  std::vector<std::size_t> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::vector<std::size_t> own = places_of(rank, samples, ranks, distribution);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::optional<std::vector<std::size_t>> BatchShares::next(SampleSequence& sequence) {
  const std::optional<std::vector<std::size_t>> batch = sequence.next(batch_size_);
  if (!batch || (drop_last_ && batch->size() < batch_size_)) return std::nullopt;
  std::vector<std::size_t> own = places_of(rank_, batch->size(), ranks_, distribution_);
  for (std::size_t& sample : own) sample = (*batch)[sample];
  BatchShare share{
      .all = batch->size(), .own = own.size(), .given = own.size(), .distribution = distribution_};
  if (own.empty()) {  // loaders do not support empty batches
    own.push_back(batch->front());
    share.given = 1;
  }
  ahead_.push_back(share);
  return own;
}

BatchShare BatchShares::take() {
  const BatchShare share = ahead_.front();
  ahead_.pop_front();
  return share;
}

namespace {

/// The problem with per-sample values, named `what`, if values are given.
std::string problem_with_count(const char* what, std::size_t values, std::size_t samples) {
  if (values == 0 || values == samples) return {};
  return std::string(what) + " has " + std::to_string(values) + " values, and the data set " +
         std::to_string(samples) + " samples. Give one for each";
}

std::string problem_with_order(std::size_t samples, const BatchOptions& options) {
  if (!options.weights.empty() && !options.lengths.empty()) {
    return "weights and lengths are given, which order samples in different ways. Give one of them";
  }
  if (!options.weights.empty() && !options.shuffle.value_or(true)) {
    return "weights are given, by which samples are drawn at random, and shuffle is false. Leave "
           "one of them out";
  }
  std::string problem = problem_with_count("weights", options.weights.size(), samples);
  if (problem.empty()) problem = problem_with_count("lengths", options.lengths.size(), samples);
  if (problem.empty() && !options.weights.empty()) problem = problem_with_weights(options.weights);
  return problem;
}

/// In training, every rank needs samples in every full batch, or it would compute for nothing.
/// Evaluation sets are as small as they are.
std::string problem_with(const std::optional<std::size_t>& samples, const BatchOptions& options,
                         Purpose purpose, const ProcessSet& set) {
  const bool is_training = purpose == Purpose::Training;
  const std::size_t least = is_training ? static_cast<std::size_t>(set.size()) : 1;
  const std::string sharers = " the " + std::to_string(set.size()) + " ranks that share a batch";
  if (!samples) return "the data set has no size. Give one of datasets::Dataset";
  if (options.batch_size < least) {
    return "batch_size is " + std::to_string(options.batch_size) +
           (is_training ? ", less than" + sharers : "") +
           ". It counts the samples of all ranks: give more";
  }
  const std::string count = "the data set has " + std::to_string(*samples) + " samples";
  if (options.drop_last && *samples < options.batch_size) {
    return count + ", and drop_last leaves no batch of them";
  }
  if (*samples < least) return count + (is_training ? ", fewer than" + sharers : "");
  return problem_with_order(*samples, options);
}

EpochOrder order_of(std::size_t samples, const BatchOptions& options, Purpose purpose) {
  const bool is_shuffled = options.shuffle.value_or(purpose == Purpose::Training);
  if (!options.weights.empty()) return weighted(options.weights, samples);
  if (!options.lengths.empty()) return grouped(options.lengths, options.batch_size, is_shuffled);
  return is_shuffled ? shuffled(samples) : by_index(samples);
}

}  // namespace

BatchPlan plan_batches(const std::optional<std::size_t>& samples, const BatchOptions& options,
                       Purpose purpose, const ProcessSet& set) {
  const Distribution distribution =
      options.lengths.empty() ? Distribution::Contiguous : Distribution::RoundRobin;
  // Clamped, since products of larger sizes could overflow.
  const std::size_t batch_size = std::min(options.batch_size, samples.value_or(0));
  BatchPlan plan{.shares = {batch_size, options.drop_last, distribution, set.rank(), set.size()},
                 .problem = problem_with(samples, options, purpose, set),
                 .values = {{"the number of samples", std::to_string(samples.value_or(0))},
                            {"batch_size", std::to_string(options.batch_size)},
                            {"seed", std::to_string(options.seed)},
                            {"drop_last", options.drop_last ? "true" : "false"}}};
  if (plan.problem.empty()) {
    plan.order = order_of(*samples, options, purpose);
    plan.values.push_back({"the order of samples", plan.order.name});
  }
  return plan;
}

}  // namespace kolo::extras
