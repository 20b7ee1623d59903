#pragma once

#include <memory>
#include <optional>

#include "comm/world.hpp"
#include "kolo/config.hpp"

namespace kolo::comm {

/// The world over the program's communicator, given by its Fortran handle, if there is one;
/// otherwise the world in which this process was started: MPI's, if MPI is used, or a single rank.
/// Throws InvalidArgument for a communicator that cannot be a world, and for a world of one rank if
/// a launcher started several processes.
std::shared_ptr<World> make_world(const Config& config,
                                  std::optional<int> communicator = std::nullopt);

}  // namespace kolo::comm
