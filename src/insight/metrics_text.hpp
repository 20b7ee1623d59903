#pragma once

#include <string>

#include "kolo/metrics.hpp"

namespace kolo::insight {

/// The metrics of a rank in Prometheus' text format. docs/insight.md lists the names.
std::string to_prometheus(const Metrics& metrics, int rank);

}  // namespace kolo::insight
