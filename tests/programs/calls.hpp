#pragma once

#include <memory>

#include "kolo/collectives.hpp"
#include "programs/memory.hpp"
#include "programs/program.hpp"

namespace kolo::programs {

/// Submits `operation`, as this rank has it, on `set`. `owner` is handed over as the memory's.
Handle submit(const Operation& operation, OperationMemory& memory, ProcessSet& set,
              std::shared_ptr<void> owner);

}  // namespace kolo::programs
