#pragma once

#include <memory>
#include <optional>

#include "comm/world.hpp"
#include "kolo/config.hpp"

namespace kolo::comm {

/// Makes the world of the program's communicator if one is given, by its Fortran handle; otherwise
/// the world in which this process was started: MPI's, or a single rank if MPI is not used. Throws
/// InvalidArgument for a communicator that cannot be a world, and for a world of one rank if a
/// launcher started several processes.
std::shared_ptr<World> make_world(const Config& config,
                                  std::optional<int> communicator = std::nullopt);

}  // namespace kolo::comm
