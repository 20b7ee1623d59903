#pragma once

#include <memory>

#include "kolo/collectives.hpp"
#include "programs/memory.hpp"
#include "programs/program.hpp"

namespace kolo::programs {

/// Submits this rank's `operation` on `set`. `owner` is passed along as the owner of its memory.
Handle submit(const Operation& operation, OperationMemory& memory, ProcessSet& set,
              std::shared_ptr<void> owner);

}  // namespace kolo::programs
