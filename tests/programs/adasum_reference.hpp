#pragma once

#include <vector>

namespace kolo::programs {

/// Adasum of vectors of one length, in float64: neighbours are folded until a power of two is left,
/// then pairs are combined, and their pairs.
std::vector<double> reference_adasum(std::vector<std::vector<double>> vectors);

}  // namespace kolo::programs
