#pragma once

#include <memory>

#include "comm/world.hpp"
#include "kolo/config.hpp"

namespace kolo::comm {

/// The world in which this process was started: MPI's where there is one, otherwise a single rank.
std::shared_ptr<World> make_world(const Config& config);

}  // namespace kolo::comm
