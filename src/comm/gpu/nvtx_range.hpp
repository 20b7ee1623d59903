#pragma once

#include <memory>
#include <string>

namespace kolo::comm {

/// A range of the domain "kolo" in profilers' timelines, until its last owner lets go of it, on
/// whichever thread. Null where no profiler listens.
std::shared_ptr<void> begin_nvtx_range(const std::string& name);

}  // namespace kolo::comm
