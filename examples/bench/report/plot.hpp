#pragma once

#include <string>

#include "bench/report/report.hpp"

namespace bench {

/// An SVG plot of median time over bytes, both on logarithmic scales, with one line per case.
std::string to_svg(const Report& report);

}  // namespace bench
