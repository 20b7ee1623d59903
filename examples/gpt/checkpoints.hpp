#pragma once

#include <string_view>

#include "gpt/options.hpp"
#include "kolo/distributed_optimizer.hpp"

namespace gpt {

/// Loads what `options.load` names. Returns the step to go on with: 0 after a file, of which the
/// weights are taken. Collective. Throws kolo::Error on all ranks, also for a checkpoint of a run
/// that would have gone on in another way, or that was over.
int load(kolo::DistributedOptimizer& optimizer, const Options& options, std::string_view text);

/// Writes a checkpoint where one is due after `done` steps. Collective; kolo::Error on all ranks.
void save_if_due(kolo::DistributedOptimizer& optimizer, const Options& options,
                 std::string_view text, int done);

}  // namespace gpt
