#pragma once

#include <memory>

#include "comm/world.hpp"
#include "kolo/config.hpp"

namespace kolo::comm {

/// The world this process was started in: MPI's where there is an MPI to join, else one rank.
std::shared_ptr<World> make_world(const Config& config);

}  // namespace kolo::comm
