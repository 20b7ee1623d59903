#pragma once

#include <string>

#include "bench/report/report.hpp"

namespace bench {

/// Median time by bytes, both in logarithmic scale, a line a case: an SVG document.
std::string to_svg(const Report& report);

}  // namespace bench
