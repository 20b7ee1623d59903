#pragma once

#include "kolo/communicator.hpp"
#include "kolo/config.hpp"
#include "kolo/task.hpp"

namespace kolo::runtime {

/// Compares the knobs of all ranks. Collective. Throws InvalidArgument on every rank alike, naming
/// the first knob that differs, the ranks and both values; that of the log level may differ.
/// Both arguments outlive the Task.
Task agree_on_config(Communicator& communicator, const Config& config);

}  // namespace kolo::runtime
