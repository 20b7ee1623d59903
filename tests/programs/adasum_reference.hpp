#pragma once

#include <vector>

namespace kolo::programs {

/// Adasum of vectors of equal length, in float64: neighbours are folded until a power of two is
/// left, then pairs are combined, then pairs of these.
std::vector<double> reference_adasum(std::vector<std::vector<double>> vectors);

}  // namespace kolo::programs
