#pragma once

#include <memory>
#include <optional>

#include "comm/rendezvous_world.hpp"
#include "comm/world.hpp"
#include "kolo/config.hpp"

namespace kolo::comm {

/// Makes the world of the program's communicator if one is given, by its Fortran handle, or of its
/// rendezvous; otherwise the world in which this process was started: that of KOLO_RENDEZVOUS,
/// MPI's, or a single rank if MPI is not used. Throws InvalidArgument for what cannot be a world,
/// and for a world of one rank if a launcher started several processes.
std::shared_ptr<World> make_world(const Config& config,
                                  std::optional<int> communicator = std::nullopt,
                                  const std::optional<Rendezvous>& rendezvous = std::nullopt);

}  // namespace kolo::comm
