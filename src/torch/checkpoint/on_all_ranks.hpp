#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kolo/collectives.hpp"

namespace kolo::tensors {

/// Runs `work` on every rank of the set and returns what it returned there, in the order of ranks.
/// Collective and blocking, one operation, which `options` name. Where `work` throws on any rank,
/// or a rank has joined, the first one's error is thrown on all: InvalidArgument, or BackendError
/// for everything else; its text begins with `what` and the rank, and can be printed.
std::vector<std::string> on_all_ranks(const OperationOptions& options, const std::string& what,
                                      const std::function<std::string()>& work);

}  // namespace kolo::tensors
