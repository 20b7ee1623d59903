#pragma once

#include <string_view>

#include "gpt/options.hpp"
#include "kolo/torch/distributed_optimizer.hpp"

namespace gpt {

/// Loads what `options.load` names. Returns the step to resume with: 0 after a file, from which
/// only weights are loaded. Collective. Throws kolo::Error on all ranks, also for a checkpoint of a
/// run with other settings, or of a finished one.
int load(kolo::DistributedOptimizer& optimizer, const Options& options, std::string_view text);

/// Writes a checkpoint if one is due after `done` steps. Collective; kolo::Error on all ranks.
void save_if_due(kolo::DistributedOptimizer& optimizer, const Options& options,
                 std::string_view text, int done);

}  // namespace gpt
