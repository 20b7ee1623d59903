#pragma once

#include <memory>
#include <optional>

#include "comm/world.hpp"
#include "kolo/config.hpp"

namespace kolo::comm {

/// The world over a communicator of the program's, by its Fortran handle, if it gives one;
/// otherwise the world in which this process was started: MPI's where there is one, or a single
/// rank. Throws InvalidArgument for a communicator that cannot be a world, and for a world of one
/// where a launcher started several processes.
std::shared_ptr<World> make_world(const Config& config,
                                  std::optional<int> communicator = std::nullopt);

}  // namespace kolo::comm
