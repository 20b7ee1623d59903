#include "extras/data/epoch_order.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "kolo/error.hpp"

namespace kolo::extras {
namespace {

class Random {
 public:
  Random(std::uint64_t seed, std::int64_t epoch) : state_(seed) {
    std::uint64_t mixed = next_random(state_) ^ static_cast<std::uint64_t>(epoch);
    state_ = next_random(mixed);
  }

  /// A uniformly distributed number below `bound`, which is 2 or more.
  std::size_t below(std::size_t bound) {
    const int surplus_bits = std::countl_zero(bound - 1);
    std::uint64_t drawn = 0;
    do {
      drawn = next_random(state_) >> surplus_bits;
    } while (drawn >= bound);
    return drawn;
  }

  /// A number in [0, 1), a multiple of 2^-53.
  double fraction() { return static_cast<double>(next_random(state_) >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

std::vector<std::size_t> indices(std::size_t count) {
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

/// 0 … count-1, shuffled (Fisher and Yates).
std::vector<std::size_t> shuffled_indices(std::size_t count, Random& random) {
  std::vector<std::size_t> all = indices(count);
  for (std::size_t i = count; i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
  return all;
}

/// Stable sort by length, longest first.
void sort_by_length(std::span<std::size_t> samples, const std::vector<std::size_t>& lengths) {
  std::ranges::stable_sort(samples, std::ranges::greater(),
                           [&](std::size_t sample) { return lengths[sample]; });
}

template <class Value>
std::string fingerprint(const std::vector<Value>& values) {
  std::uint64_t hash = values.size();
  for (const Value value : values) {
    hash ^= std::bit_cast<std::uint64_t>(value);
    hash = next_random(hash);
  }
  std::array<char, 16> digits{};
  constexpr int kHexadecimal = 16;
  const auto end = std::to_chars(digits.begin(), digits.end(), hash, kHexadecimal).ptr;
  return {digits.begin(), end};
}

std::vector<double> cumulative(const std::vector<double>& weights) {
  std::vector<double> sums(weights.size());
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  return sums;
}

/// Sorts by length only within windows of the shuffled order, so that groups differ between epochs.
/// A window is a quarter of a small data set, or a few dozen steps of a large one.
std::vector<std::size_t> shuffled_groups(const std::vector<std::size_t>& lengths,
                                         std::size_t step_samples, Random& random) {
  constexpr std::size_t kMaxSteps = 50;
  const std::size_t steps = lengths.size() / step_samples;
  const std::size_t window = std::clamp<std::size_t>(steps / 4, 1, kMaxSteps) * step_samples;
  std::vector<std::size_t> all = shuffled_indices(lengths.size(), random);
  const auto at = [&](std::size_t place) {
    return all.begin() + static_cast<std::ptrdiff_t>(std::min(place, all.size()));
  };
  for (std::size_t begin = 0; begin < all.size(); begin += window) {
    sort_by_length(std::span(at(begin), at(begin + window)), lengths);
  }
  std::vector<std::size_t> order;
  order.reserve(all.size());
  for (const std::size_t step : shuffled_indices(steps, random)) {
    order.insert(order.end(), at(step * step_samples), at((step + 1) * step_samples));
  }
  order.insert(order.end(), at(steps * step_samples), all.end());
  return order;
}

}  // namespace

EpochOrder by_index(std::size_t samples) {
  return {"by index", samples, [samples](std::uint64_t, std::int64_t) { return indices(samples); }};
}

EpochOrder shuffled(std::size_t samples) {
  return {"shuffled", samples, [samples](std::uint64_t seed, std::int64_t epoch) {
            Random random(seed, epoch);
            return shuffled_indices(samples, random);
          }};
}

std::string problem_with_weights(const std::vector<double>& weights) {
  const auto bad = std::ranges::find_if(weights, [](double weight) { return !(weight >= 0.0); });
  if (bad != weights.end()) {
    return "the weight of sample " + std::to_string(bad - weights.begin()) + " is " +
           std::to_string(*bad) + ". Give weights of 0 or more";
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (sum > 0.0 && std::isfinite(sum)) return {};
  return "the weights of " + std::to_string(weights.size()) + " samples add up to " +
         std::to_string(sum) + ". Give weights with a finite, positive sum";
}

EpochOrder weighted(const std::vector<double>& weights, std::size_t samples) {
  const std::string problem = problem_with_weights(weights);
  if (!problem.empty()) throw InvalidArgument("DistributedSampler::weighted: " + problem + ".");
  const auto draw = [sums = cumulative(weights), samples](std::uint64_t seed, std::int64_t epoch) {
    Random random(seed, epoch);
    // The product may round up to the sum itself: then the last sample with a weight is drawn.
    const auto last = std::ranges::lower_bound(sums, sums.back());
    std::vector<std::size_t> drawn(samples);
    for (std::size_t& sample : drawn) {
      const auto place = std::ranges::upper_bound(sums, random.fraction() * sums.back());
      sample = static_cast<std::size_t>(std::min(place, last) - sums.begin());
    }
    return drawn;
  };
  return {"weighted " + fingerprint(weights), samples, draw};
}

EpochOrder grouped(const std::vector<std::size_t>& lengths, std::size_t step_samples,
                   bool shuffle) {
  if (step_samples == 0) {
    throw InvalidArgument(
        "DistributedSampler::grouped: step_samples is 0. Give the number of samples that all ranks "
        "together take in a step.");
  }
  const auto group = [=](std::uint64_t seed, std::int64_t epoch) {
    if (shuffle) {
      Random random(seed, epoch);
      return shuffled_groups(lengths, step_samples, random);
    }
    std::vector<std::size_t> all = indices(lengths.size());
    sort_by_length(all, lengths);
    return all;
  };
  const std::string name =
      (shuffle ? "grouped by " + std::to_string(step_samples) : "by length") + " ";
  return {name + fingerprint(lengths), lengths.size(), group};
}

}  // namespace kolo::extras
