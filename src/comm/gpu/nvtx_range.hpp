#pragma once

#include <memory>
#include <string>

namespace kolo::comm {

/// Opens a range of the domain "kolo" in profilers' timelines, until its last owner releases it, on
/// any thread. Null without a profiler.
std::shared_ptr<void> begin_nvtx_range(const std::string& name);

}  // namespace kolo::comm
