#pragma once

#include <string>
#include <vector>

#include "kolo/collectives.hpp"

/// Byte strings of any length, of which only their owner knows how long they are. Collective and
/// blocking; errors as for kolo/collectives.hpp. kolo/json_objects.hpp has the same for JSON.
namespace kolo {

/// Returns the bytes of the world rank `root` on all ranks; what the others give is ignored. Two
/// operations, named after `options.name`.
std::string broadcast_object(std::string bytes, int root, const OperationOptions& options = {});

/// Returns the bytes of all ranks, in the order of ranks; of a rank that has joined an empty
/// string.
std::vector<std::string> allgather_object(const std::string& bytes,
                                          const OperationOptions& options = {});

}  // namespace kolo
