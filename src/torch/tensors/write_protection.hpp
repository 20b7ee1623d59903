#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
#include "kolo/shared_buffer.hpp"

/// Makes the pages of parameters that ranks share read-only for this process, except while it may
/// write: KOLO_PROTECT_PARAMETERS.
namespace kolo::tensors {

/// If the setting is on and there are several `sharers`, makes the pages of `parameters` in
/// `memory` read-only for the lifetime of the memory. A write to them prints the parameter's name,
/// then ends the process with SIGSEGV, as it would without Kolo.
void protect_writes(const SharedBuffer& memory,
                    const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                    const ProcessSet& sharers);

/// While it lives, this process may write to all parameters.
class [[nodiscard]] WritesAllowed {
 public:
  WritesAllowed();
  ~WritesAllowed();
  WritesAllowed(const WritesAllowed&) = delete;  // it counts once
  WritesAllowed& operator=(const WritesAllowed&) = delete;
};

}  // namespace kolo::tensors
