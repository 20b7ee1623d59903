#include "common/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace examples {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

Interval median_interval(std::vector<double> values) {
  constexpr double kTail = 0.025;
  std::ranges::sort(values);
  const std::size_t n = values.size();
  // `outside` is the probability that the median is below values[cut], the sum of the binomial
  // probabilities of 0 … cut successes in n; cut grows while the next value is still unlikely.
  double probability = std::pow(0.5, static_cast<double>(n));
  double outside = probability;
  std::size_t cut = 0;
  while (cut + 1 < n - cut - 1) {
    probability *= static_cast<double>(n - cut) / static_cast<double>(cut + 1);
    if (outside + probability > kTail) break;
    outside += probability;
    ++cut;
  }
  return {values[cut], values[n - 1 - cut]};
}

}  // namespace examples
