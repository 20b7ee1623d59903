#pragma once

#include <vector>

namespace examples {

/// The middle value, or the mean of the two middle ones. `values` is not empty.
double median(std::vector<double> values);

/// An interval that contains the median of the distribution from which `values` were drawn.
struct Interval {
  double low;
  double high;
};

/// The narrowest interval between two order statistics, equally far from both ends, that contains
/// the median with a probability of at least 95 %, for any distribution: a value is below the
/// median with probability 1/2, so the number of such values is binomial. Fewer than six values
/// cannot reach 95 %; the interval is then their whole range. `values` is not empty.
Interval median_interval(std::vector<double> values);

}  // namespace examples
