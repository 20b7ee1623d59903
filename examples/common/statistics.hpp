#pragma once

#include <vector>

namespace examples {

/// The middle value, or the mean of the two middle ones. `values` is not empty.
double median(std::vector<double> values);

/// An interval that holds the median of what `values` were drawn from.
struct Interval {
  double low;
  double high;
};

/// The narrowest pair of values, equally far from both ends, that holds the median with a
/// probability of at least 95 %, whatever the distribution: a value lies below the median with
/// probability 1/2, so the number of those that do is binomial. Fewer than six values cannot say
/// that much: then the extremes. `values` is not empty.
Interval median_interval(std::vector<double> values);

}  // namespace examples
