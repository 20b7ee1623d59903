#pragma once

#include <string>
#include <vector>

#include "kolo/collectives.hpp"

#pragma GCC visibility push(default)
/// Broadcast and all-gather of byte strings whose lengths differ between ranks. All functions are
/// collective and block; errors are those of kolo/collectives.hpp. kolo/json_objects.hpp does the
/// same for JSON.
namespace kolo {

/// Sends bytes from one rank to all others. Runs two operations, named after `options.name`.
///
/// @param bytes what to send; ignored on all ranks but the root
/// @param root world rank that supplies the bytes, the same on all ranks
/// @return the root's bytes
std::string broadcast_object(std::string bytes, int root, const OperationOptions& options = {});

/// Gathers the bytes of all ranks.
///
/// @param bytes this rank's, of any length
/// @return the bytes of all ranks, in rank order; empty for a rank that has joined
std::vector<std::string> allgather_object(const std::string& bytes,
                                          const OperationOptions& options = {});

}  // namespace kolo
#pragma GCC visibility pop
